"""Lowering a graph to the CuTe DSL: plain code on fp32 registers, for use inside a `@cute.kernel`.

Every element is computed as scalars, which is what the hardware has; a node that depends on nothing but
scalars is computed once. Nothing here branches, calls or indexes memory, so nothing spills to local memory on
its own account. Multiplications followed by additions contract to FMA. Subnormal results of exp2, the
reciprocals behind `sigmoid`, and division are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cutlass
from cutlass import BFloat16, Boolean, Float16, Float32, cute

from cutegemm.errors import EpilogueError
from cutegemm.fusion import approx
from cutegemm.fusion.graph import Graph

_CAST = {"fp16": Float16, "bf16": BFloat16}


class _Registers:
    """`approx.Arithmetic` on fp32 registers."""

    def constant(self, value: float) -> Any:
        # As an instruction's operand, not as a Python number: those the DSL would fold in double precision.
        return Float32(Float32(value).ir_value())

    def absolute(self, x: Any) -> Any:
        return cute.math.abs(x)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def multiply(self, x: Any, y: Any) -> Any:
        return x * y

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return cute.math.fma(x, y, z)

    def exp2(self, x: Any) -> Any:
        return cute.math.exp2(x, approx=True, ftz=True)

    def reciprocal(self, x: Any) -> Any:
        return cute.math.rcp(x, approx=True, ftz=True)

    def select_negative(self, x: Any, if_negative: Any, otherwise: Any) -> Any:
        return _where(x < self.constant(0.0), if_negative, otherwise)


_M = _Registers()


def _where(condition: Any, x: Any, y: Any) -> Any:
    return Float32(cutlass.select_(condition, x, y))


# exp, log, tanh and erf are libdevice's: 1 to 2 ulp, without branches (6, 25, 15 and 25 instructions). Its
# sqrt and division are correctly rounded by way of a subroutine, which costs more than the rest of an
# epilogue together; the approximate ones here are within 1 and 2 ulp over fp32's whole range.
_OPS: dict[str, Callable[..., Any]] = {
    "neg": lambda x: -x,
    "abs": _M.absolute,
    "exp": cute.math.exp,
    "log": cute.math.log,
    "sqrt": lambda x: cute.math.sqrt(x, approx=True),
    "rsqrt": lambda x: cute.math.rsqrt(x, approx=True),
    "tanh": cute.math.tanh,
    "erf": cute.math.erf,
    "normcdf": lambda x: approx.normcdf(_M, x),
    "sigmoid": lambda x: approx.sigmoid(_M, x),
    "add": _M.add,
    "sub": lambda x, y: x - y,
    "mul": _M.multiply,
    "div": lambda x, y: cute.math.div(x, y, full=True),
    # One FMNMX.NAN each; `cute.math`'s compile to two comparisons and two selects.
    "minimum": lambda x, y: cute.arch.fmin(x, y, nan=True),
    "maximum": lambda x, y: cute.arch.fmax(x, y, nan=True),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "not": lambda x: x ^ Boolean(True),
    "where": _where,
}


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
        if len(operands) != len(graph.operands):
            raise EpilogueError(f"expected {len(graph.operands)} operands, got {len(operands)}")
        elements = acc.to_elements()
        size = len(elements)
        if graph.has_pair and size % 2:
            raise EpilogueError(f"pair needs an even number of elements a thread, got {size}")
        values: list[Any] = []
        for node in graph.nodes:
            args = [values[a] for a in node.args]
            if node.op == "acc":
                values.append(elements)
            elif node.op == "operand":
                values.append(_operand(graph, int(node.attr), operands[int(node.attr)], size))
            elif node.op == "const":
                values.append(_M.constant(node.value))
            elif node.op in ("even", "odd"):
                values.append(args[0][node.op == "odd" :: 2])
            elif node.op == "cast":
                dtype = _CAST[node.attr]
                values.append(_map(lambda x, dtype=dtype: x.to(dtype).to(Float32), args))
            else:
                values.append(_map(_OPS[node.op], args))
        return tuple(_output(values[spec.node], spec.paired, acc, size) for spec in graph.outputs)

    return apply


def _map(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """`function` of every element: once if all arguments are scalars.

    Among arguments of S and of S/2 elements the long ones hold columns only, whose neighbours are equal.
    """
    lengths = {len(arg) for arg in args if isinstance(arg, tuple)}
    if not lengths:
        return function(*args)
    size = min(lengths)
    each = [arg[:: len(arg) // size] if isinstance(arg, tuple) else (arg,) * size for arg in args]
    return tuple(function(*element) for element in zip(*each, strict=True))


def _operand(graph: Graph, position: int, operand: Any, size: int) -> Any:
    spec = graph.operands[position]
    if spec.kind == "scalar":
        return _M.constant(operand) if isinstance(operand, int | float) else operand.to(Float32)
    elements = tuple(x.to(Float32) for x in operand.to_elements())
    expected = size // 2 if spec.paired else size
    if len(elements) != expected:
        raise EpilogueError(f"operand {spec.name!r}: expected {expected} elements, got {len(elements)}")
    return elements


def _output(value: Any, paired: bool, acc: Any, size: int) -> Any:
    elements = value if isinstance(value, tuple) else (value,) * size
    vector = cutlass.Vector.from_elements(elements, Float32)
    return cute.TensorSSA(vector, (size // 2,) if paired else acc.shape, Float32)
