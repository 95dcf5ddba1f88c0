"""The ladder's rows: which levels, what is predicted of them, how calls are timed, checked and judged."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cutegemm.device import lookup
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError
from cutegemm.hand_kernels import LEVELS
from cutegemm.ladder import measure, predict
from cutegemm.ladder.measure import Measurement, excess, finished, time_us
from cutegemm.ladder.rungs import judge, peak, rungs
from cutegemm.roofline import Verdict, traffic_bytes

H200 = lookup("H200")


# ---------------------------------------------------------------- which levels


def test_levels_are_in_the_dtype_of_their_unit_unless_one_is_named() -> None:
    plain = rungs(None, None, 256)
    assert [rung.level.name for rung in plain] == [f"level{i}" for i in range(1, 10)]
    assert [rung.dtype for rung in plain] == ["fp32"] * 5 + ["bf16"] * 4
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
    assert row.unread is None and 64 < (row.registers or 0) <= 128 and row.local_bytes == 0
    assert (row.blocks_per_sm, row.occupancy, row.limited_by) == (2, 0.25, ("registers",))


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


# ---------------------------------------------------------------- timing


class FakeGPU:
    """A device on which a call takes `ms`, the first hundred of them twice as long."""

    def __init__(self, ms: float) -> None:
        self.ms, self.calls, self.runs = ms, 0, 0

    def __call__(self, repeats: int) -> float:
        self.runs += 1
        cold = max(0, min(repeats, 100 - self.calls))
        self.calls += repeats
        return self.ms * (repeats + cold)


@pytest.mark.parametrize("ms", [0.003, 0.05, 7.0, 400.0, 9000.0])
def test_a_time_is_that_of_a_warm_call(ms: float) -> None:
    gpu = FakeGPU(ms)
    gpu.calls = 100 if ms > 1 else 0
    assert time_us(gpu) == pytest.approx(1e3 * ms)
    # Short calls: a warm-up and five samples of 20 ms. Long ones: as many as fit, at least a sample.
    assert gpu.calls * ms < 300 if ms < 1 else gpu.runs <= {7.0: 7, 400.0: 6, 9000.0: 2}[ms]


def test_a_clock_that_says_nothing_ends() -> None:
    ticks = iter([0.0] * 3 + [25.0] * 100)
    assert time_us(lambda repeats: next(ticks)) > 0


# ---------------------------------------------------------------- right or wrong


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_right_product_is_within_the_bound_and_a_wrong_one_is_not(monkeypatch, dtype, sampled: bool) -> None:
    if sampled:
        monkeypatch.setattr(measure, "WHOLE", 0)
    torch.manual_seed(0)
    a, b = torch.randn(150, 300).to(dtype), torch.randn(300, 170).to(dtype)
    right = (a.double() @ b.double()).to(dtype)
    assert excess(right, a, b) <= 1 and excess((a.float() @ b.float()).to(dtype), a, b) <= 1
    first_missing = (a[:, 1:].double() @ b[1:].double()).to(dtype)
    assert excess(first_missing, a, b) > 1
    tile = right.clone()
    tile[32:64, 64:96] *= 1 + 8 * torch.finfo(dtype).eps if dtype != torch.float32 else 1.001
    assert excess(tile, a, b) > 1
    unwritten = right.clone()
    unwritten[149, 169] = torch.nan
    assert excess(unwritten, a, b) == math.inf
    overflowed = right.clone()
    overflowed[0, 0] = torch.inf
    assert excess(overflowed, a, b) == math.inf


def test_a_row_follows_from_its_time() -> None:
    empty = Measurement("level3", "fp32", "fp32", expected=(0.1, 0.2), intensity=8.0)
    row = finished(empty, 4096, us=13000.0, error=0.3, gpu=H200, before=39000.0)
    assert row.tflops == pytest.approx(10.57, abs=0.01) and row.speedup == 3.0 and row.correct
    assert row.share == pytest.approx(10.57e12 / H200.fp32_flops, abs=1e-3)
    assert row.verdict == str(Verdict.UNDER) and row.expected == (0.1, 0.2)
    assert finished(empty, 4096, 1.0, error=1.01, gpu=H200).correct is False
    assert finished(replace(empty), 4096, 1.0, error=math.inf, gpu=H200).speedup is None
