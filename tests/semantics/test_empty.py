"""Empty problems: an empty K is a sum of nothing, an empty result is checked and shaped like any other."""

from __future__ import annotations

import pytest
import torch

from cutegemm import gemm
from tests.helpers import Guarded
from tests.semantics.inputs import BF16, bias, full


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_empty_k_writes_zeros(batch) -> None:
    out = Guarded((*batch, 7, 5), BF16)  # full of NaN
    assert gemm(full(1, *batch, 7, 0), full(1, 0, 5), out=out.tensor) is out.tensor
    assert torch.equal(out.tensor, torch.zeros(*batch, 7, 5, dtype=BF16))
    out.assert_intact()


def test_an_empty_k_still_has_c_and_the_epilogue() -> None:
    a, b, c = full(1, 7, 0), full(1, 0, 5), full(4, 7, 5)
    result = gemm(a, b, c=c, beta=0.5, epilogue=bias(full(1, 5)))
    assert torch.equal(result, full(3, 7, 5))


def test_an_empty_k_at_the_end_of_storage() -> None:
    a = torch.empty(64, dtype=BF16).as_strided((64, 0), (1, 1), 64)
    b = torch.empty(64, dtype=BF16).as_strided((0, 64), (64, 1), 64)
    assert torch.equal(gemm(a, b), full(0, 64, 64))


def test_an_empty_k_without_any_storage() -> None:
    a, b = torch.empty(0, dtype=BF16), torch.empty(0, dtype=BF16)
    assert torch.equal(gemm(a.view(64, 0), b.view(0, 64)), full(0, 64, 64))


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((0, 64), (64, 32), (0, 32)),
        ((64, 8), (8, 0), (64, 0)),
        ((0, 4, 8), (8, 5), (0, 4, 5)),
        ((0, 4, 8), (1, 8, 5), (0, 4, 5)),
        ((2, 0, 4, 8), (8, 5), (2, 0, 4, 5)),
        ((0, 0), (0, 0), (0, 0)),
    ],
)
def test_empty_results_have_their_shape(a, b, shape) -> None:
    result = gemm(full(1, *a), full(1, *b))
    assert result.shape == shape and result.dtype == BF16
    assert gemm(full(1, *a), full(1, *b), out=result) is result


def test_an_empty_result_is_checked_like_any_other() -> None:
    with pytest.raises(ValueError, match="inner size"):
        gemm(full(1, 0, 64), full(1, 63, 32))


@pytest.mark.parametrize("beta", [0, 0.0, -0.0])
def test_a_beta_of_zero_does_not_read_c(beta: float) -> None:
    result = gemm(full(1, 2, 4), full(1, 4, 3), c=full(torch.nan, 2, 3), beta=beta)
    assert torch.equal(result, full(4, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_beta_of_zero_in_a_tensor_does_not_let_c_count(dtype: torch.dtype) -> None:
    beta = torch.tensor(0.0, dtype=dtype)
    for poison in (torch.nan, torch.inf):
        result = gemm(full(1, 2, 4), full(1, 4, 3), c=full(poison, 2, 3), beta=beta)
        assert torch.equal(result, full(4, 2, 3))


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_an_alpha_of_zero_does_not_read_a_and_b(alpha: float, poison: float) -> None:
    a, b = full(poison, 2, 4), full(poison, 4, 3)
    assert torch.equal(gemm(a, b, alpha=alpha), full(0, 2, 3))
    assert torch.equal(gemm(a, b, alpha=alpha, c=full(3, 2, 3), epilogue=bias(full(1, 3))), full(4, 2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_alpha_of_zero_in_a_tensor_does_not_let_a_and_b_count(dtype: torch.dtype) -> None:
    alpha = torch.tensor(0.0, dtype=dtype)
    for poison in (torch.nan, torch.inf):
        a, b = full(poison, 2, 4), full(poison, 4, 3)
        assert torch.equal(gemm(a, b, alpha=alpha), full(0, 2, 3))
        result = gemm(a, b, alpha=alpha, c=full(3, 2, 3), epilogue=bias(full(1, 3)))
        assert torch.equal(result, full(4, 2, 3))


def test_beta_is_one_where_c_is_given_and_it_is_not() -> None:
    a, b, c = full(1, 2, 4), full(1, 4, 3), full(5, 2, 3)
    assert torch.equal(gemm(a, b, c=c), full(9, 2, 3))
    assert torch.equal(gemm(a, b), full(4, 2, 3))
    assert torch.equal(gemm(a, b, beta=0), full(4, 2, 3))
