"""What a kernel keeps in global memory beside its tensors: copies of operands in aligned rows, the pieces of fp32
operands, sums of parts of K, and the sums that stream-K's blocks hand to each other.

A configuration that pads (`pad`) multiplies copies of A, B or both; one that splits K (`split`) leaves the fp32 sums of
every part, which a kernel behind it adds up and finishes. An emulated precision multiplies the bf16 pieces of both
operands: three aligned copies of each, the largest pieces first. What multiplies in between does not know where its
tensors come from: it is built for the `inner` signature, on whose tensors `layout` puts names, strides and places. The
arithmetic is the same on Python's integers and on the DSL's; free of torch and of the DSL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import lookup
from cutegemm.fusion.graph import IDENTITY
from cutegemm.kernels import pieces
from cutegemm.problem import MAX_ALIGN, STRICT, TF32, Access

if TYPE_CHECKING:
    from cutegemm.problem import Signature

PARTIAL = Access("fp32", "n", MAX_ALIGN)
#: Regions begin at multiples of this many bytes.
REGION_ALIGN = 256
#: Rows are apart by multiples of this many elements, which a lane reads or writes at a time.
PITCH = 8
#: Elements of a row that a warp copies at a time.
SEGMENT = 1024


@dataclass(frozen=True, slots=True)
class Region:
    """One tensor in the workspace: where it begins, in bytes, and its strides, in elements, by dimension.

    The contiguous dimension has none. `lines` x `length` are the extents of its rows, whichever dimension they are.
    """

    offset: Any
    strides: dict[str, Any]
    lines: Any
    length: Any


def lanes_of(split: int) -> int:
    """How many lanes share a sum of `split` parts: each has two at least, and a warp not too few columns."""
    return max(n for n in (1, 2, 4, 8) if n == 1 or 2 * n <= split)


def parts(config: Any) -> int:
    """How many sums of a tile `config` leaves in the workspace, if more than one: those that no cluster adds up."""
    return int(config.split // getattr(config, "cluster_k", 1))


def atomic(config: Any) -> bool:
    """Whether the sums of a tile are added in the workspace as they come, into one: which has to be 0 before."""
    return getattr(config, "reduction", "ordered") == "atomic"


def sums(config: Any) -> int:
    """How many sums of a tile the workspace holds, if K is split."""
    return 1 if atomic(config) else parts(config)


def aligned(access: Access) -> bool:
    """Whether nothing is gained by copying an operand: it is contiguous along a dimension, and aligned to 16 bytes."""
    return access.major != "strided" and access.align >= MAX_ALIGN


def padded(name: str, access: Access, precision: str | None = None) -> Access:
    """The access of operand `name`'s copy: rows along the same dimension, or along K where none is contiguous. In TF32,
    whose instructions read no other rows, or less well, they are along K; in strict fp32, where CUDA cores read 16
    bytes along M or N at a time, along that."""
    along = "k" if access.major == "strided" else access.major
    if precision == TF32:
        along = "k"
    elif precision == STRICT:
        along = _mn(name)
    return Access(access.dtype, along, MAX_ALIGN)


def rows(name: str, access: Access, precision: str | None = None) -> tuple[str, str]:
    """The dimensions of operand `name`'s copy: the one that leads from row to row, and the one along a row."""
    along = padded(name, access, precision).major
    return (_mn(name) if along == "k" else "k"), along


@cache
def inner(signature: Signature, pad: str, split: int) -> Signature:
    """What is multiplied: copies or pieces in place of the operands that are copied, sums of parts in place of D."""
    names = copied(signature, pad)
    given = (("a", signature.a), ("b", signature.b))
    a, b = (padded(name, x, signature.precision) if name in names else x for name, x in given)
    if pieces.emulated(signature):
        a, b = replace(a, dtype=pieces.DTYPE), replace(b, dtype=pieces.DTYPE)
    signature = replace(signature, a=a, b=b)
    if split == 1:
        return signature
    return replace(signature, c=None, outputs=(PARTIAL,), epilogue=IDENTITY, operands=(), alpha="float", beta="float")


def operands(pad: str) -> tuple[str, ...]:
    """The operands that a `pad` value names: "no", "a", "b" or "ab"."""
    return () if pad == "no" else tuple(pad)


def copied(signature: Signature, pad: str) -> tuple[str, ...]:
    """The operands that are copied: those that `pad` names, or both where they are split into pieces."""
    return ("a", "b") if pieces.emulated(signature) else operands(pad)


def layout(
    signature: Signature, pad: str, split: int, v: Mapping[str, Any], select: Callable[[Any, Any, Any], Any],
    sums: int | None = None,
) -> tuple[dict[str, Region], Any]:  # fmt: skip
    """The regions by tensor name (of `inner`'s arguments), and how many bytes they take in all.

    `v` has sizes and strides by their names in `abi`, wide enough for byte counts; `select(condition, x, y)` is x where
    the condition holds. A batch mode along which an operand is broadcast is copied once. `sums` says how many sums are
    kept of `split` parts, unless all are.
    """
    regions: dict[str, Region] = {}
    size: Any = 0
    made = inner(signature, pad, split)
    for name in copied(signature, pad):
        across, along = rows(name, getattr(made, name))
        broadcast = {mode: v[f"stride.{name}.{mode}"] == 0 for mode in ("l0", "l1")}
        modes = {mode: select(once, 1, v[mode]) for mode, once in broadcast.items()}
        item = lookup(getattr(made, name).dtype).itemsize
        regions[name], bytes_ = _region(item, size, across, v[across], v[along], modes, pieces.count(made))
        for mode, once in broadcast.items():
            regions[name].strides[mode] = select(once, 0, regions[name].strides[mode])
        size = size + bytes_
    if split > 1:
        modes = {"l0": v["l0"], "l1": v["l1"] * (sums or split)}
        item = lookup(PARTIAL.dtype).itemsize
        regions["out0"], bytes_ = _region(item, size, "m", v["m"], v["n"], modes)
        size = size + bytes_
    return regions, size


def size(signature: Signature, config: Any, v: Mapping[str, Any], select: Callable[[Any, Any, Any], Any]) -> Any:
    """Bytes that `config` keeps in all: the regions, and behind them what the blocks of stream-K hand to each other.
    `v` and `select` as in `layout`, `v` with `sm_count` too."""
    regions = layout(signature, config.pad, parts(config), v, select, sums(config))[1]
    return regions + config.exchange_bytes(v["sm_count"]) if streamed(config) else regions


def pick(condition: bool, x: int, y: int) -> int:
    """The `select` of Python's integers."""
    return x if condition else y


def streamed(config: Any) -> bool:
    """Whether clusters share out k-tiles among them (see `stream_k`)."""
    return bool(getattr(config, "stream", False))


def _region(
    item: int, offset: Any, across: str, lines: Any, length: Any, modes: dict[str, Any], count: int = 1
) -> tuple[Region, Any]:
    """A region of `lines` rows of elements of `item` bytes for each place of the batch, `count` times over, and its
    bytes."""
    pitch = _up(length, PITCH)
    strides = {across: pitch, "l0": pitch * lines, "l1": pitch * lines * modes["l0"]}
    piece = pitch * lines * prod(modes.values())
    if count > 1:
        strides["piece"] = piece
    return Region(offset, strides, lines, length), _up(count * piece * item, REGION_ALIGN)


def _mn(name: str) -> str:
    """The dimension of an operand that is not K."""
    return "m" if name == "a" else "n"


def _up(x: Any, unit: int) -> Any:
    return (x + (unit - 1)) // unit * unit
