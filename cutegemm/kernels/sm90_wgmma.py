"""`sm90_wgmma`: TMA, a multi-stage mbarrier pipeline, wgmma from shared memory, persistent warp-specialised CTAs.

Roles, by warpgroup of 128 threads
    0      producer: one warp issues every TMA load; gives its registers away (`setmaxnreg` 40)
    1, 2   consumers: wgmma and epilogue (`setmaxnreg` 232)
Schedules
    cooperative   both consumers work on one (tile_m, tile_n) tile, half of its rows each
    ping-pong     they take tiles in turn: while one multiplies, the other finishes its tile, so that the epilogue
                  costs nothing as long as it is shorter than a main loop
A cluster of cluster_m x cluster_n CTAs takes as many neighbouring tiles. A CTA loads its share of the A tile that its
row of the cluster has in common and multicasts it, and likewise of B along its column. In a cluster of
cluster_m x cluster_n x cluster_k CTAs each such plane has a part of K.

Pipeline: per stage a `full` and an `empty` mbarrier
    full    1 arrival (this CTA's producer, announcing the bytes of both tiles), then the bytes, from this CTA's
            loads and its peers' multicasts
    empty   4 warps x consumers of the stage x CTAs that multicast into it (cluster_m + cluster_n - 1): a stage may be
            refilled once everyone whom a refill would overwrite has read it
Named barriers (ping-pong): 1 and 2 hand the tensor cores to consumer 0 and 1, 256 threads each: the one that waits,
and the one that has issued its last wgmma.

Epilogue: through shared memory, each warp on its own (`staged_epilogue`), by TMA, or by the lanes where rows are not
aligned for it; or straight from registers where an output has no contiguous dimension (`warp_epilogue`). TMA's stores
run on while the next tile is multiplied.

Shared memory: stages x A tile | stages x B tile | sums received | full | empty | slots of the epilogue | mbarriers
    tiles (of each piece) in swizzled atoms, as wide as a row of a K-major tile, else of 128 bytes
    8 warps x 2 slots x 2 KiB, or 1 KiB where stages leave no room for more

Timeline, s counting the k-tiles of all of a CTA's tiles
    producer   for each s:  (the first of every `burst` of a tile: wait for the stage of the last of them;)
                            wait empty[s - stages]; announce full[s]; TMA A, TMA B
    consumer   for each of its tiles: fetch the epilogue's first operands; (ping-pong: wait for its turn)
                   for each k-tile:  wait full[s]; 4 wgmma; wait for the wgmma of s-1; signal empty[s-1]
                   (ping-pong: give the turn away); wait for the last wgmma; signal empty; epilogue

Pieces (`precision="bf16x6"`, `"bf16x9"`; see `pieces`): a stage holds all pieces of its part of K, and a consumer
    for each k-tile:  wait full[s]; 2 wgmma for each pair of pieces, from a sum of 0; wait for them; signal empty[s];
                      add the sum to those before, in registers of their own
While one consumer adds, the other multiplies.

TF32 (`bits` 32): tiles of fp32, half as deep, that TMA rounds to TF32 as it brings them and wgmma (`tf32_wgmma`)
multiplies 8 deep at a time; it reads operands in shared memory along K only. An M-major A passes through registers,
with a main loop of its own (`tf32_registers`).

CTAs are launched once for the whole GPU and walk the tiles in groups of `raster` tile rows or columns. Edges are TMA's:
what lies outside a matrix arrives as zeros.

Programmatic dependent launch: a CTA may start while the kernel before it in the stream ends. Up to its
`griddepcontrol.wait` it sets up barriers and touches no tensor. (bf16 1024 x 1024 x 1024 in a CUDA graph on an H200,
2026-11: 5.9 us, without it 7.1.)

Split K (`split`), copied operands (`pad`) and pieces of operands: `workspace` says what lies where, `surroundings`
launches what goes before and after. A part of K is another tile of the same place, whose fp32 sums go to the workspace
as the output of a further batch entry; the sum over the parts, and the epilogue, are a kernel of their own. With
`reduction` "atomic" TMA adds them to one sum instead, as they come. A part has every `split`-th k-tile, so that parts
which are multiplied at the same time read adjacent lines of a row.
Of `cluster_k` parts the sums meet in shared memory instead (`cluster_sum`), and the CTAs of a cluster that have them
finish `share_n` columns each: with the whole epilogue where K has no more parts than these.

Stream-K (`stream`): `stream_k` says which k-tiles of which tiles a cluster takes, `fixup` how sums change hands.
    producer   walks the k-tiles of all parts of the cluster's share as if they were one tile's
    consumer   first the part that it does not finish, if there is one: multiplies, leaves its sums and raises a flag;
               then its tiles as above; to one whose beginning others have, before the epilogue, it adds what they left
A wait for sums ends: whoever is to leave them is a cluster before this one, does so before it waits for any, and
started earlier, for a GPU starts the blocks of a grid in the order of their index.

With `swap_ab` the CTAs work on D^T = B^T A^T: arguments and signature trade the names of A and B, m and n, and nothing
below knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.memory import SmemAllocator

from cutegemm.kernels import (
    abi,
    pieces,
    stream_k,
    surroundings,
    tf32_registers,
    tf32_wgmma,
    tma,
    wgmma_epilogue,
    workspace,
)
from cutegemm.kernels.cluster_sum import ClusterSum
from cutegemm.kernels.consumer import finish, release
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.fixup import Fixup
from cutegemm.kernels.scheduler import place_of, tile_at
from cutegemm.kernels.staging import BAND, SLOTS, Staging
from cutegemm.kernels.wgmma_config import CONSUMERS, SWIZZLE_BYTES, WARPGROUP, WgmmaConfig, clusters_at_once
from cutegemm.kernels.workspace import PITCH

if TYPE_CHECKING:
    from cutegemm.problem import Signature

_PRODUCER_REGISTERS = 40
_CONSUMER_REGISTERS = 232


@dataclass(frozen=True)
class WgmmaGemm:
    """The kernel for one signature and configuration; calling it compiles or launches (see `cutegemm.compiler`)."""

    signature: Signature
    config: WgmmaConfig

    @cute.jit
    def __call__(self, *arguments: Any) -> None:
        cfg = self.config
        names = [argument.name for argument in abi.arguments(self.signature)]
        stream = arguments[len(names)]
        given = dict(zip(names, arguments, strict=False))
        inner = surroundings.before(self.signature, cfg, given, stream)
        v = self._oriented(inner)
        operands = (*self._tma("a", v, cfg.tile_m, cfg.cluster_n), *self._tma("b", v, cfg.tile_n, cfg.cluster_m))
        stored = {**self._stored(v), "l1": v["l1"] * workspace.sums(cfg)}
        staged = wgmma_epilogue.descriptors(self._staging, stored)
        size = cfg.cluster_size
        slots = clusters_at_once(v["sm_count"], size)
        grid = cutlass.min(self._cluster_tiles(v), slots) * size
        if cutlass.const_expr(cfg.stream):
            k_tiles = cute.ceil_div(v["k"], cfg.tile_k)
            grid = stream_k.clusters_of(self._cluster_tiles(v), k_tiles, slots, _select) * size
        self.kernel(tuple(inner.values()), operands, staged).launch(
            grid=(grid, 1, 1), block=((1 + CONSUMERS) * WARPGROUP, 1, 1), cluster=(size, 1, 1),
            min_blocks_per_mp=1, stream=stream, use_pdl=True,
        )  # fmt: skip
        surroundings.after(self.signature, cfg, given, inner, stream)

    @property
    def _parts(self) -> int:
        """Parts of K whose sums go to the workspace, if there are several."""
        return workspace.parts(self.config)

    @property
    def _inner(self) -> Signature:
        """The signature of the product: of copies of operands, of parts of K."""
        return workspace.inner(self.signature, self.config.pad, self._parts)

    @property
    def _solved(self) -> Signature:
        """The signature of the problem that the CTAs work on."""
        return self._inner.transposed() if self.config.swap_ab else self._inner

    def _oriented(self, v: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names that they have in that problem."""
        return abi.transposed(v) if self.config.swap_ab else v

    @property
    def _a_in_registers(self) -> bool:
        """Whether A passes through registers, as TF32 that lies along M has to."""
        return self.config.bits == 32 and self._solved.a.major != "k"

    @property
    def _staging(self) -> Staging | None:
        plan = self.config.staging(self._solved)
        return plan and replace(plan, adds=workspace.atomic(self.config))

    def _stored(self, v: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the epilogue takes them: sums of parts have rows of whole chunks, which TMA writes."""
        along = "m" if self.config.swap_ab else "n"
        return v if self._parts == 1 else {**v, along: (v[along] + (PITCH - 1)) // PITCH * PITCH}

    def _cluster_rows(self, v: dict[str, Any]) -> Any:
        return cute.ceil_div(v["m"], self.config.tile_m * self.config.cluster_m)

    def _cluster_columns(self, v: dict[str, Any]) -> Any:
        return cute.ceil_div(v["n"], self.config.tile_n * self.config.cluster_n)

    def _cluster_tiles(self, v: dict[str, Any]) -> Any:
        """What clusters have to do: tiles of D, each as often as K has parts."""
        return self._cluster_rows(v) * self._cluster_columns(v) * v["l0"] * v["l1"] * self._parts

    def _argument(self, name: str) -> abi.TensorArgument:
        return next(t for t in abi.tensors(self._solved) if t.name == name)

    def _shared_layout(self, name: str, tile_mn: int) -> Any:
        """(tile_mn, tile_k, stages x pieces), swizzled as TMA writes and wgmma reads it."""
        cfg, dtype = self.config, NUMERIC[self._inner.a.dtype]
        k_major, kinds = self._argument(name).access.major == "k", warpgroup.SmemLayoutAtomKind
        kind = (kinds.K_SW64 if cfg.row_bytes < SWIZZLE_BYTES else kinds.K_SW128) if k_major else kinds.MN_SW128
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        order = (0, 1, 2) if k_major else (1, 0, 2)
        return cute.tile_to_shape(atom, (tile_mn, cfg.tile_k, cfg.stages * cfg.pieces), order=order)

    def _tma(self, name: str, v: dict[str, Any], tile_mn: int, multicast: int) -> Any:
        """The TMA descriptor of A or B as (mn, k, l0, l1), and piece where there are some."""
        argument = self._argument(name)
        tensor = tma.view(argument, (v[argument.dims[0]], v["k"]), {**v, "piece": self.config.pieces})
        layout = cute.slice_(self._shared_layout(name, tile_mn), (None, None, 0))
        op = cpasync.CopyBulkTensorTileG2SOp() if multicast == 1 else cpasync.CopyBulkTensorTileG2SMulticastOp()
        return cpasync.make_tiled_tma_atom(
            op, tensor, layout, (tile_mn, self.config.tile_k), num_multicast=multicast,
            internal_type=tf32_wgmma.ROUNDED if self.config.bits == 32 else None,
        )  # fmt: skip

    @cute.kernel
    def kernel(self, arguments: tuple[Any, ...], operands: tuple[Any, ...], staged: tuple[Any, ...]) -> None:
        atom_a, tensor_a, atom_b, tensor_b = operands
        v = self._oriented({a.name: x for a, x in zip(abi.arguments(self._inner), arguments, strict=True)})
        cfg, dtype = self.config, NUMERIC[self._inner.a.dtype]
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        group = cute.arch.make_warp_uniform(tid // WARPGROUP)
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        plane = cfg.cluster_m * cfg.cluster_n
        rank_m, rank_n, rank_k = rank % cfg.cluster_m, rank % plane // cfg.cluster_m, rank // plane

        allocator = SmemAllocator()
        layout_a, layout_b = self._shared_layout("a", cfg.tile_m), self._shared_layout("b", cfg.tile_n)
        smem_a = allocator.allocate_tensor(dtype, layout_a.outer, 1024, swizzle=layout_a.inner)
        smem_b = allocator.allocate_tensor(dtype, layout_b.outer, 1024, swizzle=layout_b.inner)
        received = ClusterSum.allocate(cfg, allocator)
        full = allocator.allocate_array(Int64, cfg.stages, byte_alignment=8)
        empty = allocator.allocate_array(Int64, cfg.stages, byte_alignment=8)
        slots, fetched = None, None
        if cutlass.const_expr(self._staging is not None):
            slots = allocator.allocate_array(Uint8, wgmma_epilogue.WARPS * SLOTS * cfg.slot_bytes, byte_alignment=1024)
            fetched = allocator.allocate_array(Int64, wgmma_epilogue.WARPS * SLOTS, byte_alignment=8)

        peers = cfg.cluster_m + cfg.cluster_n - 1
        arriving = peers * 4 * (1 if cfg.pingpong else CONSUMERS)
        if warp == 0:
            cpasync.prefetch_descriptor(atom_a)
            cpasync.prefetch_descriptor(atom_b)
            with cute.arch.elect_one():
                for s in cutlass.range_constexpr(cfg.stages):
                    cute.arch.mbarrier_init(full + s, 1)
                    cute.arch.mbarrier_init(empty + s, arriving)
                if cutlass.const_expr(self._staging is not None and bool(self._staging.loads)):
                    for s in cutlass.range_constexpr(wgmma_epilogue.WARPS * SLOTS):
                        cute.arch.mbarrier_init(fetched + s, 1)
                ClusterSum.init(cfg, received)
        cute.arch.mbarrier_init_fence()
        if cutlass.const_expr(cfg.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

        size = cfg.cluster_size
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        first, step = block // size, blocks // size
        total = self._cluster_tiles(v)
        # Every part of K has as many k-tiles: those past K arrive as zeros.
        k_tiles = cute.ceil_div(cute.ceil_div(v["k"], cfg.tile_k), cfg.split)
        share: Any = stream_k.Share.of(total, k_tiles, step, first, _select) if cfg.stream else None

        if group == 0:
            cute.arch.setmaxregister_decrease(_PRODUCER_REGISTERS)
            if warp == 0:
                self._produce(v, atom_a, tensor_a, atom_b, tensor_b, smem_a, smem_b, full, empty, rank_m, rank_n,
                              rank_k, first, step, total, k_tiles, share)  # fmt: skip
        else:
            cute.arch.setmaxregister_increase(_CONSUMER_REGISTERS)
            cute.arch.griddepcontrol_wait()
            consumer = group - 1
            lane = tid % 32
            warp_in_group = warp % 4
            rows = cfg.group_m
            row_in_tile = Int32(0) if cutlass.const_expr(cfg.pingpong) else consumer * rows
            part = Int32(0) if cutlass.const_expr(cfg.pingpong) else consumer
            view_a = cute.local_tile(smem_a, (rows, cfg.tile_k, cfg.stages * cfg.pieces), (part, 0, 0))
            mma = self._mma()
            slice_mma = mma.get_slice(0)
            fragment_a: Any = None
            if cutlass.const_expr(self._a_in_registers):
                fragment_a = tf32_registers.Fragments.of(view_a, cfg, tid % WARPGROUP)
            else:
                fragment_a = mma.make_fragment_A(slice_mma.partition_A(view_a))
            fragment_b = mma.make_fragment_B(slice_mma.partition_B(smem_b))
            accumulators = mma.make_fragment_C(mma.partition_shape_C((rows, cfg.tile_n)))

            # Which CTA's empty barrier this lane signals: every CTA that multicasts into this one's stages.
            other = lane - cfg.cluster_n
            along_m = other + Int32(other >= rank_m)
            peer = rank_k * plane + Int32(cutlass.select_(lane < cfg.cluster_n, rank_m + lane * cfg.cluster_m,
                                                          along_m + rank_n * cfg.cluster_m))  # fmt: skip
            count = Int32(0)
            tile = first
            stride = step
            if cutlass.const_expr(cfg.pingpong):
                tile = first + consumer * step
                stride = 2 * step
                count = consumer * k_tiles
                if consumer == 1:  # the first turn is the first group's
                    cute.arch.barrier_arrive(barrier_id=1, number_of_threads=2 * WARPGROUP)
            mine = cutlass.max(0, (total - tile + stride - 1) // stride)
            multiply = self._multiply if cutlass.const_expr(cfg.pieces == 1) else self._multiply_pieces
            if cutlass.const_expr(self._a_in_registers):
                multiply = tf32_registers.Mainloop(cfg).multiply
            fixup: Any = None
            if cutlass.const_expr(cfg.stream):
                fixup = Fixup(cfg, v["ptr.workspace"], blocks, consumer, tid % WARPGROUP)
                mine = share.finished
                if share.unfinished > 0:
                    count = share.end - share.begin
                    stage, phase = Int32(0), Int32(0)
                    fixup.leave(
                        multiply(self._mma(), accumulators, fragment_a, fragment_b, full, empty, stage, phase, count,
                                 lane, peer, peers, consumer), block)  # fmt: skip
            epilogue = wgmma_epilogue.of_warp(
                self._solved, self._stored(v), self._staging, staged, rows, cfg.share_n, consumer * 4 + warp_in_group,
                lane, slots, fetched,
            )  # fmt: skip
            shared = ClusterSum(cfg, received, consumer * 4 + warp_in_group, lane, rank)
            for i in cutlass.range(mine, unroll=1):
                index, depth, begin = tile + i * stride, k_tiles, 0
                if cutlass.const_expr(cfg.stream):
                    index, begin = share.part(i)
                    depth = k_tiles - begin
                row, column, l0, l1, part = self._tile(index, v, rank_m, rank_n)
                if cutlass.const_expr(not workspace.atomic(cfg)):
                    l1 = l1 + part * v["l1"]
                band = (row * cfg.tile_m + row_in_tile) // BAND + warp_in_group
                shared.begin()
                unfinished = epilogue.begin(i, band, column * cfg.cluster_k + rank_k, l0, l1)
                stage = count % cfg.stages
                phase = (count // cfg.stages) & 1
                if cutlass.const_expr(cfg.pingpong):
                    cute.arch.barrier(barrier_id=1 + consumer, number_of_threads=2 * WARPGROUP)
                sums = multiply(mma, accumulators, fragment_a, fragment_b, full, empty, stage, phase, depth, lane,
                                peer, peers, consumer)  # fmt: skip
                count = count + depth * (2 if cfg.pingpong else 1)
                if cutlass.const_expr(cfg.stream):
                    self._collect(fixup, sums, share, begin, block)
                epilogue.finish(unfinished, shared.of(i, sums))
            epilogue.drain()
            shared.leave(mine)

    def _mma(self) -> Any:
        if self.config.bits == 32:
            op = tf32_wgmma.MmaTF32Op(self.config.tile_n, self._a_in_registers)
            return cute.make_tiled_mma(op, cute.make_layout((1, 1, 1)))
        a, b = self._solved.a, self._solved.b
        major = cute.nvgpu.OperandMajorMode
        op = warpgroup.MmaF16BF16Op(
            NUMERIC[a.dtype], Float32, (64, self.config.tile_n, 16), warpgroup.OperandSource.SMEM,
            major.K if a.major == "k" else major.MN, major.K if b.major == "k" else major.MN,
        )  # fmt: skip
        return cute.make_tiled_mma(op, cute.make_layout((1, 1, 1)))

    def _tile(self, index: Any, v: dict[str, Any], rank_m: Any, rank_n: Any) -> tuple[Any, Any, Any, Any, Any]:
        """(tile row, tile column, l0, l1, part of K) of a cluster's `index`-th tile for the CTA at (rank_m, rank_n)."""
        cfg = self.config
        rows, columns = self._cluster_rows(v), self._cluster_columns(v)
        if cfg.walk == "m":
            batch, top, left = tile_at(index, rows, columns, max(1, cfg.raster // cfg.cluster_m))
        else:
            batch, left, top = tile_at(index, columns, rows, max(1, cfg.raster // cfg.cluster_n))
        row, column = top * cfg.cluster_m + rank_m, left * cfg.cluster_n + rank_n
        return row, column, *place_of(batch, v, self._parts)

    @cute.jit
    def _produce(self, v: Any, atom_a: Any, tensor_a: Any, atom_b: Any, tensor_b: Any, smem_a: Any, smem_b: Any,
                 full: Any, empty: Any, rank_m: Int32, rank_n: Int32, rank_k: Int32, first: Int32, step: Int32,
                 total: Int32, k_tiles: Int32, share: cutlass.Constexpr) -> None:  # fmt: skip
        cfg = self.config
        above = rank_k * (cfg.cluster_m * cfg.cluster_n)
        mask_a, mask_b = None, None
        if cutlass.const_expr(cfg.cluster_n > 1):
            along_n = sum(1 << (i * cfg.cluster_m) for i in range(cfg.cluster_n))
            mask_a = cutlass.Int16(Int32(along_n) << (rank_m + above))
        if cutlass.const_expr(cfg.cluster_m > 1):
            mask_b = cutlass.Int16(Int32((1 << cfg.cluster_m) - 1) << (rank_n * cfg.cluster_m + above))
        modes = (None,) * cute.rank(tensor_a)
        tiles_a = cute.local_tile(tensor_a, (cfg.tile_m, cfg.tile_k), modes)
        tiles_b = cute.local_tile(tensor_b, (cfg.tile_n, cfg.tile_k), modes)
        target_a, source_a = cpasync.tma_partition(
            atom_a, rank_n, cute.make_layout(cfg.cluster_n), cute.group_modes(smem_a, 0, 2),
            cute.group_modes(tiles_a, 0, 2),
        )  # fmt: skip
        target_b, source_b = cpasync.tma_partition(
            atom_b, rank_m, cute.make_layout(cfg.cluster_m), cute.group_modes(smem_b, 0, 2),
            cute.group_modes(tiles_b, 0, 2),
        )  # fmt: skip
        mine = cutlass.max(0, (total - first + step - 1) // step)
        if cutlass.const_expr(cfg.stream):
            mine = share.unfinished + share.finished
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        stage, phase = Int32(0), Int32(1)
        for i in cutlass.range(mine, unroll=1):
            index, depth, first_k = first + i * step, k_tiles, 0
            if cutlass.const_expr(cfg.stream):
                index, first_k, depth = share.walk(i)
            row, column, l0, l1, part = self._tile(index, v, rank_m, rank_n)
            first_k = first_k + part * cfg.cluster_k + rank_k
            a0, a1 = tma.batch(self._argument("a"), v, l0, l1)
            b0, b1 = tma.batch(self._argument("b"), v, l0, l1)
            for step_k in cutlass.range(depth, unroll=1):
                k = first_k + step_k * cfg.split
                if cutlass.const_expr(cfg.burst > 1):
                    if step_k % cfg.burst == 0:
                        last = stage + cutlass.min(cfg.burst, depth - step_k) - 1
                        round_ = Int32(last >= cfg.stages)
                        cute.arch.mbarrier_wait(empty + (last - round_ * cfg.stages), phase ^ round_)
                cute.arch.mbarrier_wait(empty + stage, phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, cfg.stage_bytes)
                for piece in cutlass.range_constexpr(cfg.pieces):
                    which = () if cfg.pieces == 1 else (piece,)
                    cute.copy(atom_a, source_a[(None, row, k, a0, a1, *which)],
                              target_a[None, stage * cfg.pieces + piece], tma_bar_ptr=full + stage,
                              mcast_mask=mask_a)  # fmt: skip
                    cute.copy(atom_b, source_b[(None, column, k, b0, b1, *which)],
                              target_b[None, stage * cfg.pieces + piece], tma_bar_ptr=full + stage,
                              mcast_mask=mask_b)  # fmt: skip
                stage = stage + 1
                if stage == cfg.stages:
                    stage = Int32(0)
                    phase = phase ^ 1
        # A CTA may not leave while others of its cluster can still signal its barriers.
        for _ in cutlass.range(cfg.stages, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage = stage + 1
            if stage == cfg.stages:
                stage = Int32(0)
                phase = phase ^ 1

    @cute.jit
    def _collect(self, fixup: cutlass.Constexpr, sums: cute.Tensor, share: cutlass.Constexpr, begin: Int32,
                 block: Int32) -> None:  # fmt: skip
        """Adds what the clusters before this one leave of a tile that it has the end of, in their order."""
        if begin > 0:
            for cluster in cutlass.range(share.helper, share.cluster, unroll=1):
                fixup.collect(sums, block - (share.cluster - cluster) * self.config.cluster_size)

    @cute.jit
    def _multiply(self, mma: Any, accumulators: Any, fragment_a: Any, fragment_b: Any, full: Any, empty: Any,
                  stage: Int32, phase: Int32, k_tiles: Int32, lane: Int32, peer: Int32, peers: cutlass.Constexpr,
                  consumer: Int32) -> Any:  # fmt: skip
        cfg = self.config
        mma.set(warpgroup.Field.ACCUMULATE, True)
        accumulators.fill(0.0)
        previous = stage
        for k in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for block in cutlass.range_constexpr(cfg.k_blocks):
                cute.gemm(mma, accumulators, fragment_a[None, None, block, stage], fragment_b[None, None, block, stage],
                          accumulators)  # fmt: skip
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if k > 0:
                if lane < peers:
                    release(empty + previous, peer, peers)
            previous = stage
            stage = stage + 1
            if stage == cfg.stages:
                stage = Int32(0)
                phase = phase ^ 1
        finish(cfg, consumer)
        if lane < peers:
            release(empty + previous, peer, peers)
        return accumulators

    @cute.jit
    def _multiply_pieces(self, mma: Any, accumulators: Any, fragment_a: Any, fragment_b: Any, full: Any, empty: Any,
                         stage: Int32, phase: Int32, k_tiles: Int32, lane: Int32, peer: Int32,
                         peers: cutlass.Constexpr, consumer: Int32) -> Any:  # fmt: skip
        cfg = self.config
        sums = cute.make_fragment_like(accumulators)
        sums.fill(0.0)
        for _ in cutlass.range(k_tiles, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for piece_a, piece_b in pieces.pairs(self._solved):
                place_a, place_b = stage * cfg.pieces + piece_a, stage * cfg.pieces + piece_b
                for block in range(cfg.k_blocks):
                    cute.gemm(mma, accumulators, fragment_a[None, None, block, place_a],
                              fragment_b[None, None, block, place_b], accumulators)  # fmt: skip
                    mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if lane < peers:
                release(empty + stage, peer, peers)
            sums.store(sums.load() + accumulators.load())
            stage = stage + 1
            if stage == cfg.stages:
                stage = Int32(0)
                phase = phase ^ 1
        return sums


def _select(condition: Any, x: Any, y: Any) -> Any:
    return Int32(cutlass.select_(condition, Int32(x), Int32(y)))
