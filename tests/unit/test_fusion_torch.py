"""The torch lowering: operand shapes, widths, rounding, special values, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cutegemm import ops
from cutegemm.fusion import IDENTITY, Col, Row, Scalar, Tile, epilogue
from cutegemm.fusion.to_torch import evaluate


def test_identity() -> None:
    acc = torch.randn(2, 3, 4)
    (out,) = evaluate(IDENTITY, acc, [])
    assert torch.equal(out, acc)
    (out,) = evaluate(IDENTITY, acc, [], torch.float64)
    assert out.dtype == torch.float64


@epilogue
def everything(acc, r: Row, c: Col, t: Tile, s: Scalar):  # type: ignore[no-untyped-def]
    return (acc + r) * c + t * s


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("scalar", [1.5, torch.tensor(1.5)])
def test_operand_shapes(batched: bool, scalar: Any) -> None:
    acc, tile = torch.randn(2, 5, 3, 4), torch.randn(2, 5, 3, 4)
    row = torch.randn(2, 5, 4) if batched else torch.randn(4)
    column = torch.randn(2, 5, 3) if batched else torch.randn(3)
    (out,) = evaluate(everything.graph, acc, [row, column, tile, scalar])
    for i in range(2):
        for j in range(5):
            r, c = (row[i, j], column[i, j]) if batched else (row, column)
            for m in range(3):
                expected = (acc[i, j, m] + r) * c[m] + tile[i, j, m] * 1.5
                torch.testing.assert_close(out[i, j, m], expected, rtol=0, atol=0)


def test_square_operands_are_not_confused() -> None:
    acc = torch.zeros(2, 2)
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])

    @epilogue
    def f(acc, r: Row, c: Col):  # type: ignore[no-untyped-def]
        return acc + r + c

    (out,) = evaluate(f.graph, acc, [one, two])
    assert out.tolist() == [[11.0, 12.0], [21.0, 22.0]]


def test_pairs_take_even_and_odd_columns() -> None:
    @epilogue
    def f(acc, half: Row, c: Col, t: Tile):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc)
        return {"out": gate - 10 * up + half + c * t, "pre": acc}

    acc = torch.arange(12.0).reshape(2, 6)
    half, column, tile = torch.tensor([100.0, 200.0, 300.0]), torch.tensor([1.0, 2.0]), torch.ones(2, 3)
    out, pre = evaluate(f.graph, acc, [half, column, tile])
    assert out.tolist() == [[91.0, 173.0, 255.0], [38.0, 120.0, 202.0]]
    assert pre is acc


def test_outputs_that_do_not_vary_are_expanded() -> None:
    @epilogue
    def f(acc, r: Row, s: Scalar):  # type: ignore[no-untyped-def]
        return {"out": acc, "row": r * 2, "number": s + 1}

    out, row, number = evaluate(f.graph, torch.zeros(3, 2), [torch.tensor([1.0, 2.0]), 4.0])
    assert out.shape == row.shape == number.shape == (3, 2)
    assert row.tolist() == [[2.0, 4.0]] * 3 and number.tolist() == [[5.0, 5.0]] * 3
    assert row.is_contiguous() and number.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cast_rounds_where_it_stands(dtype: torch.dtype) -> None:
    graph = epilogue(lambda acc: {"b": ops.cast(acc, "bf16") * 3, "h": ops.cast(acc, "fp16") * 3}).graph
    acc = torch.tensor([[1.001, 70000.0, -0.0, float("nan")]], dtype=dtype)
    bf16, fp16 = evaluate(graph, acc, [], dtype)
    assert bf16.dtype == fp16.dtype == dtype
    torch.testing.assert_close(bf16, acc.float().bfloat16().to(dtype) * 3, rtol=0, atol=0, equal_nan=True)
    assert fp16[0, 1] == float("inf")
    assert fp16[0, 0] == 1.0009765625 * 3


def test_scalars_and_constants_are_fp32_in_every_dtype() -> None:
    @epilogue
    def f(acc, s: Scalar):  # type: ignore[no-untyped-def]
        return acc * s + 0.3

    (out,) = evaluate(f.graph, torch.ones(1, 1), [0.1], torch.float64)
    assert out.item() == torch.tensor(0.1).double().item() + torch.tensor(0.3).double().item()


def test_nan_and_inf_follow_ieee() -> None:
    nan, inf = float("nan"), float("inf")
    acc = torch.tensor([[nan, -inf, 2.0**127, -0.0]])
    (out,) = evaluate(epilogue(lambda acc: ops.relu(acc)).graph, acc, [])
    assert torch.isnan(out[0, 0]) and out[0, 1:].tolist() == [0.0, 2.0**127, 0.0]
    (out,) = evaluate(epilogue(lambda acc: ops.where(acc < 0, acc * inf, 1)).graph, acc, [])
    assert out[0].tolist() == [1.0, -inf, 1.0, 1.0]
    (out,) = evaluate(epilogue(lambda acc: ops.clamp(acc, -1, 1)).graph, acc, [])
    assert torch.isnan(out[0, 0]) and out[0, 1:].tolist() == [-1.0, 1.0, -0.0]


def test_half_precision_operands_enter_as_fp32() -> None:
    row = torch.tensor([1.0, 2.0**-10], dtype=torch.bfloat16)
    (out,) = evaluate(epilogue(_add_row).graph, torch.ones(1, 2), [row])
    assert out.dtype == torch.float32 and out.tolist() == [[2.0, 1.0009765625]]


def _add_row(acc: Any, r: Row) -> Any:
    return acc + r


def test_it_is_differentiable() -> None:
    @epilogue
    def f(acc, r: Row, t: Tile):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc + r)
        return ops.gelu(gate) * ops.silu(up) + ops.gelu_tanh(t)

    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4,), (3, 2))]
    assert torch.autograd.gradcheck(
        lambda acc, r, t: evaluate(f.graph, acc, [r, t], torch.float64)[0], inputs, check_undefined_grad=False
    )
