"""TF32 whose A lies along M: its fragments pass from shared memory through registers to wgmma, which transposes none.

A fragment is loaded two k-blocks before it is multiplied, beside the wgmmas of the block at hand and of the one before:
    for each k-tile:
        for each k-block b:  wgmma on b; (b = 2: wait full[s+1]); load b + 2, or of the next k-tile b - 2;
                             wait for the wgmma on b - 1; (b = 0: signal empty[s-1])
Registers hold the fragments of 4 k-blocks: those that b + 2 takes were read by the wgmma on b - 2. A stage is given
back when the wgmma on its last fragment is done, and with it everything that reads the stage.

A tile in shared memory is as TMA writes it: atoms of 32 rows x 8 of K, along K first, then along M. An atom is 8 lines
of 128 bytes, a column each, in chunks of 4 rows, that of rows 4c to 4c + 3 at c ^ column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, select_
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.consumer import finish, release
from cutegemm.kernels.tf32_wgmma import INSTRUCTION_K
from cutegemm.kernels.wgmma_config import INSTRUCTION_M, WgmmaConfig

AHEAD = 2  # k-blocks from the one that is multiplied to the one whose fragment is loaded: half of a tile's


def place(row: Any, column: Any, depth: int) -> Any:
    """Where a tile `depth` of K deep has a number of its first 8 columns: in numbers from its beginning."""
    return (row >> 5) * (32 * depth) + 32 * column + ((((row >> 2) & 7) ^ column) << 2) + (row & 3)


def loaded(lane: Any, turn: int) -> tuple[Any, Any]:
    """The row and the column that a lane loads for its numbers of row lane/4, the upper half of a warp's 16 x 8: of the
    two columns, lanes of an even number take the left one in turn 0, others the right one. So a warp's 32 numbers lie
    in 32 banks; columns 2i and 2i + 1 have 8 rows in the same ones."""
    return lane >> 2, (lane & 3) + 4 * ((lane & 1) ^ turn)


@dataclass(frozen=True)
class Fragments:
    """A thread's fragments of tiles of A that lie along M, from shared memory into registers: for each half of a warp's
    16 rows what it loads in either turn, by k-block, block of M and stage; and whether turn 0 is the right column's."""

    sources: tuple[tuple[Any, Any], tuple[Any, Any]]
    right_first: Any

    @classmethod
    def of(cls, tiles: cute.Tensor, config: WgmmaConfig, thread: Int32) -> Fragments:
        """`tiles` (rows, tile_k, stages) in shared memory are those of a warpgroup, of which this is `thread`."""
        begin, warp, lane, depth = tiles.iterator.toint(), thread // 32, thread % 32, config.tile_k
        shape = (config.k_blocks, config.group_m // INSTRUCTION_M, config.stages)
        layout = cute.make_layout(shape, stride=(32 * INSTRUCTION_K, INSTRUCTION_M * depth, config.tile_m * depth))

        def source(half: int, turn: int) -> Any:
            row, column = loaded(lane, turn)
            address = begin + 4 * place(16 * warp + 8 * half + row, column, depth)
            return cute.make_tensor(cute.make_ptr(Float32, address, tiles.memspace, assumed_align=4), layout)

        return cls(((source(0, 0), source(0, 1)), (source(1, 0), source(1, 1))), Boolean(lane & 1))

    def load(self, registers: cute.Tensor, block: int, stage: Int32) -> None:
        """The fragment of the k-block `block` of a stage, to its place in `registers` ((2, 2), blocks of M, k_blocks):
        its numbers by half of the rows, then of the columns."""
        for i in range(cute.size(registers, mode=[1])):
            for half, sources in enumerate(self.sources):
                first, second = (source[block, i, stage] for source in sources)
                registers[(half, 0), i, block] = select_(self.right_first, second, first)
                registers[(half, 1), i, block] = select_(self.right_first, first, second)


@dataclass(frozen=True)
class Mainloop:
    """The main loop of a consumer warpgroup, in place of those of `sm90_wgmma` and with their arguments."""

    config: WgmmaConfig

    @cute.jit
    def multiply(self, mma: Any, accumulators: Any, fragments: cutlass.Constexpr, fragment_b: Any, full: Any,
                 empty: Any, stage: Int32, phase: Int32, k_tiles: Int32, lane: Int32, peer: Int32,
                 peers: cutlass.Constexpr, consumer: Int32) -> Any:  # fmt: skip
        cfg = self.config
        mma.set(warpgroup.Field.ACCUMULATE, True)
        accumulators.fill(0.0)
        registers = mma.make_fragment_A(mma.partition_shape_A((cfg.group_m, cfg.tile_k)))
        cute.arch.mbarrier_wait(full + stage, phase)
        for block in cutlass.range_constexpr(AHEAD):
            fragments.load(registers, block, stage)
        previous = stage
        for k in cutlass.range(k_tiles, unroll=1):
            source, following = stage, stage + 1
            if following == cfg.stages:
                following = Int32(0)
                phase = phase ^ 1
            for block in cutlass.range_constexpr(cfg.k_blocks):
                warpgroup.fence()
                cute.gemm(mma, accumulators, registers[None, None, block], fragment_b[None, None, block, stage],
                          accumulators)  # fmt: skip
                warpgroup.commit_group()
                ahead = block + AHEAD
                if cutlass.const_expr(ahead == cfg.k_blocks):
                    if k + 1 < k_tiles:
                        cute.arch.mbarrier_wait(full + following, phase)
                        source = following  # else what is loaded once more is not used
                fragments.load(registers, ahead % cfg.k_blocks, source)
                warpgroup.wait_group(1)
                if cutlass.const_expr(block == 0):
                    if k > 0:
                        if lane < peers:
                            release(empty + previous, peer, peers)
            previous = stage
            stage = following
        finish(cfg, consumer)
        if lane < peers:
            release(empty + previous, peer, peers)
        return accumulators
