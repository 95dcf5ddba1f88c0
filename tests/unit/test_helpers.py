"""The comparison helpers against results that are wrong: a helper that can't fail is a defect."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cutegemm import Row, Tile, epilogue, ops
from cutegemm.reference import gemm64
from tests.helpers import Guarded, assert_within, check, expect

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
M, N, K, TILE = 48, 80, 256, 16


def problem(dtype: torch.dtype, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(M, K, generator=generator).to(dtype)
    return a, torch.randn(K, N, generator=generator).to(dtype)


def honest(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A right result, summed in another order than any path of the package does it."""
    acc = torch.zeros(M, N)
    for k in reversed(range(K)):
        acc += a[:, k, None].float() * b[None, k].float()
    return acc.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_result_passes(dtype: torch.dtype) -> None:
    a, b = problem(dtype)
    check(honest(a, b, dtype), a, b)
    check(honest(a, b, torch.float32), a, b)


def without_last_tile(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[-TILE:, -TILE:] = 0
    return result


def with_last_tile_left_nan(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[-TILE:, -TILE:] = torch.nan
    return result


def with_one_nan(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[17, 5] = torch.nan
    return result


def all_nan(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return result.fill_(torch.nan)


def with_one_inf(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[3, 3] = torch.inf
    return result


def with_stale_stage(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A missing barrier: one warp's tile multiplies a k-slab's A with the previous slab's B."""
    a, b, rows, columns = a.float(), b.float(), slice(0, TILE), slice(TILE, 2 * TILE)
    right = a[rows, TILE : 2 * TILE] @ b[TILE : 2 * TILE, columns]
    stale = a[rows, TILE : 2 * TILE] @ b[:TILE, columns]
    result[rows, columns] += (stale - right).to(result.dtype)
    return result


def with_one_racing_element(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Two threads added to one element at once: the contribution of 8 products is lost."""
    result[20, 30] -= (a[20, :8].float() @ b[:8, 30].float()).to(result.dtype)
    return result


def with_swapped_columns(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[:, [4, 5]] = result[:, [5, 4]]
    return result


def transposed_tile(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    result[:TILE, :TILE] = result[:TILE, :TILE].t().clone()
    return result


def with_short_k(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The last slab of K forgotten."""
    return (a[:, :-8].float() @ b[:-8].float()).to(result.dtype)


def accumulated_in_fp16(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    acc = torch.zeros(M, N, dtype=torch.float16)
    for k in range(K):
        acc += (a[:, k, None].float() * b[None, k].float()).half()
    return acc.to(result.dtype)


def accumulated_in_bf16(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    acc = torch.zeros(M, N, dtype=torch.bfloat16)
    for k in range(0, K, TILE):
        acc += (a[:, k : k + TILE].float() @ b[k : k + TILE].float()).bfloat16()
    return acc.to(result.dtype)


def truncated_not_rounded(result: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The cast to the output drops bits where it should round."""
    exact = gemm64(a, b)
    up = torch.nextafter(result, torch.full_like(result, torch.inf))
    down = torch.nextafter(result, torch.full_like(result, -torch.inf))
    away = (result.double().abs() > exact.abs()) & (result != 0)
    return torch.where(away, torch.where(result > 0, down, up), result)


MUTANTS = [
    without_last_tile,
    with_last_tile_left_nan,
    with_one_nan,
    all_nan,
    with_one_inf,
    with_stale_stage,
    with_one_racing_element,
    with_swapped_columns,
    transposed_tile,
    with_short_k,
    accumulated_in_bf16,
]


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_result_is_rejected(mutant, dtype: torch.dtype) -> None:
    a, b = problem(dtype)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check(mutant(honest(a, b, dtype), a, b), a, b)


@pytest.mark.parametrize("mutant", [accumulated_in_fp16, truncated_not_rounded])
@pytest.mark.parametrize("dtype", [torch.float16])
def test_a_wrong_rounding_is_rejected(mutant, dtype: torch.dtype) -> None:
    a, b = problem(dtype)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check(mutant(honest(a, b, dtype), a, b), a, b)


@pytest.mark.parametrize("mutant", MUTANTS[:6])
def test_a_wrong_result_is_rejected_behind_an_epilogue(mutant) -> None:
    @epilogue
    def bias_relu(acc, bias: Row):
        return ops.relu(acc + bias)

    a, b = problem(torch.bfloat16)
    v = torch.full((N,), 100.0)  # keeps every element on relu's open side
    right = (honest(a, b, torch.float32) + v).relu().bfloat16()
    check(right, a, b, epilogue=bias_relu(v))
    with pytest.raises(AssertionError, match="elements are wrong"):
        check(mutant(right, a, b), a, b, epilogue=bias_relu(v))


def test_a_bias_read_from_the_wrong_column_is_rejected() -> None:
    @epilogue
    def bias(acc, bias: Row):
        return acc + bias

    a, b = problem(torch.bfloat16)
    v = torch.randn(N)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check((honest(a, b, torch.float32) + v.roll(1)).bfloat16(), a, b, epilogue=bias(v))


def test_operands_that_cancel_leave_the_roundings_of_each() -> None:
    """The residual takes off what the bias has brought, but not what the sum with it has lost."""

    @epilogue
    def bias_relu_add(acc, bias: Row, residual: Tile):
        return ops.relu(acc + bias) + residual

    a, b = torch.full((1, 1), 2.0**-14), torch.full((1, 1), 2.0**-13)
    operands = bias_relu_add(torch.ones(1), -torch.ones(1, 1))
    for result, right in ((2.0**-27, True), (0.0, True), (-(2.0**-25), True), (2.0**-20, False), (-(2.0**-20), False)):
        if right:
            check(torch.tensor([[result]]), a, b, epilogue=operands)
        else:
            with pytest.raises(AssertionError, match="elements are wrong"):
                check(torch.tensor([[result]]), a, b, epilogue=operands)


def test_a_gated_unit_with_its_halves_swapped_is_rejected() -> None:
    @epilogue
    def gated(acc):
        gate, up = ops.pair(acc)
        return ops.silu(gate) * up

    a, b = problem(torch.bfloat16)
    full = honest(a, b, torch.float32)
    gate, up = full[:, 0::2], full[:, 1::2]
    check((torch.nn.functional.silu(gate) * up).bfloat16(), a, b, epilogue=gated())
    with pytest.raises(AssertionError, match="elements are wrong"):
        check((torch.nn.functional.silu(up) * gate).bfloat16(), a, b, epilogue=gated())


def test_shape_and_number_of_outputs_are_compared() -> None:
    a, b = problem(torch.float32)
    right = honest(a, b, torch.float32)
    with pytest.raises(AssertionError, match="shape"):
        check(right[:, :-1], a, b)
    with pytest.raises(AssertionError, match="2 outputs, expected 1"):
        check([right, right], a, b)


def tf32(x: Tensor) -> Tensor:
    """fp32 numbers rounded to TF32, to nearest."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_tf32_is_right_where_it_was_asked_for_and_bf16_nowhere() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(40, 64), torch.randn(64, 48)
    result = (tf32(a).double() @ tf32(b).double()).float()
    check(result, a, b, precision="tf32")
    for keywords in ({}, {"precision": "ieee"}):
        with pytest.raises(AssertionError, match="elements are wrong"):
            check(result, a, b, **keywords)
    with pytest.raises(AssertionError, match="elements are wrong"):
        check(a.bfloat16().float() @ b.bfloat16().float(), a, b, precision="tf32")


def test_nan_passes_only_where_it_is_asked_for_and_expected() -> None:
    a, b = torch.tensor([[torch.nan], [1.0]]), torch.tensor([[1.0, 2.0]])
    right = torch.tensor([[torch.nan, torch.nan], [1.0, 2.0]])
    check(right, a, b, nan=True)
    with pytest.raises(AssertionError, match="oracle has NaN"):
        check(right, a, b)
    with pytest.raises(AssertionError, match="1 of 4 elements are wrong"):
        check(torch.tensor([[torch.nan, 2.0], [1.0, 2.0]]), a, b, nan=True)
    with pytest.raises(AssertionError, match="1 of 4 elements are wrong"):
        check(torch.tensor([[torch.nan, torch.nan], [torch.nan, 2.0]]), a, b, nan=True)


def test_overflow_has_to_give_the_right_infinity() -> None:
    a, b = torch.full((1, 4), 200.0, dtype=torch.float16), torch.full((4, 1), 200.0, dtype=torch.float16)
    check(torch.tensor([[torch.inf]], dtype=torch.float16), a, b)
    for wrong in (65504.0, -torch.inf, torch.nan):
        with pytest.raises(AssertionError, match="elements are wrong"):
            check(torch.tensor([[wrong]], dtype=torch.float16), a, b)


def test_exact_sums_leave_no_room_beside_the_rounding() -> None:
    a, b = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16), torch.ones(2, 1, dtype=torch.bfloat16)
    (expected,) = expect(a, b)
    assert expected.value.item() == 257.0
    assert_within(torch.tensor([[257.0]]), expected)
    with pytest.raises(AssertionError):
        assert_within(torch.tensor([[256.0]]), expected)
    assert_within(torch.tensor([[256.0]], dtype=torch.bfloat16), expected)
    with pytest.raises(AssertionError):
        assert_within(torch.tensor([[260.0]], dtype=torch.bfloat16), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int32])
@pytest.mark.parametrize("strides", [None, (20, 2), (1, 8)])
@pytest.mark.parametrize("offset", [0, 1])
def test_guards_notice_a_write_anywhere_outside(dtype: torch.dtype, strides, offset: int) -> None:
    guarded = Guarded((5, 7), dtype, strides=strides, offset=offset)
    guarded.tensor.fill_(3)
    guarded.assert_intact()
    with pytest.raises(AssertionError, match="were written"):
        guarded.assert_untouched()

    elements = guarded.tensor.as_strided((guarded.tensor.untyped_storage().nbytes() // dtype.itemsize,), (1,), 0)
    start, shape, steps = guarded.tensor.storage_offset(), (5, 7), guarded.tensor.stride()
    inside = {start + i * steps[0] + j * steps[1] for i in range(shape[0]) for j in range(shape[1])}
    outside = [i for i in range(len(elements)) if i not in inside]
    assert {start - 1, max(inside) + 1} < set(outside)
    for i in outside:
        kept = elements[i].clone()
        elements[i] = 0
        with pytest.raises(AssertionError, match="outside of the output"):
            guarded.assert_intact()
        elements[i] = kept
    guarded.assert_intact()


def test_an_output_that_nobody_wrote_is_rejected() -> None:
    a, b = problem(torch.bfloat16)
    guarded = Guarded((M, N), torch.bfloat16)
    guarded.assert_untouched()
    with pytest.raises(AssertionError, match=f"{M * N} of {M * N} elements are wrong"):
        check(guarded.tensor, a, b)
