"""What a caller's surroundings must not change, or must be told of: autocast, inference mode, transforms, autograd."""

from __future__ import annotations

import pytest
import torch

from cutegemm import errors, gemm
from tests.helpers import check
from tests.semantics.inputs import BF16, randn


def test_autocast_does_not_round_on_the_way() -> None:
    a, b = randn(32, 64), randn(64, 48)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        result = gemm(a, b, out_dtype=torch.float32)
    check(result, a, b)


def test_a_tensor_with_a_tangent_is_refused() -> None:
    a, b = randn(4, 8), randn(8, 6)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(errors.NotAvailableError, match="a has a tangent"):
            gemm(dual, b)
        check(gemm(a, b), a, b)


def test_functional_transforms_are_refused_by_name() -> None:
    a, b = randn(3, 4, 8), randn(8, 6)
    with pytest.raises(errors.NotAvailableError, match="vmap"):
        torch.func.vmap(lambda x: gemm(x, b))(a)


def test_an_output_of_inference_mode_is_written_there_only() -> None:
    a, b = randn(4, 8), randn(8, 6)
    with torch.inference_mode():
        out = torch.zeros(4, 6, dtype=BF16)
    with pytest.raises(errors.ArgumentError, match="out was made in inference mode"):
        gemm(a, b, out=out)
    assert not out.any()
    with torch.inference_mode():
        check(gemm(a, b, out=out), a, b)


def test_autograd_notices_that_an_output_was_overwritten() -> None:
    a, b = randn(4, 8), randn(8, 6)
    for _ in range(2):  # the second call may take a shorter path
        kept, weight = randn(4, 6), randn(4, 6).requires_grad_()
        product = (kept * weight).sum()
        gemm(a, b, out=kept)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()
