"""What is computed: scaling, rounding, NaN and infinities, and that one call's kernel is not another's."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from cutegemm import Row, epilogue, epilogues, gemm, ops
from tests.helpers import check
from tests.semantics.inputs import BF16, FP16, FP32, bias, bias_relu, everything, full, randn


def test_alpha_scales_the_product_alone() -> None:
    result = gemm(full(5, 1, 1), full(1, 1, 1), alpha=2, c=full(4, 1, 1), beta=0.5, epilogue=bias_relu(full(3, 1)))
    assert result.item() == 15.0


def test_the_product_is_scaled_before_it_is_narrowed() -> None:
    a, b = full(10, 1, 1000, dtype=FP16), full(10, 1000, 1, dtype=FP16)
    for alpha in (0.5, torch.tensor(0.5)):
        result = gemm(a, b, alpha=alpha)
        assert result.dtype == FP16 and result.item() == 49984.0
    assert gemm(a, b).item() == math.inf


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32])
def test_scalars_may_be_tensors_of_no_dimension(dtype: torch.dtype) -> None:
    two = torch.tensor(2, dtype=dtype)
    a, b, c = full(1, 2, 4), full(1, 4, 3), full(5, 2, 3)
    assert torch.equal(gemm(a, b, c=c, alpha=two, beta=two), full(18, 2, 3))
    bound = everything(full(0, 3), full(0, 2), full(0, 2, 3), two)
    assert torch.equal(gemm(a, b, epilogue=bound).pre, full(8, 2, 3))


@pytest.mark.parametrize("minus", [1, 2, 511, 512, 513, 1023])
def test_sums_are_kept_in_fp32(minus: int) -> None:
    a = torch.zeros(1, 1024, dtype=BF16)
    a[0, 0], a[0, 3], a[0, minus] = 256, 1, -256  # 257 is no bf16: a partial sum in bf16 loses the 1
    assert gemm(a, full(1, 1024, 1)).item() == 1.0
    assert gemm(full(1, 1, 1024), a.t()).item() == 1.0


def test_fp32_is_not_rounded_unasked() -> None:
    a, b = torch.tensor([[1024.5]], dtype=FP32), full(1, 1, 1, dtype=FP32)
    assert gemm(a, b).item() == gemm(a, b, precision="ieee").item() == 1024.5
    assert abs(gemm(a, b, precision="tf32").item() - 1024.5) <= 0.5


def test_the_output_type_decides_the_rounding() -> None:
    a, b = torch.tensor([[256.0, 1.0]], dtype=BF16), full(1, 2, 1)
    assert gemm(a, b).item() == 256.0 and gemm(a, b).dtype == BF16
    assert gemm(a, b, out_dtype=FP32).item() == 257.0
    assert gemm(a.half(), b.half()).item() == 257.0
    # Halfway cases go to even, overflow to infinity.
    x = torch.tensor([[257.0], [259.0]], dtype=FP32)
    assert gemm(full(0, 2, 1), full(0, 1, 1), c=x, out_dtype=BF16).flatten().tolist() == [256.0, 260.0]
    assert gemm(full(2.0**120, 1, 1), full(1, 1, 1), out_dtype=FP16).item() == math.inf


@pytest.mark.parametrize("name", ["relu", "bias_relu"])
def test_relu_keeps_nan_and_the_top_of_the_range(name: str) -> None:
    a = torch.tensor([[torch.nan], [-torch.inf], [2.0**127], [-0.5], [torch.inf], [-(2.0**127)]], dtype=BF16)
    made = getattr(epilogues, name)
    bound = made() if name == "relu" else made(torch.zeros(1))
    result = gemm(a, full(1, 1, 1), epilogue=bound, out_dtype=FP32)
    assert result[0].isnan() and result[1:, 0].tolist() == [0.0, 2.0**127, 0.0, math.inf, 0.0]


def test_nan_and_inf_spread_as_in_ieee() -> None:
    a = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [torch.inf, 0.0], [1.0, 1.0]], dtype=BF16)
    b = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=BF16)
    result = gemm(a, b)
    check(result, a, b, nan=True)
    assert result.isnan().tolist() == [[True, True], [False, True], [False, True], [False, False]]
    assert result[1, 0] == math.inf


def test_the_two_gelus_are_told_apart() -> None:
    one = full(1, 1, 1)
    for made, expected in ((epilogues.gelu, -0.00936), (epilogues.gelu_tanh, -0.00889)):
        result = gemm(one, one, alpha=-2.7, epilogue=made(), out_dtype=FP32)
        assert result.item() == pytest.approx(expected, abs=5e-6)


def test_an_epilogue_computes_in_fp32_and_rounds_once() -> None:
    # In bf16 every step would lose the 1: 256 + 1 - 256.
    plus, minus = full(1, 1), full(-256, 1)
    assert gemm(full(256, 1, 1), full(1, 1, 1), epilogue=bias(plus) >> bias(minus)).item() == 1.0

    @epilogue
    def rounded(acc, plus: Row):
        return ops.cast(acc + plus, "bf16") - 256

    assert gemm(full(256, 1, 1), full(1, 1, 1), epilogue=rounded(plus)).item() == 0.0


def test_the_same_inputs_give_the_same_bits() -> None:
    a, b = randn(65, 1000), randn(1000, 33, seed=1)
    first = gemm(a, b, out_dtype=FP32)
    assert torch.equal(gemm(a, b, out_dtype=FP32, deterministic=True), first)
    check(gemm(a, b, out_dtype=FP32, deterministic=False), a, b)


def test_calls_that_differ_in_one_thing_do_not_share_a_kernel() -> None:
    a, b, v = randn(24, 64), randn(64, 40, seed=1), randn(40, seed=2)
    odd = randn(24 * 64 + 1).as_strided((24, 64), (64, 1), 1)
    calls = [
        (a, b, {}),
        (a, b, {"epilogue": epilogues.relu()}),
        (a, b, {"epilogue": epilogues.gelu()}),
        (a, b, {"epilogue": epilogues.gelu_tanh()}),
        (a, b, {"epilogue": epilogues.bias(v)}),
        (a, b, {"epilogue": epilogues.bias(v.float())}),
        (a, b, {"epilogue": epilogues.bias(v[:1].expand(40))}),
        (a, b, {"alpha": 2.0}),
        (a, b, {"alpha": 0.0}),
        (a, b, {"alpha": torch.tensor(3.0)}),
        (a.half(), b.half(), {}),
        (odd, b, {}),
        (a, b.t().contiguous().t(), {}),
    ]
    results = [gemm(x, y, out_dtype=FP32, **keywords) for x, y, keywords in calls]
    again = [gemm(x, y, out_dtype=FP32, **keywords) for x, y, keywords in reversed(calls)]
    for (x, y, keywords), result, second in zip(calls, results, reversed(again), strict=True):
        check(result, x, y, **keywords)
        assert torch.equal(result, second)
    # Those of other functions of the same numbers differ in their results: sharing would show.
    for left, right in itertools.combinations(results[:5] + results[7:10], 2):
        assert not torch.equal(left, right)


def test_what_a_kernel_is_not_chosen_by_may_change_from_call_to_call() -> None:
    a, b = randn(24, 64), randn(64, 40, seed=1)
    for alpha, low in ((1.0, -1.0), (-0.5, 0.25), (3.0, -7.0)):
        bound = epilogues.clamp(low, low + 1)
        check(gemm(a, b, alpha=alpha, epilogue=bound), a, b, alpha=alpha, epilogue=bound)
