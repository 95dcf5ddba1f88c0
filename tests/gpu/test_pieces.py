"""fp32 by bf16 on a GPU: right to the last configuration, as exact as fp32, special numbers included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm, plan
from cutegemm.device import DeviceSpec
from cutegemm.errors import UnsupportedArchitectureError
from cutegemm.kernels.pieces import PAIRS
from cutegemm.kernels.wgmma_config import OF_PIECES
from cutegemm.planner import FAMILIES
from tests import ahead
from tests.helpers import Guarded, check
from tests.semantics.inputs import FP32, everything, in_nan, randn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

LAYOUTS = ("nn", "nt", "tn", "tt")
FAMILY = FAMILIES["sm90_wgmma"]


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    gpu = DeviceSpec.query(0)
    if gpu.arch not in FAMILY.architectures:
        pytest.skip(f"sm90_wgmma is not for {gpu.arch}")
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def operands(m: int, n: int, k: int, layout: str = "nt", align: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A and B in memory that is NaN elsewhere, their rows aligned to `align` bytes and no more."""
    a = randn(m, k, dtype=FP32, seed=seed) if layout[0] == "n" else randn(k, m, dtype=FP32, seed=seed)
    b = randn(k, n, dtype=FP32, seed=seed + 1) if layout[1] == "n" else randn(n, k, dtype=FP32, seed=seed + 1)
    a, b = in_nan(a, align), in_nan(b, align)
    return a if layout[0] == "n" else a.t(), b if layout[1] == "n" else b.t()


def run(a: Tensor, b: Tensor, precision: str = "bf16x6", kernel: str | None = None, **keywords: Any) -> None:
    out = Guarded((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), FP32)
    gemm(a, b, out=out.tensor, precision=precision, kernel=kernel, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()


def built(calls: list[tuple[Tensor, Tensor, dict[str, Any]]]) -> None:
    """Build the kernels of all calls in parallel."""
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, **keywords) for a, b, keywords in calls)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", PAIRS)
def test_every_configuration(precision: str, layout: str) -> None:
    calls: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
    specs = []
    for config in OF_PIECES:
        for m, n, k in ((300, 520, 136), (1, 1, 1), (257, 132, 1000)):
            keywords = {"precision": precision, "kernel": f"sm90_wgmma:{config}"}
            a, b = operands(m, n, k, layout)
            with suppress(UnsupportedArchitectureError):  # a slice of whose tile is no swizzle atom of this layout
                specs.append(ahead.spec_of(a, b, **keywords))
                calls.append((a, b, keywords))
    assert len(calls) > len(OF_PIECES)
    if not ahead.in_worker():
        ahead.build(specs)
    for a, b, keywords in calls:
        run(a, b, **keywords)


def test_any_alignment_batch_and_split() -> None:
    kernel = f"sm90_wgmma:{OF_PIECES[5]}"
    calls: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
    for align, split, layout, (m, n, k) in (
        (4, 1, "nn", (70, 75, 71)), (4, 3, "tt", (129, 257, 1031)), (8, 4, "nt", (129, 257, 1030)),
        (16, 17, "tn", (33, 130, 4360)),
    ):  # fmt: skip
        calls.append((*operands(m, n, k, layout, align), {"kernel": f"{kernel},split={split}"}))
    strided = randn(100, 3000, dtype=FP32)[:, ::3], randn(1000, 256, dtype=FP32, seed=1)[:, ::2]
    calls.append((*strided, {}))
    wide, one = randn(2, 3, 40, 333, dtype=FP32), randn(1, 333, 72, dtype=FP32, seed=1)
    calls.append((wide, one.expand(2, 3, 333, 72), {"kernel": f"{kernel},split=2"}))
    many = randn(2, 3, 2, 5, 40, 331, dtype=FP32)[:, ::2, :, ::2]
    calls.append((many, randn(331, 72, dtype=FP32, seed=2), {}))
    calls = [(a, b, {"precision": "bf16x6"} | keywords) for a, b, keywords in calls]
    built(calls)
    for a, b, keywords in calls:
        run(a, b, **keywords)


def test_epilogues_run_once() -> None:
    m, n, k = 133, 264, 1096
    a, b = operands(m, n, k)
    row, col, tile = (randn(*shape, dtype=FP32, seed=3) for shape in ((n,), (m,), (m, n)))
    c = in_nan(randn(m, n, dtype=FP32, seed=6))
    cases: list[dict[str, Any]] = [
        {"epilogue": epilogues.bias_gelu(row)},
        {"epilogue": everything(row, col, in_nan(tile), torch.tensor(0.5))},
        {"epilogue": epilogues.bias_swiglu(row)},
        {"c": c, "alpha": torch.tensor(0.5), "beta": torch.tensor(-1.0)},
        {"c": torch.full_like(c, torch.nan), "beta": 0.0},
    ]
    for split in ("", ",split=4"):
        kernel = f"sm90_wgmma:{OF_PIECES[2]}{split}"
        built([(a, b, {"precision": "bf16x6", "kernel": kernel, **keywords}) for keywords in cases])
        for keywords in cases:
            results = gemm(a, b, precision="bf16x6", kernel=kernel, **keywords)
            check(results if isinstance(results, Tensor) else list(results), a, b, **keywords)
    assert torch.equal(gemm(a, b, c=c, alpha=0.0, precision="bf16x6"), c)
    assert not gemm(a[:, :0], b[:0], precision="bf16x6").any()


@pytest.mark.parametrize("precision", PAIRS)
@pytest.mark.parametrize("kind", ["normal", "positive", "scaled"])
def test_errors_are_at_most_twice_those_of_strict_fp32(precision: str, kind: str) -> None:
    a, b = randn(512, 4096, dtype=FP32), randn(4096, 512, dtype=FP32, seed=1)
    if kind == "positive":
        a, b = a.abs(), b.abs()
    if kind == "scaled":
        a, b = (x * 10.0 ** (12 * torch.rand(x.shape) - 6) for x in (a, b))
    exact = a.double() @ b.double()
    scale = (a.double().square() @ b.double().square()).sqrt()
    own, strict = ((x.double() - exact) / scale for x in (gemm(a, b, precision=precision), torch.mm(a, b)))
    assert own.square().mean() <= 4 * strict.square().mean()
    assert own.abs().max() <= 2 * strict.abs().max()


@pytest.mark.parametrize("precision", PAIRS)
def test_infinities_and_nan(precision: str) -> None:
    special = [torch.inf, -torch.inf, torch.nan, 3e37, -3e37, 0.0]
    a, b = randn(130, 96, dtype=FP32), randn(96, 136, dtype=FP32, seed=1).round()  # of which the lower pieces are 0
    for i, value in enumerate(special):
        a[i, 7 * i], b[5 * i, i + 40] = value, value
    a[100, 3], b[3, 100] = torch.inf, 0.0
    result, expected = gemm(a, b, precision=precision), (a.double() @ b.double()).float()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isposinf(), expected.isposinf()) and torch.equal(result.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    assert torch.allclose(result[finite], expected[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PAIRS)
def test_numbers_that_pieces_hold_are_exact(precision: str) -> None:
    assert gemm(torch.tensor([[1024.5]]), torch.ones(1, 1), precision=precision).item() == 1024.5
    x, ones = torch.zeros(130, 4096), torch.ones(4096, 136)
    x[:, 0], x[:, 3], x[:, 4095] = 256, 1, -256
    for split_k in (1, 2, 16):
        assert torch.equal(gemm(x, ones, precision=precision, split_k=split_k), torch.ones(130, 136))
    large, small = torch.full((64, 64), 3.4e38), torch.eye(64)
    assert torch.equal(gemm(large, small, precision=precision), large)
    assert gemm(large, 2 * small, precision=precision).isposinf().all()
    tiny = torch.full((64, 64), 2.0**-100) * torch.randn(64, 64)
    assert torch.allclose(gemm(tiny, small, precision=precision), tiny, rtol=2.0**-20, atol=2.0**-128)


def test_the_same_bits_each_time() -> None:
    a, b = operands(515, 777, 4100, "nn", 4)
    for split_k in (1, 5):
        first = gemm(a, b, precision="bf16x6", split_k=split_k)
        assert all(torch.equal(gemm(a, b, precision="bf16x6", split_k=split_k), first) for _ in range(100))


def test_a_call_takes_the_workspace_that_its_plan_says() -> None:
    a, b = randn(1024, 2048, dtype=FP32), randn(2048, 512, dtype=FP32, seed=1)
    gemm(a, b, precision="bf16x6")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = gemm(a, b, precision="bf16x6")
    made = plan(1024, 512, 2048, dtype="fp32", layout="nn", precision="bf16x6", arch=DeviceSpec.query(0).name)
    assert torch.cuda.max_memory_allocated() - before == made.workspace + out.nbytes
