"""Where results go: given outputs and their surroundings, several outputs, dtypes, gated units."""

from __future__ import annotations

import pytest
import torch

from cutegemm import ArgumentError, ShapeError, epilogues, gemm, interleave, prepare_weight
from tests.helpers import Guarded, check
from tests.semantics.inputs import BF16, FP16, FP32, add, full, randn, relu, swiglu_aux


@pytest.mark.parametrize("pitch", [4094, 4099])
def test_a_ragged_output_is_written_whole_and_nothing_else_is(pitch: int) -> None:
    a, b = randn(256, 512), randn(512, 4094, seed=1)
    out = Guarded((256, 4094), BF16, strides=(pitch, 1), offset=pitch % 2)
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
        ({"pre": FP16, "out": FP32}, (FP32, FP16)),
    ],
)
def test_each_output_has_its_own_dtype(out_dtype, expected) -> None:
    a, b, bound = randn(6, 8), randn(8, 4), epilogues.bias_gelu_aux(randn(4))
    result = gemm(a, b, epilogue=bound, out_dtype=out_dtype)
    assert tuple(output.dtype for output in result) == expected
    check(result, a, b, epilogue=bound)


def test_out_and_out_dtype_may_agree() -> None:
    out = torch.empty(2, 2)
    assert gemm(full(1, 2, 2), full(1, 2, 2), out=out, out_dtype=FP32) is out
    assert torch.equal(out, full(2, 2, 2, dtype=FP32))


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
    x64 = x.double()
    expected = torch.nn.functional.silu(x64 @ gate.t().double()) * (x64 @ up.t().double())
    assert torch.allclose(result.out.double(), expected, rtol=1e-5, atol=1e-6)
    check(result, x, w, epilogue=swiglu_aux())


def test_c_has_the_width_before_pairing() -> None:
    x, w, c = randn(6, 8), randn(8, 10, seed=1), randn(6, 10, seed=2)
    check(gemm(x, w, c=c, epilogue=swiglu_aux()), x, w, c=c, epilogue=swiglu_aux())


def test_a_prepared_weight_is_the_same_matrix_in_aligned_rows() -> None:
    offset = randn(49 * 64).flatten()[1:3073].view(48, 64)
    for weight in (randn(48, 33), randn(48, 96)[:, ::2], randn(3, 48, 35), offset):
        made = prepare_weight(weight)
        assert torch.equal(made, weight) and made.stride(-1) == 1 and made.data_ptr() % 16 == 0
        assert all(stride % 8 == 0 for stride in made.stride()[:-1])
        assert prepare_weight(made) is made
        x = randn(20, weight.shape[-1])
        check(gemm(x, made.mT), x, weight.mT)
    for weight in (randn(48, 64), randn(64, 48).t(), randn(2, 48, 64), randn(48, 72)[:, :33]):
        assert prepare_weight(weight) is weight
    with pytest.raises(ShapeError, match=r"weight has shape \(5,\): expected at least 2"):
        prepare_weight(randn(5))
    with pytest.raises(ArgumentError, match="weight is list"):
        prepare_weight([1.0])  # type: ignore[arg-type]
