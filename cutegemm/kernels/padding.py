"""Copies of operands whose rows TMA, or a copy of 16 bytes, could not reach: the same elements in aligned rows.

A warp copies `SEGMENT` elements of a row at a time, each lane 16 bytes of 512: it loads them as widely as the source
allows, all of its own before the first store, and stores 16 bytes. Adjacent lanes' loads share sectors, which L1
serves: device memory sees each byte once. What lies between a row's end and the next row is never read by what comes
after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cutegemm.dtypes import lookup
from cutegemm.kernels.config import CHUNK_BYTES
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.epilogue import copy_vector
from cutegemm.kernels.target import since_hopper
from cutegemm.kernels.workspace import SEGMENT

if TYPE_CHECKING:
    from cutegemm.problem import Access

THREADS = 256
_BLOCKS_PER_SM = 8


@dataclass(frozen=True)
class PadRows:
    """The copy of one operand. Strides are in elements; `across` leads from row to row, `along` within one."""

    access: Access

    @cute.jit
    def launch(self, source: Int64, source_strides: tuple[Any, ...], target: Int64, target_strides: tuple[Any, ...],
               lines: Int32, length: Int32, modes: tuple[Any, ...], sm_count: Int32, stream: Any) -> None:  # fmt: skip
        """Copy `lines` rows of `length` elements of each place in the batch `modes`, (l0, l1) without those along
        which the source is broadcast. Strides: (across, along, l0, l1) of the source, (across, l0, l1) of the target.
        """
        units = lines * cute.ceil_div(length, SEGMENT) * modes[0] * modes[1]
        blocks = cutlass.max(1, cutlass.min(cute.ceil_div(units, THREADS // 32), sm_count * _BLOCKS_PER_SM))
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
        pitch, target_l0, target_l1 = target_strides
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
                    address = target + (row_out + Int64(column)) * item
                    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=CHUNK_BYTES)
                    cute.autovec_copy(fragment[None, turn], cute.make_tensor(pointer, cute.make_layout(elements)))

    @property
    def _item(self) -> int:
        """Bytes of an element."""
        return lookup(self.access.dtype).itemsize

    @property
    def _elements(self) -> int:
        """What a lane loads and stores at a time: 16 bytes."""
        return CHUNK_BYTES // self._item

    @property
    def _adjacent(self) -> bool:
        return self.access.major != "strided"

    def _source(self, address: Any, along: Any) -> cute.Tensor:
        pointer = cute.make_ptr(
            NUMERIC[self.access.dtype], address, cute.AddressSpace.gmem, assumed_align=self.access.align
        )
        return cute.make_tensor(pointer, cute.make_layout(self._elements, stride=1 if self._adjacent else along))
