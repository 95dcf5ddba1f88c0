"""How long a kernel should take: an analytic model of one tile configuration on one problem and GPU.

A GPU works through D in waves of resident blocks. A wave costs its k-steps, each bound by the tensor cores,
shared memory, copy instructions or latency, plus what a block cannot overlap with itself: filling its
pipeline and its epilogue. Beside the waves run the traffic through L2 and to device memory; the slowest of
the three decides.

The constants are per-SM clocks. "estimated" marks those that no measurement has settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.kernels.config import OPERAND_BYTES, Config, vector_elements
from cutegemm.problem import Access, Problem

#: Shared memory moves 32 banks of 4 bytes a clock (CUDA C++ programming guide).
SMEM_BYTES_PER_CLK = 128
#: An L2 hit and a device-memory read: 263 and 479 clocks on an idle H100 (arXiv:2402.13499); 800 loaded is
#: estimated.
L2_LATENCY, DRAM_LATENCY = 263, 800
#: The shortest 16-deep k-step of one warp: 33 clocks from an mma to its dependent (arXiv:2402.13499) and an
#: ldmatrix issue.
K_STEP_LATENCY = 40
#: A block's barrier between k-tiles, with the refill of its tensor pipes behind it: what sets 128x256x64 (446 TFLOP/s)
#: apart from 128x256x32 (396) on bf16 4096 x 4096 x 4096 (H200, 2026-11).
BARRIER = 200
#: SM clocks per warp-wide copy: cp.async with its address and predicate, and a plain load with its store
#: (estimated).
ASYNC_COPY, PLAIN_COPY = 2, 6
#: SM clocks per warp-wide load or store of the epilogue: a 512-byte access takes four passes of 128 bytes.
EPILOGUE_ACCESS = 4
#: Issue slots per node of the epilogue graph and element: a transcendental takes several, a sum one
#: (estimated).
SLOTS_PER_NODE = 2
#: From launch to streaming at full rate: 34 MB read cold in 9.1 us against 7.3 at 4.65 TB/s (H200, 2026-11).
LAUNCH_US = 1.8
#: Order of the mean that joins times which overlap imperfectly: 1 would add them, infinity take the largest
#: (estimated).
OVERLAP = 4
#: Share of L2 that a working set can count on beside the streams that pass through it (estimated).
L2_SHARE = 0.5
#: L2 and device memory move sectors of 32 bytes; an operand without a contiguous dimension wastes half or
#: more of each.
SECTOR, STRIDED_WASTE = 32, 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """A modelled time in microseconds and what it is made of.

    `terms` holds, by name, what each resource would need on its own; `us` is less than their sum because they
    overlap. `waves` is tiles over resident blocks, `efficiency` the share of the waves' slots that holds a
    tile.
    """

    us: float
    terms: Mapping[str, float]
    tiles: int
    blocks_per_sm: int
    waves: float
    efficiency: float

    @property
    def bound(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)


def blocks_per_sm(config: Config, device: DeviceSpec, a: Access, b: Access) -> int:
    """Blocks of `config` that fit an SM at once, by shared memory, registers, threads and the block limit."""
    # Registers are given to warps in units of 256, eight for each thread (CUDA occupancy calculator).
    registers = -(-config.registers(a, b) // 8) * 8 * config.threads
    return min(
        device.smem_per_sm // (config.smem_bytes + device.smem_reserved_per_block),
        device.registers_per_sm // registers,
        device.max_threads_per_sm // config.threads,
        device.max_blocks_per_sm,
    )


#: What `TileModel._wave` returns, in its order.
_PARTS = ("wave", "tensor cores", "shared memory", "copy instructions", "latency", "fill and epilogue")


class TileModel:
    """The model of one problem on one GPU; `estimate` applies it to a legal configuration."""

    def __init__(self, problem: Problem, device: DeviceSpec) -> None:
        signature = problem.signature
        self.problem, self.device = problem, device
        self.vectors = vector_elements(signature.a), vector_elements(signature.b)
        self.copy_clocks = [(PLAIN_COPY if v == 1 else ASYNC_COPY) / (32 * v) for v in self.vectors]
        sm_clocks = device.sm_count * device.clock_hz
        self.flops_per_clk = device.mma_flops / sm_clocks
        self.epilogue_bytes, self.epilogue_clocks = _epilogue_costs(problem, device, sm_clocks)

    def estimate(self, config: Config) -> Estimate:
        """The modelled time of `config`: see the module's docstring."""
        problem, device = self.problem, self.device
        resident = blocks_per_sm(config, device, problem.signature.a, problem.signature.b)
        rows, columns = ceil(problem.m / config.tile_m), ceil(problem.n / config.tile_n)
        tiles = rows * columns * problem.batch
        k_tiles = ceil(problem.k / config.tile_k)
        slots = resident * device.sm_count

        l2_bytes = tiles * k_tiles * config.stage_bytes
        read_bytes = self._operand_bytes(config, rows, columns, slots)
        missed = min(1.0, read_bytes / l2_bytes) if l2_bytes else 1.0
        latency = L2_LATENCY + (DRAM_LATENCY - L2_LATENCY) * missed

        full, rest = divmod(tiles, slots)
        clocks = [0.0] * len(_PARTS)
        for count, blocks in ((full, resident), (1, ceil(rest / device.sm_count))):
            if count and blocks:
                wave = self._wave(config, blocks, k_tiles, latency)
                clocks = [total + count * part for total, part in zip(clocks, wave, strict=True)]

        us = 1e6 / device.clock_hz
        compute, *parts = [us * part for part in clocks]
        l2 = 1e6 * l2_bytes / device.l2_bytes_per_s
        dram = 1e6 * (read_bytes + self.epilogue_bytes) / device.hbm_bytes_per_s
        terms = dict(zip(_PARTS[1:], parts, strict=True))
        terms.update({"L2": l2, "device memory": dram, "launch": LAUNCH_US})
        return Estimate(
            us=LAUNCH_US + _overlap(compute, l2, dram),
            terms=terms,
            tiles=tiles,
            blocks_per_sm=resident,
            waves=tiles / slots,
            efficiency=tiles / (slots * (full + (rest > 0))),
        )

    def _wave(self, config: Config, blocks: int, k_tiles: int, memory_latency: float) -> tuple[float, ...]:
        """Clocks of a wave with `blocks` on each SM, then of each part of it on its own: see `_PARTS`."""
        tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
        tensor = blocks * 2 * tile_m * tile_n * tile_k / self.flops_per_clk
        # Each warp reads its rows of A and columns of B for itself; the block writes each tile once.
        reads = (config.warps_n * tile_m + config.warps_m * tile_n) * tile_k * OPERAND_BYTES
        shared = blocks * (reads + config.stage_bytes) / SMEM_BYTES_PER_CLK
        clocks_a, clocks_b = self.copy_clocks
        copies = blocks * tile_k * (tile_m * clocks_a + tile_n * clocks_b)
        # A block's own chain of k-steps, and the memory latency that its stages in flight must cover
        # (Little's law).
        latency = max(K_STEP_LATENCY * tile_k / 16, memory_latency / (config.stages - 1))
        # One block's barrier, plain loads and pipeline fill are hidden by its neighbours' work.
        stall = (BARRIER + (memory_latency if 1 in self.vectors else 0)) / blocks
        step = max(_overlap(tensor, shared, copies), latency) + stall
        ends = DRAM_LATENCY / blocks + blocks * tile_m * tile_n * self.epilogue_clocks
        return (
            k_tiles * step + ends,
            k_tiles * tensor,
            k_tiles * shared,
            k_tiles * copies,
            k_tiles * (latency + stall),
            ends,
        )

    def _operand_bytes(self, config: Config, rows: int, columns: int, slots: int) -> float:
        """Bytes of A and B read from device memory, given the raster.

        Blocks walk groups of `raster` tile rows column by column: B passes by once a group unless all of it
        stays in L2, and a group's rows of A pass by once unless they outgrow L2, when each wave's columns
        read them again.
        """
        problem, held = self.problem, L2_SHARE * self.device.l2_bytes
        row_bytes = problem.k * OPERAND_BYTES
        group = min(config.raster, rows)
        a_stays = min(problem.m, group * config.tile_m) * row_bytes <= held
        a_times = 1 if a_stays else ceil(columns / max(1, slots // group))
        b_times = 1 if problem.n * row_bytes <= held else ceil(rows / group)
        if problem.signature.a.major == "strided":
            a_times *= STRIDED_WASTE
        if problem.signature.b.major == "strided":
            b_times *= STRIDED_WASTE
        return float(problem.batch * row_bytes * (problem.m * a_times + problem.n * b_times))


def _overlap(x: float, y: float, z: float) -> float:
    return float((x**OVERLAP + y**OVERLAP + z**OVERLAP) ** (1 / OVERLAP))


def _epilogue_costs(problem: Problem, device: DeviceSpec, sm_clocks: float) -> tuple[float, float]:
    """Bytes that the epilogue exchanges with device memory, and SM clocks per element of A @ B.

    An element is staged through shared memory, computed on, and read and written at each tensor's width. Rows
    and columns are too few to count.
    """
    signature = problem.signature
    graph = signature.epilogue
    tensors = [(signature.c, False)] if signature.c is not None else []
    tensors += [(x, spec.paired) for spec, x in zip(graph.outputs, signature.outputs, strict=True)]
    tensors += [
        (x, spec.paired)
        for spec, x in zip(graph.operands, signature.operands, strict=True)
        if spec.kind == "tile"
    ]
    lanes = device.fp32_flops / (2 * sm_clocks)
    clocks = 2 * 4 / SMEM_BYTES_PER_CLK + len(graph.nodes) * SLOTS_PER_NODE / lanes
    elements_bytes = 0.0
    for x, paired in tensors:
        share = 0.5 if paired else 1.0
        itemsize = lookup(x.dtype).itemsize
        elements_bytes += share * itemsize
        # Where columns are not contiguous each element is an access and a sector of its own.
        moved, width = (itemsize, max(1, x.align // itemsize)) if x.major == "n" else (SECTOR, 1)
        clocks += share * max(moved * sm_clocks / device.l2_bytes_per_s, EPILOGUE_ACCESS / (32 * width))
    return elements_bytes * problem.batch * problem.m * problem.n, clocks
