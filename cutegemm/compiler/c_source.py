"""The C face of kernels: the functions that a library of them exports, its header and its source, as text.

A function takes what `abi.arguments` lists, under names that a C programmer would give them, but for the GPU's SM
count, which it asks the CUDA runtime for. It checks sizes, addresses and strides against what its kernels take for
granted, finds the kernel for the current GPU, loads it once and launches it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from cutegemm.compiler import c_text
from cutegemm.dtypes import lookup
from cutegemm.kernels import abi
from cutegemm.kernels.small_m_config import GRID_YZ

if TYPE_CHECKING:
    from cutegemm.compiler.spec import Spec
    from cutegemm.problem import Signature

PREFIX = "cutegemm_gemm_"
#: What may follow it.
NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
#: What a library exports besides its functions.
COMMON = ("cutegemm_last_error", "cutegemm_load")

_WIDTH = 110
#: Kernels count elements in 32 bits up to the edge of the last tile, and no tile is near 65,536 wide.
_SIZE_MAX = 2**31 - 2**16
#: Families that describe A and B to TMA, which knows no empty tensor.
_NEEDS_K = ("sm90_wgmma",)

#: Arguments that a function fills in itself.
_OWN = ("sm_count", "ptr.workspace")
_SIZES = {"m": "m", "n": "n", "k": "k", "l0": "batch", "l1": "outer"}
_C_TYPES = {"size": "int64_t", "stride": "int64_t", "float": "float"}
_KEYWORDS = """
    a b c m n k batch outer alpha beta stream alignas alignof and and_eq asm auto bitand bitor bool break case catch
    char class compl concept const constexpr const_cast continue decltype default delete do double dynamic_cast else
    enum errno explicit export extern false float for friend goto if inline int linux long mutable namespace new
    noexcept not not_eq NULL nullptr operator or or_eq private protected public register reinterpret_cast requires
    restrict return short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename typeof union unix unsigned using virtual void volatile while xor xor_eq
"""
_TAKEN = frozenset(_KEYWORDS.split())
_UNSUITABLE = re.compile(r"_t$|_stride_|^cutegemm")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an exported function; `argument` is its name in `abi.arguments`, or "stream"."""

    name: str
    c_type: str
    argument: str


@dataclass(frozen=True, slots=True)
class Function:
    """An exported function: its name, and for each architecture the kernel that serves it, all of one signature."""

    name: str
    specs: tuple[Spec, ...]

    @property
    def signature(self) -> Signature:
        """What the kernels compute, and of which tensors."""
        return self.specs[0].signature

    @property
    def symbol(self) -> str:
        """The name that C code calls it by."""
        return PREFIX + self.name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its parameters in order: addresses, sizes, strides in elements, floats, the stream."""
        names = _names(self.signature)
        written = {f"ptr.out{i}" for i in range(len(self.signature.outputs))}
        listed = []
        for argument in abi.arguments(self.signature):
            address = "void *" if argument.name in written else "const void *"
            if argument.name not in _OWN:
                c_type = _C_TYPES.get(argument.kind, address)
                listed.append(Parameter(_c_name(argument.name, names), c_type, argument.name))
        return (*listed, Parameter("stream", "void *", "stream"))

    @property
    def prototype(self) -> str:
        """`int cutegemm_gemm_NAME(…)`, broken into lines."""
        listed = [f"{p.c_type}{'' if p.c_type.endswith('*') else ' '}{p.name}" for p in self.parameters]
        return f"int {self.symbol}(\n" + "\n".join(_lines(listed, 4)) + ")"

    @property
    def least_k(self) -> int:
        """The smallest k that every kernel takes."""
        return int(any(spec.family in _NEEDS_K for spec in self.specs))

    def most(self, size: str) -> int:
        """The largest m, n, k, l0 or l1 that every kernel takes."""
        return min(_most(spec, size) for spec in self.specs)


class Host(NamedTuple):
    """How a kernel's object is called: the prefix of its symbols, and the name of the host function behind it."""

    prefix: str
    function: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a function: its C name, and what there is to it."""

    name: str
    argument: abi.TensorArgument

    @property
    def written(self) -> bool:
        return self.argument.name.startswith("out")

    @property
    def unit(self) -> int:
        """What strides are multiples of, in elements."""
        access = self.argument.access
        return max(1, access.align // lookup(access.dtype).itemsize)

    @property
    def contiguous(self) -> bool:
        return self.argument.access.major != "strided"

    @property
    def matrix(self) -> bool:
        return len(self.argument.dims) == 2 + abi.BATCH_MODES

    def extent(self, dim: str) -> str:
        return f"{_SIZES[dim]} / 2" if dim == "n" and self.argument.paired else _SIZES[dim]


def header(functions: Sequence[Function]) -> str:
    """The library's header, in C99 that C++ takes too."""
    body = "\n\n".join(_comment(_describe(f)) + "\n" + f.prototype + ";" for f in functions)
    return c_text.HEADER.replace("@FUNCTIONS@", body)


def source(functions: Sequence[Function], hosts: Mapping[Spec, Host]) -> str:
    """The library's own source, which calls the kernels by what `hosts` says of their objects."""
    declarations: list[str] = []
    rows: list[str] = []
    for spec, (prefix, function) in hosts.items():
        init, load = f"_mlir_{prefix}_cuda_init", f"_mlir_{prefix}_cuda_load_to_device"
        launch = f"_mlir_{prefix}__mlir_ciface_{function}"
        declarations += [f"void {init}(void **);", f"void {load}(void **);", f"void {launch}(void **, int32_t);"]
        members = f".capability = {_capability(spec.arch)}, .init = {init}, .load = {load}, .launch = {launch}"
        rows.append(f"    {{{members}}},")
    places = {spec: i for i, spec in enumerate(hosts)}
    prelude = "\n".join((c_text.PRELUDE, *declarations, f"enum {{ CUTEGEMM_SIZE_MAX = {_SIZE_MAX} }};"))
    table = "\n".join(("static struct cutegemm_kernel cutegemm_kernels[] = {", *rows, "};"))
    bodies = ("\n".join(_body(f, [places[spec] for spec in f.specs])) for f in functions)
    return "\n\n".join((prelude, c_text.CORE, table, c_text.FIND, *bodies)) + "\n"


def _names(signature: Signature) -> dict[str, str]:
    """Tensors and scalars of `abi` -> names in C: the graph's own, where C has no other use for them."""
    names = {name: name for name in ("a", "b", "c", "alpha", "beta")}
    graph = signature.epilogue
    wanted = [(f"out{i}", f"output{i}", spec.name) for i, spec in enumerate(graph.outputs)]
    wanted += [(f"op{i}", f"operand{i}", spec.name) for i, spec in enumerate(graph.operands)]
    for argument, otherwise, name in wanted:
        plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII) and not _UNSUITABLE.search(name)
        chosen = name if plain and name not in _TAKEN else otherwise
        while chosen in names.values():
            chosen += "_"
        names[argument] = chosen
    return names


def _c_name(argument: str, names: dict[str, str]) -> str:
    if argument == "ptr.workspace":
        return "cutegemm_workspace"
    kind, *rest = argument.split(".")
    if kind == "ptr":
        return names[rest[0]]
    if kind == "stride":
        return f"{names[rest[0]]}_stride_{_SIZES[rest[1]]}"
    return _SIZES.get(kind) or names[kind]


def _tensors(signature: Signature) -> Iterator[_Tensor]:
    names = _names(signature)
    for argument in abi.tensors(signature):
        yield _Tensor(names[argument.name], argument)


def _lines(items: Sequence[str], indent: int) -> list[str]:
    """`items`, comma-separated, in lines that break between them."""
    # wrap() breaks at spaces alone.
    text = ", ".join(item.replace(" ", "\0") for item in items)
    margin = " " * indent
    broken = wrap(text, _WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in broken]


def _capability(arch: str) -> int:
    """10 * major + minor of "sm_90a"."""
    return int(re.sub(r"\D", "", arch))


def _most(spec: Spec, size: str) -> int:
    """The largest m, n, k, l0 or l1 that a kernel takes: `small_m` has one tile for all rows of D, and blocks for
    batches along the grid's y and z."""
    if spec.family != "small_m":
        return _SIZE_MAX
    return {"m": spec.config.tile_m, "l0": GRID_YZ, "l1": GRID_YZ}.get(size, _SIZE_MAX)


def _tile(spec: Spec) -> tuple[int, int]:
    """Rows and columns of D that a block takes at a time."""
    config = spec.config
    turned = config.options().get("swap_ab") == "yes"
    return (config.tile_n, config.tile_m) if turned else (config.tile_m, config.tile_n)


def _body(function: Function, places: Sequence[int]) -> Iterator[str]:
    """The definition of an exported function, line by line; `places` are its kernels' in `cutegemm_kernels`."""
    signature, names = function.signature, _names(function.signature)
    yield function.prototype + " {"
    for size, name in _SIZES.items():
        least = function.least_k if size == "k" else 0
        yield f'    CUTEGEMM_CHECK(cutegemm_size("{name}", {name}, {least}, {function.most(size)}));'
    if signature.epilogue.has_pair:
        yield "    CUTEGEMM_CHECK(cutegemm_even(n));"
    yield "    if (m == 0 || n == 0 || batch == 0 || outer == 0) return CUTEGEMM_OK;"
    rows, columns = (min(sizes) for sizes in zip(*map(_tile, function.specs), strict=True))
    depth = min(spec.config.tile_k for spec in function.specs)
    yield f"    CUTEGEMM_CHECK(cutegemm_steps(m, n, k, batch, outer, {rows}, {columns}, {depth}));"
    for tensor in _tensors(signature):
        unread = "if (k > 0) " if tensor.name in ("a", "b") and not function.least_k else ""
        for check in _checks(tensor):
            yield f"    {unread}CUTEGEMM_CHECK({check});"
    for scalar, dtype in abi.scalars(signature):
        if dtype is not None:
            yield f'    CUTEGEMM_CHECK(cutegemm_pointer("{names[scalar]}", {names[scalar]}, {lookup(dtype).itemsize}));'
    for p in function.parameters:
        for mode in ("batch", "outer"):
            if p.name.endswith(f"_stride_{mode}"):
                yield f"    if ({mode} == 1) {p.name} = 0;"
    sizes = ", ".join(f"cutegemm_{name} = (int32_t){name}" for name in _SIZES.values())
    yield f"    int32_t {sizes}, cutegemm_sm_count;"
    yield "    const void *cutegemm_workspace = NULL;"
    yield "    struct cutegemm_kernel *cutegemm_found;"
    yield f"    static const int cutegemm_own[] = {{{', '.join(map(str, places))}}};"
    found = f"cutegemm_own, {len(places)}, &cutegemm_found, &cutegemm_sm_count"
    yield f"    CUTEGEMM_CHECK(cutegemm_find({found}));"
    passed = [
        f"&cutegemm_{_SIZES.get(a.name, a.name)}" if a.kind == "size" else f"&{_c_name(a.name, names)}"
        for a in abi.arguments(signature)
    ]
    yield "    void *cutegemm_values[] = {"
    yield from _lines([*(f"(void *){value}" for value in (*passed, "&stream")), "NULL"], 8)
    yield "    };"
    yield f"    return cutegemm_launch(cutegemm_found, cutegemm_values, {len(passed) + 2});"
    yield "}"


def _checks(tensor: _Tensor) -> Iterator[str]:
    """Calls that check a tensor's address and strides; a stride of a size-1 dimension means nothing."""
    argument, name, unit = tensor.argument, tensor.name, tensor.unit
    yield f'cutegemm_pointer("{name}", {name}, {argument.access.align})'
    for dim in argument.strides:
        stride = f"{name}_stride_{_SIZES[dim]}"
        yield f'cutegemm_stride("{stride}", {stride}, {tensor.extent(dim)}, {unit})'
    if tensor.matrix and tensor.contiguous:
        (dim,) = (d for d in argument.dims[:2] if d != argument.access.major)
        stride = f"{name}_stride_{_SIZES[dim]}"
        # As `problem.access` has it: lines that overlap, or are one, are read in whole accesses of at most 8 bytes.
        apart = int(tensor.written or argument.access.align > 8)
        line = tensor.extent(argument.access.major)
        yield f'cutegemm_lines("{stride}", {stride}, {tensor.extent(dim)}, {line}, {unit}, {apart})'


def _describe(function: Function) -> Iterator[str]:
    """What the header says about a function, line by line."""
    signature, graph = function.signature, function.signature.epilogue
    products = "alpha * sum over k of a[m, k] * b[n, k]" + ("" if signature.c is None else " + beta * c[m, n]")
    yield f"{function.name}: for acc = {products},"
    yield from (f"    {line.strip()}" for line in graph.describe()[1:])
    if signature.precision is not None:
        yield f"fp32 products are made in precision {signature.precision!r}"
    yield ""
    for tensor in _tensors(signature):
        access, unit = tensor.argument.access, tensor.unit
        shape = ", ".join(tensor.extent(dim) for dim in tensor.argument.dims[: -abi.BATCH_MODES])
        along = f"contiguous along {access.major}" if tensor.contiguous else "of any strides"
        aligned = f"address a multiple of {access.align} bytes"
        aligned += f", strides of {unit} elements" if unit > 1 else ""
        yield f"{tensor.name:8} {access.dtype} [{shape}], {'written, ' if tensor.written else ''}{along}; {aligned}"
    for scalar, dtype in abi.scalars(signature):
        held = "fp32, by value" if dtype is None else f"one {dtype} in device memory"
        yield f"{_names(signature)[scalar]:8} {held}"
    if function.least_k:
        yield "k must be at least 1" + (", n even" if graph.has_pair else "")
    elif graph.has_pair:
        yield "n must be even"
    if function.most("m") < _SIZE_MAX:
        yield f"m must be at most {function.most('m')}"
    yield ""
    yield from (f"{spec.arch}: {spec.family}:{spec.config}" for spec in function.specs)


def _comment(lines: Iterator[str]) -> str:
    text = "\n".join(f" * {line}".rstrip().replace("*/", "* /").replace("/*", "/ *") for line in lines)
    return f"/*\n{text}\n */"
