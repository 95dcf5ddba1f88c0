"""wgmma on TF32 operands: the DSL's compiler has the operation, and its Python a class for those on 16 and on 8 bits
only.

A tile's row of 128 bytes holds 32 numbers instead of 64, and an instruction multiplies 8 along K instead of 16: so
descriptors, the steps from block to block and the accumulators' fragment are those of bf16. It transposes no operand:
an A that lies along M comes from registers (`tf32_registers`). And it takes no notice of the 13 low bits of a number:
it would cut off what fp32 has more than TF32. So TMA rounds, to nearest, as it brings a tile: its descriptor says that
shared memory holds TF32 (`ROUNDED`).
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Float32, TFloat32
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.nvgpu import warpgroup
from cutlass.cute.nvgpu.warpgroup.mma import MmaF16BF16Trait, MmaOp

#: What TMA makes of fp32: `internal_type` of its copy atoms.
ROUNDED = TFloat32
INSTRUCTION_K = 8  # numbers of A and of B along K


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
