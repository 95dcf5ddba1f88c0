"""Zeros for sums that are added to in the workspace, whatever was there before."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cutegemm.kernels.target import since_hopper
from cutegemm.kernels.workspace import PITCH

THREADS = 256
_BLOCKS_PER_SM = 8
_FLOATS = 4  # that one store writes


class Zeros:
    """Fills sums in the workspace, whose rows are whole units of `PITCH` numbers, with 0."""

    @cute.jit
    def launch(self, target: Int64, elements: Int64, sm_count: Int32, stream: Any) -> None:
        """Fill `elements` fp32 numbers from the address `target` on."""
        units = Int32(elements // PITCH)
        blocks = cutlass.min(cute.ceil_div(units, THREADS), sm_count * _BLOCKS_PER_SM)
        self.kernel(target, units).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=since_hopper()
        )

    @cute.kernel
    def kernel(self, target: Int64, units: Int32) -> None:
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        zeros = cute.make_rmem_tensor((PITCH,), Float32)
        zeros.fill(0.0)
        if cutlass.const_expr(since_hopper()):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for unit in cutlass.range(block * THREADS + tid, units, blocks * THREADS, unroll=1):
            address = target + Int64(unit) * (PITCH * 4)
            pointer = cute.make_ptr(Float32, address, cute.AddressSpace.gmem, assumed_align=_FLOATS * 4)
            cute.autovec_copy(zeros, cute.make_tensor(pointer, cute.make_layout(PITCH)))
