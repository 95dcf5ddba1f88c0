"""Shapes, batches, strides and alignments of the inputs."""

from __future__ import annotations

import pytest
import torch

from cutegemm import Col, epilogue, gemm
from tests.helpers import Guarded, check
from tests.semantics.inputs import BATCHES, BF16, FP16, FP32, add, bias, everything, full, in_nan, ones, randn


@pytest.mark.parametrize(("left", "right"), BATCHES)
def test_batches_broadcast_as_in_matmul(left, right) -> None:
    a, b = randn(*left, 9, 17), randn(*right, 17, 6, seed=1)
    result = gemm(a, b)
    assert result.shape == torch.matmul(a, b).shape
    check(result, a, b)


@pytest.mark.parametrize(("left", "right"), BATCHES)
def test_every_kind_of_operand_may_have_the_batch_or_not(left, right) -> None:
    a, b = randn(*left, 9, 17), randn(*right, 17, 6, seed=1)
    batch = torch.broadcast_shapes(left, right)
    for own_batch in {(), tuple(batch)}:
        row, col, tile = (randn(*own_batch, *own, seed=2) for own in ((6,), (9,), (9, 6)))
        bound = everything(row, col, tile)
        result = gemm(a, b, epilogue=bound, c=randn(*batch, 9, 6, seed=3), beta=2)
        check(result, a, b, epilogue=bound, c=randn(*batch, 9, 6, seed=3), beta=2)


def test_a_row_is_not_a_column_even_in_a_square() -> None:
    a, b, v = full(0, 3, 3), full(0, 3, 3), torch.tensor([1.0, 2.0, 3.0])

    @epilogue
    def column(acc, v: Col):
        return acc + v

    assert torch.equal(gemm(a, b, epilogue=bias(v), out_dtype=FP32), v.expand(3, 3))
    assert torch.equal(gemm(a, b, epilogue=column(v), out_dtype=FP32), v[:, None].expand(3, 3))


@pytest.mark.parametrize("shape", [(65_536, 8, 8), (4_194_304, 8), (131_072, 1, 8)])
def test_more_blocks_than_a_grid_dimension_holds(shape) -> None:
    result = gemm(ones(*shape), ones(*shape[:-2], 8, 8))
    assert result.shape == shape and bool((result == 8).all())


@pytest.mark.parametrize(
    "mnk", [(1, 105, 107), (32, 2, 768), (1000, 999, 1001), (333, 199, 201), (33, 431, 3), (257, 1, 257), (1, 1, 1)]
)
def test_ragged_sizes(mnk) -> None:
    m, n, k = mnk
    a, b = randn(m, k), randn(k, n, seed=1)
    check(gemm(a, b), a, b)


@pytest.mark.parametrize("align", [16, 8, 4, 2])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_tail_of_k(layout: str, align: int) -> None:
    # One alignment for all K: so one kernel sees vectors that end anywhere. What lies past an edge is NaN.
    for k in (*range(1, 66), 127, 129):
        a, b = randn(5, k, seed=k), randn(k, 3, seed=k + 1)
        x, y = (in_nan(a, align), in_nan(b, align)) if layout == "nn" else (
            in_nan(a.t(), align).t(), in_nan(b.t(), align).t())  # fmt: skip
        check(gemm(x, y, out_dtype=FP32), a, b)


@pytest.mark.parametrize("align", [16, 2])
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_tail_of_m_and_n(layout: str, align: int) -> None:
    for m, n in [(i, 34 - i) for i in range(1, 34)] + [(63, 65), (64, 64), (65, 63), (129, 127)]:
        a, b = randn(m, 40, seed=m), randn(40, n, seed=n + 1)
        x, y = (in_nan(a, align), in_nan(b, align)) if layout == "nn" else (
            in_nan(a.t(), align).t(), in_nan(b.t(), align).t())  # fmt: skip
        out = Guarded((m, n), BF16, strides=(136 + 8 * (align == 16) + (align == 2), 1), offset=int(align == 2))
        gemm(x, y, out=out.tensor)
        check(out.tensor, a, b)
        out.assert_intact()


@pytest.mark.parametrize("pitch", [65, 66, 68, 72])
def test_a_row_pitch_off_16_bytes(pitch: int) -> None:
    a = randn(64 * 72).as_strided((64, 64), (pitch, 1))
    check(gemm(a, a.t()), a, a.t())


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_a_transposed_input_with_an_odd_pitch(dtype: torch.dtype) -> None:
    x, g = randn(64, 33, dtype=dtype), randn(64, 48, dtype=dtype, seed=1)
    check(gemm(x.t(), g), x.t(), g)
    check(gemm(g.t(), x), g.t(), x)


@pytest.mark.parametrize("a_t", [False, True])
@pytest.mark.parametrize("b_t", [False, True])
@pytest.mark.parametrize("d_t", [False, True])
def test_all_layouts(a_t: bool, b_t: bool, d_t: bool) -> None:
    a = randn(20, 30).t() if a_t else randn(30, 20)
    b = randn(40, 20, seed=1).t() if b_t else randn(20, 40, seed=1)
    out = Guarded((30, 40), BF16, strides=(1, 30) if d_t else (40, 1))
    assert gemm(a, b, out=out.tensor) is out.tensor
    check(out.tensor, a, b)
    out.assert_intact()


def test_views_of_every_stride() -> None:
    base, wide = randn(40, 60), randn(30, 512, seed=1)
    check(gemm(base[::2, ::2], wide[:, ::7]), base[::2, ::2], wide[:, ::7])
    check(gemm(wide[:, :3], randn(3, 4)), wide[:, :3], randn(3, 4))
    check(gemm(base[1:, 3:].t(), base[1:, 1:]), base[1:, 3:].t(), base[1:, 1:])


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (0, 0)])
def test_stride_zero_inputs(strides) -> None:
    a, b = randn(128).as_strided((128, 64), strides), randn(64, 16, seed=1)
    row = randn(1, 1).expand(1, 16)[0]
    check(gemm(a, b, epilogue=bias(row)), a, b, epilogue=bias(row))
    check(gemm(b.t(), a.t()), b.t(), a.t())


def test_a_stride_of_a_single_row_means_nothing() -> None:
    a = randn(64).as_strided((1, 64), (10**9, 1))
    out = torch.zeros(8, dtype=BF16).as_strided((1, 8), (0, 1))
    check(gemm(a, randn(64, 8), out=out), a, randn(64, 8))


def test_lazy_negation_and_conjugation_are_resolved() -> None:
    z = torch.view_as_complex(randn(4, 4, 2, dtype=FP16))
    negated, eye = z.conj().imag, torch.eye(4, dtype=FP16)
    assert negated.is_neg()
    assert torch.equal(gemm(negated, eye), -z.imag)
    assert torch.equal(gemm(eye, negated), -z.imag)
    assert torch.equal(gemm(eye, eye, c=negated), eye - z.imag)
    assert torch.equal(gemm(eye, eye, epilogue=add(negated)), eye - z.imag)
