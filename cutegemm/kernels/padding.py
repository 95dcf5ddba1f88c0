"""Copies of operands in aligned rows: those that TMA, or a copy of 16 bytes, could not reach as they are, and the bf16
pieces of fp32 ones (see `pieces`). Those that also have to lie along another dimension are `turning`'s.

A warp copies `SEGMENT` elements of a row at a time, each lane what makes 16 bytes: it loads them as widely as the
source allows, all of its own before the first store, and stores 16 bytes. Adjacent lanes' loads share sectors, which L1
serves: device memory sees each byte once. What lies between a row's end and the next row is never read by what comes
after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint16, Uint32

from cutegemm.dtypes import lookup
from cutegemm.kernels.config import CHUNK_BYTES
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.epilogue import copy_vector
from cutegemm.kernels.pieces import PIECE_BYTES, PIECES
from cutegemm.kernels.target import since_hopper
from cutegemm.kernels.workspace import SEGMENT

if TYPE_CHECKING:
    from cutegemm.problem import Access

THREADS = 256
_BLOCKS_PER_SM = 8
#: Bits of fp32: the sign; infinity, and what is above it NaN; a NaN whose upper half is one too; that half, which is a
#: bf16 number; and bf16's smallest there.
_SIGN, _INFINITY, _NAN, _UPPER, _SMALLEST = 0x80000000, 0x7F800000, 0x7FC00000, 0xFFFF0000, 0x00010000


@dataclass(frozen=True)
class PadRows:
    """The copy of one operand. Strides are in elements; `across` leads from row to row, `along` within one."""

    access: Access

    @cute.jit
    def launch(self, source: Int64, source_strides: tuple[Any, ...], target: Int64, target_strides: tuple[Any, ...],
               lines: Int32, length: Int32, modes: tuple[Any, ...], sm_count: Int32, stream: Any) -> None:  # fmt: skip
        """Copy `lines` rows of `length` elements of each place in the batch `modes`, (l0, l1) without those along
        which the source is broadcast. Strides: (across, along, l0, l1) of the source, (across, l0, l1, piece) of the
        target.
        """
        blocks = cutlass.max(1, cutlass.min(self._blocks(lines, length, modes), sm_count * _BLOCKS_PER_SM))
        self.kernel(source, source_strides, target, target_strides, lines, length, modes).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=since_hopper()
        )

    @cute.kernel
    def kernel(self, source: Int64, source_strides: tuple[Any, ...], target: Int64, target_strides: tuple[Any, ...],
               lines: Int32, length: Int32, modes: tuple[Any, ...]) -> None:  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        warp, lane, warps = tid // 32, tid % 32, THREADS // 32
        segments = cute.ceil_div(length, SEGMENT)
        units = lines * segments * modes[0] * modes[1]
        if cutlass.const_expr(since_hopper()):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        dtype = NUMERIC[self.access.dtype]
        item, elements = self._item, self._elements
        turns = SEGMENT // (32 * elements)
        fragment = cute.make_rmem_tensor((elements, turns), dtype)
        across, along, source_l0, source_l1 = source_strides
        pitch, target_l0, target_l1, apart = target_strides
        for unit in cutlass.range(block * warps + warp, units, blocks * warps, unroll=1):
            line, batch = unit // segments % lines, unit // segments // lines
            l0, l1 = batch % modes[0], batch // modes[0]
            first = unit % segments * SEGMENT + lane * elements
            row_in = Int64(line) * across + Int64(l0) * source_l0 + Int64(l1) * source_l1
            row_out = Int64(line) * pitch + Int64(l0) * target_l0 + Int64(l1) * target_l1
            for turn in cutlass.range_constexpr(turns):
                column = first + turn * (32 * elements)
                vector = self._source(source + (row_in + Int64(column) * along) * item, along)
                copy_vector(vector, fragment[None, turn], length - column, self._adjacent, elements)
            for turn in cutlass.range_constexpr(turns):
                column = first + turn * (32 * elements)
                if column < length:
                    self._store(fragment[None, turn], target, row_out + Int64(column), apart)

    def _blocks(self, lines: Int32, length: Int32, modes: tuple[Any, ...]) -> Any:
        """How many blocks have something to do: each warp of one a segment at a time."""
        units = lines * cute.ceil_div(length, SEGMENT) * modes[0] * modes[1]
        return cute.ceil_div(units, THREADS // 32)

    @property
    def _item(self) -> int:
        """Bytes of an element."""
        return lookup(self.access.dtype).itemsize

    @property
    def _elements(self) -> int:
        """What a lane loads and stores at a time: 16 bytes are stored."""
        return CHUNK_BYTES // self._item

    def _store(self, vector: cute.Tensor, target: Any, offset: Any, apart: Any) -> None:
        """Write a lane's elements, the first of them `offset` elements from `target`."""
        dtype = vector.element_type
        address = target + offset * (dtype.width // 8)
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=CHUNK_BYTES)
        cute.autovec_copy(vector, cute.make_tensor(pointer, cute.make_layout(self._elements)))

    @property
    def _adjacent(self) -> bool:
        return self.access.major != "strided"

    def _source(self, address: Any, along: Any) -> cute.Tensor:
        pointer = cute.make_ptr(
            NUMERIC[self.access.dtype], address, cute.AddressSpace.gmem, assumed_align=self.access.align
        )
        return cute.make_tensor(pointer, cute.make_layout(self._elements, stride=1 if self._adjacent else along))


class SplitRows(PadRows):
    """The pieces of one fp32 operand (see `pieces`): three copies in bf16, `piece` elements apart."""

    @property
    def _elements(self) -> int:
        return CHUNK_BYTES // PIECE_BYTES

    def _store(self, vector: cute.Tensor, target: Any, offset: Any, apart: Any) -> None:
        copies = [cute.make_rmem_tensor((self._elements,), Uint16) for _ in range(PIECES)]
        for j in range(self._elements):
            for copy, bits in zip(copies, pieces_of(vector[j]), strict=True):
                copy[j] = bits
        for i, copy in enumerate(copies):
            super()._store(copy, target, offset + i * apart, apart)


def pieces_of(x: Float32) -> list[Uint16]:
    """The pieces of an fp32 number, as the bits of bf16."""
    bits = x.bitcast(Uint32)
    sign, magnitude = bits & Uint32(_SIGN), bits & Uint32(_SIGN - 1)
    rest = _select(magnitude > Uint32(_INFINITY), Uint32(_NAN), bits)
    split = []
    for _ in range(PIECES):
        piece = rest & Uint32(_UPPER)
        nothing = ((piece & Uint32(_SIGN - 1)) == Uint32(0)) & (magnitude != Uint32(0))
        split.append(Uint16(_select(nothing, sign | Uint32(_SMALLEST), piece) >> Uint32(16)))
        left = (rest.bitcast(Float32) - piece.bitcast(Float32)).bitcast(Uint32)
        rest = _select(magnitude < Uint32(_INFINITY), left, rest)
    return split


def _select(condition: Any, x: Uint32, y: Uint32) -> Uint32:
    return Uint32(cutlass.select_(condition, x, y))
