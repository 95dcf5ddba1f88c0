"""`small_m` in the planner: where its configurations may run, and how long they should take.

Weights pass by once, at the rate of device memory or at that of the bytes which the blocks present have on their way
(Little's law), whichever is less. Beside that run the traffic through L2, in which every block reads all of its share
of A again, and the work of an SM: tensor cores, shared memory, copies. To the slowest of them come the ends that
nothing hides: a block's first bytes, adding up the sums of its groups, and its epilogue; where several blocks share an
SM, the others hide most of these.

"estimated" marks constants that no measurement has settled. (Without clusters, calls of up to 16 rows took 5 to 16%
longer than estimated on an H200, 2026-11; K split over clusters that did not all fit at a time, up to twice as long.)
"""

from __future__ import annotations

from functools import cache
from math import ceil

from cutegemm.device import DeviceSpec
from cutegemm.errors import ShapeError
from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES, vector_elements
from cutegemm.kernels.small_m_config import GRID_YZ, INSTRUCTION_N, SmallMConfig
from cutegemm.planner.legality import INT32_MAX, MAX_CLUSTER, Refusal, extent_refusal
from cutegemm.planner.model import (
    DRAM_LATENCY,
    LAUNCH_US,
    SMEM_BYTES_PER_CLK,
    Estimate,
    epilogue_costs,
    operand_bytes,
    overlap,
)
from cutegemm.problem import Access, Problem
from cutegemm.roofline import MAX_REGISTERS, MAX_THREADS, occupancy

_BARRIERS = 16  # named ones of a block, of which one is the block's own
_LINE = 64  # elements of a line of device memory's 128 bytes
_MAX_ACCUMULATORS = 128
_PAIR = 2  # SMs that share a TPC: clusters of two fit everywhere

#: Share of device memory's rate at which weights arrive while enough bytes are on their way (estimated).
STREAM_RATE = 1.0
#: Share of the SMs on which larger clusters fit: 16 of a GPC's 18. (An H200 holds 30 clusters of four and 15 of eight,
#: one block an SM, as its driver counts them.)
CLUSTERED = 16 / 18
#: Bytes that an SM fetches from L2 in a clock (estimated).
SM_BYTES_PER_CLK = 64
#: SM clocks of a cluster's launch and its two barriers (estimated).
CLUSTER_CLOCKS = 1500
#: How much slower a block reads its neighbours' shared memory than its own (estimated).
REMOTE = 4
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
    # Shared memory above the opt-in limit fails at launch.
    if config.smem_bytes > device.smem_per_block:
        have = f"a block on {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", f"{config.smem_bytes} bytes of shared memory: {have}")
    # More registers than a thread can have spill to local memory in the main loop.
    registers = config.registers(problem.signature.a, problem.signature.b)
    if registers > MAX_REGISTERS:
        return Refusal("registers", f"about {registers} registers a thread: a thread has {MAX_REGISTERS}")
    # A block launches only if its threads' registers fit an SM together.
    if not occupancy(device, threads=config.threads, registers=registers).blocks:
        together = f"about {registers} registers for each of {config.threads} threads"
        return Refusal("registers", f"{together}: an SM of {device.name} has {device.registers_per_sm}")
    return None


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

        read = operand_bytes(problem, device, (config.tile_m, config.tile_n), 1, slots)
        full, rest = divmod(blocks, slots)
        stream = 0.0
        for count, present in ((full, slots), (1, rest)):
            if count and present:
                share = count * present / blocks
                stream += share * read / self._rate(config, present, steps)
        dram = 1e6 * (stream + self.epilogue_bytes / device.hbm_bytes_per_s)
        weight_bytes = problem.batch * problem.n * problem.k * OPERAND_BYTES
        l2_bytes = weight_bytes + tiles * problem.m * problem.k * OPERAND_BYTES
        l2 = 1e6 * l2_bytes / device.l2_bytes_per_s

        us = 1e6 / device.clock_hz
        waves = full + (rest > 0)
        most = full * resident + ceil(rest / device.sm_count)  # blocks of one SM
        work = us * most * steps * config.warps_k * self._step(config)
        if min(self._vector(a), self._vector(b)) == 1:  # plain loads are waited for
            work += us * waves * steps * DRAM_LATENCY
        ends = us * self._ends(config) * (1 + (waves - 1) / resident)
        return Estimate(
            us=LAUNCH_US + max(l2, overlap(dram, work, 0.0)) + ends,
            terms={"device memory": dram, "L2": l2, "SM": work, "fill and epilogue": ends, "launch": LAUNCH_US},
            tiles=tiles,
            blocks_per_sm=resident,
            waves=blocks / slots,
            efficiency=blocks / (slots * waves),
        )

    def _rate(self, config: SmallMConfig, blocks: int, steps: int) -> float:
        """Bytes per second that `blocks` at a time fetch from device memory."""
        device = self.device
        in_flight = blocks * min(config.in_flight_bytes, config.warps_k * max(1, steps) * config.weight_bytes)
        by_sm = min(blocks, device.sm_count) * SM_BYTES_PER_CLK * device.clock_hz
        return min(STREAM_RATE * device.hbm_bytes_per_s, in_flight * device.clock_hz / DRAM_LATENCY, by_sm)

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

    def _ends(self, config: SmallMConfig) -> float:
        """Clocks of a block's first bytes, its reduction and its epilogue."""
        sums = self.problem.m * config.tile_n * config.warps_k * 4 / SMEM_BYTES_PER_CLK
        cluster = CLUSTER_CLOCKS + REMOTE * sums if config.split > 1 else sums
        return DRAM_LATENCY + cluster + self.problem.m * config.tile_n / config.split * self.epilogue_clocks

    def _vector(self, access: Access) -> int:
        """Elements that one copy of an operand moves: A is read along K or element by element."""
        return 1 if access.major == "m" else vector_elements(access)
