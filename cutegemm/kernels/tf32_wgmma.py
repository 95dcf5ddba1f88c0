"""wgmma on TF32 operands in shared memory: the DSL's compiler has the operation, and its Python a class for those on 16
and on 8 bits only.

A tile's row of 128 bytes holds 32 numbers instead of 64, and an instruction multiplies 8 along K instead of 16: so
descriptors, the steps from block to block and the accumulators' fragment are those of bf16. It transposes no operand:
an A that lies along M comes from registers, where each number has a place of its own. And it takes no notice of the 13
low bits of a number: it would cut off what fp32 has more than TF32. So TMA rounds, to nearest, as it brings a tile: its
descriptor says that shared memory holds TF32 (`ROUNDED`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, TFloat32, select_
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.nvgpu import warpgroup
from cutlass.cute.nvgpu.warpgroup.mma import MmaF16BF16Trait, MmaOp

from cutegemm.kernels.wgmma_config import INSTRUCTION_M, WgmmaConfig

#: What TMA makes of fp32: `internal_type` of its copy atoms.
ROUNDED = TFloat32
INSTRUCTION_K = 8  # numbers of A and of B along K
AHEAD = 2  # k-blocks from the one that is multiplied to the one whose fragment is loaded: half of a tile's


class MmaTF32Op(MmaOp):  # type: ignore[misc]
    """wgmma.m64nNk8.f32.tf32.tf32, N = `n` a multiple of 8 up to 256; operands K-major in shared memory, or A in
    registers: of a warp's 16 x 8, lane l has rows l/4 and l/4 + 8 of columns l % 4 and l % 4 + 4."""

    def __init__(self, n: int, a_in_registers: bool = False) -> None:
        k_major = cute.nvgpu.OperandMajorMode.K
        shape = (64, n, INSTRUCTION_K)
        source = warpgroup.OperandSource.RMEM if a_in_registers else warpgroup.OperandSource.SMEM
        super().__init__(TFloat32, TFloat32, Float32, shape, source, k_major, k_major)

    def _make_trait(self, *, loc: Any = None, ip: Any = None, **_: Any) -> MmaF16BF16Trait:
        kind = cute_nvgpu.MmaAtomSM90Type.get(
            cute.core._pack_shape(self.shape_mnk, loc=loc, ip=ip).type.attribute, self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(), self.a_dtype.mlir_type, self.b_dtype.mlir_type, self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )  # fmt: skip
        return MmaF16BF16Trait(make_atom(kind, [Boolean(False).ir_value(loc=loc, ip=ip)], loc=loc, ip=ip))


def place(row: Any, column: Any, depth: int) -> Any:
    """Where a tile that lies along M, `depth` of K deep, has a number of its first 8 columns: in numbers from its
    beginning.

    Atoms of 32 rows x 8 of K follow each other along K, then along M. One is 8 lines of 128 bytes, a column each, in
    chunks of 4 rows, that of rows 4c to 4c + 3 at c ^ column.
    """
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
