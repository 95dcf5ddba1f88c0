"""What `gemm` means, on CPU, meta and fake tensors: inputs on which GEMM libraries fail their users."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from cutegemm import Col, Row, Scalar, Tile, epilogue, epilogues, gemm, interleave, ops
from tests.helpers import Guarded, check

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@epilogue
def bias(acc, bias: Row):
    return acc + bias


@epilogue
def bias_relu(acc, bias: Row):
    return ops.relu(acc + bias)


@epilogue
def relu(acc):
    return ops.relu(acc)


@epilogue
def add(acc, residual: Tile):
    return acc + residual


@epilogue
def everything(acc, row: Row, col: Col, tile: Tile, scalar: Scalar = 0.5):
    x = (acc + row) * scalar
    return {"out": ops.gelu(x + col) + tile, "pre": x}


@epilogue
def swiglu_aux(acc):
    gate, up = ops.pair(acc)
    return {"out": ops.silu(gate) * up, "pre": acc}


def randn(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def full(value: float, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


# --- empty problems
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_empty_k_writes_zeros(batch) -> None:
    out = full(torch.nan, *batch, 7, 5)
    assert gemm(full(1, *batch, 7, 0), full(1, 0, 5), out=out) is out
    assert torch.equal(out, torch.zeros(*batch, 7, 5, dtype=BF16))


def test_an_empty_k_still_has_c_and_the_epilogue() -> None:
    a, b, c = full(1, 7, 0), full(1, 0, 5), full(4, 7, 5)
    result = gemm(a, b, c=c, beta=0.5, epilogue=bias(full(1, 5)))
    assert torch.equal(result, full(3, 7, 5))


def test_an_empty_k_at_the_end_of_storage() -> None:
    a = torch.empty(64, dtype=BF16).as_strided((64, 0), (1, 1), 64)
    b = torch.empty(64, dtype=BF16).as_strided((0, 64), (64, 1), 64)
    assert torch.equal(gemm(a, b), full(0, 64, 64))


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


# --- shapes, strides, layouts
# ---------------------------------------------------------------------------------------

BATCHES = [
    ((), ()),
    ((3,), ()),
    ((), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 1, 4), (5, 1)),
    ((1,), (4,)),
]


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


def test_a_large_batch_of_small_products() -> None:
    ones = torch.ones(65_536, 8, 8, dtype=BF16)
    assert torch.equal(gemm(ones, ones), torch.full_like(ones, 8))


@pytest.mark.parametrize("mnk", [(1, 105, 107), (32, 2, 768), (333, 199, 201), (33, 431, 3), (257, 1, 257)])
def test_ragged_sizes(mnk) -> None:
    m, n, k = mnk
    a, b = randn(m, k), randn(k, n, seed=1)
    check(gemm(a, b), a, b)


@pytest.mark.parametrize("k", [*range(1, 66), 127, 129])
def test_every_tail_of_k(k: int) -> None:
    a, b = randn(5, k), randn(k, 3, seed=1)
    check(gemm(a, b, out_dtype=FP32), a, b)


def test_an_odd_row_pitch() -> None:
    base = randn(64 * 65)
    a = base.as_strided((64, 64), (65, 1))
    check(gemm(a, a.t()), a, a.t())


def test_a_transposed_input_with_an_odd_pitch() -> None:
    x, g = randn(64, 33), randn(64, 48, seed=1)
    check(gemm(x.t(), g), x.t(), g)


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
    a = randn(128).as_strided((128, 64), strides)
    b = randn(64, 16, seed=1)
    check(gemm(a, b), a, b)
    row = randn(1, 1).expand(1, 16)[0]
    check(gemm(a, b, epilogue=bias(row)), a, b, epilogue=bias(row))


def test_a_stride_of_a_single_row_means_nothing() -> None:
    a = randn(64).as_strided((1, 64), (10**9, 1))
    out = torch.zeros(8, dtype=BF16).as_strided((1, 8), (0, 1))
    check(gemm(a, randn(64, 8), out=out), a, randn(64, 8))


def test_lazy_negation_and_conjugation_are_resolved() -> None:
    z = torch.randn(4, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    negated = z.conj().imag
    assert negated.is_neg()
    eye = torch.eye(4)
    assert torch.equal(gemm(negated, eye), -z.imag)
    assert torch.equal(gemm(eye, negated), -z.imag)
    assert torch.equal(gemm(eye, eye, c=negated), eye - z.imag)
    assert torch.equal(gemm(eye, eye, epilogue=add(negated)), eye - z.imag)


@given(st.data())
def test_any_problem(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 20)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    dtype = data.draw(st.sampled_from([FP16, BF16, FP32, FP64]))

    def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
        own = batch[data.draw(st.integers(0, len(batch))) :]
        base = randn(*own, 2 * rows + 1, 2 * columns + 1, dtype=dtype, seed=seed)
        step = data.draw(st.sampled_from([1, 2]))
        view = base[..., 1 :: data.draw(st.sampled_from([1, 2])), 1::step][..., :rows, :columns]
        return view if data.draw(st.booleans()) else view.mT.contiguous().mT

    a, b = matrix(m, k, 0), matrix(k, n, 1)
    full_batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    keywords = {"alpha": data.draw(st.sampled_from([1.0, 0.0, -2.5]))}
    if data.draw(st.booleans()):
        keywords |= {
            "c": randn(*full_batch, m, n, dtype=dtype, seed=2),
            "beta": data.draw(st.sampled_from([0, 1, 0.5])),
        }
    if data.draw(st.booleans()):
        keywords["epilogue"] = bias_relu(randn(n, seed=3)) >> add(randn(m, n, seed=4))
    out = Guarded(
        (*full_batch, m, n),
        data.draw(st.sampled_from([FP16, BF16, FP32])),
        offset=data.draw(st.integers(0, 3)),
    )
    gemm(a, b, out=out.tensor, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()


# --- outputs
# --------------------------------------------------------------------------------------------------------


def test_a_ragged_output_is_written_whole_and_nothing_else_is() -> None:
    a, b = randn(64, 32), randn(32, 4094, seed=1)
    out = Guarded((64, 4094), BF16, strides=(4099, 1), offset=1)
    gemm(a, b, out=out.tensor)
    check(out.tensor, a, b)
    out.assert_intact()


def test_a_strided_output_keeps_its_strides_and_its_gaps() -> None:
    a, b = randn(3, 8, 16), randn(16, 8, seed=1)
    out = Guarded((3, 8, 8), FP32, strides=(2, 50, 6))
    gemm(a, b, out=out.tensor)
    assert out.tensor.stride() == (2, 50, 6)
    check(out.tensor, a, b)
    out.assert_intact()


def test_out_may_be_c() -> None:
    a, b, c = randn(6, 8), randn(8, 5, seed=1), randn(6, 5, seed=2)
    before = c.clone()
    assert gemm(a, b, c=c, alpha=2, beta=0.5, out=c) is c
    check(c, a, b, c=before, alpha=2, beta=0.5)


def test_out_may_be_a_tile() -> None:
    a, b, tile = randn(6, 8), randn(8, 5, seed=1), randn(6, 5, seed=2)
    before = tile.clone()
    gemm(a, b, epilogue=relu() >> add(tile), out=tile)
    check(tile, a, b, epilogue=relu() >> add(before))


def test_out_may_be_c_through_another_view() -> None:
    c = randn(1, 5, seed=2)
    same = c.as_strided((1, 5), (77, 1))
    before = c.clone()
    gemm(randn(1, 8), randn(8, 5, seed=1), c=c, out=same)
    check(c, randn(1, 8), randn(8, 5, seed=1), c=before)


def test_out_may_lie_between_the_columns_of_an_input() -> None:
    base = randn(8, 16)
    before = base.clone()
    gemm(base[:, 1::2], torch.eye(8, dtype=BF16), out=base[:, ::2])
    assert torch.equal(base[:, ::2], before[:, 1::2]) and torch.equal(base[:, 1::2], before[:, 1::2])


def test_accumulating_into_a_wide_buffer() -> None:
    c = torch.zeros(1, 1)
    one = full(1, 1, 1)
    gemm(full(256, 1, 1), one, c=c, out=c)
    gemm(one, one, c=c, out=c)
    assert c.item() == 257.0


def test_several_outputs_come_back_by_name_in_order() -> None:
    a, b, v = randn(6, 8), randn(8, 4, seed=1), randn(4, seed=2)
    bound = epilogues.bias_gelu_aux(v)
    result = gemm(a, b, epilogue=bound)
    assert result._fields == ("out", "pre")
    check(result, a, b, epilogue=bound)
    assert torch.equal(result.out, result[0]) and torch.equal(result.pre, result[1])


@pytest.mark.parametrize("form", [tuple, list, lambda outs: dict(zip(("out", "pre"), outs, strict=True))])
def test_several_outputs_are_written_where_they_should(form) -> None:
    a, b, v = randn(6, 8), randn(8, 4, seed=1), randn(4, seed=2)
    bound = epilogues.bias_gelu_aux(v)
    outs = [Guarded((6, 4), BF16), Guarded((6, 4), FP32, strides=(1, 6))]
    result = gemm(a, b, epilogue=bound, out=form([out.tensor for out in outs]))
    assert result.out is outs[0].tensor and result.pre is outs[1].tensor
    check(result, a, b, epilogue=bound)
    for out in outs:
        out.assert_intact()
    again = gemm(a, b, epilogue=bound, out=result)
    assert again.pre is result.pre


@pytest.mark.parametrize(
    ("out_dtype", "expected"),
    [
        (None, (BF16, BF16)),
        (FP32, (FP32, FP32)),
        ("fp32", (FP32, FP32)),
        ((FP16, FP32), (FP16, FP32)),
        ([None, FP32], (BF16, FP32)),
        ({"pre": FP32}, (BF16, FP32)),
        ({"pre": FP16, "out": FP64}, (FP64, FP16)),
    ],
)
def test_each_output_has_its_own_dtype(out_dtype, expected) -> None:
    result = gemm(randn(6, 8), randn(8, 4), epilogue=epilogues.bias_gelu_aux(randn(4)), out_dtype=out_dtype)
    assert tuple(output.dtype for output in result) == expected


def test_out_and_out_dtype_may_agree() -> None:
    out = torch.empty(2, 2)
    assert gemm(full(1, 2, 2), full(1, 2, 2), out=out, out_dtype=FP32) is out


# --- numbers
# --------------------------------------------------------------------------------------------------------


def test_alpha_scales_the_product_alone() -> None:
    result = gemm(
        full(5, 1, 1), full(1, 1, 1), alpha=2, c=full(4, 1, 1), beta=0.5, epilogue=bias_relu(full(3, 1))
    )
    assert result.item() == 15.0


def test_the_product_is_scaled_before_it_is_narrowed() -> None:
    a, b = full(10, 1, 1000, dtype=FP16), full(10, 1000, 1, dtype=FP16)
    result = gemm(a, b, alpha=0.5)
    assert result.dtype == FP16 and result.item() == 49984.0


@pytest.mark.parametrize("beta", [0, 0.0, -0.0, torch.tensor(0.0), torch.tensor(0, dtype=torch.int64)])
def test_zero_beta_does_not_read_c(beta) -> None:
    result = gemm(full(1, 2, 4), full(1, 4, 3), c=full(torch.nan, 2, 3), beta=beta)
    assert torch.equal(result, full(4, 2, 3))


@pytest.mark.parametrize("alpha", [0, 0.0, -0.0, torch.tensor(0.0), torch.tensor(0.0, dtype=FP16)])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_zero_alpha_does_not_read_a_and_b(alpha, poison: float) -> None:
    a, b = full(poison, 2, 4), full(poison, 4, 3)
    assert torch.equal(gemm(a, b, alpha=alpha), full(0, 2, 3))
    assert torch.equal(gemm(a, b, alpha=alpha, c=full(3, 2, 3), epilogue=bias(full(1, 3))), full(4, 2, 3))


def test_beta_is_one_where_c_is_given_and_it_is_not() -> None:
    a, b, c = full(1, 2, 4), full(1, 4, 3), full(5, 2, 3)
    assert torch.equal(gemm(a, b, c=c), full(9, 2, 3))
    assert torch.equal(gemm(a, b), full(4, 2, 3))
    assert torch.equal(gemm(a, b, beta=0), full(4, 2, 3))


@pytest.mark.parametrize("dtype", [FP16, BF16, FP32, FP64, torch.int32, torch.int64])
def test_scalars_may_be_tensors_of_no_dimension(dtype: torch.dtype) -> None:
    two = torch.tensor(2, dtype=dtype)
    a, b, c = full(1, 2, 4), full(1, 4, 3), full(5, 2, 3)
    assert torch.equal(gemm(a, b, c=c, alpha=two, beta=two), full(18, 2, 3))
    bound = everything(full(0, 3), full(0, 2), full(0, 2, 3), two)
    assert torch.equal(gemm(a, b, epilogue=bound).pre, full(8, 2, 3))


def test_sums_are_kept_in_fp32() -> None:
    a = torch.zeros(1, 1024, dtype=BF16)
    a[0, 0], a[0, 1], a[0, -1] = 256, 1, -256
    assert gemm(a, full(1, 1024, 1)).item() == 1.0
    assert gemm(a.float(), torch.ones(1024, 1), precision="ieee").item() == 1.0


def test_the_output_type_decides_the_rounding() -> None:
    a, b = torch.tensor([[256.0, 1.0]], dtype=BF16), full(1, 2, 1)
    assert gemm(a, b).item() == 256.0 and gemm(a, b).dtype == BF16
    assert gemm(a, b, out_dtype=FP32).item() == 257.0


@pytest.mark.parametrize("precision", [None, "ieee"])
def test_fp32_is_not_tf32(precision) -> None:
    assert gemm(torch.tensor([[1024.5]]), torch.ones(1, 1), precision=precision).item() == 1024.5


@pytest.mark.parametrize("name", ["relu", "bias_relu"])
def test_relu_keeps_nan_and_the_top_of_the_range(name: str) -> None:
    a = torch.tensor([[torch.nan], [-torch.inf], [2.0**127], [-0.5], [torch.inf]])
    made = getattr(epilogues, name)
    bound = made() if name == "relu" else made(torch.zeros(1))
    result = gemm(a, torch.ones(1, 1), epilogue=bound)
    assert result[0].isnan() and result[1:, 0].tolist() == [0.0, 2.0**127, 0.0, math.inf]


def test_nan_and_inf_spread_as_in_ieee() -> None:
    a = torch.tensor([[torch.nan, 1.0], [torch.inf, 1.0], [torch.inf, 0.0], [1.0, 1.0]])
    b = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    result = gemm(a, b)
    check(result, a, b, nan=True)
    assert result.isnan().tolist() == [[True, True], [False, True], [False, True], [False, False]]
    assert result[1, 0] == math.inf


def test_the_two_gelus_are_told_apart() -> None:
    x, one = torch.tensor([[-2.7]]), torch.ones(1, 1)
    assert gemm(x, one, epilogue=epilogues.gelu()).item() == pytest.approx(-0.00936, abs=5e-6)
    assert gemm(x, one, epilogue=epilogues.gelu_tanh()).item() == pytest.approx(-0.00889, abs=5e-6)


def test_an_epilogue_computes_in_fp32_and_rounds_once() -> None:
    # In bf16 every step would lose the 1: 256 + 1 - 256.
    plus, minus = full(1, 1), full(-256, 1)
    assert gemm(full(256, 1, 1), full(1, 1, 1), epilogue=bias(plus) >> bias(minus)).item() == 1.0

    @epilogue
    def rounded(acc, plus: Row):
        return ops.cast(acc + plus, "bf16") - 256

    assert gemm(full(256, 1, 1), full(1, 1, 1), epilogue=rounded(plus)).item() == 0.0


def test_fp64_computes_in_fp64() -> None:
    a, b = randn(5, 7, dtype=FP64), randn(7, 3, dtype=FP64, seed=1)
    bound = everything(torch.zeros(3), torch.zeros(5), torch.zeros(5, 3, dtype=FP64), 0.1)
    result = gemm(a, b, alpha=0.1, epilogue=bound)
    assert result.pre.dtype == FP64
    assert torch.allclose(result.pre, a @ b * 0.1 * 0.1, rtol=1e-14, atol=0)


def test_int8_sums_in_int32_and_then_converts() -> None:
    # 127 * 127 * 1041 is odd and just above 2**24: its even neighbours are all that fp32 has.
    a, b = torch.full((1, 1041), 127, dtype=torch.int8), torch.full((1041, 1), 127, dtype=torch.int8)
    exact = 127 * 127 * 1041
    result = gemm(a, b)
    assert result.dtype == FP32 and result.item() == float(torch.tensor(exact).float()) != exact
    a = torch.randint(-128, 128, (6, 300), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    b = torch.randint(-128, 128, (300, 5), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gemm(a, b, out_dtype=torch.int32), a.int() @ b.int())
    check(gemm(a, b, epilogue=bias_relu(randn(5))), a, b, epilogue=bias_relu(randn(5)))


def test_integer_outputs_round_to_even_and_saturate() -> None:
    a = torch.tensor([[0.5], [1.5], [-2.5], [127.4], [300.0], [-300.0], [torch.nan], [torch.inf]])
    result = gemm(a, torch.ones(1, 1), out_dtype=torch.int8)
    assert result.flatten().tolist() == [0, 2, -2, 127, 127, -128, 0, 127]
    wide = gemm(torch.tensor([[3e9], [-3e9], [2.0**30]]), torch.ones(1, 1), out_dtype=torch.int32)
    assert wide.flatten().tolist() == [2**31 - 1, -(2**31), 2**30]


def test_the_same_inputs_give_the_same_bits() -> None:
    a, b = randn(65, 1000, dtype=FP32), randn(1000, 33, dtype=FP32, seed=1)
    first = gemm(a, b)
    for deterministic in (True, False):
        assert torch.equal(gemm(a, b, deterministic=deterministic), first)


# --- gated units
# ----------------------------------------------------------------------------------------------------


def test_interleave_puts_the_gate_in_even_rows() -> None:
    gate, up = randn(3, 4), randn(3, 4, seed=1)
    woven = interleave(gate, up)
    assert woven.shape == (6, 4) and woven.is_contiguous()
    assert torch.equal(woven[0::2], gate) and torch.equal(woven[1::2], up)
    assert interleave(randn(2, 3, 4), randn(2, 3, 4)).shape == (2, 6, 4)


def test_a_gated_unit_and_its_preactivation() -> None:
    x, gate, up = randn(6, 8), randn(5, 8, seed=1), randn(5, 8, seed=2)
    w = interleave(gate, up).t()
    result = gemm(x, w, epilogue=swiglu_aux(), out_dtype=FP32)
    assert result.out.shape == (6, 5) and result.pre.shape == (6, 10)
    x32 = x.float()
    expected = torch.nn.functional.silu(x32 @ gate.t().float()) * (x32 @ up.t().float())
    assert torch.allclose(result.out, expected, rtol=1e-5, atol=1e-6)
    check(result, x, w, epilogue=swiglu_aux())


def test_c_has_the_width_before_pairing() -> None:
    x, w, c = randn(6, 8), randn(8, 10, seed=1), randn(6, 10, seed=2)
    check(gemm(x, w, c=c, epilogue=swiglu_aux()), x, w, c=c, epilogue=swiglu_aux())


# --- tensors without data
# -------------------------------------------------------------------------------------------


def test_a_huge_meta_result_has_64_bit_strides() -> None:
    a = torch.empty(2, 49152, 64, dtype=BF16, device="meta")
    b = torch.empty(2, 64, 65536, dtype=BF16, device="meta")
    result = gemm(a, b)
    assert (
        result.is_meta and result.shape == (2, 49152, 65536) and result.stride() == (3_221_225_472, 65536, 1)
    )
    huge = torch.empty(2, 49152, 65536, dtype=BF16, device="meta")
    assert gemm(huge, huge.mT).stride() == (49152 * 49152, 49152, 1)


def test_meta_outputs_are_checked_for_overlap_within_their_storage() -> None:
    base = torch.empty(8, 16, dtype=BF16, device="meta")
    square = torch.empty(8, 8, dtype=BF16, device="meta")
    assert gemm(base[:, 1::2], square, out=base[:, ::2]).stride() == (16, 2)
    with pytest.raises(ValueError, match="shares memory with a"):
        gemm(base[:, :8], square, out=base[:, 4:12])


FAKES = [
    lambda: {"a": randn(6, 8), "b": randn(8, 10)},
    lambda: {"a": randn(2, 1, 6, 8), "b": randn(3, 8, 10), "out_dtype": FP32},
    lambda: {"a": randn(8, 6).t(), "b": randn(10, 8).t(), "epilogue": bias_relu(randn(10))},
    lambda: {"a": randn(6, 16)[:, :8], "b": randn(8, 2880), "c": randn(6, 2880)},
    lambda: {"a": randn(6, 8), "b": randn(8, 10), "epilogue": swiglu_aux(), "out_dtype": {"pre": FP32}},
    lambda: {"a": randn(6, 8), "b": randn(8, 10), "out": torch.empty(10, 6, dtype=BF16).t()},
    lambda: {"a": torch.ones(4, 8, dtype=torch.int8), "b": torch.ones(8, 4, dtype=torch.int8)},
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
        gemm(torch.empty(2, 5), torch.empty(3, 7))
    with pytest.raises(ValueError, match=r"a \(2, 5\) and b \(3, 7\)"):
        gemm(torch.empty(2, 5, device="meta"), torch.empty(3, 7, device="meta"))
