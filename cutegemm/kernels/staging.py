"""How the `sm90_wgmma` epilogue stages tensors in shared memory: plain numbers, free of torch and of the DSL.

A warp finishes its part of D in units of 16 rows (a band) x `columns`. Each of its slots holds one unit: first what the
unit reads (C and Tile operands, brought by TMA), then, in the same bytes, what it writes (the outputs, fetched by TMA).
A tensor's part of a unit is a box that one TMA copy moves: lines of at most 128 bytes along the dimension that is
contiguous in memory, swizzled as TMA does it.

TMA wants addresses and strides of whole 16 bytes. An output without them is staged all the same, and the warp's lanes
copy its lines to global memory, side by side; an operand without them never comes here and is loaded to registers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import lookup
from cutegemm.kernels import abi

if TYPE_CHECKING:
    from cutegemm.problem import Signature

BAND = 16  # rows of one mma instruction, and of a warp's part of one wgmma
SLOTS = 2  # units that a warp has in shared memory
SLOT_BYTES = 2048  # of a slot, or half as many where shared memory is short
TMA_ALIGN = 16  # bytes: what TMA wants of addresses and strides
WORD = 4  # bytes that a lane copies at a time
_WIDTHS = (64, 32, 16)  # columns of the accumulator in a unit, the widest that fits
LINES = (32, 64, 128)  # bytes: what TMA can swizzle
_VALUES = 240  # accumulators, and a unit's elements of each operand and output, that a thread holds without spilling


@dataclass(frozen=True, slots=True)
class Box:
    """A tensor's part of a unit: 16 rows x `columns`, half of the unit's where paired, `offset` bytes into a slot."""

    tensor: abi.TensorArgument
    columns: int
    offset: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return lookup(self.tensor.access.dtype).itemsize

    @property
    def n_major(self) -> bool:
        """Whether lines run along N."""
        return self.tensor.access.major == "n"

    @property
    def line_bytes(self) -> int:
        """Bytes of a line."""
        return self.line * self.itemsize

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.columns if self.n_major else BAND

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return BAND if self.n_major else self.columns

    @property
    def by_tma(self) -> bool:
        """Whether TMA can copy it: its tensor's address and strides are aligned as TMA wants them."""
        return self.tensor.access.align >= TMA_ALIGN

    @property
    def bytes(self) -> int:
        """Bytes of the box."""
        return BAND * self.columns * self.itemsize

    @property
    def swizzle_bits(self) -> int:
        """Bits of the 16-byte chunk's number that the line's number is XORed into."""
        return (self.line_bytes // 16).bit_length() - 1

    def byte_offset(self, row: Any, column: Any) -> Any:
        """Where (row, column) of the box lies, in bytes from the slot's start."""
        line, along = (row, column) if self.n_major else (column, row)
        return self.line_offset(line, along)

    def line_offset(self, line: Any, along: Any) -> Any:
        """Where the element `along` of a line lies, in bytes from the slot's start."""
        start = line * self.line_bytes
        chunk = (start >> 7) & ((1 << self.swizzle_bits) - 1)
        return self.offset + start + (along * self.itemsize ^ chunk << 4)


@dataclass(frozen=True, slots=True)
class Staging:
    """Units of `columns` accumulator columns, and what a slot of `slot_bytes` holds of each tensor. `adds` says that
    what is stored is added to what is there."""

    columns: int
    loads: tuple[Box, ...]
    stores: tuple[Box, ...]
    slot_bytes: int = SLOT_BYTES
    adds: bool = False

    @property
    def by_tma(self) -> tuple[Box, ...]:
        """The boxes that TMA copies, loads first."""
        return tuple(box for box in (*self.loads, *self.stores) if box.by_tma)

    @property
    def load_bytes(self) -> int:
        """Bytes that TMA brings for a unit."""
        return sum(box.bytes for box in self.loads)


@cache
def staging(signature: Signature, tile_n: int, accumulators: int, slot_bytes: int = SLOT_BYTES) -> Staging | None:
    """How a kernel of `tile_n` columns and `accumulators` registers a thread of them stages `signature`; None where an
    output is contiguous along neither dimension, or a slot of `slot_bytes` can't hold a unit."""
    tensors = [t for t in abi.tensors(signature) if t.dims[:2] == ("m", "n")]
    stores = [t for t in tensors if t.name.startswith("out")]
    loads = [t for t in tensors if t not in stores and _contiguous(t) and t.access.align >= TMA_ALIGN]
    if not all(map(_contiguous, stores)):
        return None
    # What is loaded to registers takes two more for an address.
    vectors = 2 * len(tensors) - (len(loads) + len(stores))
    vectors += sum(spec.kind == "row" for spec in signature.epilogue.operands)
    for width in _WIDTHS:
        if tile_n % width == 0 and accumulators + vectors * width // 2 <= _VALUES:
            boxes = [Box(t, width // 2 if t.paired else width) for t in (*loads, *stores)]
            made = Staging(width, _placed(boxes[: len(loads)]), _placed(boxes[len(loads) :]), slot_bytes)
            if _fits(made.loads, slot_bytes) and _fits(made.stores, slot_bytes):
                return made
    return None


def _contiguous(tensor: abi.TensorArgument) -> bool:
    """Whether `tensor` is made of lines."""
    return tensor.access.major in ("m", "n")


def _placed(boxes: list[Box]) -> tuple[Box, ...]:
    """The boxes one behind the other, the widest lines first: so each begins where its swizzle repeats."""
    placed: list[Box] = []
    for box in sorted(boxes, key=lambda box: -box.line_bytes):
        placed.append(replace(box, offset=sum(before.bytes for before in placed)))
    return tuple(placed)


def _fits(boxes: tuple[Box, ...], slot_bytes: int) -> bool:
    """Whether TMA can swizzle their lines and a slot holds them."""
    return all(box.line_bytes in LINES for box in boxes) and sum(box.bytes for box in boxes) <= slot_bytes
