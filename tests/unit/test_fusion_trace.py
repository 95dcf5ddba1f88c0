"""Tracing and binding: what is recorded, and what is refused where it is defined, naming the operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import cutegemm
from cutegemm import ops
from cutegemm.errors import CuteGemmError, DTypeError, EpilogueError, NotAvailableError
from cutegemm.fusion import BoundEpilogue, Col, Row, Scalar, Tile, as_bound, epilogue
from cutegemm.fusion.to_torch import evaluate

TENSOR = torch.ones(4)
LEAKED: list[Any] = []
Renamed = Row


def _branch(acc: Any) -> Any:
    return acc if acc > 0 else -acc


def _chained(acc: Any) -> Any:
    return ops.where(0 < acc < 1, acc, 0)


def _unpack(acc: Any) -> Any:
    x, y = acc
    return x + y


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        (_branch, "truth of a traced value"),
        (_chained, "truth of a traced value"),
        (_unpack, "iteration over"),
        (lambda acc: max(acc, 0), "truth of a traced value"),
        (lambda acc: (acc > 0) and (acc < 1), "truth of a traced value"),
        (lambda acc: not acc, "truth of a traced value"),
        (lambda acc: float(acc), r"float\(\)"),
        (lambda acc: int(acc), r"int\(\)"),
        (lambda acc: math.exp(acc), r"float\(\)"),
        (lambda acc: [1, 2][acc], "as an index"),
        (lambda acc: complex(acc), r"complex\(\)"),
        (lambda acc: round(acc), r"round\(\)"),
        (lambda acc: math.floor(acc), "math.floor"),
        (lambda acc: math.ceil(acc), "math.ceil"),
        (lambda acc: math.trunc(acc), "math.trunc"),
        (lambda acc: len(acc), r"len\(\)"),
        (lambda acc: 1 in acc, "`in`"),
        (lambda acc: acc[0], "indexing"),
        (lambda acc: acc % 2, "%"),
        (lambda acc: 2 % acc, "%"),
        (lambda acc: acc // 2, "//"),
        (lambda acc: 2 // acc, "//"),
        (lambda acc: divmod(acc, 2), "divmod"),
        (lambda acc: acc @ acc, "@"),
        (lambda acc: acc << 1, "<<"),
        (lambda acc: acc >> 1, ">>"),
        (lambda acc: acc ^ acc, r"\^"),
        (lambda acc: 2**acc, r"\*\*"),
        (lambda acc: acc**0.5, r"\*\* 0.5"),
        (lambda acc: acc.exp(), ".exp"),
        (lambda acc: acc.shape, ".shape"),
        (lambda acc: torch.exp(acc), "exp.*cutegemm.ops.exp"),
        (lambda acc: torch.nn.functional.gelu(acc), "gelu"),
        (lambda acc: torch.where(acc > 0, acc, acc), "where"),
        (lambda acc: TENSOR * acc, "mul.*captured"),
        (lambda acc: acc * TENSOR, "mul on a captured Tensor"),
        (lambda acc: ops.maximum(acc, TENSOR), "maximum on a captured Tensor"),
        (lambda acc: np.exp(acc), "numpy.exp.*cutegemm.ops.exp"),
        (lambda acc: np.where(acc > 0, acc, 0), "numpy.where"),
        (lambda acc: np.asarray(acc), "numpy array"),
        (lambda acc: acc + np.ones(3), "add on a captured ndarray"),
        (lambda acc: np.ones(3) + acc, "captured ndarray"),
        (lambda acc: acc + "1", "add on a str"),
        (lambda acc: acc + None, "add on a NoneType"),
        (lambda acc: acc + True, "add on a bool"),
        (lambda acc: acc + (acc > 0), "add takes numbers"),
        (lambda acc: acc & (acc > 0), "and takes comparisons"),
        (lambda acc: ~acc, "not takes comparisons"),
        (lambda acc: ops.where(acc, acc, 0), "where takes comparisons"),
        (lambda acc: ops.exp(1.0) * acc, "exp outside of an epilogue's body"),
        (lambda acc: ops.clamp(acc), "clamp needs low, high or both"),
        (lambda acc: ops.cast(acc, "int8"), "cast to int8"),
        (lambda acc: cutegemm.epilogues.scale(acc), "traced value"),
        (lambda acc: acc + LEAKED[0], "belongs to another epilogue"),
        (lambda acc: None, "returned NoneType"),
        (lambda acc: 1.0, "returned float"),
        (lambda acc: (acc, acc), "returned tuple"),
        (lambda acc: [acc], "returned list"),
        (lambda acc: {}, "returned dict"),
        (lambda acc: {"out": 1.0}, "output 'out' is a float"),
        (lambda acc: {1: acc}, "output name 1"),
        (lambda acc: {"class": acc}, "output name 'class'"),
        (lambda acc: acc > 0, "output 'out' is a comparison"),
        (lambda acc: (yield acc), "returned generator"),
        (lambda: 1, "expected the accumulator"),
        (lambda *acc: acc, "any number of operands"),
        (lambda acc, **operands: acc, "any number of operands"),
        (lambda acc=1: acc, "is the accumulator"),
        (lambda acc, x: acc + x, "operand 'x' has no annotation"),
    ],
)
def test_refused_at_definition(body: Callable[..., Any], operation: str) -> None:
    LEAKED.clear()
    epilogue(lambda acc: LEAKED.append(acc) or acc)
    with pytest.raises(EpilogueError, match=operation) as caught:
        epilogue(body)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, CuteGemmError)
    assert repr(body.__name__) in str(caught.value)


def test_refused_parameters() -> None:
    with pytest.raises(EpilogueError, match="'x' has the annotation 'int'"):

        @epilogue
        def f(acc, x: int):  # type: ignore[no-untyped-def]
            return acc + x

    with pytest.raises(EpilogueError, match="only a Scalar has one"):

        @epilogue
        def g(acc, x: Row = 1.0):  # type: ignore[no-untyped-def,assignment]
            return acc + x

    with pytest.raises(EpilogueError, match="operand 'x' .row. reaches no output"):

        @epilogue
        def h(acc, x: Row):  # type: ignore[no-untyped-def]
            ops.exp(x)
            return acc

    with pytest.raises(EpilogueError, match="no output depends on the accumulator"):

        @epilogue
        def i(acc, x: Row):  # type: ignore[no-untyped-def]
            return x

    with pytest.raises(EpilogueError, match="positional-only"):

        @epilogue
        def j(acc, x: Row, /):  # type: ignore[no-untyped-def]
            return acc + x


@pytest.mark.parametrize("name", ["row_max", "row_sum", "row_mean", "row_min", "col_max", "col_sum"])
def test_reductions_are_not_available(name: str) -> None:
    with pytest.raises(NotAvailableError, match=name):
        epilogue(lambda acc: acc - getattr(ops, name)(acc))


def test_an_unknown_dtype_is_a_dtype_error() -> None:
    with pytest.raises(DTypeError, match="bf15"):
        epilogue(lambda acc: ops.cast(acc, "bf15"))


def test_numpy_and_other_scalars_are_constants() -> None:
    expected = epilogue(lambda acc: acc * 0.5 + 2).graph
    assert epilogue(lambda acc: np.float64(0.5) * acc + np.int64(2)).graph == expected
    compared = epilogue(lambda acc: ops.where(acc < 0.5, acc, 0)).graph
    assert epilogue(lambda acc: ops.where(np.float64(0.5) > acc, acc, 0)).graph == compared
    assert epilogue(lambda acc: acc * np.float32(0.5) + Fraction(2)).graph == expected


def test_every_operator_records_what_it_says() -> None:
    @epilogue
    def f(acc, t: Tile):  # type: ignore[no-untyped-def]
        return {
            "a": acc + t, "b": acc - t, "c": acc * t, "d": acc / t, "e": -acc, "f": abs(acc), "g": acc**3,
            "h": 1 - acc, "i": 2 / acc, "j": ops.where((acc < t) | (acc == 1), 1.0, acc),
            "k": ops.where(~(acc >= t) & (acc != 1), acc, 0), "l": ops.where(acc <= t, acc, t), "m": +acc,
            "n": ops.where(acc > t, acc, 0),
        }  # fmt: skip

    acc, t = torch.tensor([[-2.0, 0.0, 1.0, 3.0]]), torch.tensor([[2.0, 0.5, 0.5, 3.0]])
    expected = (
        acc + t, acc - t, acc * t, acc / t, -acc, abs(acc), acc * acc * acc,
        1 - acc, 2 / acc, torch.where((acc < t) | (acc == 1), 1.0, acc),
        torch.where(~(acc >= t) & (acc != 1), acc, 0), torch.where(acc <= t, acc, t), acc,
        torch.where(acc > t, acc, 0),
    )  # fmt: skip
    for got, want in zip(evaluate(f.graph, acc, [t]), expected, strict=True):
        assert torch.equal(got, want)


def test_annotations_resolve_however_they_are_written() -> None:
    @epilogue
    def f(acc, a: Renamed, b: cutegemm.Row, c: "Col", *, d: Scalar = 2):  # type: ignore[no-untyped-def]  # noqa: UP037
        return (acc + a) * b + c * d

    assert [spec.kind for spec in f.graph.operands] == ["row", "row", "col", "scalar"]


def test_multiple_outputs_keep_their_order() -> None:
    graph = epilogue(lambda acc: {"z": acc * 2, "a": acc}).graph
    assert [spec.name for spec in graph.outputs] == ["z", "a"]


@epilogue
def affine(acc, bias: Row, slope: Scalar = 0.5):  # type: ignore[no-untyped-def]
    """Scaled and shifted."""
    return acc * slope + bias


@epilogue
def halved(acc):  # type: ignore[no-untyped-def]
    return acc / 2


class TestBinding:
    def test_by_position_by_name_and_by_default(self) -> None:
        for bound, slope in (
            (affine(TENSOR), 0.5),
            (affine(bias=TENSOR), 0.5),
            (affine(TENSOR, 3), 3),
            (affine(slope=2.0, bias=TENSOR), 2.0),
        ):
            assert bound.graph is affine.graph
            assert bound.operands[0] is TENSOR and bound.operands[1] == slope

    def test_a_scalar_may_be_a_tensor_without_dimensions(self) -> None:
        slope = torch.tensor(2.0)
        assert affine(TENSOR, slope).operands[1] is slope

    @pytest.mark.parametrize(
        ("args", "kwargs", "message"),
        [
            ((), {}, "operand 'bias' is not given"),
            ((TENSOR, 1.0, 2.0), {}, "takes 2 operands, got 3"),
            ((TENSOR,), {"bias": TENSOR}, "'bias' is given twice"),
            ((TENSOR,), {"weight": TENSOR}, "no operand 'weight'"),
            ((1.0,), {}, "'bias' is a Row: expected a tensor, got float 1.0"),
            (([1.0],), {}, "'bias' is a Row: expected a tensor, got list"),
            ((None,), {}, "'bias' is a Row"),
            ((TENSOR, TENSOR), {}, r"'slope' is a Scalar: .* got a tensor of shape \(4,\)"),
            ((TENSOR, "2"), {}, "'slope' is a Scalar"),
            ((TENSOR, True), {}, "'slope' is a Scalar"),
        ],
    )
    def test_refused(self, args: Any, kwargs: Any, message: str) -> None:
        with pytest.raises(EpilogueError, match=message):
            affine(*args, **kwargs)

    def test_composition_joins_graphs_and_operands(self) -> None:
        other = torch.zeros(4)
        bound = affine(TENSOR) >> halved >> affine(other, 2.0)
        assert isinstance(bound, BoundEpilogue)
        assert [bound.operands[1], bound.operands[3]] == [0.5, 2.0]
        assert bound.operands[0] is TENSOR and bound.operands[2] is other
        acc = torch.randn(3, 4)
        (got,) = evaluate(bound.graph, acc, bound.operands)
        assert torch.equal(got, (acc * 0.5 + TENSOR) / 2 * 2.0 + other)
        assert (halved >> halved).graph == epilogue(lambda acc: acc / 2 / 2).graph

    def test_what_needs_operands_does_not_compose_unbound(self) -> None:
        for compose in (lambda: affine >> halved, lambda: halved >> affine, lambda: as_bound(affine)):
            with pytest.raises(EpilogueError, match="'bias' is not given"):
                compose()

    def test_as_bound(self) -> None:
        assert as_bound(halved).graph is halved.graph
        bound = affine(TENSOR)
        assert as_bound(bound) is bound
        with pytest.raises(EpilogueError, match="decorate it with @cutegemm.epilogue"):
            as_bound(lambda acc: acc)
        with pytest.raises(EpilogueError, match="'relu' is not an epilogue"):
            as_bound("relu")
        with pytest.raises(EpilogueError, match="is not an epilogue"):
            halved >> (lambda acc: acc)  # type: ignore[operator]

    def test_it_says_what_it_is(self) -> None:
        assert (affine.name, affine.__doc__, affine.__module__) == ("affine", "Scaled and shifted.", __name__)
        assert affine.signature == "affine(bias: Row, slope: Scalar = 0.5)"
        assert repr(affine) == "<epilogue affine(bias: Row, slope: Scalar = 0.5)>"
        assert repr(affine(TENSOR)) == "<bound epilogue (acc, bias: Row, slope: Scalar) -> out>"
