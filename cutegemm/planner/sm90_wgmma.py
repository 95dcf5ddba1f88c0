"""`sm90_wgmma` in the planner: where its configurations may run, and how long they should take.

Blocks stay on their SMs and a cluster takes every so many-th tile, so the longest chain of tiles sets one bound: each
tile's k-steps at the tensor cores' rate, and the epilogues that nothing hides. Two cooperative consumers expose each of
theirs; ping-pong ones only the last, as long as an epilogue takes no longer than a mainloop. With stream-K the chain is
an equal share of all k-steps, and sums that are left for others and taken over from them, through L2.

A large problem is slower than that at the nominal clock, for the power limit lowers the clock (bf16 8192 x 8192 x 8192
on an H200, 2026-11: 1.43 to 1.5 GHz at 700 W; without its loads a kernel of 128x256 tiles ran at 1.77 GHz, and 21%
faster). So its time is energy over power, and energy goes into products and into the bytes that they move through
shared memory, L2 and device memory, of which large tiles and multicast move fewer. Beside both runs the traffic to
device memory.

"estimated" marks constants that no measurement has settled; "fitted" ones come from timings of the suite `hopper`,
which are in `tables/h200.json`. There the model's choice is within 4.1% of the best, 1% on average, but for
1024 x 1024 x 1024 (5%).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from math import ceil

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import ShapeError
from cutegemm.kernels import pieces
from cutegemm.kernels.config import OPERAND_BYTES
from cutegemm.kernels.staging import LINES, TMA_ALIGN
from cutegemm.kernels.stream_k import clusters_of, streamed
from cutegemm.kernels.wgmma_config import (
    CONSUMERS,
    INSTRUCTION_M,
    MAX_ACCUMULATORS,
    SWIZZLE_BYTES,
    WARPGROUP,
    WgmmaConfig,
    clusters_at_once,
)
from cutegemm.kernels.workspace import pick
from cutegemm.planner.legality import INT32_MAX, MAX_CLUSTER, Refusal, extent_refusal
from cutegemm.planner.model import (
    DRAM_LATENCY,
    LAUNCH_US,
    STREAM_RATE,
    Estimate,
    epilogue_costs,
    operand_bytes,
    overlap,
)
from cutegemm.problem import Access, Problem

_TMA_BOX = 256  # elements of a TMA box along a dimension
_TF32_BITS = 32
_SWIZZLE_ROWS = 8  # after which it repeats
_INSTRUCTION_N_MAX = 256  # columns of one wgmma
_UNIT_COLUMNS, _EPILOGUE_COLUMNS = 16, 32  # that the epilogue takes at a time, through shared memory and not

#: Share of the peak at which k-steps follow each other while power is not the limit (fitted).
TENSOR_RATE = 0.91
#: SM clocks that a consumer warpgroup takes for what `epilogue_costs` counts as one: its loads and stores wait for each
#: other (estimated: products alone are fitted best by 1.5, fused ones by 3).
EPILOGUE_WAIT = 2.5
#: The rate that the power limit leaves to products alone, as a share of the peak (fitted).
POWER = 1.35
#: What a launch takes beyond that of a plain kernel: descriptors are fetched and barriers set up (estimated).
SETUP_US = 0.4
#: Least SM clocks of a step along K: a barrier is waited for and four wgmmas are issued (estimated).
STEP_CLOCKS = 128
#: SM clocks of such a step that no products hide where a tile of TF32 passes through registers (estimated).
REGISTER_CLOCKS = 16
#: Bytes that an SM fetches from L2, or leaves there, in a clock (estimated).
SM_BYTES_PER_CLK = 64
#: Bytes that a block takes from its cluster's other blocks in a clock, and the clocks before the first (estimated).
CLUSTER_BYTES_PER_CLK, CLUSTER_CLOCKS = 12, 1000
#: L2's rate to TMA, as a multiple of the rate to plain loads (fitted; a bound from below: no problem of the table waits
#: for L2 alone).
TMA_L2 = 2.6
#: Floating-point operations that cost as much as a byte through shared memory, from L2, or from device memory (fitted).
SMEM_ENERGY, L2_ENERGY, DRAM_ENERGY = 12.3, 19.5, 76.0
#: Products of 16-bit numbers that one of TF32 counts for: in time as NVIDIA's rates have it, in energy estimated.
TF32_WEIGHT = 2


def refuse(problem: Problem, config: WgmmaConfig, device: DeviceSpec) -> Refusal | None:
    """Why `config` cannot serve `problem` on `device`, beyond the rules that hold for every family."""
    if (reason := _operand_refusal(problem) or _bits_refusal(problem, config)) is not None:
        return reason
    if config.swap_ab:
        if problem.signature.epilogue.has_pair:
            return Refusal("swap_ab", "swap_ab makes columns of rows, and the epilogue pairs columns")
        problem = _transposed(problem)
    return (
        _pieces_refusal(problem, config)
        or _stream_refusal(problem, config, device)
        or _tile_refusal(config)
        or _layout_refusal(problem, config)
        or _size_refusal(problem, config, device)
        or _device_refusal(config, device)
    )


@lru_cache(maxsize=256)
def _transposed(problem: Problem) -> Problem:
    return problem.transposed()


def _bits_refusal(problem: Problem, config: WgmmaConfig) -> Refusal | None:
    # A tile's layout in shared memory, and the instruction, are those of one width.
    dtype = problem.signature.a.dtype
    if config.bits != lookup(dtype).bits:
        return Refusal("bits", f"bits={config.bits}: a and b are {dtype}, of {lookup(dtype).bits} bits")
    # wgmma transposes operands of 16 bits only; one of TF32 may pass through registers.
    for name in config.along_k:
        access: Access = getattr(problem.signature, name)
        if access.major != "k":
            needed = f"TF32's wgmma reads K-major operands: pad={name} would copy it"
            return Refusal("K-major", f"{name} is {access.major}-major: {needed}")
    return None


def _pieces_refusal(problem: Problem, config: WgmmaConfig) -> Refusal | None:
    # A stage holds what its products are made of.
    count = pieces.count(problem.signature)
    if config.pieces != count:
        reason = f"pieces={config.pieces}: a and b are {problem.signature.a.dtype}, and not split into pieces"
        if count > 1:
            reason = f"pieces={config.pieces}: {problem.signature.precision} splits a and b into {count}"
        return Refusal("pieces", reason)
    return None


def _stream_refusal(problem: Problem, config: WgmmaConfig, device: DeviceSpec) -> Refusal | None:
    if not config.stream:
        return None
    # Sums of a part are handed over by both consumers, each its half of the tile's rows.
    if config.pingpong:
        return Refusal("schedule", "split=stream: is for cooperative consumers, and this schedule is ping-pong")
    if config.split > 1:
        own = f"cluster {config.cluster}, split={config.split}"
        return Refusal("split", f"split=stream: shares k-tiles out, and with {own} K has parts beside")
    # Clusters count the k-tiles of two waves in 32 bits.
    tiles = 2 * max(1, clusters_at_once(device.sm_count, config.cluster_size))
    if tiles * (k_tiles := ceil(problem.k / config.tile_k)) > INT32_MAX:
        reason = f"split=stream: {tiles} tiles of {k_tiles} k-tiles each are more than blocks count in 32 bits"
        return Refusal("split", reason, ShapeError)
    return None


def _operand_refusal(problem: Problem) -> Refusal | None:
    # A TMA descriptor has no empty dimension.
    if problem.k < 1:
        return Refusal("size", f"k={problem.k}: TMA reads no empty tensor, so k must be at least 1", ShapeError)
    # Its innermost dimension is contiguous; its address and all other strides are multiples of 16 bytes.
    for name, access in (("a", problem.signature.a), ("b", problem.signature.b)):
        if access.major == "strided":
            return Refusal("TMA", f"{name} is strided: TMA reads tensors that are contiguous along a dimension")
        if access.align < TMA_ALIGN:
            needed = f"TMA reads addresses and strides aligned to {TMA_ALIGN}"
            return Refusal("TMA", f"{name} is aligned to {access.align} bytes: {needed}")
    return None


@cache
def _tile_refusal(config: WgmmaConfig) -> Refusal | None:
    """Rules of the tile alone. No registered configuration breaks them; a tuner's one may."""
    tile_m, tile_n = config.tile_m, config.tile_n
    if min(tile_m, tile_n, config.cluster_m, config.cluster_n, config.cluster_k, config.raster) < 1:
        return Refusal("tile", f"{config}: every size must be positive")
    # A pipeline needs a stage to compute on and one to fill.
    if config.stages < 2:
        return Refusal("stages", f"stages={config.stages}: a pipeline needs at least 2")
    # Consumers free a stage once they have begun with the next.
    if not 1 <= config.burst <= max(1, config.stages - 2):
        return Refusal("stages", f"burst={config.burst}: of {config.stages} stages two are being multiplied")
    if config.bits not in (8 * OPERAND_BYTES, _TF32_BITS):
        return Refusal("bits", f"bits={config.bits}: must be {8 * OPERAND_BYTES} or {_TF32_BITS}")
    # A row of K-major tiles is one row of the 128-byte swizzle, or of that of half the width.
    if config.row_bytes not in (SWIZZLE_BYTES // 2, SWIZZLE_BYTES):
        row = SWIZZLE_BYTES // config.itemsize
        return Refusal("swizzle", f"tile_k={config.tile_k}: must be {row // 2} or {row}")
    # Consumers add each k-tile's products of pieces to sums in registers of their own, and would wait in turns.
    if config.pieces > 1 and config.pingpong:
        return Refusal("schedule", f"schedule=pingpong: pieces={config.pieces} want consumers that share a tile")
    # wgmma multiplies 64 rows, and cooperative consumers halve the tile.
    rows = INSTRUCTION_M if config.pingpong else INSTRUCTION_M * CONSUMERS
    if tile_m % rows:
        schedule = "ping-pong" if config.pingpong else "cooperative"
        return Refusal("warpgroup tile", f"tile_m={tile_m}: a multiple of {rows} is what {schedule} consumers multiply")
    # One wgmma spans the tile's columns, and a unit of the epilogue is at least 16 of them.
    if tile_n % _UNIT_COLUMNS or tile_n > _INSTRUCTION_N_MAX:
        reason = f"tile_n={tile_n}: must be a multiple of {_UNIT_COLUMNS} up to {_INSTRUCTION_N_MAX}"
        return Refusal("warpgroup tile", reason)
    # Each block of a cluster finishes its share of the columns, in such units.
    if tile_n % (_UNIT_COLUMNS * config.cluster_k):
        reason = f"tile_n={tile_n}: cluster {config.cluster} shares out multiples of {_UNIT_COLUMNS} columns"
        return Refusal("warpgroup tile", reason)
    # Accumulators share a consumer's registers with addresses and the epilogue.
    held, what = config.accumulators, "accumulators"
    if config.pieces > 1:
        held, what = 2 * held, "accumulators and sums"
    if held > MAX_ACCUMULATORS:
        reason = f"{held} {what} a thread: more than {MAX_ACCUMULATORS} leave too few registers"
        return Refusal("registers", reason)
    # A GPU may have no room for a larger cluster.
    if config.cluster_size > MAX_CLUSTER:
        cluster = f"cluster {config.cluster}"
        return Refusal("cluster", f"{cluster}: {config.cluster_size} blocks, and at most {MAX_CLUSTER} are portable")
    return None


def _layout_refusal(problem: Problem, config: WgmmaConfig) -> Refusal | None:
    a, b = problem.signature.a, problem.signature.b
    if config.share_n % _EPILOGUE_COLUMNS and config.staging(problem.signature) is None:
        shares = f" in {config.cluster_k} shares" if config.cluster_k > 1 else ""
        must = f"must be a multiple of {_EPILOGUE_COLUMNS * config.cluster_k} where outputs leave from registers"
        reason = f"tile_n={config.tile_n}{shares}: {must}"
        return Refusal("warpgroup tile", reason)
    operands: tuple[tuple[str, Access, int, int], ...] = (
        ("tile_m", a, config.tile_m, config.cluster_n),
        ("tile_n", b, config.tile_n, config.cluster_m),
    )
    for name, access, tile, sharers in operands:
        # Each block of a cluster fetches a slice of what it shares; a slice holds whole swizzle atoms.
        atom = _SWIZZLE_ROWS if access.major == "k" else SWIZZLE_BYTES // config.itemsize
        if tile % (atom * sharers):
            slices = f" in {sharers} slices" if sharers > 1 else ""
            reason = f"{name}={tile}{slices} of a {access.major}-major operand: a slice must be a multiple of {atom}"
            return Refusal("swizzle", reason)
        if tile // sharers > _TMA_BOX:
            return Refusal("TMA", f"{name}={tile}: a TMA box holds {_TMA_BOX}")
    return None


def _size_refusal(problem: Problem, config: WgmmaConfig, device: DeviceSpec) -> Refusal | None:
    rows, columns = config.tile_m * config.cluster_m, config.tile_n * config.cluster_n
    # Persistent blocks count their tiles, two strides ahead, and their k-tiles in 32 bits.
    tiles = ceil(problem.m / rows) * ceil(problem.n / columns) * problem.batch
    resident = max(1, clusters_at_once(device.sm_count, config.cluster_size))
    k_tiles = ceil(problem.k / config.tile_k)
    if tiles + 2 * resident > INT32_MAX or (ceil(tiles / resident) + 2) * k_tiles > INT32_MAX:
        reason = f"{tiles} tiles of {rows}x{columns} and {k_tiles} k-tiles each: blocks count them in 32 bits"
        return Refusal("grid", reason, ShapeError)
    return extent_refusal(problem, rows, columns, config.tile_k)


def _device_refusal(config: WgmmaConfig, device: DeviceSpec) -> Refusal | None:
    # Shared memory above the opt-in limit fails at launch.
    if config.smem_bytes > device.smem_per_block:
        have = f"a block on {device.name} has {device.smem_per_block}"
        return Refusal("shared memory", f"{config.smem_bytes} bytes of shared memory: {have}")
    # A cluster's blocks run together, one on an SM.
    if clusters_at_once(device.sm_count, config.cluster_size) < 1:
        reason = f"{config.cluster_size} blocks in a cluster: {device.name} has {device.sm_count} SMs"
        return Refusal("cluster", reason)
    return None


class PersistentModel:
    """The model of one problem on one GPU; `estimate` applies it to a legal configuration."""

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        self.problem, self.device = problem, device
        sm_clocks = device.sm_count * device.clock_hz
        self.weight = TF32_WEIGHT if problem.signature.a.dtype == "fp32" else 1
        self.flops_per_clk = TENSOR_RATE * device.peak_flops / self.weight / sm_clocks
        self.epilogue_bytes, _ = epilogue_costs(problem, device, sm_clocks)
        clocks = {line: epilogue_costs(problem, device, sm_clocks, line=line)[1] for line in (None, *LINES)}
        self.epilogue_clocks: dict[int | None, float] = clocks

    def estimate(self, config: WgmmaConfig) -> Estimate:
        """The modelled time of `config`: see the module's docstring."""
        problem, device = _transposed(self.problem) if config.swap_ab else self.problem, self.device
        cluster_rows = ceil(problem.m / (config.tile_m * config.cluster_m))
        cluster_columns = ceil(problem.n / (config.tile_n * config.cluster_n))
        clusters = cluster_rows * cluster_columns * problem.batch
        resident = max(1, clusters_at_once(device.sm_count, config.cluster_size))
        waves = ceil(clusters / resident)
        tiles = clusters * config.cluster_size
        k_tiles = ceil(ceil(problem.k / config.tile_k) / config.cluster_k)
        pairs = len(pieces.pairs(problem.signature))

        us = 1e6 / device.clock_hz
        mainloop, together = us * k_tiles * self._step(config, pairs), us * _cluster_sum(config)
        epilogue = us * self._epilogue(problem, config) + together
        mainloops, fixup, exposed = float(waves), 0.0, waves * together
        if config.pingpong:
            exposed = together  # the last tile's: those before are hidden
            between = max(mainloop, (mainloop + epilogue) / CONSUMERS)
            chain = mainloop + (waves - 1) * between + epilogue
        elif config.stream:
            mainloops, epilogues, clocks = self._streamed(config, clusters, resident, k_tiles)
            fixup = us * clocks
            chain = mainloops * mainloop + epilogues * epilogue + fixup
        else:
            chain = waves * (mainloop + epilogue)

        products = tiles * config.tile_m * config.tile_n * k_tiles * config.tile_k * pairs
        # Rows of operand tiles, each an element a step along K: read by wgmmas, written by TMA, out of L2.
        read = config.tile_m // INSTRUCTION_M * (INSTRUCTION_M + config.tile_n) * pairs
        written = (config.tile_m + config.tile_n) * config.pieces
        fetched = _fetched_rows(config)
        row_bytes = tiles * k_tiles * config.row_bytes
        tile = config.tile_m, config.tile_n
        dram_bytes = self.epilogue_bytes
        deep = problem if config.pieces == 1 else replace(problem, k=problem.k * config.pieces)
        dram_bytes += operand_bytes(deep, device, tile, config.raster, device.sm_count, config.walk)
        energy = 2 * self.weight * products + DRAM_ENERGY * dram_bytes
        energy += (SMEM_ENERGY * (read + written) + L2_ENERGY * fetched) * row_bytes
        l2 = 1e6 * fetched * row_bytes / (TMA_L2 * device.l2_bytes_per_s)
        power = 1e6 * energy / (POWER * device.peak_flops)
        dram = 1e6 * dram_bytes / (STREAM_RATE * device.hbm_bytes_per_s)
        launch = LAUNCH_US + SETUP_US + us * DRAM_LATENCY
        return Estimate(
            us=launch + max(l2, overlap(chain, power, dram)),
            terms={
                "tensor cores": mainloops * mainloop,
                "epilogue": chain - mainloops * mainloop - exposed - fixup,
                **({"sums of a cluster": exposed} if together else {}),
                **({"fix-up": fixup} if config.stream else {}),
                "power": power,
                "L2": l2,
                "device memory": dram,
                "launch": launch,
            },
            tiles=tiles,
            blocks_per_sm=1,
            waves=clusters / resident,
            efficiency=clusters / (resident * mainloops),
        )

    def _streamed(self, config: WgmmaConfig, tiles: int, slots: int, k_tiles: int) -> tuple[float, int, float]:
        """What the longest chain of a stream-K cluster has: main loops of whole tiles, epilogues, and clocks of handing
        sums over, where it leaves those of one part and adds up those of a tile's."""
        count = clusters_of(tiles, k_tiles, slots, pick)
        cut = streamed(tiles, count, pick)
        if cut == 0:
            return tiles / count, tiles // count, 0.0
        whole, helpers = (tiles - cut) // count, ceil(count / cut)
        moved = DRAM_LATENCY + config.sums_bytes / SM_BYTES_PER_CLK
        return tiles / count, whole + ceil(cut / count), (1 + helpers) * moved

    def _step(self, config: WgmmaConfig, pairs: int) -> float:
        """Clocks of a step along K: its products (of `pairs` of pieces), its fetches, or the memory latency that the
        stages in flight must cover (Little's law)."""
        products = 2 * config.tile_m * config.tile_n * config.tile_k * pairs / self.flops_per_clk
        fetched = _fetched_rows(config) * config.row_bytes
        first = self.problem.signature.b if config.swap_ab else self.problem.signature.a
        if config.bits == _TF32_BITS and first.major != "k":
            products += REGISTER_CLOCKS
        return max(products, fetched / SM_BYTES_PER_CLK, DRAM_LATENCY / (config.stages - 1), STEP_CLOCKS)

    def _epilogue(self, problem: Problem, config: WgmmaConfig) -> float:
        """Clocks that a consumer warpgroup takes to finish its accumulators, of what `config` makes of `problem`."""
        plan, line = config.staging(problem.signature), None
        if plan is not None:
            line = min((box.line_bytes for box in plan.stores if not box.by_tma), default=max(LINES))
        clocks = self.epilogue_clocks[line] / config.cluster_k
        return EPILOGUE_WAIT * config.accumulators * WARPGROUP * clocks


def _cluster_sum(config: WgmmaConfig) -> float:
    """Clocks that sums take to where a cluster adds them up."""
    if config.cluster_k == 1:
        return 0.0
    return CLUSTER_CLOCKS + config.received_bytes / CLUSTER_BYTES_PER_CLK


def _fetched_rows(config: WgmmaConfig) -> float:
    """Rows of operand tiles that a block fetches for each step along K: its slices of what its cluster shares."""
    return config.pieces * (config.tile_m / config.cluster_n + config.tile_n / config.cluster_m)
