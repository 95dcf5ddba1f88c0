"""Lowering a graph to the CuTe DSL: plain code on fp32 registers, for use inside a `@cute.kernel`.

Elements are taken eight at a time through the whole graph, which keeps few values alive and traces eight
elements with one call; what depends on scalars alone is computed once. Nothing branches, calls or indexes
memory, so nothing goes to local memory on its own account. Multiplications followed by additions contract to
FMA. Subnormal results of exp2, of the reciprocals behind `sigmoid`, and of division are 0.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
from cutlass import BFloat16, Boolean, Float16, Float32, cute

from cutegemm.errors import EpilogueError
from cutegemm.fusion import approx
from cutegemm.fusion.graph import Graph, Node

#: Elements of a thread that go through the graph together.
CHUNK = 8

_CAST = {"fp16": Float16, "bf16": BFloat16}


def _is_vector(value: Any) -> bool:
    return isinstance(value, cute.TensorSSA)


def _vector(elements: Sequence[Any]) -> Any:
    return cute.TensorSSA(cutlass.Vector.from_elements(tuple(elements), Float32), (len(elements),), Float32)


def _broadcast(args: Sequence[Any]) -> Sequence[Any]:
    """`args` with scalars repeated to the vectors' length, if there is a vector."""
    shaped = next((arg for arg in args if _is_vector(arg)), None)
    if shaped is None:
        return args
    return [arg if _is_vector(arg) else cute.full(shaped.shape, arg, Float32) for arg in args]


def _together(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of vectors of one length, or of scalars only."""
    return lambda *args: function(*_broadcast(args))


def _each(function: Callable[..., Any], numbers: bool = True) -> Callable[..., Any]:
    """`function` of scalars, applied to every element; its results are numbers, or comparisons."""

    def apply(*args: Any) -> Any:
        length = next((arg.numel() for arg in args if _is_vector(arg)), None)
        if length is None:
            return function(*args)
        elements = [arg.to_elements() if _is_vector(arg) else (arg,) * length for arg in args]
        results = [function(*element) for element in zip(*elements, strict=True)]
        if numbers:
            return _vector(results)
        return cute.TensorSSA(cutlass.Vector.from_elements(tuple(results), Boolean), (length,), Boolean)

    return apply


def _scalar(value: float) -> Any:
    # An instruction's operand instead of a Python number, which the DSL would fold in double precision.
    return Float32(Float32(value).ir_value())


class _Registers:
    """`approx.Arithmetic` on fp32 registers: vectors of `length`, or scalars if it is None."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._constants: dict[float, Any] = {}

    def constant(self, value: float) -> Any:
        """Made once: a polynomial's coefficients are half of what there is to trace."""
        if value not in self._constants:
            scalar = _scalar(value)
            vector = None if self._length is None else cute.full((self._length,), scalar, Float32)
            self._constants[value] = scalar if vector is None else vector
        return self._constants[value]

    def absolute(self, x: Any) -> Any:
        return cute.math.abs(x)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def multiply(self, x: Any, y: Any) -> Any:
        return x * y

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return cute.math.fma(x, y, z)

    def exp2(self, x: Any) -> Any:
        return _each(lambda e: cute.math.exp2(e, approx=True, ftz=True))(x)

    def reciprocal(self, x: Any) -> Any:
        return _each(lambda e: cute.math.rcp(e, approx=True, ftz=True))(x)

    def select_negative(self, x: Any, if_negative: Any, otherwise: Any) -> Any:
        return _where(x < self.constant(0.0), if_negative, otherwise)


def _where(condition: Any, x: Any, y: Any) -> Any:
    if _is_vector(condition):
        x, y, _ = _broadcast((x, y, condition))
        return cute.where(condition, x, y)
    return _each(lambda x, y: Float32(cutlass.select_(condition, x, y)))(x, y)


# exp, log, tanh and erf are libdevice's: 1 to 2 ulp, without branches (6, 25, 15 and 25 instructions). Its
# sqrt and division are correctly rounded by way of a subroutine, which costs more than the rest of an
# epilogue together; the approximate ones here are within 1 and 2 ulp over fp32's whole range. Minimum and
# maximum are one FMNMX.NAN each from `cute.arch`; those of `cute.math` compile to two comparisons and two
# selects.
_OPS: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "abs": cute.math.abs,
    "exp": cute.math.exp,
    "log": cute.math.log,
    "sqrt": _each(lambda x: cute.math.sqrt(x, approx=True)),
    "rsqrt": _each(lambda x: cute.math.rsqrt(x, approx=True)),
    "tanh": cute.math.tanh,
    "erf": cute.math.erf,
    "add": _together(operator.add),
    "sub": _together(operator.sub),
    "mul": _together(operator.mul),
    "div": _each(lambda x, y: cute.math.div(x, y, full=True)),
    "minimum": _each(lambda x, y: cute.arch.fmin(x, y, nan=True)),
    "maximum": _each(lambda x, y: cute.arch.fmax(x, y, nan=True)),
    "lt": _together(operator.lt),
    "le": _together(operator.le),
    "eq": _together(operator.eq),
    "ne": _together(operator.ne),
    "and": _each(operator.and_, numbers=False),
    "or": _each(operator.or_, numbers=False),
    "not": _each(lambda x: x ^ Boolean(True), numbers=False),
    "where": _where,
    "even": lambda x: _vector(x.to_elements()[0::2]),
    "odd": lambda x: _vector(x.to_elements()[1::2]),
}


_APPROXIMATED: dict[str, Callable[[_Registers, Any], Any]] = {"normcdf": approx.normcdf, "sigmoid": approx.sigmoid}


def lower(graph: Graph) -> Callable[[Any, Sequence[Any]], tuple[Any, ...]]:
    """The graph as a function `(acc, operands) -> outputs` of one thread's registers.

    `acc` is a `TensorSSA` of S fp32 elements; where the graph has a `pair`, elements 2i and 2i + 1 are the
    even column and its odd neighbour of one row, and S is even. `operands` follow `graph.operands`: a
    `TensorSSA` of S elements for Row, Col and Tile (S/2 where the spec is `paired`, which a Col never is), a
    number for Scalar; any float dtype, converted to fp32. Outputs follow `graph.outputs`: `TensorSSA` of
    fp32, of `acc`'s shape, or 1-D of S/2 elements where `paired`.

    The function raises `EpilogueError` for a wrong number of operands or elements.
    """

    def apply(acc: Any, operands: Sequence[Any]) -> tuple[Any, ...]:
        elements, given = _unpack(graph, acc, operands)
        size = len(elements)
        registers = functools.cache(_Registers)
        scalars = _scalar_nodes(graph, given, registers)
        results: list[list[Any]] = [[] for _ in graph.outputs]
        for start in range(0, size, CHUNK):
            whole = slice(start, min(start + CHUNK, size))
            half = slice(whole.start // 2, whole.stop // 2)
            values: list[Any] = []
            for i, node in enumerate(graph.nodes):
                if i in scalars:
                    values.append(scalars[i])
                elif node.op == "acc":
                    values.append(_vector(elements[whole]))
                elif node.op == "operand":
                    position = int(node.attr)
                    paired = graph.operands[position].paired
                    values.append(_vector(given[position][half if paired else whole]))
                else:
                    values.append(_apply(node, [values[a] for a in node.args], registers))
            for spec, result in zip(graph.outputs, results, strict=True):
                value = values[spec.node]
                length = (whole.stop - whole.start) // (2 if spec.paired else 1)
                result.extend(value.to_elements() if _is_vector(value) else [value] * length)
        return tuple(
            cute.TensorSSA(_vector(result), (size // 2,) if spec.paired else acc.shape, Float32)
            for spec, result in zip(graph.outputs, results, strict=True)
        )

    return apply


def _unpack(graph: Graph, acc: Any, operands: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
    """`acc` and the operands as tuples of fp32 scalars, a Scalar operand as one of them; checked."""
    if len(operands) != len(graph.operands):
        raise EpilogueError(f"expected {len(graph.operands)} operands, got {len(operands)}")
    elements = acc.to_elements()
    size = len(elements)
    if graph.has_pair and size % 2:
        raise EpilogueError(f"pair needs an even number of elements a thread, got {size}")
    given: list[Any] = []
    for spec, operand in zip(graph.operands, operands, strict=True):
        if spec.kind == "scalar":
            given.append(_scalar(operand) if isinstance(operand, int | float) else operand.to(Float32))
            continue
        expected = size // 2 if spec.paired else size
        each = operand.to_elements()
        if len(each) != expected:
            raise EpilogueError(f"operand {spec.name!r}: expected {expected} elements, got {len(each)}")
        given.append(tuple(x.to(Float32) for x in each))
    return elements, given


def _scalar_nodes(graph: Graph, given: Sequence[Any], registers: Callable[[int | None], _Registers]) -> dict[int, Any]:
    """The values of the nodes that are the same for every element."""
    values: dict[int, Any] = {}
    for i, node in enumerate(graph.nodes):
        if node.op == "const":
            values[i] = _scalar(node.value)
        elif node.op == "operand" and graph.operands[int(node.attr)].kind == "scalar":
            values[i] = given[int(node.attr)]
        elif node.args and all(a in values for a in node.args):
            values[i] = _apply(node, [values[a] for a in node.args], registers)
    return values


def _apply(node: Node, args: list[Any], registers: Callable[[int | None], _Registers]) -> Any:
    if node.op == "cast":
        return args[0].to(_CAST[node.attr]).to(Float32)
    # Where lengths S and S/2 meet, the long vectors hold columns only (Col), whose neighbours are equal.
    lengths = {arg.numel() for arg in args if _is_vector(arg)}
    if len(lengths) > 1:
        args = [_OPS["even"](arg) if _is_vector(arg) and arg.numel() == max(lengths) else arg for arg in args]
    if node.op in _APPROXIMATED:
        (x,) = args
        return _APPROXIMATED[node.op](registers(x.numel() if _is_vector(x) else None), x)
    return _OPS[node.op](*args)
