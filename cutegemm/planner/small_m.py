"""`small_m` in the planner: where its configurations may run, and how long they should take.

Weights pass by once, at the rate of device memory. Beside that run the work of an SM (tensor cores, shared memory,
copies), and the blocks that follow each other in its places: each takes its groups' steps one after another, some 500
clocks or more apiece, and all but the last their ends, too. Traffic through L2, in which every block reads all of its
share of A again, may take longer than these. What nothing hides comes last: between blocks that follow each other, an
SM with room for few of them streams less; and ends, a block's first bytes, adding up the sums of its groups, and its
epilogue.

"fitted" marks constants from timings of 1 to 64 rows on an H200, 2026-11 (bf16, N x K of 4096 x 4096, 4096 x 14336 and
28672 x 4096, tiles of the two heights that hold the rows with the least waste, inputs that L2 does not hold). Estimates
were 4.5% off these on average, 23% at most; where clusters do not split K, 3.9% on average. The models' choice there,
among this family and sm90_wgmma, was within 3.2% of the fastest, 0.3% on average; configurations that came later beat
it by up to 7% (32 x 28672 x 4096, 63.1 and 58.8 us). Of 84 more timings of this family, of up to 16 rows, from which
`TURNOVER` comes, estimates are 3.8% off on average, and its choice is within 1.1% of the fastest. "estimated" marks
constants that no measurement has settled.
"""

from __future__ import annotations

from functools import cache
from math import ceil, log2

from cutegemm.device import DeviceSpec
from cutegemm.errors import ShapeError
from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES, vector_elements
from cutegemm.kernels.small_m_config import GRID_YZ, INSTRUCTION_N, SmallMConfig
from cutegemm.planner.legality import INT32_MAX, MAX_CLUSTER, Refusal, extent_refusal, resource_refusal
from cutegemm.planner.model import (
    DRAM_LATENCY,
    LAUNCH_US,
    SMEM_BYTES_PER_CLK,
    STREAM_RATE,
    Estimate,
    epilogue_costs,
    operand_bytes,
    overlap,
)
from cutegemm.problem import Access, Problem
from cutegemm.roofline import MAX_THREADS, occupancy

_BARRIERS = 16  # named ones of a block, of which one is the block's own
_LINE = 64  # elements of a line of device memory's 128 bytes
_MAX_ACCUMULATORS = 128
_COLUMNS = 8  # that a lane adds up and finishes at a time
_PAIR = 2  # SMs that share a TPC: clusters of two fit everywhere

#: Share of the SMs on which larger clusters fit: 16 of a GPC's 18. (An H200 holds 30 clusters of four and 15 of eight,
#: one block an SM, as its driver counts them.)
CLUSTERED = 16 / 18
#: SM clocks of a group's step beside its products: it waits for a tile, fetches another and loads fragments (fitted).
STEP_CLOCKS = 500
#: SM clocks of a cluster's launch and its two barriers, for each time that its size doubles (fitted).
CLUSTER_CLOCKS = 1400
#: How much slower a block reads a neighbour's shared memory than its own (fitted).
REMOTE = 11
#: Share of a block's ends that an SM with room for that block alone does not stream, before the next (fitted).
TURNOVER = 0.5
#: SM clocks per warp-wide copy: cp.async with its predicate, and a plain load with its store (estimated).
ASYNC_COPY, PLAIN_COPY = 3, 6


def refuse(problem: Problem, config: SmallMConfig, device: DeviceSpec) -> Refusal | None:
    """Why `config` cannot serve `problem` on `device`, beyond the rules that hold for every family."""
    return (
        _tile_refusal(config)
        or _problem_refusal(problem, config)
        or extent_refusal(problem, config.tile_m, config.tile_n, config.tile_k)
        or _device_refusal(problem, config, device)
    )


def _problem_refusal(problem: Problem, config: SmallMConfig) -> Refusal | None:
    # A block owns all rows of D: each weight is read once.
    if problem.m > config.tile_m:
        return Refusal("rows", f"m={problem.m}: a tile of {config.tile_m} rows holds all of D's", ShapeError)
    # Batch modes lie along the grid's y and z.
    if problem.batch > GRID_YZ:
        return Refusal("grid", f"batch={problem.batch}: the grid's y and z hold {GRID_YZ} blocks each", ShapeError)
    blocks = ceil(problem.n / config.tile_n) * config.split
    if blocks > INT32_MAX:
        return Refusal("grid", f"{blocks} blocks of {config.tile_n} columns: a grid holds {INT32_MAX}", ShapeError)
    # Part of a line would be fetched by one block and the rest by another.
    if problem.signature.b.major == "n" and config.tile_n % _LINE:
        reason = f"tile_n={config.tile_n} of B along N: must be a multiple of {_LINE}, a line of memory"
        return Refusal("line", reason)
    return None


@cache
def _tile_refusal(config: SmallMConfig) -> Refusal | None:
    """Rules of the tile alone. No registered configuration breaks them; a tuner's one may."""
    if min(config.tile_n, config.warps_n, config.warps_k, config.split) < 1:
        return Refusal("tile", f"{config}: every size must be positive")
    # mma.sync's 8 columns, and ldmatrix that feeds one or two of them.
    if config.tile_m not in (8, 16, 32, 64):
        return Refusal("tile", f"tile_m={config.tile_m}: must be 8, 16, 32 or 64")
    # A row of a tile is one row of the 128-byte swizzle.
    if config.tile_k != _LINE:
        return Refusal("swizzle", f"tile_k={config.tile_k}: must be {_LINE}")
    # A ring needs a stage to compute on and one to fill.
    if config.stages < 2:
        return Refusal("stages", f"stages={config.stages}: a ring needs at least 2")
    if config.threads > MAX_THREADS:
        return Refusal("threads", f"{config.threads} threads: a block holds {MAX_THREADS}")
    # Groups of several warps have a named barrier each, and the block has barrier 0.
    if config.warps_n > 1 and config.warps_k >= _BARRIERS:
        return Refusal("barriers", f"{config.warps_k} groups: a block has {_BARRIERS - 1} barriers beside its own")
    # mma.sync multiplies 16 weights at a time.
    if config.tile_n % (INSTRUCTION_N * config.warps_n):
        reason = f"tile_n={config.tile_n}: {config.warps_n} warps must each own a multiple of {INSTRUCTION_N} columns"
        return Refusal("warp tile", reason)
    if config.warp_n * config.tile_m // 32 > _MAX_ACCUMULATORS:
        reason = f"{config.tile_m}x{config.warp_n} a warp: more than {_MAX_ACCUMULATORS} accumulators leave too few"
        return Refusal("registers", f"{reason} registers")
    # Every thread copies the same number of chunks, each at the same place along K.
    for name, tile in (("tile_m", config.tile_m), ("tile_n", config.tile_n)):
        chunks = tile * config.tile_k * OPERAND_BYTES // CHUNK_BYTES
        if chunks % config.group_threads:
            reason = f"{name}={tile}: {chunks} copies of 16 bytes do not divide among {config.group_threads} threads"
            return Refusal("copies", reason)
    # A cluster's blocks are consecutive, and every GPU with clusters has room for so many.
    if config.split not in (1, 2, 4, MAX_CLUSTER):
        return Refusal("cluster", f"split={config.split}: must be 1, 2, 4 or {MAX_CLUSTER}, the blocks of a cluster")
    return None


def _device_refusal(problem: Problem, config: SmallMConfig, device: DeviceSpec) -> Refusal | None:
    # Blocks read each other's shared memory in clusters only.
    if config.split > 1 and device.compute_capability < (9, 0):
        reason = f"split={config.split}: needs clusters, which {device.name} ({device.arch}) does not have"
        return Refusal("cluster", reason)
    if config.split > device.sm_count:
        reason = f"{config.split} blocks in a cluster: {device.name} has {device.sm_count} SMs"
        return Refusal("cluster", reason)
    return resource_refusal(config, device, config.registers(problem.signature.a, problem.signature.b))


class StreamModel:
    """The model of one problem on one GPU; `estimate` applies it to a legal configuration."""

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        self.problem, self.device = problem, device
        self.sm_clocks = device.sm_count * device.clock_hz
        self.epilogue_bytes, self.epilogue_clocks = epilogue_costs(problem, device, self.sm_clocks)

    def estimate(self, config: SmallMConfig) -> Estimate:
        """The modelled time of `config`: see the module's docstring."""
        problem, device = self.problem, self.device
        a, b = problem.signature.a, problem.signature.b
        registers = config.registers(a, b)
        resident = occupancy(device, threads=config.threads, registers=registers, smem=config.smem_bytes).blocks
        sms = device.sm_count if config.split <= _PAIR else device.sm_count * CLUSTERED
        slots = max(1, int(resident * sms) // config.split * config.split)
        tiles = ceil(problem.n / config.tile_n) * problem.batch
        blocks = tiles * config.split
        k_tiles = ceil(problem.k / config.tile_k)
        steps = ceil(k_tiles / config.groups)

        full, rest = divmod(blocks, slots)
        waves = full + (rest > 0)
        read = operand_bytes(problem, device, (config.tile_m, config.tile_n), 1, slots)
        dram = 1e6 * (read + self.epilogue_bytes) / (STREAM_RATE * device.hbm_bytes_per_s)
        weight_bytes = problem.batch * problem.n * problem.k * OPERAND_BYTES
        l2_bytes = weight_bytes + tiles * problem.m * problem.k * OPERAND_BYTES
        l2 = 1e6 * l2_bytes / device.l2_bytes_per_s

        us = 1e6 / device.clock_hz
        most = full * resident + ceil(rest / device.sm_count)  # blocks of one SM
        work = us * most * steps * config.warps_k * self._step(config)
        ends = us * self._ends(config)
        chain = us * waves * steps * self._group_step(config) + (waves - 1) * ends
        between = TURNOVER * ends * max(0.0, blocks / slots - 1) / resident
        return Estimate(
            us=LAUNCH_US + max(l2, overlap(dram, work, chain)) + between + ends,
            terms={
                "device memory": dram,
                "L2": l2,
                "SM": work,
                "blocks in turn": chain,
                "between blocks": between,
                "fill and epilogue": ends,
                "launch": LAUNCH_US,
            },
            tiles=tiles,
            blocks_per_sm=resident,
            waves=blocks / slots,
            efficiency=blocks / (slots * waves),
        )

    def _step(self, config: SmallMConfig) -> float:
        """Clocks of an SM for one k-tile of one group."""
        tensor = 2 * config.tile_m * config.tile_n * config.tile_k * self.sm_clocks / self.device.mma_flops
        # Each warp reads its own weights and all of A; the group writes both once.
        rows = 2 * config.tile_n + (1 + config.warps_n) * config.tile_m
        shared = rows * config.tile_k * OPERAND_BYTES / SMEM_BYTES_PER_CLK
        copies = 0.0
        for access, tile in ((self.problem.signature.a, config.tile_m), (self.problem.signature.b, config.tile_n)):
            vector = self._vector(access)
            copies += tile * config.tile_k / vector / 32 * (PLAIN_COPY if vector == 1 else ASYNC_COPY)
        return overlap(tensor, shared, copies)

    def _group_step(self, config: SmallMConfig) -> float:
        """Clocks from one k-tile of a group to its next: a warp's own products, on its quarter of the SM, and what
        goes before them, or the memory latency that the ring's tiles must cover (Little's law)."""
        products = 2 * config.tile_m * config.warp_n * config.tile_k * 4 * self.sm_clocks / self.device.mma_flops
        clocks = max(STEP_CLOCKS + products, DRAM_LATENCY / (config.stages - 1))
        plain = min(self._vector(self.problem.signature.a), self._vector(self.problem.signature.b)) == 1
        return clocks + DRAM_LATENCY if plain else clocks  # plain loads are waited for

    def _ends(self, config: SmallMConfig) -> float:
        """Clocks of a block's first bytes, its reduction and its epilogue."""
        elements = self.problem.m * config.tile_n
        sums = elements * config.warps_k * 4 / SMEM_BYTES_PER_CLK
        if config.split == 1:
            return DRAM_LATENCY + sums + elements * self.epilogue_clocks
        # A cluster's first block finishes as many elements as it has lanes for before the next gets any.
        share = max(1 / config.split, min(1.0, config.threads * _COLUMNS / elements))
        sums *= 1 + REMOTE * (config.split - 1)
        return DRAM_LATENCY + CLUSTER_CLOCKS * log2(config.split) + share * (sums + elements * self.epilogue_clocks)

    def _vector(self, access: Access) -> int:
        """Elements that one copy of an operand moves: A is read along K or element by element."""
        return 1 if access.major == "m" else vector_elements(access)
