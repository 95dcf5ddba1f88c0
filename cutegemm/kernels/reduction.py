"""The sums of parts of K added up, in an order that never changes, and finished as every kernel finishes its own.

`lanes` neighbouring lanes share 8 columns of one row of D: each adds up every so many-th part, then they add up theirs
in pairs, at distances 1, 2, 4. A sum's order depends on how K was split and on nothing else: the same inputs give the
same bits. The parts come out of L2, where the kernel before left them.

Blocks walk the items, as many blocks as `_BLOCKS_PER_SM` of every SM. With programmatic dependent launch they start as
soon as there is room, which is first on SMs that the kernel before does not use: an SM would take them all, and read
all parts alone. So each asks for so much shared memory that no more fit. (bf16 512 x 512 x 8192 in 4 parts in a CUDA
graph on an H200, 2026-11: 12.6 us, without it 14.2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from cutegemm.kernels import abi
from cutegemm.kernels.epilogue import Place
from cutegemm.kernels.target import share_of_shared_memory, since_hopper
from cutegemm.kernels.warp_epilogue import WIDTH, WarpEpilogue
from cutegemm.kernels.workspace import lanes_of

if TYPE_CHECKING:
    from cutegemm.problem import Signature

_FLOAT_BYTES = 4
#: Threads of a block at least and at most, and blocks of an SM.
_FEWEST, _MOST, _BLOCKS_PER_SM = 256, 512, 2


@dataclass(frozen=True)
class SumParts:
    """The sum of `split` parts of a problem of `signature`, epilogue and all."""

    signature: Signature
    split: int

    @cute.jit
    def launch(self, v: Any, parts: Int64, pitch: Int64, stream: Any) -> None:
        """`v` holds the arguments of `signature` by name; `parts` is the address of the first sum, in rows `pitch`
        apart, the places of the batch behind each other and so are the parts."""
        arguments = tuple(v[a.name] for a in abi.arguments(self.signature))
        lanes = lanes_of(self.split) * v["m"] * cute.ceil_div(v["n"], WIDTH) * v["l0"] * v["l1"]
        blocks = v["sm_count"] * _BLOCKS_PER_SM
        threads = cute.ceil_div(cute.ceil_div(lanes, blocks), 32) * 32
        threads = cutlass.max(_FEWEST, cutlass.min(threads, _MOST))
        blocks = cutlass.min(cute.ceil_div(lanes, threads), blocks)
        self.kernel(arguments, parts, pitch, blocks).launch(
            grid=(blocks, 1, 1), block=(threads, 1, 1), max_number_threads=(_MOST, 1, 1), stream=stream,
            use_pdl=since_hopper(),
        )  # fmt: skip

    @cute.kernel
    def kernel(self, arguments: tuple[Any, ...], parts: Int64, pitch: Int64, blocks: Int32) -> None:
        v = {a.name: x for a, x in zip(abi.arguments(self.signature), arguments, strict=True)}
        lanes = lanes_of(self.split)
        if cutlass.const_expr(since_hopper()):
            # Where the kernel before leaves SMs idle, blocks start there early: without this, all of them.
            SmemAllocator().allocate(share_of_shared_memory(_BLOCKS_PER_SM), byte_alignment=128)
        tid, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        threads, _, _ = cute.arch.block_dim()
        epilogue = WarpEpilogue(self.signature, v, WIDTH, WIDTH)
        per_row = cute.ceil_div(v["n"], WIDTH)
        items = v["m"] * per_row * v["l0"] * v["l1"]
        part_bytes = Int64(v["m"]) * v["l0"] * v["l1"] * pitch * _FLOAT_BYTES
        if cutlass.const_expr(since_hopper()):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        scalars = epilogue.scalars()
        for first in cutlass.range(block * threads // lanes, items, blocks * threads // lanes, unroll=1):
            # Lanes past the end add up the last item again: all of a warp take part in what follows.
            mine = first + tid // lanes
            item = cutlass.min(mine, items - 1)
            line, column = item // per_row, item % per_row * WIDTH
            row, batch = line % v["m"], line // v["m"]
            start = parts + (Int64(line) * pitch + column) * _FLOAT_BYTES
            total = self._own(start, part_bytes, tid % lanes, lanes)
            for distance in (1, 2, 4):
                if cutlass.const_expr(distance < lanes):
                    for j in range(WIDTH):
                        total[j] = total[j] + cute.arch.shuffle_sync_bfly(total[j], offset=distance)
            if mine < items and tid % lanes == 0:
                place = Place(batch % v["l0"], batch // v["l0"], column)
                rows = {name: epilogue.load_row(x, place, WIDTH) for name, x in epilogue.operands("row").items()}
                epilogue.finish(total.load(), row, place, scalars, rows)

    @cute.jit
    def _own(self, start: Int64, part_bytes: Int64, lane: Int32, lanes: cutlass.Constexpr) -> Any:
        """The sum of the parts `lane`, `lane` + `lanes`, …, in this order."""
        total = cute.make_rmem_tensor((WIDTH,), Float32)
        total.fill(0.0)
        for turn in cutlass.range_constexpr((self.split + lanes - 1) // lanes):
            part = turn * lanes + lane
            values = cute.make_rmem_tensor((WIDTH,), Float32)
            values.fill(0.0)
            if part < self.split:
                pointer = cute.make_ptr(
                    Float32, start + part * part_bytes, cute.AddressSpace.gmem, assumed_align=4 * _FLOAT_BYTES
                )
                cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(WIDTH)), values)
            total.store(total.load() + values.load())
        return total
