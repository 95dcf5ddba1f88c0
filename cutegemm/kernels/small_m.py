"""`small_m`: a few rows of A against a large B, each of whose weights is read once, at the rate of device memory.

D^T = B^T A^T: 16 columns of D lie along the rows of mma.sync m16n8k16 and D's rows along its 8 columns, so that one row
wastes seven eighths of an instruction and not fifteen sixteenths; time goes into bytes anyway. A CTA owns all rows of
D, padded to `tile_m`, and `tile_n` columns. What bounds it is how many bytes are on their way, so its warps keep
several cp.async rings full, and few of them wait for each other:

Groups: `warps_k` a CTA, of `warps_n` warps each, and those of all `split` CTAs of a cluster, take K's tiles of 64 in
    turns. Tile after tile they read 128 bytes of each of their weights' rows, side by side with their neighbours.
    A group has a ring of its own and a barrier of its own (one warp needs none but __syncwarp).

Shared memory: per group  stages x weights (tile_n x 64) | stages x A (tile_m x 64),  swizzled (see `tile_loader`);
    after the main loop, in the same bytes, each group's partial sums: tile_m rows of tile_n fp32, and padding.

Timeline of a group; s counts its own tiles, S is the number of stages
    prologue   fetch its last tile, which alone may end past K, then tiles 0 … S-3, one cp.async group each
    mainloop   for each s:  wait for tile s; group barrier: all see it, and all have read tile s-1
                            fetch tile s+S-1 into the stage that s-1 freed
                            for each 16-deep k-block: ldmatrix, mma
    reduction  CTA barrier: the rings are free;  store partial sums
               CTA barrier, or cluster barrier where K is split over CTAs
    epilogue   a lane adds up 8 columns of one row over all groups, in the groups' order, those of other CTAs out of
               their shared memory, and finishes them as every kernel does. The CTAs of a cluster share out D's columns.
               Cluster barrier: none leaves while others read its sums

The order of every sum is fixed: the same inputs give the same bits. CTAs are small where registers and shared memory
allow, so that several share an SM and one streams while another starts or reduces. Clusters need sm_90; older GPUs run
the configurations that split K within a CTA only.

Programmatic dependent launch, from sm_90 on: a CTA may start while the kernel before it in the stream ends. Up to its
`griddepcontrol.wait` it computes addresses and touches no tensor.

K-major operands of 4 bytes' alignment or more go through `row_loader`; the others through `tile_loader`: B along N
with ldmatrix transposing it, and what only plain loads can read, element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from cutegemm.kernels import abi
from cutegemm.kernels.config import OPERAND_BYTES, vector_elements
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.epilogue import Place
from cutegemm.kernels.row_loader import RowLoader
from cutegemm.kernels.small_m_config import INSTRUCTION_N, SMEM_ALIGN, SmallMConfig
from cutegemm.kernels.target import since_hopper
from cutegemm.kernels.tile_loader import SharedTile, TileLoader
from cutegemm.kernels.warp_epilogue import WIDTH, WarpEpilogue

if TYPE_CHECKING:
    from cutegemm.problem import Signature

_INSTRUCTION = (16, 8, 16)
_K_BLOCK = 16
_FLOATS = 4  # that one access to shared memory moves


def turns(k_tiles: Any, turn: Any, groups: int) -> Any:
    """How many of `k_tiles` tiles, dealt out to `groups` in turns, the `turn`-th gets."""
    return (k_tiles - turn + (groups - 1)) // groups


def element(lane: Any, band: int, rows: int, half: int, i: int) -> tuple[Any, Any]:
    """(row of D, column of the warp's) that a lane's accumulator ((i, half), band, rows) belongs to."""
    return rows * 8 + lane % 4 * 2 + i, band * INSTRUCTION_N + half * 8 + lane // 4


@dataclass(frozen=True)
class SmallMGemm:
    """The kernel for one signature and configuration; calling it compiles or launches (see `cutegemm.compiler`)."""

    signature: Signature
    config: SmallMConfig

    @cute.jit
    def __call__(self, *arguments: Any) -> None:
        names = [argument.name for argument in abi.arguments(self.signature)]
        stream = arguments[len(names)]
        v = dict(zip(names, arguments, strict=False))
        blocks = cute.ceil_div(v["n"], self.config.tile_n) * self.config.split
        cluster = (self.config.split, 1, 1) if self.config.split > 1 else None
        self.kernel(arguments[: len(names)]).launch(
            grid=(blocks, v["l0"], v["l1"]), block=(self.config.threads, 1, 1), cluster=cluster, stream=stream,
            use_pdl=since_hopper(),
        )

    @cute.kernel
    def kernel(self, arguments: tuple[Any, ...]) -> None:
        v = {a.name: x for a, x in zip(abi.arguments(self.signature), arguments, strict=True)}
        cfg = self.config
        tid, _, _ = cute.arch.thread_idx()
        block, l0, l1 = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        group, warp_column = warp // cfg.warps_n, warp % cfg.warps_n
        rank, column0 = block % cfg.split, block // cfg.split * cfg.tile_n

        smem = SmemAllocator().allocate(cfg.smem_bytes, byte_alignment=SMEM_ALIGN)
        ring = smem.toint() + group * (cfg.stages * cfg.stage_bytes)
        dtype = NUMERIC[self.signature.b.dtype]
        smem_b, smem_a = (
            cute.make_ptr(dtype, ring + offset, cute.AddressSpace.smem, assumed_align=SMEM_ALIGN)
            for offset in (0, cfg.stages * cfg.weight_bytes)
        )
        shared_b = SharedTile(cfg.tile_n, cfg.tile_k, cfg.stages, self.signature.b.major != "n")
        shared_a = SharedTile(cfg.tile_m, cfg.tile_k, cfg.stages, True)
        member = tid % cfg.group_threads
        weights = self._prepare("b", shared_b, member, v, v["n"], column0, l0, l1, smem_b)
        rows = self._prepare("a", shared_a, member, v, v["m"], Int32(0), l0, l1, smem_a)

        accumulators = self._mainloop(
            cute.local_tile(shared_b.tensor(smem_b), (cfg.warp_n, cfg.tile_k, cfg.stages), (warp_column, 0, 0)),
            shared_a.tensor(smem_a), tid % 32, group, rank * cfg.warps_k + group, v, weights, rows,
        )  # fmt: skip
        self._reduce(accumulators, smem, tid, group, warp_column)
        self._finish(v, smem, tid, rank, l0, l1, column0)

    def _prepare(self, name: str, shared: SharedTile, tid: Any, v: dict[str, Any], extent: Any, origin: Any, l0: Any,
                 l1: Any, smem: Any) -> Any:  # fmt: skip
        access, mn = (self.signature.a, "m") if name == "a" else (self.signature.b, "n")
        batch = Int64(l0) * v[f"stride.{name}.l0"] + Int64(l1) * v[f"stride.{name}.l1"]
        base = v[f"ptr.{name}"] + batch * OPERAND_BYTES
        stride, step = v.get(f"stride.{name}.{mn}", 1), v.get(f"stride.{name}.k", 1)
        vector, threads = vector_elements(access), self.config.group_threads
        if access.major == "k" and vector > 1:
            return RowLoader(shared, threads, vector).prepare(tid, base, stride, extent, origin, smem.toint())
        if name == "a":  # read along M it would have another layout; it is small
            vector = 1
        strides = {"mn": stride, "k": step}
        loader = TileLoader(shared, threads, vector, plain=vector == 1)
        return loader.prepare(tid, base, strides, extent, origin, smem.toint())

    def _tile_step(self, name: str, v: dict[str, Any]) -> Any:
        """Bytes from one tile of K to the next."""
        return Int64(self.config.tile_k * OPERAND_BYTES) * v.get(f"stride.{name}.k", 1)

    @cute.jit
    def _mainloop(self, smem_b: cute.Tensor, smem_a: cute.Tensor, lane: Int32, group: Int32, turn: Int32,
                  v: Any, weights: Any, rows: Any) -> Any:  # fmt: skip
        """This warp's accumulators, ((2 rows of D, 2 halves), bands of 16 columns, groups of 8 rows), of the tiles
        `turn`, `turn` + groups, … of K."""
        cfg = self.config
        stages, tile_k = cfg.stages, cfg.tile_k
        k_tiles = cute.ceil_div(v["k"], tile_k)
        mine = turns(k_tiles, turn, cfg.groups)
        step_b, step_a = self._tile_step("b", v), self._tile_step("a", v)
        first_b, first_a = step_b * turn, step_a * turn
        step_b, step_a = step_b * cfg.groups, step_a * cfg.groups

        if cutlass.const_expr(since_hopper()):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        # Prologue: the tile that may end past K first, then the others in order.
        for s in cutlass.range_constexpr(stages - 1):
            if s < mine:
                if cutlass.const_expr(s == 0):
                    last = mine - 1
                    left = v["k"] - (turn + last * cfg.groups) * tile_k
                    weights.fetch_last(first_b + step_b * last, left)
                    rows.fetch_last(first_a + step_a * last, left)
                else:
                    weights.fetch(first_b + step_b * (s - 1), Int32(s))
                    rows.fetch(first_a + step_a * (s - 1), Int32(s))
            cute.arch.cp_async_commit_group()

        op = cute.nvgpu.warp.MmaF16BF16Op(smem_b.element_type, Float32, _INSTRUCTION)
        width = min(16, cfg.tile_m)
        mma = cute.make_tiled_mma(op, cute.make_layout((1, 1, 1)), permutation_mnk=(16, width, 16))
        thread_mma = mma.get_slice(lane)
        fragment_b = mma.make_fragment_A(thread_mma.partition_A(smem_b)[None, None, None, 0])
        fragment_a = mma.make_fragment_B(thread_mma.partition_B(smem_a)[None, None, None, 0])
        accumulators = mma.make_fragment_C(mma.partition_shape_C((cfg.warp_n, cfg.tile_m)))
        accumulators.fill(0.0)
        transposing = cute.nvgpu.warp.LdMatrix8x8x16bOp(self.signature.b.major == "n", 4)
        atom_b = cute.make_copy_atom(transposing, smem_b.element_type)
        atom_a = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, width // 4), smem_a.element_type)
        copy_b, copy_a = cute.make_tiled_copy_A(atom_b, mma), cute.make_tiled_copy_B(atom_a, mma)
        source_b, target_b = copy_b.get_slice(lane).partition_S(smem_b), copy_b.get_slice(lane).retile(fragment_b)
        source_a, target_a = copy_a.get_slice(lane).partition_S(smem_a), copy_a.get_slice(lane).retile(fragment_a)

        read, write = Int32(0), Int32(stages - 1)
        ahead_b, ahead_a = first_b + step_b * (stages - 2), first_a + step_a * (stages - 2)
        for s in cutlass.range(mine, unroll=1):
            cute.arch.cp_async_wait_group(stages - 2)
            self._group_barrier(group)
            if s + (stages - 1) < mine:
                weights.fetch(ahead_b, write)
                rows.fetch(ahead_a, write)
            cute.arch.cp_async_commit_group()
            ahead_b, ahead_a = ahead_b + step_b, ahead_a + step_a
            for block in cutlass.range_constexpr(tile_k // _K_BLOCK):
                cute.copy(copy_b, source_b[None, None, block, read], target_b[None, None, block])
                cute.copy(copy_a, source_a[None, None, block, read], target_a[None, None, block])
                cute.gemm(mma, accumulators, fragment_b[None, None, block], fragment_a[None, None, block],
                          accumulators)  # fmt: skip
            write = read
            read = read + 1
            if read == stages:
                read = Int32(0)
        return accumulators

    def _group_barrier(self, group: Any) -> None:
        if self.config.warps_n == 1:
            cute.arch.sync_warp()
        elif self.config.warps_k == 1:
            cute.arch.sync_threads()
        else:  # barrier 0 is the CTA's
            cute.arch.barrier(barrier_id=group + 1, number_of_threads=self.config.group_threads)

    def _reduce(self, accumulators: Any, smem: Any, tid: Any, group: Any, warp_column: Any) -> None:
        """Put this warp's sums where every lane, of every CTA of the cluster, can read them."""
        cfg = self.config
        lane = tid % 32
        cute.arch.sync_threads()
        partial = cute.make_tensor(
            cute.recast_ptr(smem + group * cfg.partial_bytes, dtype=Float32),
            cute.make_layout((cfg.tile_m, cfg.tile_n), stride=(cfg.partial_pitch, 1)),
        )
        for band in range(cfg.warp_n // INSTRUCTION_N):
            for rows in range(cfg.tile_m // 8):
                for half in range(2):
                    for i in range(2):
                        row, column = element(lane, band, rows, half, i)
                        partial[row, warp_column * cfg.warp_n + column] = accumulators[(i, half), band, rows]
        if cfg.split > 1:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @cute.jit
    def _finish(self, v: Any, smem: Any, tid: Int32, rank: Int32, l0: Int32, l1: Int32, column0: Int32) -> None:
        """Sums over the groups and the epilogue: a lane takes 8 columns of one row at a time."""
        cfg = self.config
        epilogue = WarpEpilogue(self.signature, v, INSTRUCTION_N, WIDTH)
        scalars = epilogue.scalars()
        per_row = cfg.tile_n // WIDTH
        for item in cutlass.range(rank * cfg.threads + tid, v["m"] * per_row, cfg.threads * cfg.split, unroll=1):
            row, column = item // per_row, item % per_row * WIDTH
            place = Place(l0, l1, column0 + column)
            total = self._total(smem, row, column)
            loaded = {name: epilogue.load_row(x, place, WIDTH) for name, x in epilogue.operands("row").items()}
            epilogue.finish(total.load(), row, place, scalars, loaded)
        if cutlass.const_expr(cfg.split > 1):  # what was read has been added up: nothing is left to be ordered
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

    def _total(self, smem: Any, row: Any, column: Any) -> cute.Tensor:
        """`WIDTH` columns of one row added up over the groups of the cluster, in order."""
        cfg = self.config
        total = cute.make_rmem_tensor((WIDTH,), Float32)
        for peer in range(cfg.split):
            for group in range(cfg.warps_k):
                at = smem + group * cfg.partial_bytes + (row * cfg.partial_pitch + column) * 4
                for j in range(0, WIDTH, _FLOATS):
                    values = self._floats(at + j * 4, peer)
                    for i, value in enumerate(values):
                        total[j + i] = value if peer == group == 0 else total[j + i] + value
        return total

    def _floats(self, pointer: Any, peer: int) -> Any:
        """Four sums in the shared memory of a CTA of the cluster."""
        if self.config.split == 1:
            local = cute.make_rmem_tensor((_FLOATS,), Float32)
            source = cute.make_ptr(Float32, pointer.toint(), cute.AddressSpace.smem, assumed_align=_FLOATS * 4)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout(_FLOATS)), local)
            return [local[i] for i in range(_FLOATS)]
        return cute.arch.inline_ptx(
            "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, {$r0}, {$r1};\n"
            "ld.shared::cluster.v4.f32 {{$w0}, {$w1}, {$w2}, {$w3}}, [there];\n}",
            write_only_types=[Float32] * _FLOATS,
            read_only_args=[Int32(pointer.toint()), Int32(peer)],
        )
