"""TF32's fragments of a tile that lies along M: the code that threads run, on memory of the CPU."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.tf32_registers import Fragments, loaded, place
from cutegemm.kernels.wgmma_config import INSTRUCTION_M, OF_TF32, WARPGROUP, WgmmaConfig

CONFIGS = {
    "cooperative": WgmmaConfig(256, 128, stages=3, tile_k=32, bits=32),
    "ping-pong": WgmmaConfig(64, 128, stages=2, tile_k=32, pingpong=True, bits=32),
}


@cute.jit
def _lay(config: cutlass.Constexpr, begin: Int64) -> None:
    """Numbers every place of the tiles as shared memory has them, but for the swizzle: by row, column and stage."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.MN_SW128, Float32)
    shape = (config.tile_m, config.tile_k, config.stages)
    tiles = cute.make_tensor(
        cute.make_ptr(Float32, begin, cute.AddressSpace.generic), cute.tile_to_shape(atom, shape, order=(1, 0, 2)).outer
    )
    for i in cutlass.range(cute.size(tiles), unroll=1):
        row, rest = i // (config.tile_k * config.stages), i % (config.tile_k * config.stages)
        tiles[row, rest // config.stages, rest % config.stages] = Float32(i)


@cute.jit
def _load(config: cutlass.Constexpr, begin: Int64, stage: Int32, made: Int64) -> None:
    """Leaves the registers of every thread of a warpgroup, of all k-blocks of a stage."""
    held = ((2, 2), config.group_m // INSTRUCTION_M, config.k_blocks)
    tiles = cute.make_tensor(cute.make_ptr(Float32, begin, cute.AddressSpace.generic), cute.make_layout(1))
    out = cute.make_tensor(
        cute.make_ptr(Float32, made, cute.AddressSpace.generic), cute.make_layout((config.fragments, WARPGROUP))
    )
    for thread in cutlass.range(WARPGROUP, unroll=1):
        fragments = Fragments.of(tiles, config, thread)
        registers = cute.make_rmem_tensor(held, Float32)
        for block in cutlass.range_constexpr(config.k_blocks):
            fragments.load(registers, block, stage)
        for i in cutlass.range_constexpr(config.fragments):
            out[i, thread] = registers[i]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_thread_has_the_numbers_that_the_instruction_takes_from_it(config: WgmmaConfig) -> None:
    numbers = config.stages * config.tile_m * config.tile_k
    flat, tiles = torch.empty(numbers), torch.empty(numbers)
    _lay(config, flat.data_ptr())
    at = 4 * torch.arange(numbers)
    tiles[(at ^ (at >> 3 & 0x70)) // 4] = flat  # the 128-byte swizzle
    expected = torch.arange(numbers).reshape(config.tile_m, config.tile_k, config.stages)
    half = config.tile_m - config.group_m  # where the last consumer's rows begin
    begin = tiles.data_ptr() + 4 * half * config.tile_k
    for stage in range(config.stages):
        made = torch.empty(WARPGROUP, config.fragments)
        _load(config, begin, stage, made.data_ptr())
        thread = torch.arange(WARPGROUP)
        for i in range(config.fragments):
            # PTX ISA, matrix A of .m64k8: a0 and a1 are rows l/4 and l/4 + 8 of column l % 4, a2 and a3 those of + 4.
            lower, right, rest = i % 2, i // 2 % 2, i // 4
            block_m, block_k = rest % (config.group_m // INSTRUCTION_M), rest // (config.group_m // INSTRUCTION_M)
            row = half + INSTRUCTION_M * block_m + 16 * (thread // 32) + thread % 32 // 4 + 8 * lower
            column = 8 * block_k + thread % 4 + 4 * right
            assert torch.equal(made[:, i], expected[row, column, stage].float()), (i, stage)


def test_a_load_takes_every_bank_once() -> None:
    for warp in range(4):
        for half in range(2):
            turns = []
            for turn in range(2):
                places = [loaded(lane, turn) for lane in range(32)]
                banks = [place(16 * warp + 8 * half + row, column, 32) % 32 for row, column in places]
                assert sorted(banks) == list(range(32))
                turns += places
            assert sorted(turns) == [(row, column) for row in range(8) for column in range(8)]


def test_registers_are_enough() -> None:
    passing = [config for config in OF_TF32 if config.along_k != "ab"]
    assert all(config.accumulators + config.fragments <= 192 and config.k_blocks == 4 for config in passing)
    assert {str(c) for c in OF_TF32 if c.accumulators == 192} == {str(c) for c in OF_TF32 if c.along_k == "ab"}
