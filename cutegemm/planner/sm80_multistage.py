"""`sm80_multistage` in the planner: where its configurations may run, and how long they should take.

A GPU works through D in waves of resident blocks. A wave costs its k-steps, each bound by the tensor cores, shared
memory, copy instructions or latency, plus what a block cannot overlap with itself: filling its pipeline and its
epilogue. Beside the waves run the traffic through L2 and to device memory; the slowest of the three decides.

The constants are per-SM clocks. "estimated" marks those that no measurement has settled.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, ClassVar

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import DTypeError, ShapeError
from cutegemm.kernels.config import CHUNK_BYTES, K_BLOCK_BYTES, ROW_BYTES, Config, plain_loads, vector_elements
from cutegemm.planner.legality import INT32_MAX, Refusal, extent_refusal, resource_refusal
from cutegemm.planner.model import (
    DRAM_LATENCY,
    L2_LATENCY,
    LAUNCH_US,
    SMEM_BYTES_PER_CLK,
    Estimate,
    epilogue_costs,
    operand_bytes,
    overlap,
)
from cutegemm.problem import Access, Problem, Signature
from cutegemm.roofline import MAX_THREADS, occupancy

_VECTOR_READS, _ELEMENT_READS = 2, 17  # registers, fitted to ptxas as the rest of the estimate is
_WARP_TILE_MAX = 64  # a larger warp tile leaves no registers beside its accumulators

#: The shortest 16-deep k-step of one warp: 33 clocks from an mma to its dependent (arXiv:2402.13499) and an
#: ldmatrix issue.
K_STEP_LATENCY = 40
#: A block's barrier between k-tiles, with the refill of its tensor pipes behind it: what sets 128x256x64 (446 TFLOP/s)
#: apart from 128x256x32 (393) on bf16 4096 x 4096 x 4096 (H200, 2026-11).
BARRIER = 200
#: SM clocks per warp-wide copy: cp.async with its address and predicate, and a plain load with its store
#: (estimated).
ASYNC_COPY, PLAIN_COPY = 2, 6


def refuse(problem: Problem, config: Config, device: DeviceSpec) -> Refusal | None:
    """Why `config` cannot serve `problem` on `device`, beyond the rules that hold for every family."""
    return (
        _bits_refusal(problem, config)
        or extent_refusal(problem, config.tile_m, config.tile_n, config.tile_k)
        or grid_refusal(problem, config)
        or _tile_refusal(config)
        or _device_refusal(problem, config, device)
    )


def _bits_refusal(problem: Problem, config: Config) -> Refusal | None:
    # A tile's layout in shared memory, and the instruction, are those of one width.
    bits = lookup(problem.signature.a.dtype).bits
    if config.bits != bits:
        reason = f"bits={config.bits}: a and b are {problem.signature.a.dtype}, of {bits} bits"
        return Refusal("bits", reason, DTypeError)
    return None


def grid_refusal(problem: Problem, config: Any) -> Refusal | None:
    # One block per tile on the grid's x dimension.
    tiles = ceil(problem.m / config.tile_m) * ceil(problem.n / config.tile_n) * problem.batch
    if tiles > INT32_MAX:
        reason = f"{tiles} tiles of {config.tile_m}x{config.tile_n}: a grid holds {INT32_MAX}"
        return Refusal("grid", reason, ShapeError)
    return None


@cache
def _tile_refusal(config: Config) -> Refusal | None:
    """Rules of the tile alone. No registered configuration breaks them; a pinned or a tuner's one may."""
    if min(config.tile_m, config.tile_n, config.tile_k, config.warps_m, config.warps_n, config.raster) < 1:
        return Refusal("tile", f"{config}: every size must be positive")
    # A pipeline needs a stage to compute on and one to fill.
    if config.stages < 2:
        return Refusal("stages", f"stages={config.stages}: a pipeline needs at least 2")
    if config.threads > MAX_THREADS:
        return Refusal("threads", f"{config.threads} threads: a block holds {MAX_THREADS}")
    if config.bits not in (16, 32):
        return Refusal("bits", f"bits={config.bits}: must be 16 or 32")
    # mma.sync of 16 x 8, and ldmatrix.x4 that feeds two of them along N.
    if config.tile_m % (16 * config.warps_m) or config.tile_n % (16 * config.warps_n):
        reason = f"{config.warps_m}x{config.warps_n} warps must each own a multiple of 16x16 of the tile"
        return Refusal("warp tile", reason)
    if config.warp_m > _WARP_TILE_MAX or config.warp_n > _WARP_TILE_MAX:
        reason = f"warp tile {config.warp_m}x{config.warp_n}: at most {_WARP_TILE_MAX}x{_WARP_TILE_MAX}"
        return Refusal("warp tile", reason)
    # The epilogue transposes 32 columns of a warp tile at a time.
    if config.warp_n % 32:
        return Refusal("warp tile", f"warp tile width {config.warp_n}: must be a multiple of 32")
    # A swizzled row along M holds 32 numbers of 32 bits, and a warp begins with one.
    if config.bits == 32 and config.warp_m % 32:
        return Refusal("warp tile", f"warp tile height {config.warp_m}: must be a multiple of 32 for bits=32")
    # The swizzle permutes the 16-byte chunks of rows of 64 or 128 bytes; and a k-tile has two k-blocks of 32 bytes or
    # more, for the next tile's copies are started before the last one.
    depths = (64 // config.itemsize, ROW_BYTES // config.itemsize)
    if config.tile_k not in depths:
        return Refusal("swizzle", f"tile_k={config.tile_k}: must be {depths[0]} or {depths[1]}")
    for name, tile in (("tile_m", config.tile_m), ("tile_n", config.tile_n)):
        if tile not in (16, 32) and tile % 64:
            return Refusal("swizzle", f"{name}={tile}: must be 16, 32 or a multiple of 64")
        # Every thread copies the same chunks of each row: a partial pass would need a predicate in the main loop.
        chunks = config.tile_k * min(tile * config.itemsize, ROW_BYTES) // CHUNK_BYTES
        if chunks % config.threads:
            reason = f"{name}={tile}: {chunks} copies of 16 bytes a pass do not divide among {config.threads} threads"
            return Refusal("copies", reason)
    return None


def _device_refusal(problem: Problem, config: Config, device: DeviceSpec) -> Refusal | None:
    signature = problem.signature
    registers = config.registers(signature.a, signature.b) + _epilogue_registers(signature)
    copies = " and ".join(f"{name} {_copies(x)}" for name, x in (("a", signature.a), ("b", signature.b)))
    return resource_refusal(config, device, registers, f" to copy {copies}")


def _epilogue_registers(signature: Signature) -> int:
    """Registers for reading C and Tiles: many where columns are not adjacent, and each element has an address."""
    matrices = [] if signature.c is None else [signature.c]
    specs = signature.epilogue.operands
    matrices += [x for spec, x in zip(specs, signature.operands, strict=True) if spec.kind == "tile"]
    if not matrices:
        return 0
    return _VECTOR_READS if all(x.major == "n" for x in matrices) else _ELEMENT_READS


def _copies(access: Access) -> str:
    width = f"by {vector_elements(access) * lookup(access.dtype).itemsize} bytes"
    return f"strided {width}" if access.major == "strided" else width


def blocks_per_sm(config: Any, device: DeviceSpec, a: Access, b: Access) -> int:
    """Blocks of `config` that fit an SM at once, by shared memory, registers, threads and the block limit."""
    registers = config.registers(a, b)
    return occupancy(device, threads=config.threads, registers=registers, smem=config.smem_bytes).blocks


class TileModel:
    """The model of one problem on one GPU; `estimate` applies it to a legal configuration."""

    #: What `_wave` returns behind the wave's own clocks, in its order.
    parts: ClassVar[tuple[str, ...]] = (
        "tensor cores",
        "shared memory",
        "copy instructions",
        "latency",
        "fill and epilogue",
    )

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        signature = problem.signature
        self.problem, self.device = problem, device
        self.vectors = vector_elements(signature.a), vector_elements(signature.b)
        self.plain = [plain_loads(access) for access in (signature.a, signature.b)]
        clocks = [PLAIN_COPY if plain else ASYNC_COPY for plain in self.plain]
        self.copy_clocks = [x / (32 * v) for x, v in zip(clocks, self.vectors, strict=True)]
        sm_clocks = device.sm_count * device.clock_hz
        self.flops_per_clk = device.mma_flops / sm_clocks
        if signature.a.dtype == "fp32":
            self.flops_per_clk /= 2  # TF32
        self.epilogue_bytes, self.epilogue_clocks = epilogue_costs(problem, device, sm_clocks)

    def estimate(self, config: Any) -> Estimate:
        """The modelled time of `config`: see the module's docstring."""
        problem, device = self.problem, self.device
        resident = blocks_per_sm(config, device, problem.signature.a, problem.signature.b)
        rows, columns = ceil(problem.m / config.tile_m), ceil(problem.n / config.tile_n)
        tiles = rows * columns * problem.batch
        k_tiles = ceil(problem.k / config.tile_k)
        slots = resident * device.sm_count

        l2_bytes = tiles * k_tiles * config.stage_bytes
        read_bytes = operand_bytes(problem, device, (config.tile_m, config.tile_n), config.raster, slots)
        missed = min(1.0, read_bytes / l2_bytes) if l2_bytes else 1.0
        latency = L2_LATENCY + (DRAM_LATENCY - L2_LATENCY) * missed

        full, rest = divmod(tiles, slots)
        clocks = [0.0] * (1 + len(self.parts))
        for count, blocks in ((full, resident), (1, ceil(rest / device.sm_count))):
            if count and blocks:
                wave = self._wave(config, blocks, k_tiles, latency)
                clocks = [total + count * part for total, part in zip(clocks, wave, strict=True)]

        us = 1e6 / device.clock_hz
        compute, *parts = [us * part for part in clocks]
        l2 = 1e6 * l2_bytes / device.l2_bytes_per_s
        dram = 1e6 * (read_bytes + self.epilogue_bytes) / device.hbm_bytes_per_s
        terms = dict(zip(self.parts, parts, strict=True))
        terms.update({"L2": l2, "device memory": dram, "launch": LAUNCH_US})
        return Estimate(
            us=LAUNCH_US + overlap(compute, l2, dram),
            terms=terms,
            tiles=tiles,
            blocks_per_sm=resident,
            waves=tiles / slots,
            efficiency=tiles / (slots * (full + (rest > 0))),
        )

    def _wave(self, config: Any, blocks: int, k_tiles: int, memory_latency: float) -> tuple[float, ...]:
        """Clocks of a wave with `blocks` on each SM, then of each of its `parts` on its own."""
        tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
        tensor = blocks * 2 * tile_m * tile_n * tile_k / self.flops_per_clk
        # Each warp reads its rows of A and columns of B for itself; the block writes each tile once.
        reads = (config.warps_n * tile_m + config.warps_m * tile_n) * tile_k * config.itemsize
        shared = blocks * (reads + config.stage_bytes) / SMEM_BYTES_PER_CLK
        clocks_a, clocks_b = self.copy_clocks
        copies = blocks * tile_k * (tile_m * clocks_a + tile_n * clocks_b)
        # A block's own chain of k-steps, and the memory latency that its stages in flight must cover
        # (Little's law).
        latency = max(K_STEP_LATENCY * tile_k * config.itemsize / K_BLOCK_BYTES, memory_latency / (config.stages - 1))
        # One block's barrier, plain loads and pipeline fill are hidden by its neighbours' work.
        stall = (BARRIER + (memory_latency if any(self.plain) else 0)) / blocks
        step = max(overlap(tensor, shared, copies), latency) + stall
        ends = DRAM_LATENCY / blocks + blocks * tile_m * tile_n * self.epilogue_clocks
        return (
            k_tiles * step + ends,
            k_tiles * tensor,
            k_tiles * shared,
            k_tiles * copies,
            k_tiles * (latency + stall),
            ends,
        )
