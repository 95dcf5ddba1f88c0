"""Copies of fp32 operands in aligned rows along another dimension than they lie along: along K for TF32's wgmma, which
reads no others in shared memory, along M or N for the CUDA cores of `simt_f32`.

A block turns tiles of 64 rows of the copy x 64 numbers of each in shared memory. Each thread loads 4 numbers that
follow each other along a row in 4 places, warps across rows, along which the source lies: 128 bytes at a time whatever
its alignment is. It puts each four down as one chunk of 16 bytes, and takes chunks up again so that half a warp stores
256 bytes of a row. Chunks of a row are permuted by the row's number, without which threads that write a column of them
would meet in the same banks.

Reads past an edge fall on its last element and are not stored, but for up to 3 numbers between a row's end and the next
row, which nothing reads.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from cutegemm.kernels.config import CHUNK_BYTES
from cutegemm.kernels.padding import THREADS, PadRows
from cutegemm.kernels.target import since_hopper

TILE = 64  # rows of the copy, and numbers of each
_ITEM = 4  # bytes of a number
_CHUNK = CHUNK_BYTES // _ITEM
_CHUNKS = TILE // _CHUNK  # of a row of the tile
_TURNS = TILE * _CHUNKS // THREADS


class TurnRows(PadRows):
    """The copy of one operand: `across` leads from row to row of the copy, along which the source is contiguous if it
    is along any dimension, and `along` within one."""

    def _blocks(self, lines: Int32, length: Int32, modes: tuple[Any, ...]) -> Any:
        return cute.ceil_div(lines, TILE) * cute.ceil_div(length, TILE) * modes[0] * modes[1]

    @cute.kernel
    def kernel(self, source: Int64, source_strides: tuple[Any, ...], target: Int64, target_strides: tuple[Any, ...],
               lines: Int32, length: Int32, modes: tuple[Any, ...]) -> None:  # fmt: skip
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        tall, wide = cute.ceil_div(lines, TILE), cute.ceil_div(length, TILE)
        tile = SmemAllocator().allocate_array(Float32, TILE * TILE, byte_alignment=CHUNK_BYTES)
        if cutlass.const_expr(since_hopper()):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        across, along, source_l0, source_l1 = source_strides
        pitch, target_l0, target_l1, _ = target_strides
        apart, step = _ITEM if self._adjacent else across * _ITEM, along * _ITEM
        for unit in cutlass.range(block, tall * wide * modes[0] * modes[1], blocks, unroll=1):
            row, column = unit % tall * TILE, unit // tall % wide * TILE
            batch = unit // tall // wide
            l0, l1 = batch % modes[0], batch // modes[0]
            place_in = source + (Int64(l0) * source_l0 + Int64(l1) * source_l1) * _ITEM
            place_out = target + (Int64(l0) * target_l0 + Int64(l1) * target_l1) * _ITEM
            fragment = cute.make_rmem_tensor((_CHUNK, _TURNS), Float32)
            for turn in cutlass.range_constexpr(_TURNS):
                line, chunk = written(tid, turn)
                first = column + chunk * _CHUNK
                at = place_in + Int64(cutlass.min(row + line, lines - 1)) * apart
                at = at + Int64(cutlass.min(first, length - 1)) * step
                for j in cutlass.range_constexpr(_CHUNK):
                    fragment[j, turn] = _vector(at, 1)[0]
                    at = at + Int64(cutlass.select_(first + j + 1 < length, step, Int64(0)))
            cute.arch.sync_threads()  # all have taken up the tile before
            for turn in cutlass.range_constexpr(_TURNS):
                line, chunk = written(tid, turn)
                cute.autovec_copy(fragment[None, turn], _chunk(tile, line, chunk))
            cute.arch.sync_threads()
            for turn in cutlass.range_constexpr(_TURNS):
                line, chunk = read(tid, turn)
                cute.autovec_copy(_chunk(tile, line, chunk), fragment[None, turn])
            for turn in cutlass.range_constexpr(_TURNS):
                line, chunk = read(tid, turn)
                first = column + chunk * _CHUNK
                if row + line < lines and first < length:
                    at = place_out + (Int64(row + line) * pitch + Int64(first)) * _ITEM
                    cute.autovec_copy(fragment[None, turn], _vector(at, _CHUNK))


def written(thread: Any, turn: int) -> tuple[Any, Any]:
    """The row and the chunk that a thread puts down: a warp's lanes lie along the rows."""
    return thread % TILE, thread // TILE + turn * (THREADS // TILE)


def read(thread: Any, turn: int) -> tuple[Any, Any]:
    """The row and the chunk that a thread takes up: half a warp has a row."""
    return thread // _CHUNKS + turn * (THREADS // _CHUNKS), thread % _CHUNKS


def place(line: Any, chunk: Any) -> Any:
    """Where a chunk of a row lies in shared memory, in numbers."""
    return line * TILE + (chunk ^ (line % 8)) * _CHUNK


def _chunk(tile: cute.Pointer, line: Any, chunk: Any) -> cute.Tensor:
    pointer = cute.make_ptr(
        Float32, (tile + place(line, chunk)).toint(), cute.AddressSpace.smem, assumed_align=CHUNK_BYTES
    )
    return cute.make_tensor(pointer, cute.make_layout(_CHUNK))


def _vector(address: Any, size: int) -> cute.Tensor:
    """Numbers at an address in global memory."""
    pointer = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=size * _ITEM)
    return cute.make_tensor(pointer, cute.make_layout(size))
