"""Fake tensors: checked alike, and the result is like the real one without being computed."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cutegemm import gemm
from tests.semantics.inputs import BF16, FP32, bias_relu, randn, swiglu_aux

FAKES = [
    lambda: {"a": randn(6, 8), "b": randn(8, 10)},
    lambda: {"a": randn(2, 1, 6, 8), "b": randn(3, 8, 10), "out_dtype": FP32},
    lambda: {"a": randn(8, 6).t(), "b": randn(10, 8).t(), "epilogue": bias_relu(randn(10))},
    lambda: {"a": randn(6, 16)[:, :8], "b": randn(8, 2880), "c": randn(6, 2880)},
    lambda: {"a": randn(6, 8), "b": randn(8, 10), "epilogue": swiglu_aux(), "out_dtype": {"pre": FP32}},
    lambda: {"a": randn(6, 8), "b": randn(8, 10), "out": torch.empty(10, 6, dtype=BF16).t()},
    lambda: {"a": randn(0, 8), "b": randn(8, 10), "alpha": torch.tensor(2.0)},
]


@pytest.mark.parametrize("make", FAKES)
def test_a_fake_result_is_like_the_real_one(make) -> None:
    real = gemm(**make())
    with FakeTensorMode():
        fake = gemm(**make())
    both = zip(*((r if isinstance(r, tuple) else (r,)) for r in (real, fake)), strict=True)
    for r, f in both:
        assert (f.shape, f.stride(), f.dtype, f.device) == (r.shape, r.stride(), r.dtype, r.device)
        assert type(f).__name__ == "FakeTensor"


def test_fake_tensors_outside_of_their_mode() -> None:
    with FakeTensorMode():
        a, b = randn(6, 8), randn(8, 10)
    assert type(gemm(a, b)).__name__ == "FakeTensor"


def test_fake_tensors_are_checked_alike() -> None:
    with FakeTensorMode(), pytest.raises(ValueError, match=r"a \(2, 5\) and b \(3, 7\)"):
        gemm(randn(2, 5), randn(3, 7))
