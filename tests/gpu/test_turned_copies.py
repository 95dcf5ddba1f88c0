"""Strict fp32 on copies along M and N: of operands that lie along K, are not aligned, strided or broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, gemm
from cutegemm.compiler import Spec
from tests import ahead
from tests.gpu import problems
from tests.helpers import Guarded, check
from tests.semantics.inputs import FP32, fp32_operands, in_nan, randn

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

KERNELS = (
    "simt_f32:tile=128x256x16,stages=4,thread=8x16",
    "simt_f32:tile=256x128x16,stages=4,thread=8x16",
    "simt_f32:tile=64x64x16,stages=4,thread=8x4",
)
#: The operands that a copy would help, aligned as they are, by layout.
TURNED = {"nn": "a", "nt": "ab", "tn": "no", "tt": "b"}
COUNT = 60


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def run(kernel: str, a: Tensor, b: Tensor, **keywords: Any) -> None:
    out = Guarded((*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), FP32)
    gemm(a, b, out=out.tensor, kernel=kernel, precision="ieee", **keywords)
    check(out.tensor, a, b, precision="ieee", **keywords)
    out.assert_intact()


def run_all(calls: list[tuple[str, Tensor, Tensor]]) -> None:
    if not ahead.in_worker():
        ahead.build(ahead.spec_of(a, b, kernel=kernel, precision="ieee") for kernel, a, b in calls)
    for call in calls:
        run(*call)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("layout", TURNED)
def test_every_layout_and_alignment_split_or_not(kernel: str, layout: str) -> None:
    calls = []
    for m, n, k, align, pad in ((300, 264, 1000, 16, TURNED[layout]), (129, 257, 1031, 4, "ab"), (70, 74, 202, 8, "a")):
        calls += [(f"{kernel},split={s},pad={pad}", *fp32_operands(m, n, k, layout, align)) for s in (1, 3)]
    run_all(calls)


@pytest.mark.parametrize("layout", TURNED)
def test_edges(layout: str) -> None:
    """One row, one column, a K of 1 and of 0, in workspaces that hold NaN."""
    sizes = ((1, 70, 65), (70, 1, 65), (130, 66, 1), (65, 129, 64), (64, 64, 63))
    run_all([(f"{KERNELS[2]},pad=ab", *fp32_operands(*size, layout, 4)) for size in sizes])
    run_all([(f"{KERNELS[2]},pad=ab", *fp32_operands(33, 34, 0, layout, 4, (2,)))])


@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[2]])
def test_batches_broadcast_operands_and_strides(kernel: str) -> None:
    a, b = fp32_operands(65, 136, 416, "nt", batch=(2, 3))
    one, column = fp32_operands(65, 136, 416, "nt", batch=(1,))[1], fp32_operands(65, 136, 416, "nt", batch=(2, 1))[0]
    wide, deep = randn(130, 1000, dtype=FP32), randn(1000, 160, dtype=FP32)
    calls = [
        (f"{kernel},pad=ab", a, b),
        (f"{kernel},split=4,pad=ab", a[:, ::2], b[:, ::2]),
        (f"{kernel},pad=ab", a, one.expand(2, 3, 416, 136)),
        (f"{kernel},split=2,pad=ab", column.expand(2, 3, 65, 416), b),
        (f"{kernel},pad=a", a, b.contiguous()),
        (f"{kernel},pad=ab", wide[::2, ::3], deep[::3, ::2]),
        (f"{kernel},split=3,pad=ab", deep.t()[::2, ::2], wide.t()[::2, ::2]),
    ]
    run_all(calls)
    many = randn(2, 3, 2, 5, 40, 331, dtype=FP32)[:, ::2, :, ::2]  # more modes than a kernel walks
    run_all([(f"{kernel},split=2,pad=a", many, randn(331, 72, dtype=FP32))])


def test_epilogues_run_once_and_the_same_bits_come_each_time() -> None:
    a, b = fp32_operands(133, 264, 1096, "nt")
    row, c = randn(264, dtype=FP32, seed=9), in_nan(randn(133, 264, dtype=FP32, seed=6))
    cases: list[dict[str, Any]] = [{"epilogue": epilogues.bias_gelu(row)}, {"c": c, "beta": 0.5, "alpha": -2.0}]
    for kernel in (f"{KERNELS[0]},pad=ab", f"{KERNELS[0]},split=4,pad=b"):
        for keywords in cases:
            run(kernel, a, b, **keywords)
        first = gemm(a, b, kernel=kernel, precision="ieee")
        assert all(torch.equal(gemm(a, b, kernel=kernel, precision="ieee"), first) for _ in range(100))


def test_copies_change_no_bits() -> None:
    """The product reads the same numbers in the same order."""
    for layout, pad in TURNED.items():
        a, b = fp32_operands(300, 520, 1001, layout, 4)
        wanted = gemm(a, b, kernel=KERNELS[0], precision="ieee")
        for copies in {pad, "ab"} - {"no"}:
            assert torch.equal(gemm(a, b, kernel=f"{KERNELS[0]},pad={copies}", precision="ieee"), wanted)


@pytest.fixture(scope="module")
def jit(request: pytest.FixtureRequest) -> str | None:
    def spec(x: dict[str, Any]) -> Spec:
        return problems.spec_of(problems.make(x["number"], precision="ieee"), **copied(x["number"]))

    return problems.built(request, spec)


def copied(number: int) -> dict[str, Any]:
    """What pins the `number`-th random problem's kernel to copies of all operands that they would help."""
    return {"kernel": KERNELS[number % 3].rpartition(",")[0], "padding": "copy"}


@pytest.mark.parametrize("number", range(COUNT), ids=lambda number: f"{number:03d}")
def test_random_problem(number: int, jit: str | None) -> None:
    problems.run(problems.make(number, precision="ieee"), jit, **copied(number))
