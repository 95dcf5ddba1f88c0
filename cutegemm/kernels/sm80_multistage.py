"""`sm80_multistage`: a multistage cp.async pipeline feeding mma.sync, for sm_80 and newer.

Operands of 16 bits are multiplied by m16n8k16, fp32 ones by m16n8k8 as TF32, to which they are rounded in registers
(see `warp_operand`). Either way a k-block, what one instruction multiplies, is 32 bytes of a row.

One CTA computes one (tile_m, tile_n) tile of D; its warps form a warps_m x warps_n grid of warp tiles.

Shared memory: stages x [A tile | B tile], swizzled (see `tile_loader`)
and behind both the CTA's place in D, which the epilogue reads back.

Timeline, all warps alike (no roles); s is the k-tile, S the number of stages
    prologue   fetch k-tiles 0 … S-2, one cp.async group each
    mainloop   for each s:  fetch s+S-1 into the stage that s-1 freed
                            for each k-block: read the next block, mma this one
                            before the last block: wait for group s+1, then one CTA barrier
    epilogue   every warp on its own, from registers (see `warp_epilogue`)

The barrier before the last k-block does two jobs: it publishes k-tile s+1 to all warps, and it tells them that all have
read k-tile s, whose stage the next fetch overwrites. The k-tile that may end past K is fetched first, while the
pipeline fills, so that the loop itself carries no predicate along K; sums in fp32 do not mind the order.

Split K (`split`) and copied operands (`pad`): `workspace` says what lies where, `surroundings` launches what goes
before and after. A CTA of a part of K starts in the middle of it and leaves its fp32 sums as the output of a further
batch entry.

CTAs are launched as one linear grid (a batch or a tall M may pass the 65,535 limit of the other grid dimensions) and
walk the tiles in groups of `raster` tile rows, down the columns, so that CTAs resident together share operands in L2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.memory import SmemAllocator

from cutegemm.kernels import abi, surroundings, workspace
from cutegemm.kernels.config import K_BLOCK_BYTES, PLACE_BYTES, Config, plain_loads, vector_elements
from cutegemm.kernels.scheduler import part_of_k, tile_of_block
from cutegemm.kernels.tile_loader import SharedTile, TileLoader
from cutegemm.kernels.warp_epilogue import WarpEpilogue
from cutegemm.kernels.warp_operand import WarpOperand, block_of, tiled_mma

if TYPE_CHECKING:
    from cutegemm.problem import Access, Signature


@dataclass(frozen=True)
class MultistageGemm:
    """The kernel for one signature and configuration; calling it compiles or launches (see `cutegemm.compiler`)."""

    signature: Signature
    config: Config

    def _shared(self, access: Access, tile_mn: int) -> SharedTile:
        k_major = access.major in ("k", "strided")
        return SharedTile(tile_mn, self.config.tile_k, self.config.stages, k_major, self.config.itemsize)

    @cute.jit
    def __call__(self, *arguments: Any) -> None:
        names = [argument.name for argument in abi.arguments(self.signature)]
        stream = arguments[len(names)]
        given = dict(zip(names, arguments, strict=False))
        v = surroundings.before(self.signature, self.config, given, stream)
        tiles = cute.ceil_div(v["m"], self.config.tile_m) * cute.ceil_div(v["n"], self.config.tile_n)
        self.kernel(tuple(v.values())).launch(
            grid=(tiles * v["l0"] * v["l1"] * self.config.split, 1, 1), block=(self.config.threads, 1, 1), stream=stream
        )
        surroundings.after(self.signature, self.config, given, v, stream)

    @property
    def _inner(self) -> Signature:
        """The signature of the product: of copies of operands, of parts of K."""
        return workspace.inner(self.signature, self.config.pad, self.config.split)

    @cute.kernel
    def kernel(self, arguments: tuple[Any, ...]) -> None:
        v = {a.name: x for a, x in zip(abi.arguments(self._inner), arguments, strict=True)}
        cfg = self.config
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(tid // 32)
        lane = tid % 32
        tile_row, tile_column, l0, l1, part = tile_of_block(v, self.config)

        shared_a = self._shared(self._inner.a, cfg.tile_m)
        shared_b = self._shared(self._inner.b, cfg.tile_n)
        warp_m, warp_n = cfg.warp_m, cfg.warp_n
        smem = SmemAllocator().allocate(cfg.smem_bytes, byte_alignment=1024)
        # The main loop has no registers left for these until the epilogue.
        place = cute.make_tensor(
            cute.recast_ptr(smem + cfg.smem_bytes - PLACE_BYTES, dtype=Int32), cute.make_layout(PLACE_BYTES // 4)
        )
        if tid == 0:
            place[0], place[1], place[2], place[3] = tile_row, tile_column, l0, l1 + part * v["l1"]
        smem_a, smem_b = smem, smem + cfg.stages * shared_a.stage_bytes

        k0, depth = part_of_k(v, self.config, part)
        chunks_a = self._prepare("a", shared_a, tid, v, v["m"], tile_row * cfg.tile_m, l0, l1, k0, smem_a)
        chunks_b = self._prepare("b", shared_b, tid, v, v["n"], tile_column * cfg.tile_n, l0, l1, k0, smem_b)
        step_a = Int64(cfg.tile_k * cfg.itemsize) * v.get("stride.a.k", 1)
        step_b = Int64(cfg.tile_k * cfg.itemsize) * v.get("stride.b.k", 1)

        warp_row, warp_column = warp // cfg.warps_n, warp % cfg.warps_n
        accumulators = self._mainloop(
            WarpOperand("a", self._inner.a.dtype, shared_a, warp_m).reader(smem_a, warp_row, lane),
            WarpOperand("b", self._inner.b.dtype, shared_b, warp_n).reader(smem_b, warp_column, lane),
            depth, chunks_a, chunks_b, step_a, step_b,
        )  # fmt: skip

        tile_row, tile_column, l0, l1 = place[0], place[1], place[2], place[3]
        WarpEpilogue(self._inner, v, warp_m, warp_n).run(
            accumulators, lane,
            tile_row * cfg.tile_m + warp_row * warp_m, l0, l1, tile_column * cfg.tile_n + warp_column * warp_n,
        )  # fmt: skip

    def _prepare(self, name: str, shared: SharedTile, tid: Any, v: dict[str, Any], extent: Any, origin: Any, l0: Any,
                 l1: Any, k0: Any, smem: Any) -> Any:  # fmt: skip
        access = self._inner.a if name == "a" else self._inner.b
        mn = "m" if name == "a" else "n"
        batch = Int64(l0) * v[f"stride.{name}.l0"] + Int64(l1) * v[f"stride.{name}.l1"]
        if self.config.split > 1:
            batch += Int64(k0) * v.get(f"stride.{name}.k", 1)
        strides = {"mn": v.get(f"stride.{name}.{mn}", 1), "k": v.get(f"stride.{name}.k", 1)}
        loader = TileLoader(shared, self.config.threads, vector_elements(access), plain_loads(access))
        base = v[f"ptr.{name}"] + batch * self.config.itemsize
        return loader.prepare(tid, base, strides, extent, origin, smem.toint())

    @cute.jit
    def _mainloop(self, reader_a: Any, reader_b: Any, k: Int32, chunks_a: Any, chunks_b: Any, step_a: Int64,
                  step_b: Int64) -> Any:  # fmt: skip
        stages, tile_k = self.config.stages, self.config.tile_k
        k_tiles = cute.ceil_div(k, tile_k)
        k_blocks = tile_k * self.config.itemsize // K_BLOCK_BYTES
        dtype = self._inner.a.dtype
        mma = tiled_mma(dtype)
        accumulators = mma.make_fragment_C(mma.partition_shape_C((self.config.warp_m, self.config.warp_n)))
        accumulators.fill(0.0)

        # Prologue: the k-tile that may end past K first, then the others in order.
        for s in cutlass.range_constexpr(stages - 1):
            if s < k_tiles:
                if cutlass.const_expr(s == 0):
                    last = k_tiles - 1
                    chunks_a.fetch_last(step_a * last, k - last * tile_k)
                    chunks_b.fetch_last(step_b * last, k - last * tile_k)
                else:
                    chunks_a.fetch(step_a * (s - 1), Int32(s))
                    chunks_b.fetch(step_b * (s - 1), Int32(s))
            cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()

        read, write = Int32(0), Int32(stages - 1)
        advance_a, advance_b = step_a * (stages - 2), step_b * (stages - 2)
        if k_tiles > 0:
            reader_a.read(0, read)
            reader_b.read(0, read)
        for s in cutlass.range(k_tiles, unroll=1):
            for block in cutlass.range_constexpr(k_blocks):
                if cutlass.const_expr(block == k_blocks - 1):
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                    write = read
                    read = read + 1
                    if read == stages:
                        read = Int32(0)
                following = (block + 1) % k_blocks
                reader_a.read(following, read)
                reader_b.read(following, read)
                if cutlass.const_expr(block < k_blocks - 1):
                    if s + (stages - 1) < k_tiles:
                        chunks_a.fetch(advance_a, write, block, k_blocks - 1)
                        chunks_b.fetch(advance_b, write, block, k_blocks - 1)
                if cutlass.const_expr(block == k_blocks - 2):
                    cute.arch.cp_async_commit_group()
                    advance_a = advance_a + step_a
                    advance_b = advance_b + step_b
                block_a, block_b = block_of(reader_a.fragment, block, dtype), block_of(reader_b.fragment, block, dtype)
                cute.gemm(mma, accumulators, block_a, block_b, accumulators)
        return accumulators
