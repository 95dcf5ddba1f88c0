"""`cutegemm ladder`: its text and JSON with and without a GPU, its picture, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutegemm import cli
from cutegemm.cli import ladder
from cutegemm.device import DeviceSpec, lookup
from cutegemm.errors import CuteGemmError
from cutegemm.ladder import plot, predict, profile, profiled
from cutegemm.ladder.diagnose import Metrics
from cutegemm.ladder.measure import Measurement, VectorAdd, finished
from cutegemm.ladder.rungs import Rung

H200 = lookup("H200")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["ladder", *argv])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles nothing, as where NVRTC is missing."""

    def missing(spec: Any) -> None:
        raise CuteGemmError("NVRTC, which compiles these kernels, is missing: pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(predict, "build", missing)


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose times are made up; level5 comes out wrong."""

    def climb(rungs: list[Rung], gpu: DeviceSpec) -> Iterator[Measurement]:
        for i, rung in enumerate(rungs):
            if (refused := rung.refused(gpu)) is not None:
                yield Measurement(rung.level.name, rung.dtype, rung.level.unit, refused=refused.reason)
                continue
            empty = Measurement(
                rung.level.name, rung.dtype, rung.level.unit, expected=rung.level.share, intensity=rung.intensity
            )
            error = 3.0 if rung.level.name == "level5" else 0.5
            yield finished(empty, rung.n, 100000.0 / (i + 1), error, gpu, 100000.0 / i if i else None)

    monkeypatch.setattr(ladder, "climb", climb)
    monkeypatch.setattr(ladder, "vector_add", lambda gpu: VectorAdd(12 * 2**28, 757.0, 4255.0, 0.915))
    monkeypatch.setattr(ladder, "_usable", lambda: True)
    monkeypatch.setattr(ladder.device, "current", lambda: H200)


def test_a_prediction_is_printed_for_a_named_gpu(capsys) -> None:
    code, out, _ = run(capsys, "--levels", "level3", "--arch", "A100", "--size", "2048")
    (row,) = [line for line in out.splitlines() if line.startswith("level3")]
    assert code == 0 and "A100 (sm_80), predicted: M = N = K = 2048" in out and "10-20% fp32" in row
    assert re.search(r" 2\.15 +8\.00 +16 +\d+ +8192 +\d x, +\d+%  \w+", row)


def test_predictions_as_json(capsys, uncompiled) -> None:
    code, out, _ = run(capsys, "--json", "--gpu", "H200", "--levels", "level1,level9")
    report = json.loads(out)
    assert code == 0 and not report["measured"] and not report["assumed"] and report["gpu"] == "H200"
    assert [row["level"] for row in report["rows"]] == ["level1", "level9"]
    assert report["rows"][0]["loaded_bytes"] == 2 * 4096**3 * 4 and report["rows"][0]["intensity"] == 0.25
    assert "NVRTC" in report["rows"][0]["unread"]


def test_what_is_missing_is_said_once_and_the_gpu_assumed(capsys, monkeypatch, uncompiled) -> None:
    monkeypatch.setattr(ladder, "_usable", lambda: False)
    code, out, _ = run(capsys, "--dtype", "fp32")
    assert code == 0 and out.count("NVRTC, which compiles") == 1 and "H200 is assumed" in out
    assert "level7 serves fp16, bf16" in out


def test_a_measured_ladder_is_a_line_a_level(capsys, on_an_h200) -> None:
    code, out, _ = run(capsys, "--levels", "level1,level3,level5,level7", "--dtype", "fp32")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("level")}
    assert code == 1 and "vector add, fp32, 3.2 GB: 4255 GB/s, 92% of the memory's" in out  # level5 is wrong
    assert lines["level1"].split()[:6] == ["level1", "fp32", "100000.0", "1.37", "2.3%", "fp32"]
    assert "2.00x  yes    under the slope: mend the access" in lines["level3"] and "WRONG" in lines["level5"]
    assert "not run" in lines["level7"] and "fp16, bf16" in lines["level7"]


def test_a_measured_ladder_as_json(capsys, on_an_h200) -> None:
    code, out, _ = run(capsys, "--levels", "level1,level3", "--json")
    report = json.loads(out)
    assert code == 0 and report["measured"] and report["vector_add"]["gb_per_s"] == 4255
    assert [row["correct"] for row in report["rows"]] == [True, True] and report["rows"][1]["speedup"] == 2


def test_the_profilers_findings_are_a_table_and_reasons(capsys, monkeypatch, on_an_h200, uncompiled) -> None:
    counted = [Metrics(1e5, ld_bytes=343e9, sectors_per_request=2.5, l1_share=0.9, fma_share=0.05, dram_bytes=2e8)]
    monkeypatch.setattr(profile, "tool", lambda: "ncu")
    monkeypatch.setattr(profile, "profile", lambda rungs: (counted * len(rungs), ["dram_bytes (dram__bytes_read.sum)"]))
    code, out, _ = run(capsys, "--profile", "--levels", "level1")
    assert code == 0 and "level1: L1 and shared memory -> tiles in shared memory" in out and "read level3" in out
    assert "moved 343 GB, what its lanes ask for; the formula has 550" in out
    assert "ncu has no counter here for dram_bytes" in out
    code, out, _ = run(capsys, "--profile", "--levels", "level1", "--json")
    report = json.loads(out)
    assert report["rows"][0]["diagnosis"]["next"] == "level3" and report["not_counted"]


def test_the_profiler_is_refused_by_name(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(ladder, "_usable", lambda: False)
    monkeypatch.setenv("PATH", "")
    code, _, err = run(capsys, "--profile")
    assert code == 1 and "ncu" in err and "PATH" in err
    monkeypatch.setattr(profile, "tool", lambda: "ncu")
    code, _, err = run(capsys, "--profile")
    assert code == 1 and "needs a GPU" in err
    code, _, err = run(capsys, "--profile", "--arch", "H200")
    assert code == 1 and "takes no --arch" in err


def test_the_roofline_is_drawn(capsys, tmp_path: Path, uncompiled) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "roofline.svg"
    code, out, _ = run(capsys, "--arch", "H200", "--plot", str(path))
    drawn = path.read_text()
    assert code == 0 and f"roofline in {path}" in out
    for name in ("level1", "level9", "mma.sync: 645 TFLOP/s", "intensity, FLOP per byte"):
        assert f"<!-- {name}" in drawn
    for wrong, words in ((tmp_path / "r.txt", "ends in one of"), (tmp_path / "no" / "r.png", "there is no folder")):
        code, _, err = run(capsys, "--arch", "H200", "--plot", str(wrong))
        assert code == 1 and words in err


def test_a_missing_matplotlib_is_named_before_anything_runs(capsys, monkeypatch, tmp_path, on_an_h200) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run(capsys, "--plot", str(tmp_path / "r.png"))
    assert code == 1 and out == "" and "pip install 'cutegemm[plots]'" in err


def test_the_axis_holds_every_point() -> None:
    assert plot.axis([0.25, 85]) == (0.1, 1000.0)
    assert plot.axis([0.1, 1365]) == (0.05, 2730)


def test_the_profiled_program_takes_levels_and_dtypes(monkeypatch) -> None:
    import torch

    from cutegemm import api, contest

    made: list[tuple[Any, ...]] = []
    draw = contest.draw
    monkeypatch.setattr(contest, "draw", lambda case: draw(case, "cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: made.append(("start",)))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: made.append(("stop",)))

    def gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, kernel: str, **_: Any) -> None:
        made.append((kernel, a.dtype, tuple(out.shape)))

    monkeypatch.setattr(api, "gemm", gemm)
    assert profiled.main(["8", "level7:bf16"]) == 0
    call = ("hand:level7", torch.bfloat16, (8, 8))
    assert made == [call, ("start",), call, ("stop",)]
