"""From a call's metadata to its `Problem`: every rule on shapes and dtypes, as functions of plain data.

A `Request` is all that a call's kernel is chosen by; equal requests have equal results here, so they can be a
cache's key. What changes from call to call under one request (pointers, devices, grad mode) is
`cutegemm.normalize`'s part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from cutegemm.errors import DTypeError, OverlapError, ShapeError
from cutegemm.layout import collapse, self_overlaps
from cutegemm.problem import Access, Problem, Role, Signature, access, precision_of

if TYPE_CHECKING:
    from cutegemm.fusion.graph import Graph, OperandSpec

Shape = tuple[int, ...]


class Meta(NamedTuple):
    """A tensor's metadata: dtype by name, shape, strides in elements, its address in bytes modulo 16."""

    dtype: str
    shape: Shape
    strides: Shape
    phase: int = 0


#: A run-time scalar: a 0-d tensor, or a float, of which only its being 0 matters.
Scalar = Meta | Literal["float", "zero"]


class Request(NamedTuple):
    """A call without its data. `outs` holds a given output's metadata, or a fresh one's dtype; `precision` is as in
    `Signature`."""

    device: str
    a: Meta
    b: Meta
    c: Meta | None
    graph: Graph
    operands: tuple[Scalar, ...]
    outs: tuple[Meta | str | None, ...]
    alpha: Scalar
    beta: Scalar
    precision: str | None = None


class Served(NamedTuple):
    """The dtypes that a device serves, by what they are for."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operands: tuple[str, ...]
    scalars: tuple[str, ...]


_REFERENCE = Served(
    inputs=("fp16", "bf16", "fp32", "fp64", "int8"),
    outputs=("fp16", "bf16", "fp32", "fp64", "int8", "int32"),
    operands=("fp16", "bf16", "fp32", "fp64", "int8", "int32"),
    scalars=("fp16", "bf16", "fp32", "fp64", "int8", "int32", "int64"),
)
_FLOATS = ("fp16", "bf16", "fp32")
#: What each kind of device serves. Meta tensors stand for either, and may have what one of them serves.
SERVED = {
    "cuda": Served(inputs=_FLOATS, outputs=_FLOATS, operands=_FLOATS, scalars=_FLOATS),
    "cpu": _REFERENCE,
    "meta": _REFERENCE,
}


#: What serves the inputs that no kernel here multiplies.
_ELSEWHERE = "; torch.matmul multiplies it as it is"


class Sizes(NamedTuple):
    """A checked request's sizes; `outputs` are (shape, dtype)."""

    m: int
    n: int
    k: int
    batch: Shape
    outputs: tuple[tuple[Shape, str], ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: M, N or a batch size is 0."""
        return 0 in (self.m, self.n, *self.batch)


class Layout(NamedTuple):
    """A tensor as a kernel sees it: shape and strides over the batch modes, then its own dimensions."""

    shape: Shape
    strides: Shape


class Recipe(NamedTuple):
    """What a request comes to: the problem, the collapsed batch modes' sizes, and every tensor's layout.

    A layout's first `len(modes)` dimensions are the batch, broadcast with stride 0. `operands` holds None for
    scalars, `c` is None where it is not read.
    """

    problem: Problem
    modes: Shape
    a: Layout
    b: Layout
    c: Layout | None
    outs: tuple[Layout, ...]
    operands: tuple[Layout | None, ...]


def describe(spec: OperandSpec) -> str:
    """How errors call an epilogue's operand."""
    return f"epilogue operand {spec.name!r} ({spec.kind.capitalize()})"


def out_name(graph: Graph, index: int) -> str:
    """How errors call an output."""
    return "out" if len(graph.outputs) == 1 else f"out[{index}] ({graph.outputs[index].name!r})"


def validate(request: Request) -> Sizes:
    """Check every shape and dtype of a request against the others.

    Raises `ShapeError`, `DTypeError`, or `OverlapError` for a given output whose elements share places.
    """
    a, b, graph = request.a, request.b, request.graph
    _check_dtypes(request)
    for name, matrix, dims in (("a", a, "(…, M, K)"), ("b", b, "(…, K, N)")):
        if len(matrix.shape) < 2:
            raise ShapeError(f"{name} has shape {_show(matrix.shape)}: expected at least 2 dimensions, {dims}")
    (m, k), (k_b, n) = a.shape[-2:], b.shape[-2:]
    if k != k_b:
        raise ShapeError(
            f"a {_show(a.shape)} and b {_show(b.shape)} differ in their inner size, {k} and {k_b}: "
            "expected a (…, M, K) and b (…, K, N)"
        )
    batch = _broadcast(a.shape, b.shape)
    if graph.has_pair and n % 2:
        raise ShapeError(f"N is {n} (b {_show(b.shape)}), and the epilogue pairs its columns: expected an even N")
    if request.c is not None:
        _check_shape("c", request.c.shape, ((*batch, m, n),))
    for spec, operand in zip(graph.operands, request.operands, strict=True):
        if isinstance(operand, Meta):
            _check_shape(describe(spec), operand.shape, _operand_shapes(spec, batch, m, n))
    for name, scalar in (("alpha", request.alpha), ("beta", request.beta)):
        if isinstance(scalar, Meta):
            _check_shape(name, scalar.shape, ((),))
    outputs = []
    for i, (output, out) in enumerate(zip(graph.outputs, request.outs, strict=True)):
        shape = (*batch, m, n // 2 if output.paired else n)
        if isinstance(out, Meta):
            name = out_name(graph, i)
            _check_shape(name, out.shape, (shape,))
            if self_overlaps(out.shape, out.strides):
                raise OverlapError(
                    f"elements of {name}, shape {_show(out.shape)} and strides {out.strides}, share memory: "
                    "expected a view whose elements are all apart"
                )
            outputs.append((shape, out.dtype))
        else:
            outputs.append((shape, out or default_output(a.dtype)))
    return Sizes(m, n, k, batch, tuple(outputs))


def default_output(dtype: str) -> str:
    """An output's dtype by default: the inputs' own, or fp32 for int8, whose sums int8 can't hold."""
    return "fp32" if dtype == "int8" else dtype


def lower(request: Request, sizes: Sizes) -> Recipe:
    """The problem of a validated request, and every tensor's layout over the batch modes they collapse to."""
    m, n, k, batch, outputs = sizes
    if request.alpha == "zero":
        k = 0
    c = request.c if request.beta != "zero" else None
    outs = [o if isinstance(o, Meta) else _fresh(*made) for o, made in zip(request.outs, outputs, strict=True)]
    operands = list(zip(request.graph.operands, request.operands, strict=True))
    tensors: list[tuple[Role, Meta]] = [("a", request.a), ("b", request.b)]
    tensors += [("c", c)] if c is not None else []
    tensors += [("out", out) for out in outs]
    tensors += [(spec.kind, o) for spec, o in operands if isinstance(o, Meta) and spec.kind != "scalar"]
    modes, placed = _place(tensors, batch)
    tensor = iter(placed)
    (a, a_access), (b, b_access) = next(tensor), next(tensor)
    c_layout, c_access = next(tensor) if c is not None else (None, None)
    placed_outs = [next(tensor) for _ in outs]
    placed_operands = [_scalar_access(o) or next(tensor) for _, o in operands]
    signature = Signature(
        a_access,
        b_access,
        c_access,
        tuple(out_access for _, out_access in placed_outs),
        request.graph,
        tuple(operand_access for _, operand_access in placed_operands),
        request.alpha.dtype if isinstance(request.alpha, Meta) else "float",
        request.beta.dtype if isinstance(request.beta, Meta) else "float",
        None if request.precision is None else precision_of(request.precision, k),
    )
    return Recipe(
        Problem(m, n, k, math.prod(batch), signature),
        modes,
        Layout((*a.shape[:-1], k), a.strides),
        Layout((*b.shape[:-2], k, n), b.strides),
        c_layout,
        tuple(layout for layout, _ in placed_outs),
        tuple(layout for layout, _ in placed_operands),
    )


def _place(tensors: Sequence[tuple[Role, Meta]], batch: Shape) -> tuple[Shape, list[tuple[Layout, Access]]]:
    """The sizes of the batch modes that all tensors collapse to, and each one's layout and access."""
    own = [1 if role in ("row", "col") else 2 for role, _ in tensors]
    strides = [_batch_strides(tensor, dims, batch) for (_, tensor), dims in zip(tensors, own, strict=True)]
    modes, merged = collapse(batch, strides)
    placed = []
    for (role, tensor), dims, outer in zip(tensors, own, merged, strict=True):
        layout = Layout((*modes, *tensor.shape[-dims:]), (*outer, *tensor.strides[-dims:]))
        placed.append((layout, access(role, tensor.dtype, *layout, address=tensor.phase)))
    return modes, placed


def _scalar_access(operand: Scalar) -> tuple[None, Access] | None:
    """The place of a Scalar operand: a number, or a 0-d tensor. None for any other operand."""
    if not isinstance(operand, Meta):
        return None, Access("fp32", "float", 4)
    return (None, access("scalar", operand.dtype, (), (), address=operand.phase)) if not operand.shape else None


def _fresh(shape: Shape, dtype: str) -> Meta:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return Meta(dtype, shape, tuple(reversed(strides)))


def _batch_strides(meta: Meta, own: int, batch: Shape) -> Shape:
    """A tensor's strides over the full batch: 0 along dimensions that it lacks or has once."""
    sizes, strides = meta.shape[: len(meta.shape) - own], meta.strides[: len(meta.shape) - own]
    present = tuple(0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True))
    return (0,) * (len(batch) - len(present)) + present


def _operand_shapes(spec: OperandSpec, batch: Shape, m: int, n: int) -> tuple[Shape, ...]:
    width = n // 2 if spec.paired else n
    own = {"row": (width,), "col": (m,), "tile": (m, width), "scalar": ()}[spec.kind]
    return (own,) if spec.kind == "scalar" or not batch else (own, (*batch, *own))


def _broadcast(a: Shape, b: Shape) -> Shape:
    """The batch that two operands' batches broadcast to, as torch.matmul does it."""
    left, right = a[:-2], b[:-2]
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    result = []
    for x, y in pairs:
        if x != y and 1 not in (x, y):
            raise ShapeError(
                f"a {_show(a)} and b {_show(b)} have batches {_show(left)} and {_show(right)}, which don't "
                "broadcast: expected equal sizes, or 1"
            )
        result.append(y if x == 1 else x)
    return tuple(result)


def _check_shape(name: str, shape: Shape, expected: Sequence[Shape]) -> None:
    if shape not in expected:
        raise ShapeError(f"{name} has shape {_show(shape)}: expected {' or '.join(map(_show, expected))}")


def _check_dtypes(request: Request) -> None:
    served, a, b = SERVED[request.device], request.a, request.b
    for name, matrix in (("a", a), ("b", b)):
        hint = _ELSEWHERE if request.device == "cuda" and matrix.dtype.startswith(("fp64", "complex")) else ""
        _check_dtype(name, matrix.dtype, request.device, served.inputs, hint)
    if a.dtype != b.dtype:
        raise DTypeError(f"a is {a.dtype} and b is {b.dtype}: expected one dtype for both")
    if request.c is not None:
        _check_dtype("c", request.c.dtype, request.device, served.operands)
    for spec, operand in zip(request.graph.operands, request.operands, strict=True):
        if isinstance(operand, Meta):
            allowed = served.scalars if spec.kind == "scalar" else served.operands
            _check_dtype(describe(spec), operand.dtype, request.device, allowed)
    for name, scalar in (("alpha", request.alpha), ("beta", request.beta)):
        if isinstance(scalar, Meta):
            _check_dtype(name, scalar.dtype, request.device, served.scalars)
    for i, out in enumerate(request.outs):
        dtype = out.dtype if isinstance(out, Meta) else out
        if dtype is not None:
            _check_dtype(out_name(request.graph, i), dtype, request.device, served.outputs)


def _check_dtype(name: str, dtype: str, device: str, allowed: tuple[str, ...], hint: str = "") -> None:
    if dtype not in allowed:
        raise DTypeError(f"{name} is {dtype}: on {device} tensors expected one of {', '.join(allowed)}{hint}")


def _show(shape: Shape) -> str:
    return str(tuple(shape))
