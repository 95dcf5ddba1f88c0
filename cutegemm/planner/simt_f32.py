"""`simt_f32` in the planner: where its configurations may run, and how long they should take.

The model is that of `sm80_multistage`, with another account of a k-step: an SM's four schedulers issue an instruction a
clock each, whichever it is, and multiply-adds take as many clocks as the SM has lanes for them.

The constants are per-SM clocks. "estimated" marks those that no measurement has settled.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from cutegemm.device import DeviceSpec
from cutegemm.kernels.simt_f32_config import VECTOR, SimtConfig, vector_floats
from cutegemm.planner.legality import Refusal, extent_refusal, resource_refusal
from cutegemm.planner.model import DRAM_LATENCY, SMEM_BYTES_PER_CLK, overlap
from cutegemm.planner.sm80_multistage import TileModel, grid_refusal
from cutegemm.problem import Problem
from cutegemm.roofline import MAX_THREADS

SCHEDULERS = 4
#: k's that the main loop's body unrolls, and floats along K that neighbouring lanes copy of an operand that lies so.
_UNROLLED, _ALONG_K = 4, 8
#: The shortest step of one k: a read of shared memory (29 clocks on an H100, arXiv:2402.13499) and its issue.
STEP_LATENCY = 33
#: Issue slots that a copy of A and one of B cost, and a k-tile's barrier. Fitted, to 2% in the mean, to what a GPU took
#: with operands as they lie and turned at 4096^3, 8192^3 and beside: what lies along K takes four times as many copies
#: (H200, 2026-11).
COPY_SLOTS, BARRIER_SLOTS = (8, 7), 60
#: Clocks that a warp's vector read keeps shared memory busy: half a warp at a time.
READ_CLOCKS = 2


def refuse(problem: Problem, config: SimtConfig, device: DeviceSpec) -> Refusal | None:
    """Why `config` cannot serve `problem` on `device`, beyond the rules that hold for every family."""
    return (
        extent_refusal(problem, config.tile_m, config.tile_n, config.tile_k)
        or grid_refusal(problem, config)
        or _tile_refusal(config)
        or resource_refusal(config, device, config.registers(problem.signature.a, problem.signature.b))
    )


@cache
def _tile_refusal(config: SimtConfig) -> Refusal | None:
    """Rules of the tile alone. No registered configuration breaks them; a tuner's one may."""
    if min(config.tile_m, config.tile_n, config.tile_k, config.thread_m, config.thread_n, config.raster) < 1:
        return Refusal("tile", f"{config}: every size must be positive")
    # A pipeline needs a stage to compute on and one to fill.
    if config.stages < 2:
        return Refusal("stages", f"stages={config.stages}: a pipeline needs at least 2")
    # Shared memory is read four floats at a time.
    if config.thread_m % VECTOR or config.thread_n % VECTOR:
        own = f"{config.thread_m}x{config.thread_n}"
        return Refusal("thread tile", f"thread={own}: must be multiples of {VECTOR}")
    if config.tile_m % config.warp_m or config.tile_n % config.warp_n:
        own = f"{config.warp_m}x{config.warp_n}"
        return Refusal("warp tile", f"{config}: the tile must be a multiple of a warp's {own}")
    if config.threads > MAX_THREADS:
        return Refusal("threads", f"{config.threads} threads: a block holds {MAX_THREADS}")
    if config.tile_k % max(_ALONG_K, _UNROLLED):
        return Refusal("tile", f"tile_k={config.tile_k}: must be a multiple of {_ALONG_K}")
    # Every thread makes the same number of copies, of whatever width.
    for name, tile in (("tile_m", config.tile_m), ("tile_n", config.tile_n)):
        even = [tile * _ALONG_K % config.threads == 0]
        for vectors in (tile, tile // 2, tile // VECTOR):
            lines = max(1, config.threads // vectors)
            even.append(max(vectors, config.threads) % min(vectors, config.threads) == config.tile_k % lines == 0)
        if not all(even):
            reason = f"{name}={tile}: its copies do not divide among {config.threads} threads"
            return Refusal("copies", reason)
    return None


class IssueModel(TileModel):
    """The model of one problem on one GPU; `estimate` applies it to a legal configuration."""

    parts: ClassVar[tuple[str, ...]] = (
        "multiply-adds",
        "issue slots",
        "shared memory",
        "latency",
        "fill and epilogue",
    )

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        super().__init__(problem, device)
        signature = problem.signature
        self.vectors = vector_floats(signature.a, "m"), vector_floats(signature.b, "n")
        self.fma_per_clk = device.fp32_flops / (2 * device.sm_count * device.clock_hz)

    def _wave(self, config: SimtConfig, blocks: int, k_tiles: int, memory_latency: float) -> tuple[float, ...]:
        """Clocks of a wave with `blocks` on each SM, then of each of its `parts` on its own."""
        tile_k, warps = config.tile_k, config.threads // 32
        multiply_adds = config.thread_m * config.thread_n * tile_k
        reads = (config.thread_m + config.thread_n) // VECTOR * tile_k
        copies = sum(
            slots * (tile * tile_k // (vector * config.threads))
            for slots, tile, vector in zip(COPY_SLOTS, (config.tile_m, config.tile_n), self.vectors, strict=True)
        )
        fma = blocks * warps * 32 * multiply_adds / self.fma_per_clk
        issue = blocks * warps * (multiply_adds + reads + copies + BARRIER_SLOTS) / SCHEDULERS
        shared = blocks * warps * READ_CLOCKS * reads + blocks * config.stage_bytes / SMEM_BYTES_PER_CLK
        # A block's own chain of steps, and the memory latency that its stages in flight must cover (Little's law).
        latency = max(STEP_LATENCY * tile_k, memory_latency / (config.stages - 1))
        step = max(overlap(max(fma, issue), shared, 0.0), latency)
        ends = DRAM_LATENCY / blocks + blocks * config.tile_m * config.tile_n * self.epilogue_clocks
        return (
            k_tiles * step + ends,
            k_tiles * fma,
            k_tiles * issue,
            k_tiles * shared,
            k_tiles * latency,
            ends,
        )
