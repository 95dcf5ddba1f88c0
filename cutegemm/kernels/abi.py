"""The flat argument list that every kernel family's host function takes: pointers, sizes, strides, scalars, stream.

Integers and floats cross the TVM-FFI boundary in tens of nanoseconds each, tensors in hundreds, and everything a
tensor's metadata could tell was checked before the launch. Both sides read this one list: the compiler makes
placeholders of it, the launcher fills it in, and the kernel takes it apart by name.

Names: `ptr.X` is an address; `stride.X.d` a stride in elements of X along d; X is `a`, `b`, `c`, `outI` or `opI`
(the I-th output or epilogue operand). `ptr.workspace` is 0 for kernels that need none (see `workspace`). `l0` and `l1`
are the sizes of the two batch modes, l0 the faster; `sm_count` is the GPU's, by which persistent kernels size their
grid. Operands that are pieces of fp32 numbers have a stride along `piece` too (see `pieces`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from cutegemm.kernels import pieces

if TYPE_CHECKING:
    from cutegemm.problem import Access, Signature

Kind = Literal["address", "size", "stride", "float"]
T = TypeVar("T")

SIZES = ("m", "n", "k", "l0", "l1", "sm_count")

_TURNED = {"m": "n", "n": "m", "a": "b", "b": "a"}

#: Batch modes that a kernel can walk; the launcher loops over what remains outside of them.
BATCH_MODES = 2


@dataclass(frozen=True, slots=True)
class Argument:
    """One scalar of the host function: a 64-bit address or stride, a 32-bit size, or an fp32 value."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """One tensor of a call: its name in the list, how it may be touched, the dimensions it has strides for, and whether
    a column of it stands for two of the accumulator."""

    name: str
    access: Access
    dims: tuple[str, ...]
    paired: bool = False

    @property
    def strides(self) -> tuple[str, ...]:
        """The dimensions whose stride is passed: all but the one that is known to be contiguous."""
        return tuple(dim for dim in self.dims if dim != self.access.major)


def tensors(signature: Signature) -> Iterator[TensorArgument]:
    """The tensors of a call in the order in which their addresses and strides are passed."""
    batch = tuple(f"l{i}" for i in range(BATCH_MODES))
    piece = ("piece",) if pieces.count(signature) > 1 else ()
    yield TensorArgument("a", signature.a, ("m", "k", *batch, *piece))
    yield TensorArgument("b", signature.b, ("n", "k", *batch, *piece))
    if signature.c is not None:
        yield TensorArgument("c", signature.c, ("m", "n", *batch))
    for i, (output, access) in enumerate(zip(signature.epilogue.outputs, signature.outputs, strict=True)):
        yield TensorArgument(f"out{i}", access, ("m", "n", *batch), output.paired)
    own = {"tile": ("m", "n"), "row": ("n",), "col": ("m",)}
    for i, (spec, access) in enumerate(zip(signature.epilogue.operands, signature.operands, strict=True)):
        if spec.kind != "scalar":
            yield TensorArgument(f"op{i}", access, (*own[spec.kind], *batch), spec.paired)


def scalars(signature: Signature) -> Iterator[tuple[str, str | None]]:
    """The scalars of a call: a name, and the dtype of a 0-d device tensor or None for a float passed by value."""
    yield "alpha", None if signature.alpha == "float" else signature.alpha
    if signature.c is not None:
        yield "beta", None if signature.beta == "float" else signature.beta
    for i, (spec, access) in enumerate(zip(signature.epilogue.operands, signature.operands, strict=True)):
        if spec.kind == "scalar":
            yield f"op{i}", None if access.major == "float" else access.dtype


def transposed(values: Mapping[str, T]) -> dict[str, T]:
    """Arguments by name -> by the names that they have in the list of the transposed problem."""

    def renamed(name: str) -> str:
        kind, *rest = name.split(".")
        if not rest:
            return _TURNED.get(name, name)
        tensor, *dim = rest
        return ".".join((kind, _TURNED.get(tensor, tensor), *(_TURNED.get(d, d) for d in dim)))

    return {renamed(name): value for name, value in values.items()}


def arguments(signature: Signature) -> tuple[Argument, ...]:
    """The whole list, in order; the stream follows it as the last argument of the host function."""
    listed = list(tensors(signature))
    values = list(scalars(signature))
    addresses = [Argument(f"ptr.{t.name}", "address") for t in listed]
    addresses += [Argument(f"ptr.{name}", "address") for name, dtype in values if dtype is not None]
    addresses.append(Argument("ptr.workspace", "address"))
    sizes = [Argument(name, "size") for name in SIZES]
    strides = [Argument(f"stride.{t.name}.{dim}", "stride") for t in listed for dim in t.strides]
    floats = [Argument(name, "float") for name, dtype in values if dtype is None]
    return (*addresses, *sizes, *strides, *floats)
