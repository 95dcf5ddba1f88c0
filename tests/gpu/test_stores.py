"""Outputs of `sm90_wgmma` whose rows TMA can't take: right at every alignment, and nothing around them is touched."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.device import DeviceSpec
from cutegemm.planner import FAMILIES
from tests import ahead
from tests.helpers import Guarded, check
from tests.semantics.inputs import BF16, FP16, FP32, add, everything, in_nan, randn, swiglu_aux

pytestmark = pytest.mark.gpu

#: Units of 64, 32 and 16 columns; an even and an odd number of them; one band and two; tiles that two consumers share.
KERNELS = (
    "sm90_wgmma:tile=128x128x64,stages=6,cluster=1x1,schedule=cooperative",
    "sm90_wgmma:tile=128x192x64,stages=4,cluster=1x1,schedule=pingpong",
    "sm90_wgmma:tile=128x160x64,stages=5,cluster=1x1,schedule=cooperative",
    "sm90_wgmma:tile=128x176x64,stages=5,cluster=2x1,schedule=pingpong",
    "sm90_wgmma:tile=256x128x64,stages=4,cluster=1x2,schedule=cooperative",
    "sm90_wgmma:tile=64x32x64,stages=14,cluster=1x1,schedule=pingpong,swap_ab=yes",
    "sm90_wgmma:tile=64x16x64,stages=16,cluster=1x1,schedule=pingpong,swap_ab=yes",
)
#: Those for epilogues that pair columns, which stay columns.
UPRIGHT = tuple(kernel for kernel in KERNELS if "swap_ab" not in kernel)
#: m, n, k: whole units, edges within a unit at an even and an odd column, less than a unit, several tiles for a block.
SIZES = (
    (256, 384, 64), (300, 521, 136), (65, 130, 72), (7, 5, 64), (1, 1, 64), (33, 1, 64), (1, 77, 64), (2500, 2049, 64),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def on_hopper() -> Iterator[None]:
    family, device = FAMILIES["sm90_wgmma"], DeviceSpec.query(0)
    if device.arch not in family.architectures:
        pytest.skip(f"{family.name} is not for {device.arch}")
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def operands(m: int, n: int, k: int, dtype: torch.dtype = BF16, batch: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    return randn(*batch, m, k, dtype=dtype, seed=k), randn(*batch, n, k, dtype=dtype, seed=k + 1).mT


def placed(m: int, n: int, dtype: torch.dtype, align: int, column_major: bool = False) -> Guarded:
    """A watched output, its rows (columns) and its address aligned to `align` bytes and no more."""
    long, unit = (m if column_major else n), align // dtype.itemsize
    pitch = (-(-long // 16) + 1) * 16 + unit
    return Guarded((m, n), dtype, strides=(1, pitch) if column_major else (pitch, 1), offset=unit)


def build(calls: list[tuple[str, Tensor, Tensor, dict[str, Any]]]) -> None:
    """Build the kernels of all calls in parallel."""
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, kernel=kernel, **keywords) for kernel, a, b, keywords in calls)


def run(kernel: str, a: Tensor, b: Tensor, outs: Sequence[Guarded], **keywords: Any) -> None:
    tensors = tuple(out.tensor for out in outs)
    gemm(a, b, out=tensors[0] if len(tensors) == 1 else tensors, kernel=kernel, **keywords)
    check(tensors, a, b, **keywords)
    for out in outs:
        out.assert_intact()


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("column_major", [False, True], ids=["rows", "columns"])
def test_every_alignment(dtype: torch.dtype, column_major: bool) -> None:
    operand = BF16 if dtype == FP32 else dtype
    aligns = [align for align in (2, 4, 8) if align >= dtype.itemsize]
    a, b = operands(64, 64, 64, operand)
    build([
        (kernel, a, b, {"out": placed(64, 64, dtype, align, column_major).tensor})
        for kernel, align in itertools.product(KERNELS, aligns)
    ])  # fmt: skip
    for m, n, k in SIZES:
        a, b = operands(m, n, k, operand)
        for kernel, align in itertools.product(KERNELS, aligns):
            run(kernel, a, b, [placed(m, n, dtype, align, column_major)])


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_place_of_a_packed_output(kernel: str) -> None:
    """Rows that follow one another, of odd and even lengths, from any element of a sector on."""
    for n, offset in itertools.product((127, 129, 130, 193, 511), range(0, 16, 3)):
        a, b = operands(70, n, 64)
        run(kernel, a, b, [Guarded((70, n), BF16, offset=offset)])


@pytest.mark.parametrize("kernel", KERNELS)
def test_batches(kernel: str) -> None:
    a, b = operands(37, 131, 64, batch=(2, 3))
    run(kernel, a, b, [Guarded((2, 3, 37, 131), BF16)])
    run(kernel, a, b, [Guarded((2, 3, 37, 131), BF16, strides=(40001, 9001, 151, 1), offset=1)])


@pytest.mark.parametrize("kernel", UPRIGHT)
def test_epilogues(kernel: str) -> None:
    """C and Tile operands that TMA brings, and those that it can't; several outputs, of which it stores some."""
    m, n = 205, 394
    a, b = operands(m, n, 72)
    row, col, tile, c = randn(n, seed=3), randn(m, seed=4), randn(m, n, seed=5), randn(m, n, seed=6)
    cases: list[tuple[list[Guarded], dict[str, Any]]] = []
    for align in (2, 16):
        out, pre = placed(m, n, BF16, 2), placed(m, n, FP32, 16)
        cases.append(([out], {"epilogue": add(in_nan(tile, align))}))
        cases.append(([placed(m, n, BF16, 4)], {"c": in_nan(c, align), "beta": 0.5}))
        cases.append(([out, pre], {"epilogue": everything(row, col, in_nan(tile, align), torch.tensor(0.5))}))
    cases.append(([placed(m, n, BF16, 16)], {"epilogue": add(in_nan(tile, 2))}))
    cases.append(([placed(m, n, BF16, 2), placed(m, n, BF16, 8)], {"epilogue": epilogues.bias_gelu_aux(row)}))
    cases.append(([placed(m, n, BF16, 16), placed(m, n, FP32, 4, True)], {"epilogue": epilogues.bias_gelu_aux(row)}))
    if "176" not in kernel:  # whose units are too narrow to be halved
        cases.append(([placed(m, n // 2, BF16, 2)], {"epilogue": epilogues.bias_swiglu(row)}))
        cases.append(([placed(m, n // 2, BF16, 2), placed(m, n, BF16, 16)], {"epilogue": swiglu_aux()}))
    calls = []
    for outs, keywords in cases:
        tensors = tuple(out.tensor for out in outs)
        calls.append((kernel, a, b, {"out": tensors[0] if len(outs) == 1 else tensors, **keywords}))
    build(calls)
    for outs, keywords in cases:
        run(kernel, a, b, outs, **keywords)


@pytest.mark.parametrize("align", [2, 16])
def test_gated_columns_that_end_within_a_chunk(align: int) -> None:
    """Units of a narrow tile have 8 columns then, and what follows them is another block's."""
    a, b = operands(523, 1200, 72)
    kernel = "sm90_wgmma:tile=256x144x64,stages=4,cluster=1x2,schedule=cooperative"
    outs = [placed(523, 600, BF16, align, column_major=True)]
    run(kernel, a, b, outs, epilogue=epilogues.swiglu())


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_output_that_is_c_or_an_operand(kernel: str) -> None:
    a, b = operands(133, 263, 72)
    held = randn(133, 263, seed=7)
    out = placed(133, 263, BF16, 2)
    out.tensor.copy_(held)
    gemm(a, b, c=out.tensor, beta=0.5, out=out.tensor, kernel=kernel)
    check(out.tensor, a, b, c=held, beta=0.5)
    out.tensor.copy_(held)
    gemm(a, b, epilogue=add(out.tensor), out=out.tensor, kernel=kernel)
    check(out.tensor, a, b, epilogue=add(held))
    out.assert_intact()


@pytest.mark.parametrize("kernel", KERNELS)
def test_short_tiles_in_a_row(kernel: str) -> None:
    """Many tiles for each block, and next to nothing to multiply: what TMA stores is what lanes store, every time."""
    a, b = operands(4100, 4100, 16)
    expected = gemm(a, b, out=placed(4100, 4100, BF16, 16).tensor, kernel=kernel)
    for align in (2, 4, 2):
        out = placed(4100, 4100, BF16, align)
        assert torch.equal(gemm(a, b, out=out.tensor, kernel=kernel), expected)
        out.assert_intact()
