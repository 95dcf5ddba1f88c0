"""Stream-K's fix-up: the sums of a tile's parts, handed from one cluster to another through the workspace.

A consumer warpgroup that multiplied the beginning of a tile leaves its accumulators in its own CTA's place, then raises
its flag; that of the tile's owner waits for the flag, adds the sums to its own and takes the flag down again. The
same threads of every CTA hold the same elements of a tile, so sums lie in the order of registers, 16 bytes a thread:
whole lines are written and read, whatever the tile's layout is. They pass through L2: a release by one thread after a
barrier of its warpgroup publishes what all 128 have written, and an acquire by one before a barrier lets all read it.

Nothing has to be cleared beforehand, neither for a first launch nor for the replay of a graph: a flag is up where its 8
bytes hold a number that nothing else writes, and no kernel ends with one up. What the memory holds otherwise, from
whoever had it before, is a flag that is down.

Workspace, for each CTA of the grid in turn: sums of a tile (tile_m x tile_n x 4 bytes); then, for each again, the flags
of its consumers in a sector of L2 of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cutegemm.kernels.wgmma_config import FLAG_BYTES, WARPGROUP, WgmmaConfig

#: A flag that is up: 64 bits drawn at random.
_UP = 0x5D7B2CE8A1946F33
_FLOATS = 4  # that a thread moves at a time


@dataclass(frozen=True)
class Fixup:
    """The exchange of the `consumer`-th warpgroup of a CTA, in a grid of `blocks`; `thread` is its thread's number in
    the warpgroup, `workspace` the address of all sums. The CTA at the same place of another cluster has the same part
    of a tile."""

    config: WgmmaConfig
    workspace: Any
    blocks: Any
    consumer: Any
    thread: Any

    @cute.jit
    def leave(self, sums: cute.Tensor, block: Int32) -> None:
        """Leaves a thread's sums of the beginning of a tile as those of `block`, its own CTA."""
        places = self._places(block)
        for i in cutlass.range_constexpr(self.config.accumulators // _FLOATS):
            vector = cute.make_rmem_tensor((_FLOATS,), Float32)
            for j in cutlass.range_constexpr(_FLOATS):
                vector[j] = sums[i * _FLOATS + j]
            cute.autovec_copy(vector, places[None, i])
        self._sync()
        if self.thread == 0:
            cute.arch.store(self._flag(block), Int64(_UP), sem="release", scope="gpu")

    @cute.jit
    def collect(self, sums: cute.Tensor, block: Int32) -> None:
        """Adds to a thread's sums those that `block` leaves, once they are there."""
        if self.thread == 0:
            seen = Int64(0)
            while seen != Int64(_UP):
                seen = cute.arch.load(self._flag(block), Int64, sem="acquire", scope="gpu")
            cute.arch.store(self._flag(block), Int64(0), sem="relaxed", scope="gpu")
        self._sync()
        places = self._places(block)
        for i in cutlass.range_constexpr(self.config.accumulators // _FLOATS):
            vector = cute.make_rmem_tensor((_FLOATS,), Float32)
            cute.autovec_copy(places[None, i], vector)
            for j in cutlass.range_constexpr(_FLOATS):
                sums[i * _FLOATS + j] = sums[i * _FLOATS + j] + vector[j]

    def _places(self, block: Any) -> cute.Tensor:
        """(4, registers / 4): where a thread's sums lie as those of `block`."""
        vectors = self.config.accumulators // _FLOATS
        first = self.consumer * (vectors * WARPGROUP) + self.thread
        address = self.workspace + Int64(block) * self.config.sums_bytes + first * (_FLOATS * 4)
        pointer = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=_FLOATS * 4)
        return cute.make_tensor(pointer, cute.make_layout((_FLOATS, vectors), stride=(1, _FLOATS * WARPGROUP)))

    def _flag(self, block: Any) -> cute.Pointer:
        address = self.workspace + Int64(self.blocks) * self.config.sums_bytes
        address = address + Int64(block) * FLAG_BYTES + self.consumer * 8
        return cute.make_ptr(Int64, address, cute.AddressSpace.gmem, assumed_align=8)

    def _sync(self) -> None:
        cute.arch.barrier(barrier_id=1 + self.consumer, number_of_threads=WARPGROUP)
