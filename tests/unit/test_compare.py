"""`cutegemm compare` where no GPU is needed: contenders, the floor, the fp64 bound, the rounds, and what is printed."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cutegemm import cli, comparison, contest, device, gemm, plots
from cutegemm.comparison import Case, Comparison, Entry, entrants, floor, modelled, moved_bytes, split_names, timed
from cutegemm.contest import Bench, Judge, draw, set_count
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError, EpilogueError
from cutegemm.fusion import registry
from cutegemm.hand_kernels import LEVELS
from cutegemm.planner import FAMILIES, plan
from cutegemm.roofline import compulsory_bytes
from cutegemm.timing import Effort

H200 = device.lookup("H200")
NN = Case(512, 384, 256, layout="nn")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- contenders and the floor


def test_everything_contends_and_no_family_that_is_to_come() -> None:
    names = [entrant.name for entrant in entrants(NN, H200)]
    assert names == [*(f"hand:{level}" for level in LEVELS), *FAMILIES, "torch"]


def test_a_family_contends_with_its_best_plan_pinned() -> None:
    for entrant in entrants(NN, H200, ["sm90_wgmma", "sm80_multistage"]):
        best = plan(512, 384, 256, layout="nn", arch="H200", kernel=entrant.name)
        assert entrant.kernel == best.kernel and entrant.modelled_us == best.us
        assert plan(512, 384, 256, layout="nn", arch="H200", kernel=entrant.kernel).kernel == best.kernel


def test_refusals_are_listed_with_their_reason() -> None:
    refused = {e.name: e.refused for e in entrants(replace(NN, layout="nt"), H200) if e.refused is not None}
    assert set(refused) == {*(f"hand:{level}" for level in LEVELS), "small_m", "simt_f32"}
    assert "b is contiguous along K" in refused["hand:level5"] and refused["small_m"].startswith("m=512")
    fp32 = {e.name: e.refused for e in entrants(replace(NN, dtype="fp32"), H200)}
    assert fp32["hand:level5"] is None and fp32["hand:level6"] == "a and b are fp32: level6 serves fp16, bf16"


def test_names_are_levels_families_and_pins() -> None:
    assert split_names("level5, sm80_multistage:tile=128x128x32,stages=3,torch") == [
        "level5",
        "sm80_multistage:tile=128x128x32,stages=3",
        "torch",
    ]
    assert [e.name for e in entrants(NN, H200, ["level5", "hand:level5", "torch"])] == ["hand:level5", "torch"]
    assert len(entrants(NN, H200, ["hand"])) == len(LEVELS)
    with pytest.raises(ArgumentError, match="empty"):
        split_names("level5,,torch")
    with pytest.raises(ArgumentError, match="unknown family 'level99'"):
        entrants(NN, H200, ["level99"])
    assert [e.name for e in entrants(NN, H200, ["cutlass_cpp"])] == ["cutlass_cpp"]


def test_the_floor_is_the_longer_of_arithmetic_and_memory() -> None:
    large, small = floor(Case(8192, 8192, 8192), H200), floor(Case(1, 8192, 8192), H200)
    assert large.bound == "arithmetic" and large.us == pytest.approx(2e6 * 8192**3 / H200.peak_flops)
    assert small.bound == "memory" and small.us == pytest.approx(small.moved_bytes * 1e6 / H200.hbm_bytes_per_s)
    assert floor(Case(64, 64, 64, "fp32"), H200).peak == H200.fp32_flops


def test_what_has_to_be_moved() -> None:
    m, n, k = 512, 384, 256
    assert moved_bytes(NN.problem) == compulsory_bytes(m, n, k, 2)
    assert moved_bytes(replace(NN, epilogue="bias_add").problem) == compulsory_bytes(m, n, k, 2) + 2 * (m * n + n)
    assert moved_bytes(replace(NN, epilogue="swiglu").problem) == compulsory_bytes(m, n, k, 2) - m * n
    assert moved_bytes(replace(NN, epilogue="bias_gelu_aux").problem) == compulsory_bytes(m, n, k, 2) + 2 * (m * n + n)


def test_a_case_that_can_not_be() -> None:
    with pytest.raises(DTypeError, match="int8"):
        Case(8, 8, 8, "int8")
    with pytest.raises(EpilogueError, match="nope"):
        entrants(Case(8, 8, 8, epilogue="nope"), H200)


def test_a_time_gives_rate_and_share() -> None:
    least = floor(NN, H200)
    entry = timed(Entry("x", ""), 2 * least.us, least)
    assert entry.share == pytest.approx(0.5) and entry.tflops == pytest.approx(least.flops / entry.us * 1e-6)


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", comparison.DTYPES)
def test_a_right_product_is_within_the_bound_and_a_wrong_one_is_not(monkeypatch, dtype: str, sampled: bool) -> None:
    if sampled:
        monkeypatch.setattr(contest, "WHOLE", 1)
        monkeypatch.setattr(contest, "SAMPLE", 80)
    case = Case(150, 170, 300, dtype, "nn")
    inputs = draw(case, "cpu")
    judge, a, b = Judge(case, inputs), inputs.a, inputs.b

    def excess(result: torch.Tensor) -> float | None:
        return judge.judge([result.to(a.dtype)])[1]

    right = (a.double() @ b.double()).to(a.dtype)
    assert excess(right) <= 1 and excess(a.float() @ b.float()) <= 1
    assert excess(a[:, 1:].double() @ b[1:].double()) > 1
    tile = right.clone()
    tile[32:64, 64:96] *= 1 + 8 * torch.finfo(a.dtype).eps if dtype != "fp32" else 1.001
    assert excess(tile) > 1
    for wrong in (torch.nan, torch.inf):
        slip = right.clone()
        slip[149, 169] = wrong
        assert excess(slip) is None


@pytest.mark.parametrize("name", [None, *registry.registered()])
@pytest.mark.parametrize("dtype", comparison.DTYPES)
def test_right_results_pass_and_slips_do_not(dtype: str, name: str | None) -> None:
    torch.manual_seed(0)
    case = Case(33, 48, 96, dtype, "nt", name)
    inputs = draw(case, "cpu")
    judge = Judge(case, inputs)
    bound = None if case.fused is None else case.fused(*inputs.operands)
    result = gemm(inputs.a, inputs.b, epilogue=bound)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    rel_err, excess = judge.judge(results)
    assert rel_err is not None and excess is not None and 0 <= rel_err < 2**-7 and excess <= 1
    wrong = [value.clone() for value in results]
    wrong[0][20, 5] += 0.05 * wrong[0].abs().max()
    assert judge.judge(wrong)[1] > 1
    wrong[0][3, 3] = math.nan
    assert judge.judge(wrong) == (None, None)


@pytest.mark.parametrize("name", [None, *registry.registered()])
def test_torchs_separate_calls_are_right_by_the_loose_bound(name: str | None) -> None:
    case = Case(34, 64, 256, epilogue=name)
    inputs = draw(case, "cpu")
    results = contest.call_of(case, entrants(case, H200, ["torch"])[0], inputs)()
    assert len(results) == len(inputs.outs)
    assert Judge(case, inputs).judge(results, loose=True)[1] <= 1


def test_one_product_left_out_of_k_is_seen() -> None:
    case = Case(64, 64, 4096, layout="nn")
    inputs = draw(case, "cpu")
    short = gemm(inputs.a[:, :-1], inputs.b[:-1])
    assert Judge(case, inputs).judge([short])[1] > 1


# ---------------------------------------------------------------- the contest


def test_input_sets_exceed_l2_within_half_of_free_memory() -> None:
    assert set_count(100, 120, 1000, 10**9) == 31
    assert set_count(100, 120, 1000, 2400) == 10
    assert set_count(100, 120, 1000, 100) == 1


def test_contenders_are_checked_then_timed_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def ours(case, kernel, inputs):
        def call():
            if kernel == "hand:level2":
                raise CuteGemmError("NVRTC is missing")
            log.append(kernel)
            inputs.outs[0].copy_(gemm(inputs.a, inputs.b) * (2 if kernel == "hand:level3" else 1))
            return inputs.outs

        return call

    def capture(calls):
        return lambda: [call() for call in calls]

    def clock(replay, repeats):
        for _ in range(repeats):
            replay()
        return 1.0 * repeats

    monkeypatch.setattr(contest, "_ours", ours)
    small = Case(192, 96, 64, layout="nn")
    bench = Bench(replace(H200, l2_bytes=20_000), 10**9, "cpu", Effort(1.0, 1.0, 3), capture, clock)
    result = bench.run(small, ["level1", "level2", "level3", "level6", "small_m", "torch"])
    entries = {entry.contender: entry for entry in result.entries}
    assert result.timing == "measured"
    assert [entry.contender for entry in result.served] == ["hand:level1", "hand:level6", "torch"]
    assert entries["hand:level2"].refused == "NVRTC is missing" and entries["small_m"].refused
    assert [entry.contender for entry in result.wrong] == ["hand:level3"] and entries["hand:level3"].us is None
    sets = set_count(2 * 64 * (192 + 96), 1, 20_000, 10**9)
    assert sets == 2
    assert entries["hand:level1"].us == pytest.approx(1e3 / sets) and entries["hand:level1"].ok
    assert "hand:level3" not in log[3:]  # a wrong one is not timed


# ---------------------------------------------------------------- the command


def test_without_a_gpu_times_are_modelled_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", "512", "384", "256", "--layout", "nn", "--arch", "H200")
    assert code == 0 and "MODELLED by the planner" in out and "us (modelled)" in out
    assert "hand:level5" in out and "torch" in out and "no model of its time" in out and "error" not in out
    code, out, _ = run(capsys, "compare", "512", "384", "256", "--gpu", "A100", "--json")
    report = json.loads(out)
    assert code == 0 and report["timing"] == "modelled" and report["gpu"] == "A100" and report["assumed"] is None
    entry = next(e for e in report["entries"] if e["contender"] == "sm80_multistage")
    assert entry["us"] == plan(512, 384, 256, arch="A100", kernel="sm80_multistage").us
    assert entry["ok"] is None and entry["share"] == pytest.approx(report["floor"]["us"] / entry["us"])


def test_with_no_gpu_named_and_none_here_one_is_assumed(capsys, monkeypatch) -> None:
    monkeypatch.setattr(device, "gpus", lambda: ())
    code, out, _ = run(capsys, "compare", "64", "64", "64", "--kernels", "small_m,torch")
    assert code == 0 and "H200 (sm_90a): assumed, with no GPU named and none here" in out


def test_measured_tables_have_errors_and_a_wrong_result_exits_with_1(capsys, monkeypatch) -> None:
    least = floor(NN, H200)
    right = timed(Entry("hand:level9", "a plan", "hand:level9", rel_err=1e-3, excess=0.5, ok=True), 10.0, least)
    wrong = Entry("sm90_wgmma", "another", "x", rel_err=None, excess=None, ok=False)
    result = Comparison(NN, H200, least, "measured", (wrong, right))
    monkeypatch.setattr(cli.compare, "compare", lambda *_: result)
    code, out, _ = run(capsys, "compare", "512", "384", "256")
    first, last = (line.split() for line in out.splitlines()[-2:])
    assert code == 1 and first[0] == "hand:level9" and "ok" in first and last[:3] == ["sm90_wgmma", "NaN", "WRONG"]


@pytest.mark.parametrize("argv", [["compare", "0", "8", "8"], ["compare", "8", "8", "8", "--dtype", "int8"]])
def test_errors_are_named(capsys, argv: list[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 1 and out == "" and err.startswith("cutegemm: ")


def test_a_plot_needs_matplotlib_and_a_file_to_write(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    argv = ["compare", "64", "64", "64", "--arch", "H200", "--plot", str(tmp_path / "x.png")]
    code, _, err = run(capsys, *argv)
    assert code == 1 and "pip install 'cutegemm[plots]'" in err
    code, _, err = run(capsys, "fragments", "--instr", "mma.m16n8k16", "--operand", "a", "--plot", "x.png")
    assert code == 1 and "pip install 'cutegemm[plots]'" in err


def test_plots_are_written(capsys, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plots is not installed")
    bars, grid = tmp_path / "bars.png", tmp_path / "grid.svg"
    code, _, _ = run(capsys, "compare", "512", "384", "256", "--layout", "nn", "--arch", "H200", "--plot", str(bars))
    assert code == 0 and bars.read_bytes().startswith(b"\x89PNG")
    argv = ["--instr", "wgmma.m64n16k16", "--operand", "c", "--rows", "0:8", "--plot", str(grid)]
    assert run(capsys, "fragments", *argv)[0] == 0 and "<svg" in grid.read_text()
    for path in (tmp_path / "no" / "x.png", tmp_path / "x.nope", tmp_path / "plain"):
        with pytest.raises(ArgumentError, match="--plot"):
            plots.ready(str(path))


def test_the_model_of_a_comparison_is_the_planners() -> None:
    result = modelled(NN, H200)
    assert result.served[0].us == min(e.us for e in result.entries if e.us is not None)
