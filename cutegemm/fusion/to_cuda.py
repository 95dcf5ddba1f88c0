"""Lowering a graph to CUDA C++ text: a struct whose one function maps fp32 numbers to fp32 numbers.

The text is C++17 and includes nothing but <math.h> and <string.h>, which NVRTC does without: NVRTC, nvcc and a host's
compiler take it as it is. What an epilogue computes with is one fixed text (`PRELUDE`) in front of the struct, behind
an include guard: any number of lowerings share a translation unit, and what a `normcdf` is can't differ between them.

No fast-math options are assumed, and none are wanted. Multiplications followed by additions contract to FMA as the
compiler sees fit. On a device, subnormal results of exp2, of the reciprocals behind `sigmoid`, and of division are 0.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from cutegemm.errors import EpilogueError
from cutegemm.fusion import approx
from cutegemm.fusion.graph import OPS, Graph, Node, Type


class Lanes(NamedTuple):
    """How many fp32 numbers stand for the accumulator, for each operand and for each output: 1, or 2 for the even
    column and its odd neighbour."""

    acc: int
    operands: tuple[int, ...]
    outputs: tuple[int, ...]


def lanes(graph: Graph) -> Lanes:
    """What one application of `graph` reads and writes: an element, or two neighbours where the graph has a `pair`."""
    width = 2 if graph.has_pair else 1
    return Lanes(
        width,
        tuple(1 if spec.paired or spec.kind in ("col", "scalar") else width for spec in graph.operands),
        tuple(1 if spec.paired else width for spec in graph.outputs),
    )


def lower(graph: Graph, name: str = "epilogue") -> str:
    """The graph as the source of `struct name`, for the global scope: `name::apply(acc, operands…, outputs…)`.

    Its arguments are floats by value, then floats by reference: the accumulator, every operand in the order of
    `graph.operands`, every output in the order of `graph.outputs`, each as often as `lanes(graph)` says, an even
    column's number before the odd one's. Operands come converted to fp32; casting an output to its dtype is the
    caller's. `apply` is `__host__ __device__` and inlined; on a device it neither branches nor uses local memory.

    Equal graphs give equal texts, whatever their operands are called; others differ, if only in the identity that a
    comment states. Raises `EpilogueError` for a name that holds more than letters, digits and underscores and,
    naming it, for an operation that has no lowering.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise EpilogueError(f"{name!r} can't name a C++ struct: expected letters, digits and underscores")
    count = lanes(graph)
    acc = _names("acc", count.acc)
    operands = [_names(f"in{i}", n) for i, n in enumerate(count.operands)]
    outputs = [_names(f"out{i}", n) for i, n in enumerate(count.outputs)]
    values, definitions = _evaluate(graph, acc, operands)
    results = [
        (target, _lane(values[spec.node], i))
        for spec, targets in zip(graph.outputs, outputs, strict=True)
        for i, target in enumerate(targets)
    ]
    parameters = [f"float {x}" for xs in (acc, *operands) for x in xs] + [f"float& {x}" for xs in outputs for x in xs]
    statements = [
        *(f"const {_TYPES[d.type]} {d.target} = {d.expression};" for d in _used(definitions, {s for _, s in results})),
        *(f"{target} = {source};" for target, source in results),
    ]
    body = "\n".join(f"        {statement}" for statement in statements)
    return (
        f"{PRELUDE}\n"
        f"// The epilogue {graph.identity}\n"
        f"struct {name} {{\n"
        f"    static CUTEGEMM_INLINE void apply({', '.join(parameters)}) {{\n{body}\n    }}\n"
        "};\n"
    )


class _Definition(NamedTuple):
    """A variable of `apply`: its name, its type in the graph, its value and the names that the value reads."""

    target: str
    type: Type
    expression: str
    sources: list[str]


def _evaluate(
    graph: Graph, acc: tuple[str, ...], operands: list[tuple[str, ...]]
) -> tuple[list[tuple[str, ...]], list[_Definition]]:
    """For every node the names of its values (a leaf's may be a literal), and what defines those that need it.

    A node has two values if the two columns of a pair differ in it, and one otherwise.
    """
    values: list[tuple[str, ...]] = []
    definitions: list[_Definition] = []
    for i, node in enumerate(graph.nodes):
        args = [values[a] for a in node.args]
        if node.op == "acc":
            values.append(acc)
        elif node.op == "operand":
            values.append(operands[int(node.attr)])
        elif node.op == "const":
            values.append((_literal(node.value),))
        elif node.op in ("even", "odd"):
            values.append((args[0][node.op == "odd"],))
        else:
            values.append(_names(f"t{i}", max(map(len, args))))
            for lane, target in enumerate(values[-1]):
                sources = [_lane(arg, lane) for arg in args]
                expression = _expression(node, sources)
                definitions.append(_Definition(target, OPS[node.op].gives, expression, sources))
    return values, definitions


def _lane(value: tuple[str, ...], i: int) -> str:
    return value[i if len(value) == 2 else 0]


def _used(definitions: list[_Definition], needed: set[str]) -> list[_Definition]:
    """The definitions behind the names in `needed`: of a value split by `pair`, one half may have no reader."""
    kept: list[_Definition] = []
    for definition in reversed(definitions):
        if definition.target in needed:
            needed.update(definition.sources)
            kept.append(definition)
    return kept[::-1]


def _names(stem: str, count: int) -> tuple[str, ...]:
    return (stem,) if count == 1 else (f"{stem}_even", f"{stem}_odd")


def _literal(value: float) -> str:
    """`value`, rounded to fp32, as a C++ expression that is exactly it."""
    rounded = ctypes.c_float(value).value
    if not math.isfinite(rounded):
        (bits,) = struct.unpack("<I", struct.pack("<f", rounded))
        return f"cutegemm_maths::from_bits({bits:#x}u)"
    # Parentheses: the negative of a negative must not read as a decrement.
    return f"{rounded.hex()}f" if math.copysign(1.0, rounded) > 0 else f"({rounded.hex()}f)"


def _expression(node: Node, args: list[str]) -> str:
    op = f"cast to {node.attr}" if node.op == "cast" else node.op
    if op in _EXPRESSIONS:
        return _EXPRESSIONS[op].format(*args)
    if infix := OPS[op].infix if op in OPS else "":
        return f" {infix} ".join(args)
    raise EpilogueError(f"{op} has no lowering to CUDA C++")


_TYPES: dict[Type, str] = {"f32": "float", "bool": "bool"}

# What is not an operator of C++. expf, logf, tanhf and erff are within 1 to 2 ulp and free of branches on a device.
_EXPRESSIONS = {
    "neg": "-{0}",
    "not": "!{0}",
    "where": "{0} ? {1} : {2}",
    "abs": "fabsf({0})",
    "exp": "expf({0})",
    "log": "logf({0})",
    "tanh": "tanhf({0})",
    "erf": "erff({0})",
    "sqrt": "cutegemm_maths::square_root({0})",
    "rsqrt": "cutegemm_maths::reciprocal_root({0})",
    "div": "cutegemm_maths::quotient({0}, {1})",
    "minimum": "cutegemm_maths::minimum({0}, {1})",
    "maximum": "cutegemm_maths::maximum({0}, {1})",
    "cast to fp16": "cutegemm_maths::round_to_fp16({0})",
    "cast to bf16": "cutegemm_maths::round_to_bf16({0})",
    "normcdf": "cutegemm_maths::normcdf({0})",
    "sigmoid": "cutegemm_maths::sigmoid({0})",
}


class _Statements:
    """`approx.Arithmetic` on names of C++ variables: each operation is a statement."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _define(self, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"const float {name} = {expression};")
        return name

    def constant(self, value: float) -> str:
        return _literal(value)

    def absolute(self, x: str) -> str:
        return self._define(f"fabsf({x})")

    def add(self, x: str, y: str) -> str:
        return self._define(f"{x} + {y}")

    def multiply(self, x: str, y: str) -> str:
        return self._define(f"{x} * {y}")

    def fma(self, x: str, y: str, z: str) -> str:
        return self._define(f"fmaf({x}, {y}, {z})")

    def exp2(self, x: str) -> str:
        return self._define(f"power_of_two({x})")

    def reciprocal(self, x: str) -> str:
        return self._define(f"reciprocal({x})")

    def select_negative(self, x: str, if_negative: str, otherwise: str) -> str:
        return self._define(f"{x} < 0.0f ? {if_negative} : {otherwise}")


def _approximation(formula: Callable[[_Statements, str], str]) -> str:
    statements = _Statements()
    result = formula(statements, "x")
    body = "\n".join(f"    {line}" for line in [*statements.lines, f"return {result};"])
    return f"CUTEGEMM_INLINE float {formula.__name__}(float x) {{\n{body}\n}}\n"


def _instruction(name: str, arity: int, instruction: str, otherwise: str, since: int = 0) -> str:
    """A function of fp32 numbers: PTX on devices of compute capability `since` (10 × major + minor, × 10) and newer,
    and elsewhere the statement `otherwise`. PTX in braces is a block of its own, with operands %0, %1 …"""
    names = ("x", "y")[:arity]
    ptx = instruction if instruction[0] == "{" else f"{instruction} %0, {', '.join(f'%{i + 1}' for i in range(arity))};"
    return f"""\
CUTEGEMM_INLINE float {name}({", ".join(f"float {x}" for x in names)}) {{
#if defined(__CUDA_ARCH__){f" && __CUDA_ARCH__ >= {since}" if since else ""}
    float result;
    asm("{ptx}" : "=f"(result) : {", ".join(f'"f"({x})' for x in names)});
    return result;
#else
    {otherwise}
#endif
}}
"""


# Bits go by memcpy, which compilers see through, because the device's intrinsics for it are unknown to a host.
_BITS = """\
CUTEGEMM_INLINE float from_bits(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

CUTEGEMM_INLINE unsigned to_bits(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
"""

# x + x instead of x: a NaN comes out quiet. Adding 0.5 rounds a number below 2**-14 to a multiple of 2**-24, fp16's
# spacing there; above, 13 bits of fp32's mantissa go, and what rounds to 2**16 or more is infinite.
_TO_FP16 = """\
const float size = fabsf(x);
    if (!(size < 0x1p+16f)) return x != x ? x + x : copysignf(from_bits(0x7f800000u), x);
    if (size < 0x1p-14f) return copysignf((size + 0.5f) - 0.5f, x);
    const unsigned bits = to_bits(size);
    const float rounded = from_bits((bits + 0xfffu + (bits >> 13 & 1u)) & ~0x1fffu);
    return copysignf(rounded < 0x1p+16f ? rounded : from_bits(0x7f800000u), x);"""
_TO_BF16 = """\
const unsigned bits = to_bits(x);
    return x != x ? x + x : from_bits((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);"""

# Square root and division that round correctly cost a subroutine, more than the rest of an epilogue; these are within
# 1 and 2 ulp over fp32's whole range. A NaN meets fminf and fmaxf as if it were not there.
_FUNCTIONS = [
    _BITS,
    _instruction("power_of_two", 1, "ex2.approx.ftz.f32", "return exp2f(x);"),
    _instruction("reciprocal", 1, "rcp.approx.ftz.f32", "return 1.0f / x;"),
    _instruction("square_root", 1, "sqrt.approx.f32", "return sqrtf(x);"),
    _instruction("reciprocal_root", 1, "rsqrt.approx.f32", "return 1.0f / sqrtf(x);"),
    _instruction("quotient", 2, "div.full.f32", "return x / y;"),
    _instruction("minimum", 2, "min.NaN.f32", "return x != x || y != y ? x + y : fminf(x, y);", since=800),
    _instruction("maximum", 2, "max.NaN.f32", "return x != x || y != y ? x + y : fmaxf(x, y);", since=800),
    _instruction("round_to_fp16", 1, "{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.f32.f16 %0, h; }", _TO_FP16),
    _instruction(
        "round_to_bf16",
        1,
        "{ .reg .b16 h, zero; mov.b16 zero, 0; cvt.rn.bf16.f32 h, %1; mov.b32 %0, {zero, h}; }",
        _TO_BF16,
        since=800,
    ),
    _approximation(approx.normcdf),
    _approximation(approx.sigmoid),
]

#: What the structs of `lower` call; every text begins with it.
PRELUDE = f"""\
#ifndef CUTEGEMM_MATHS
#define CUTEGEMM_MATHS
#ifndef __CUDACC_RTC__
#include <math.h>
#include <string.h>
#endif
#ifdef __CUDACC__
#define CUTEGEMM_INLINE __host__ __device__ __forceinline__
#else
#define CUTEGEMM_INLINE inline
#endif
namespace cutegemm_maths {{

{chr(10).join(_FUNCTIONS)}
}}  // namespace cutegemm_maths
#endif
"""
