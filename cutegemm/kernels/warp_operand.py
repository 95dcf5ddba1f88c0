"""One warp's part of an operand on its way from shared memory to mma.sync: 16-bit elements, and TF32 ones.

A fragment of TF32 (m16n8k8) is one of 16-bit elements (m16n8k16) with each pair along K become one number: lane l holds
row (of B: column) l / 4 at k = l % 4 and, in a further register, at k + 4. So where K is contiguous ldmatrix, which
moves rows of 16 bytes, fills the one as it fills the other. It can't transpose numbers of 32 bits: along M or N every
lane reads its own, one by one, 32 of which lie in 32 different banks (see `tile_loader`).

fp32 becomes TF32 in registers. Tensor cores take no notice of the 13 low bits of a number: half a unit of what stays is
added before, which rounds to nearest, ties away from zero, as cvt.rna does; what lies within half a unit of infinity
becomes infinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cutlass.cute as cute
from cutlass import Float32, Int32, TFloat32

from cutegemm.kernels.config import ROW_BYTES
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.tile_loader import SharedTile

_FLOAT_BYTES = 4
_UNIT = 8  # floats that stay together where a row's units are permuted
_UNIT_BYTES = _UNIT * _FLOAT_BYTES
_K_STEP = 4  # k's between a lane's registers


def tiled_mma(dtype: str) -> Any:
    """The instruction that multiplies operands of `dtype`, for a tile of 16 x 16 of one warp."""
    if dtype == "fp32":
        op, depth = cute.nvgpu.warp.MmaTF32Op((16, 8, 8)), 8
    else:
        op, depth = cute.nvgpu.warp.MmaF16BF16Op(NUMERIC[dtype], Float32, (16, 8, 16)), 16
    return cute.make_tiled_mma(op, cute.make_layout((1, 1, 1)), permutation_mnk=(16, 16, depth))


@dataclass(frozen=True)
class WarpOperand:
    """A warp's `rows` of A, or columns of B, in fragments of every k-block; `dtype` is the operand's."""

    name: Literal["a", "b"]
    dtype: str
    shared: SharedTile
    rows: int

    def reader(self, smem: Any, index: Any, lane: Any) -> LdmatrixReader | FloatReader:
        """What fills this lane's fragments from stage 0 at `smem`, for the `index`-th part of as many rows."""
        halves = "bf16" if self.dtype == "fp32" else self.dtype  # of fp32 two stand for one number
        mma = tiled_mma(halves)
        depth = self.shared.tile_k * self.shared.itemsize // 2
        if self.name == "a":
            fragment = mma.make_fragment_A(mma.partition_shape_A((self.rows, depth)))
        else:
            fragment = mma.make_fragment_B(mma.partition_shape_B((self.rows, depth)))
        if self.dtype == "fp32" and not self.shared.k_major:
            return FloatReader.at(self.shared, fragment, smem.toint(), index * self.rows, lane, self.name)
        smem = cute.recast_ptr(smem, dtype=NUMERIC[halves])
        view = cute.local_tile(self.shared.tensor(smem), (self.rows, depth, self.shared.stages), (index, 0, 0))
        op = cute.nvgpu.warp.LdMatrix8x8x16bOp(not self.shared.k_major, 4)
        make = cute.make_tiled_copy_A if self.name == "a" else cute.make_tiled_copy_B
        copy = make(cute.make_copy_atom(op, NUMERIC[halves]), mma)
        mine = copy.get_slice(lane)
        return LdmatrixReader(fragment, copy, mine.partition_S(view), mine.retile(fragment))


@dataclass(frozen=True)
class LdmatrixReader:
    """Reads fragments by ldmatrix."""

    fragment: Any
    copy: Any
    source: Any
    target: Any

    def read(self, block: int, stage: Any) -> None:
        """The k-block `block` of `stage`, into its fragment."""
        cute.copy(self.copy, self.source[None, None, block, stage], self.target[None, None, block])


@dataclass(frozen=True)
class FloatReader:
    """Reads fragments of fp32 along M or N number by number.

    `corner` is the address of the lane's number in the first unit of a row at k = 0 of stage 0, with the bits clear
    that lead to further units; a fragment's tile is `tile_rows` rows.
    """

    shared: SharedTile
    fragment: Any
    corner: Any
    tile_rows: int

    @staticmethod
    def at(shared: SharedTile, fragment: Any, smem: Any, first: Any, lane: Any, name: str) -> FloatReader:
        """That of `lane`, for a warp whose part begins at `first`, a multiple of a row's floats; stage 0 is at
        `smem`."""
        line = first // shared.row * shared.tile_k + lane % 4
        corner = smem + line * ROW_BYTES + lane % 4 * _UNIT_BYTES + lane // 4 * _FLOAT_BYTES
        return FloatReader(shared, fragment, corner, 16 if name == "a" else 8)

    def read(self, block: int, stage: Any) -> None:
        """The k-block `block` of `stage`, into its fragment."""
        words = cute.recast_tensor(self.fragment, Int32)
        for tile in range(cute.size(words, mode=[1])):
            tile_words = words[None, tile, block]
            for register in range(cute.size(tile_words)):
                turn, offset = self.place(tile, register, block)
                address = (self.corner ^ turn) + stage * self.shared.stage_bytes + offset
                pointer = cute.make_ptr(Int32, address, cute.AddressSpace.smem, assumed_align=_FLOAT_BYTES)
                tile_words[register] = cute.make_tensor(pointer, cute.make_layout(1))[0]

    def place(self, tile: int, register: int, block: int) -> tuple[int, int]:
        """Where a lane's register comes from: what turns the corner's address into its unit's, and the bytes from
        there.

        Registers go through the halves of 8 of a tile's rows, then on along K.
        """
        halves = self.tile_rows // _UNIT
        unit = tile * halves + register % halves
        k = block * 2 * _K_STEP + register // halves * _K_STEP
        line = unit * _UNIT // self.shared.row * self.shared.tile_k + k
        return unit % (self.shared.row // _UNIT) * _UNIT_BYTES, line * ROW_BYTES


def block_of(fragment: Any, block: int, dtype: str) -> Any:
    """The k-block `block` of a fragment as mma takes it; fp32 is rounded."""
    if dtype != "fp32":
        return fragment[None, None, block]
    words = cute.recast_tensor(fragment, Int32)[None, None, block]
    for i in range(cute.size(words)):
        words[i] = nearest_tf32(words[i])
    return cute.recast_tensor(fragment, TFloat32)[None, None, block]


def nearest_tf32(bits: Any) -> Any:
    """The bits of an fp32 number with half a unit of TF32 added; infinities and NaN stay."""
    return cute.arch.inline_ptx(
        "{ .reg .pred finite; .reg .b32 size; abs.f32 size, {$r0}; setp.lt.f32 finite, size, 0f7F800000; "
        "mov.b32 {$w0}, {$r0}; @finite add.s32 {$w0}, {$r0}, 4096; }",
        write_only_types=[Int32],
        read_only_args=[bits],
    )
