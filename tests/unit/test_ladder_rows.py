"""The ladder's rows: which levels, what is predicted of them, how rows are made of what is measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cutegemm import contest
from cutegemm.contest import Bench
from cutegemm.device import lookup
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError
from cutegemm.hand_kernels import LEVELS
from cutegemm.ladder import measure, predict
from cutegemm.ladder.measure import Measurement, finished
from cutegemm.ladder.rungs import judge, peak, rungs
from cutegemm.roofline import Verdict, traffic_bytes

H200 = lookup("H200")


# ---------------------------------------------------------------- which levels


def test_levels_are_in_the_dtype_of_their_unit_unless_one_is_named() -> None:
    plain = rungs(None, None, 256)
    assert [rung.level.name for rung in plain] == [f"level{i}" for i in range(1, 11)]
    assert [rung.dtype for rung in plain] == ["fp32"] * 5 + ["bf16"] * 5
    assert [rung.level for rung in rungs("all", "half", 256)] == list(LEVELS)
    assert {rung.dtype for rung in rungs("level1, level7", "half", 256)} == {"fp16"}


def test_what_is_no_level_size_or_dtype_is_named() -> None:
    with pytest.raises(ArgumentError, match="level77.*there are level1, "):
        rungs("level1,level77", None, 256)
    with pytest.raises(ArgumentError, match="size=0"):
        rungs(None, None, 0)
    with pytest.raises(DTypeError, match="int3"):
        rungs(None, "int3", 256)


@pytest.mark.parametrize("rung", rungs("all", None, 4096), ids=lambda rung: rung.level.name)
def test_traffic_is_that_of_the_public_formula(rung) -> None:
    reuse, item = rung.level.reuse, 4 if rung.dtype == "fp32" else 2
    assert rung.loaded_bytes == traffic_bytes(4096, 4096, 4096, item, reuse[1], reuse[0])
    assert rung.intensity == pytest.approx(rung.flops / rung.loaded_bytes)


def test_verdicts_go_by_the_loads_and_by_the_peak() -> None:
    top, memory = H200.fp32_flops, H200.hbm_bytes_per_s
    assert judge(4e12, 0.25, top, memory) is Verdict.SLOPE  # level 1 on an H200: caches carry it over the slope
    assert judge(0.3e12, 0.25, top, memory) is Verdict.UNDER
    assert judge(9e12, 8, top, memory) is Verdict.UNDER  # level 3, which shared memory binds
    assert judge(0.85 * top, 32, top, memory) is Verdict.ROOF
    # Tensor-core levels are left of the ridge: near the peak they have arrived all the same.
    top = peak("mma", H200)
    assert judge(0.6 * top, 64, top, memory) is Verdict.SLOPE
    assert judge(0.85 * top, 85, top, memory) is Verdict.ROOF


# ---------------------------------------------------------------- predictions


def test_a_prediction_has_the_models_and_the_compiled_kernels_resources() -> None:
    (rung,) = rungs("level5", None, 4096)
    row = predict.predict(rung, H200)
    assert row.refused is None and row.expected == rung.level.share
    assert row.tflops == pytest.approx(rung.flops / (row.us or 0) * 1e-6)
    assert 0.35 < (row.tflops or 0) * 1e12 / H200.fp32_flops < 0.5
    assert (row.loaded_bytes, row.intensity, row.memory_bound) == (4294967296, 32.0, False)
    assert row.attainable_tflops == pytest.approx(H200.fp32_flops * 1e-12)
    assert row.unread is None and 128 < (row.registers or 0) <= 255 and row.local_bytes == 0
    assert (row.blocks_per_sm, row.occupancy, row.limited_by) == (2, 0.125, ("registers",))


def test_a_missing_tool_is_named_and_the_models_stay(monkeypatch) -> None:
    def missing(cubin: bytes) -> None:
        raise CuteGemmError("cuobjdump, which reads SASS, is missing: pip install nvidia-cuda-cuobjdump")

    monkeypatch.setattr(predict.sass, "read", missing)
    monkeypatch.setattr(predict, "build", lambda spec: type("Artifact", (), {"elf": b""}))
    row = predict.predict(rungs("level3", None, 1024)[0], H200)
    assert row.us is not None and row.registers is None and "cuobjdump" in (row.unread or "")


def test_what_a_gpu_or_level_does_not_serve_is_predicted_as_such() -> None:
    assert "sm_80" in (predict.predict(rungs("level7", None, 256)[0], lookup("T4")).refused or "")
    row = predict.predict(rungs("level7", "fp32", 256)[0], H200)
    assert "level7 serves fp16, bf16" in (row.refused or "") and row.us is None


# ---------------------------------------------------------------- measurements


def measured(monkeypatch: pytest.MonkeyPatch, spoilt: str = "") -> list[Measurement]:
    """A ladder of three levels on a GPU whose calls take 2 ms each; `spoilt` gives NaN, and level4 has no compiler."""

    def ours(case, kernel, inputs):  # type: ignore[no-untyped-def]
        def call():  # type: ignore[no-untyped-def]
            if kernel == "hand:level4":
                raise CuteGemmError("NVRTC is missing")
            torch.mm(inputs.a, inputs.b, out=inputs.outs[0]).mul_(math.nan if kernel == spoilt else 1)
            return inputs.outs

        return call

    monkeypatch.setattr(contest, "_ours", ours)
    gpu = replace(H200, l2_bytes=1000)
    bench = Bench(gpu, 10**9, "cpu", measure.EFFORT, len, lambda calls, repeats: 2.0 * calls * repeats)
    return list(measure.climb(rungs("level3,level4,level7", "fp32", 48), gpu, bench))


def test_levels_then_gemm_and_torch_are_checked_and_timed(monkeypatch) -> None:
    rows = {row.name: row for row in measured(monkeypatch)}
    assert list(rows) == ["level3", "level4", "level7", "gemm", "torch.mm"]
    assert rows["level4"].refused == "NVRTC is missing" and "fp16, bf16" in (rows["level7"].refused or "")
    assert rows["level4"].us is rows["level4"].expected is None
    ran = [rows[name] for name in ("level3", "gemm", "torch.mm")]
    assert [(row.correct, row.us) for row in ran] == [(True, pytest.approx(2000))] * 3
    assert [row.speedup for row in ran] == [None, pytest.approx(1), pytest.approx(1)]
    assert rows["level3"].expected == (0.1, 0.2) and rows["gemm"].unit == "fp32"


def test_a_nan_is_a_wrong_row(monkeypatch) -> None:
    level3, *others = measured(monkeypatch, "hand:level3")
    assert level3.correct is False and level3.excess is None and level3.us is not None
    assert all(row.correct for row in others if row.refused is None)


def test_a_row_follows_from_its_time() -> None:
    empty = Measurement("level3", "fp32", "fp32", expected=(0.1, 0.2), intensity=8.0)
    row = finished(empty, 4096, us=13000.0, error=0.3, gpu=H200, before=39000.0)
    assert row.tflops == pytest.approx(10.57, abs=0.01) and row.speedup == 3.0 and row.correct
    assert row.share == pytest.approx(10.57e12 / H200.fp32_flops, abs=1e-3)
    assert row.verdict == str(Verdict.UNDER) and row.expected == (0.1, 0.2)
    assert finished(empty, 4096, 1.0, error=1.01, gpu=H200).correct is False
    nan = finished(empty, 4096, 1.0, error=None, gpu=H200)
    assert nan.correct is False and nan.speedup is None
