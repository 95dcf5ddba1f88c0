"""The reference and the oracle against independent arithmetic: fractions, numpy, hand-made numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy
import pytest
import torch

from cutegemm import Col, Row, Scalar, epilogue, gemm, ops, reference
from cutegemm.reference import cast, gemm64

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@epilogue
def bias(acc, bias: Row):
    return acc + bias


@epilogue
def affine(acc, scale: Col, shift: Row, slope: Scalar):
    x = acc * scale + shift
    return {"out": ops.maximum(x, x * slope), "pre": x}


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact_product(a: torch.Tensor, b: torch.Tensor) -> list[list[Fraction]]:
    rows = [[Fraction(x) for x in row] for row in a.double().tolist()]
    columns = [[Fraction(x) for x in column] for column in b.double().t().tolist()]
    return [[sum((x * y for x, y in zip(r, c, strict=True)), Fraction(0)) for c in columns] for r in rows]


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32, FP64])
def test_the_oracle_is_exact_to_fp64(dtype: torch.dtype) -> None:
    a, b = randn(4, 97, dtype=dtype, seed=0), randn(97, 3, dtype=dtype, seed=1)
    result = gemm64(a, b)
    assert result.dtype == FP64
    for row, exact_row in zip(result.tolist(), exact_product(a, b), strict=True):
        for value, exact in zip(row, exact_row, strict=True):
            assert abs(Fraction(value) - exact) <= Fraction(97, 2**53) * 400


def test_the_oracle_rounds_nothing_on_the_way() -> None:
    a = torch.tensor([[256.0, 1.0, 2.0**-20]], dtype=BF16)
    assert gemm64(a, torch.ones(3, 1, dtype=BF16)).item() == 257 + 2.0**-20


def test_the_oracle_has_the_whole_formula() -> None:
    a, b, c = (randn(*shape, dtype=BF16, seed=i) for i, shape in enumerate([(4, 8), (8, 5), (4, 5)]))
    scale, shift = randn(4, dtype=FP32, seed=3), randn(5, dtype=FP32, seed=4)
    result = gemm64(a, b, c=c, alpha=1.5, beta=-0.25, epilogue=affine(scale, shift, 0.125))
    x = (1.5 * (a.double() @ b.double()) - 0.25 * c.double()) * scale.double()[:, None] + shift.double()
    assert result._fields == ("out", "pre")
    assert torch.allclose(result.pre, x, rtol=1e-14, atol=1e-15)
    assert torch.allclose(result.out, torch.maximum(x, x * 0.125), rtol=1e-14, atol=1e-15)


def test_numbers_are_taken_as_kernels_take_them() -> None:
    tenth = float(numpy.float32(0.1))
    one = torch.ones(1, 1, dtype=BF16)
    assert gemm64(one, one, alpha=0.1).item() == tenth != 0.1
    assert gemm64(one, one, c=one, alpha=0, beta=0.1).item() == tenth
    assert gemm64(one.double(), one.double(), alpha=0.1).item() == 0.1


def test_what_is_not_read_does_not_reach_the_oracle() -> None:
    a, b, c = torch.full((2, 3), torch.nan), torch.ones(3, 2), torch.full((2, 2), torch.nan)
    assert torch.equal(gemm64(a, b, alpha=0), torch.zeros(2, 2, dtype=FP64))
    assert torch.equal(gemm64(torch.ones(2, 3), b, c=c, beta=0), torch.full((2, 2), 3.0, dtype=FP64))
    zero = torch.tensor(0.0)
    assert torch.equal(gemm64(a, b, c=c, alpha=zero, beta=zero), torch.zeros(2, 2, dtype=FP64))


def test_an_explicit_cast_rounds_in_the_oracle_too() -> None:
    @epilogue
    def rounded(acc):
        return ops.cast(acc, "bf16")

    a = torch.tensor([[256.0, 1.0]], dtype=BF16)
    assert gemm64(a, torch.ones(2, 1, dtype=BF16), epilogue=rounded()).item() == 256.0


def test_the_oracle_follows_broadcast_batches_and_empty_sizes() -> None:
    a, b = randn(2, 1, 3, 4, dtype=BF16, seed=0), randn(5, 4, 6, dtype=BF16, seed=1)
    expected = numpy.matmul(a.double().numpy(), b.double().numpy())
    assert numpy.allclose(gemm64(a, b).numpy(), expected, rtol=1e-14)
    assert gemm64(a[..., :0], b[:, :0]).shape == (2, 5, 3, 6)
    assert not gemm64(a[..., :0], b[:, :0]).any()


def test_the_reference_accumulates_strictly_whatever_torch_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = randn(33, 700, dtype=FP32, seed=0), randn(700, 17, dtype=FP32, seed=1)
    exact = gemm64(a, b)
    before = torch.backends.mkldnn.matmul.fp32_precision
    for setting in ("ieee", "bf16", "tf32"):
        torch.backends.mkldnn.matmul.fp32_precision = setting
        try:
            error = (gemm(a, b).double() - exact).abs().max().item()
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = before
        assert error < 700 * 2.0**-24 * 40


def test_the_reference_stays_strict_where_torch_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_strict_matmul", lambda: False)
    a, b = randn(5, 64, dtype=FP32, seed=0), randn(64, 3, dtype=FP32, seed=1)
    assert torch.equal(gemm(a, b), gemm64(a, b).float())


def test_casts_to_floats_are_torchs() -> None:
    x = torch.tensor([1.0, 257.0, 65520.0, -1e-9, torch.inf, torch.nan])
    for dtype in (FP16, BF16, FP32, FP64):
        assert torch.equal(cast(x, dtype).nan_to_num(7), x.to(dtype).nan_to_num(7))


@pytest.mark.parametrize(("dtype", "low", "high"), [(torch.int8, -128, 127), (torch.int32, -(2**31), 2**31 - 1)])
def test_casts_to_integers_round_to_even_and_saturate(dtype, low, high) -> None:
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    assert cast(x, dtype).tolist() == [0, 2, 2, 0, -2, high, low, high, low, 0]


def test_results_do_not_share_memory_with_their_inputs() -> None:
    # K = 1 with alpha 1 and no epilogue is where a reference could hand an input back.
    a, b, c = torch.ones(2, 1), torch.ones(1, 3), torch.zeros(2, 3)
    result = gemm(a, b, c=c)
    result.fill_(9)
    assert a.eq(1).all() and b.eq(1).all() and c.eq(0).all()
    both = gemm(a, b, epilogue=affine(torch.ones(2), torch.zeros(3), 1.0))
    both.out.fill_(9)
    assert both.pre.eq(1).all()


def test_infinities_of_the_scale_are_carried() -> None:
    one = torch.ones(1, 1)
    assert gemm(one, one, alpha=math.inf).item() == math.inf
    assert math.isnan(gemm(one * 0, one, alpha=math.inf).item())
    assert gemm(one, one, alpha=1e300).item() == math.inf
