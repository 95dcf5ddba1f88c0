"""An epilogue graph as CUDA C++ that finishes and stores rows of sums: loads of operands, the graph, stores of outputs.

What is generated includes `elements.cuh` and stands alone otherwise: whatever kernel has sums of neighbouring columns
of a row of D hands them to `Epilogue::write`. Fields of arguments are listed once: the C++ struct and the bytes that a
launch passes both follow the list.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from cutegemm.fusion.to_cuda import lanes, lower
from cutegemm.kernels import abi
from cutegemm.problem import Access, Signature

_CTYPES: dict[str, Any] = {"Q": ctypes.c_uint64, "q": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}


class Field(NamedTuple):
    """A field of a C++ struct of arguments.

    `format` is its code in `struct`: "Q" an address, "q" a stride in elements, "i" a size, "f" an fp32 value. `source`
    names the argument of `abi.arguments` that it holds, or what a launch adds to these, or is None for a stride that is
    known to be 1.
    """

    name: str
    ctype: str
    format: Literal["Q", "q", "i", "f"]
    source: str | None


def structure(fields: Iterable[Field]) -> type[ctypes.Structure]:
    """A C++ struct of `fields`, laid out as the compiler does."""
    layout = {"_fields_": [(f"f{i}_{field.name}", _CTYPES[field.format]) for i, field in enumerate(fields)]}
    return type("Arguments", (ctypes.Structure,), layout)


def epilogue_arguments(signature: Signature) -> tuple[Field, ...]:
    """`EpilogueArguments`: addresses, then strides, then fp32 values, so that no padding lies between them."""
    tensors = [t for t in abi.tensors(signature) if t.name not in ("a", "b")]
    scalars = list(abi.scalars(signature))
    return (
        *(Field(t.name, _pointer(t.name, t.access.dtype), "Q", f"ptr.{t.name}") for t in tensors),
        *(Field(name, f"const {dtype}*", "Q", f"ptr.{name}") for name, dtype in scalars if dtype is not None),
        *(stride_field(f"{t.name}_stride", t.access, t.name, t.dims[0]) for t in tensors),
        *(Field(name, "float", "f", name) for name, dtype in scalars if dtype is None),
    )


def source(signature: Signature, *, keep_first: bool = False) -> str:
    """The C++ text of `Graph`, `EpilogueArguments` and `Epilogue`, after `elements.cuh`.

    `Epilogue::write(row, column, valid, sums)` finishes the sums of neighbouring columns and stores what follows from
    them. With `keep_first` the numbers of the first output, one for each sum, are not stored but returned in a further
    argument.
    """
    fields = "".join(f"    {field.ctype} {field.name};\n" for field in epilogue_arguments(signature))
    return "\n".join(
        [
            lower(signature.epilogue, "Graph"),
            f"struct EpilogueArguments {{\n{fields}}};\n",
            _epilogue(signature, keep_first),
        ]
    )


def stride_field(name: str, access: Access, tensor: str, dim: str) -> Field:
    """The stride of `tensor` along `dim`."""
    return Field(name, "long long", "q", None if access.major == dim else f"stride.{tensor}.{dim}")


def _pointer(name: str, dtype: str) -> str:
    return f"{dtype}*" if name.startswith("out") else f"const {dtype}*"


def align_along(access: Access, along: str) -> int:
    """Alignment of rows in bytes; that of one element where another dimension is the contiguous one, which is
    served if there is but one element along the row."""
    return access.align if access.major == along else (4 if access.dtype == "fp32" else 2)


_EPILOGUE = """\
struct Epilogue {{
    static constexpr int UNIT = {unit};  // columns that the graph takes at a time: 2 where it has a pair
    const EpilogueArguments& args;
{members}
    // Scalars are read once, here.
    explicit INLINE Epilogue(const EpilogueArguments& given) : args(given){initialisers} {{}}

    // Finish and store the sums of N columns from `column`, a multiple of N, on: as many as `valid` says there are.
    template <int N>
    INLINE void write(int row, int column, int valid, const float (&sums)[N]{kept}) const {{
        static_assert(N % UNIT == 0, "an epilogue with a pair takes columns in twos");
{loads}
#pragma unroll
        for (int i = 0; i < N; i += UNIT) {{
{apply}
        }}
{stores}
    }}
}};
"""


def _epilogue(signature: Signature, keep_first: bool) -> str:
    graph = signature.epilogue
    unit = lanes(graph).acc
    scalars = list(abi.scalars(signature))
    values = {name: f"given.{name}" if dtype is None else f"to_fp32(*given.{name})" for name, dtype in scalars}
    loads: list[str] = []
    stores: list[str] = []
    if signature.c is not None:
        loads += _load("c", signature.c, "tile", 1)
    operands = list(zip(graph.operands, signature.operands, strict=True))
    for i, (spec, access) in enumerate(operands):
        loads += _load(f"op{i}", access, spec.kind, 2 if spec.paired else 1)
    for i, (output, access) in enumerate(zip(graph.outputs, signature.outputs, strict=True)):
        if keep_first and i == 0:
            continue
        ratio = 2 if output.paired else 1
        align = align_along(access, "n")
        loads.append(f"float out{i}[{_part('N', ratio)}];")
        place = f"args.out{i} + row * args.out{i}_stride + {_part('column', ratio)}"
        stores.append(f"store_run<{align}>({place}, {_part('valid', ratio)}, out{i});")
    sums = []
    for lane in range(unit):
        at = f"i + {lane}" if lane else "i"
        plus = "" if signature.c is None else f" + beta * c[{at}]"
        sums.append(f"alpha * sums[{at}]{plus}")
    given = [x for i, (spec, _) in enumerate(operands) for x in _lanes(f"op{i}", spec.kind, spec.paired, unit)]
    results = [x for i, o in enumerate(graph.outputs) for x in _lanes(f"out{i}", "tile", o.paired, unit)]
    return _EPILOGUE.format(
        unit=unit,
        kept=", float (&out0)[N]" if keep_first else "",
        members="".join(f"    float {name};\n" for name in values),
        initialisers="".join(f", {name}({value})" for name, value in values.items()),
        loads="\n".join(f"        {line}" for line in loads),
        apply=f"            Graph::apply({', '.join((*sums, *given, *results))});",
        stores="\n".join(f"        {line}" for line in stores),
    )


def _load(name: str, access: Access, kind: str, ratio: int) -> Iterator[str]:
    """Statements that make an operand's numbers local: an array of N (N/2 if paired), or one number."""
    column, valid = _part("column", ratio), _part("valid", ratio)
    if kind == "col":
        yield f"const float {name} = to_fp32(args.{name}[row * args.{name}_stride]);"
    elif kind != "scalar":
        yield f"float {name}[{_part('N', ratio)}] = {{}};"
        if kind == "tile":
            place = f"args.{name} + row * args.{name}_stride + {column}"
            yield f"load_run<{align_along(access, 'n')}>({place}, {valid}, {name});"
        elif access.major == "n":
            yield f"load_run<{access.align}>(args.{name} + {column}, {valid}, {name});"
        else:
            count = _part("N", ratio)
            yield "#pragma unroll"
            yield f"for (int i = 0; i < {count}; ++i)"
            yield f"    if (i < {valid}) {name}[i] = to_fp32(args.{name}[({column} + i) * args.{name}_stride]);"


def _lanes(name: str, kind: str, paired: bool, unit: int) -> list[str]:
    """How `Graph::apply` is given an operand or output in the step of columns i (and i + 1)."""
    if kind in ("col", "scalar"):
        return [name]
    if paired:
        return [f"{name}[i / 2]"]
    return [f"{name}[{f'i + {lane}' if lane else 'i'}]" for lane in range(unit)]


def _part(text: str, ratio: int) -> str:
    return text if ratio == 1 else f"{text} / 2"
