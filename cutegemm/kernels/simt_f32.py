"""`simt_f32`: strict fp32 on the CUDA cores, a multistage cp.async pipeline feeding fused multiply-adds.

One CTA computes one (tile_m, tile_n) tile of D; its warps form a grid of warp tiles, a warp's lanes one of 4 x 8.

An SM issues one warp's instruction a clock on each quarter, and one fused multiply-add of 32 lanes is one of them: what
else the main loop issues is lost. A thread's `thread_m` x `thread_n` outer products take (thread_m + thread_n) / 4
vector reads of shared memory for thread_m * thread_n multiply-adds, so they are as large as registers allow.

Shared memory: stages x [A tile | B tile], either along M or N at each k (see `float_loader`), and behind them the CTA's
place in D, which the epilogue reads back.

Timeline, all warps alike (no roles); s is the k-tile, S the number of stages
    prologue   fetch k-tiles 0 … S-2, one cp.async group each
    mainloop   for each s:  for each k: read the next k's floats, multiply this one's
                            before the last few k: fetch s+S-1 into the stage that s-1 freed
                            before the last k: wait for group s+1, then one CTA barrier
    epilogue   every thread on its own, from registers (see `warp_epilogue`)

As in `sm80_multistage`, the barrier publishes k-tile s+1 and frees the stage of s, and the k-tile that may end past K
is fetched first. Split K and copied operands are those of `workspace` and `surroundings`: a copy lies along M or N in
aligned rows, of which a thread fetches 16 bytes at a time instead of 4 along K. The loop over k is unrolled four times
only, two for Blackwell: across more, ptxas moves reads so far ahead that their results no longer fit the registers.

Lanes: of a warp's lane number, bits 0, 2, 3 give the column and bits 1, 4 the row. A warp's vector read is served half
a warp at a time where lanes that differ in bit 0, or in bit 1, read the same: A's is of the one kind, B's of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from cutegemm.kernels import abi, surroundings, workspace
from cutegemm.kernels.config import PLACE_BYTES
from cutegemm.kernels.epilogue import Place
from cutegemm.kernels.float_loader import FloatLoader, Floats, FloatTile
from cutegemm.kernels.scheduler import part_of_k, tile_of_block
from cutegemm.kernels.simt_f32_config import FLOAT_BYTES, LANES_M, LANES_N, VECTOR, SimtConfig, vector_floats
from cutegemm.kernels.target import since_blackwell
from cutegemm.kernels.warp_epilogue import WarpEpilogue

if TYPE_CHECKING:
    from cutegemm.problem import Signature

def place_of(lane: Any) -> tuple[Any, Any]:
    """(row, column) of a lane among its warp's 4 x 8."""
    return (lane >> 1 & 1) | (lane >> 3 & 2), (lane & 1) | (lane >> 1 & 6)


@dataclass(frozen=True)
class SimtGemm:
    """The kernel for one signature and configuration; calling it compiles or launches (see `cutegemm.compiler`)."""

    signature: Signature
    config: SimtConfig

    @cute.jit
    def __call__(self, *arguments: Any) -> None:
        names = [argument.name for argument in abi.arguments(self.signature)]
        stream = arguments[len(names)]
        given = dict(zip(names, arguments, strict=False))
        v = surroundings.before(self.signature, self.config, given, stream)
        tiles = cute.ceil_div(v["m"], self.config.tile_m) * cute.ceil_div(v["n"], self.config.tile_n)
        self.kernel(tuple(v.values())).launch(
            grid=(tiles * v["l0"] * v["l1"] * self.config.split, 1, 1), block=(self.config.threads, 1, 1),
            stream=stream,
        )  # fmt: skip
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
        tile_row, tile_column, l0, l1, part = tile_of_block(v, self.config)
        smem = SmemAllocator().allocate(cfg.smem_bytes, byte_alignment=128)
        # The main loop has no registers left for these until the epilogue.
        place = cute.make_tensor(
            cute.recast_ptr(smem + cfg.smem_bytes - PLACE_BYTES, dtype=Int32), cute.make_layout(PLACE_BYTES // 4)
        )
        if tid == 0:
            place[0], place[1], place[2], place[3] = tile_row, tile_column, l0, l1 + part * v["l1"]

        shared_a, shared_b = FloatTile(cfg.tile_m, cfg.tile_k), FloatTile(cfg.tile_n, cfg.tile_k)
        smem_a = smem.toint()
        smem_b = smem_a + shared_a.stage_bytes
        k0, depth = part_of_k(v, self.config, part)
        floats_a = self._prepare("a", shared_a, tid, v, v["m"], tile_row * cfg.tile_m, l0, l1, k0, smem_a)
        floats_b = self._prepare("b", shared_b, tid, v, v["n"], tile_column * cfg.tile_n, l0, l1, k0, smem_b)

        row, column = place_of(tid % 32)
        first_m = warp // cfg.warps_n * cfg.warp_m + row * VECTOR
        first_n = warp % cfg.warps_n * cfg.warp_n + column * VECTOR
        accumulators = self._mainloop(
            smem_a + first_m * FLOAT_BYTES, smem_b + first_n * FLOAT_BYTES, depth, floats_a, floats_b,
            Int64(cfg.tile_k) * floats_a.step_k, Int64(cfg.tile_k) * floats_b.step_k,
        )  # fmt: skip
        self._finish(v, accumulators, place, first_m, first_n)

    def _prepare(self, name: str, shared: FloatTile, tid: Any, v: dict[str, Any], extent: Any, origin: Any, l0: Any,
                 l1: Any, k0: Any, smem: Any) -> Floats:  # fmt: skip
        access, mn = (self._inner.a, "m") if name == "a" else (self._inner.b, "n")
        strides = {"mn": v.get(f"stride.{name}.{mn}", 1), "k": v.get(f"stride.{name}.k", 1)}
        offset = Int64(l0) * v[f"stride.{name}.l0"] + Int64(l1) * v[f"stride.{name}.l1"]
        if self.config.split > 1:
            offset += Int64(k0) * strides["k"]
        loader = FloatLoader(shared, self.config.threads, vector_floats(access, mn), access.major != mn)
        return loader.prepare(tid, v[f"ptr.{name}"] + offset * FLOAT_BYTES, strides, extent, origin, smem)

    @cute.jit
    def _mainloop(self, smem_a: Int32, smem_b: Int32, k: Int32, floats_a: Any, floats_b: Any, step_a: Int64,
                  step_b: Int64) -> Any:  # fmt: skip
        """This thread's accumulators, (thread_m, thread_n)."""
        cfg = self.config
        stages, tile_k = cfg.stages, cfg.tile_k
        stage_bytes = cfg.stage_bytes
        unrolled = 2 if since_blackwell() else 4
        k_tiles = cute.ceil_div(k, tile_k)
        pitch_a, pitch_b = (FloatTile(tile, tile_k).pitch * FLOAT_BYTES for tile in (cfg.tile_m, cfg.tile_n))

        accumulators = cute.make_rmem_tensor((1, cfg.thread_m, cfg.thread_n), Float32)
        accumulators.fill(0.0)
        a = cute.make_rmem_tensor((1, cfg.thread_m, 2), Float32)
        b = cute.make_rmem_tensor((1, cfg.thread_n, 2), Float32)
        a.fill(0.0)
        b.fill(0.0)
        mma = cute.make_tiled_mma(cute.nvgpu.MmaUniversalOp(Float32))

        # Prologue: the k-tile that may end past K first, then the others in order.
        source_a, source_b = floats_a.source, floats_b.source
        for s in cutlass.range_constexpr(stages - 1):
            if s < k_tiles:
                if cutlass.const_expr(s == 0):
                    last = k_tiles - 1
                    floats_a.fetch_last(source_a + step_a * last, k - last * tile_k)
                    floats_b.fetch_last(source_b + step_b * last, k - last * tile_k)
                else:
                    floats_a.fetch(source_a + step_a * (s - 1), s * stage_bytes, floats_a.rows_left)
                    floats_b.fetch(source_b + step_b * (s - 1), s * stage_bytes, floats_b.rows_left)
            cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(stages - 2)
        cute.arch.sync_threads()

        read, write = Int32(0), Int32((stages - 1) * stage_bytes)
        source_a, source_b = source_a + step_a * (stages - 2), source_b + step_b * (stages - 2)
        left = k_tiles - (stages - 1)
        if k_tiles > 0:
            _read(smem_a, a, 0, LANES_M, cfg.thread_m)
            _read(smem_b, b, 0, LANES_N, cfg.thread_n)
        for _ in cutlass.range(k_tiles, unroll=1):
            at_a, at_b = smem_a + read, smem_b + read
            for _ in cutlass.range(tile_k // unrolled - 1, unroll=1):
                for step in cutlass.range_constexpr(unrolled):
                    _read(at_a + (step + 1) * pitch_a, a, (step + 1) % 2, LANES_M, cfg.thread_m)
                    _read(at_b + (step + 1) * pitch_b, b, (step + 1) % 2, LANES_N, cfg.thread_n)
                    cute.gemm(mma, accumulators, a[None, None, step % 2], b[None, None, step % 2], accumulators)
                at_a, at_b = at_a + unrolled * pitch_a, at_b + unrolled * pitch_b
            for step in cutlass.range_constexpr(unrolled):
                # Without a branch around them copies find their places among the multiply-adds.
                if cutlass.const_expr(step == 0):
                    floats_a.fetch(source_a, write, _if(left > 0, floats_a.rows_left))
                    source_a = source_a + step_a
                if cutlass.const_expr(step == 1):
                    floats_b.fetch(source_b, write, _if(left > 0, floats_b.rows_left))
                    source_b = source_b + step_b
                    left = left - 1
                    cute.arch.cp_async_commit_group()
                if cutlass.const_expr(step == unrolled - 1):
                    cute.arch.cp_async_wait_group(stages - 2)
                    cute.arch.sync_threads()
                    write = read
                    read = read + stage_bytes
                    if read == stages * stage_bytes:
                        read = Int32(0)
                    at_a, at_b = smem_a + read - unrolled * pitch_a, smem_b + read - unrolled * pitch_b
                _read(at_a + (step + 1) * pitch_a, a, (step + 1) % 2, LANES_M, cfg.thread_m)
                _read(at_b + (step + 1) * pitch_b, b, (step + 1) % 2, LANES_N, cfg.thread_n)
                cute.gemm(mma, accumulators, a[None, None, step % 2], b[None, None, step % 2], accumulators)
        return accumulators

    def _finish(self, v: dict[str, Any], accumulators: Any, place: Any, first_m: Any, first_n: Any) -> None:
        """The epilogue of this thread's rows, four columns at a time."""
        cfg = self.config
        epilogue = WarpEpilogue(self._inner, v, cfg.warp_m, cfg.warp_n, width=VECTOR)
        scalars = epilogue.scalars()
        row0 = place[0] * cfg.tile_m + first_m
        column0 = place[1] * cfg.tile_n + first_n
        for j in range(0, cfg.thread_n, VECTOR):
            at = Place(place[2], place[3], column0 + j * LANES_N)
            rows = {name: epilogue.load_row(x, at, VECTOR) for name, x in epilogue.operands("row").items()}
            for i in range(cfg.thread_m):
                vector = cute.make_rmem_tensor((VECTOR,), Float32)
                for x in range(VECTOR):
                    vector[x] = accumulators[0, i, j + x]
                row = row0 + i // VECTOR * (VECTOR * LANES_M) + i % VECTOR
                epilogue.finish(vector.load(), row, at, scalars, rows)


def _if(condition: Any, rows: Any) -> Any:
    return Int32(cutlass.select_(condition, rows, Int32(0)))


def _read(address: Any, fragment: Any, half: int, lanes: int, count: int) -> None:
    """A thread's `count` floats of one k into half of `fragment`: vectors, as far apart as `lanes` are wide."""
    for i in range(0, count, VECTOR):
        pointer = cute.make_ptr(
            Float32, address + i * lanes * FLOAT_BYTES, cute.AddressSpace.smem, assumed_align=VECTOR * FLOAT_BYTES
        )
        target = cute.make_tensor(fragment.iterator + (half * count + i), cute.make_layout(VECTOR))
        cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(VECTOR)), target)
