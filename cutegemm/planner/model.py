"""What the families' models of time share: the facts of the memories, the raster's traffic, the epilogue's cost.

"estimated" marks constants that no measurement has settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Protocol, TypeVar

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.kernels.staging import TMA_ALIGN, WORD
from cutegemm.problem import Problem

#: Shared memory moves 32 banks of 4 bytes a clock (CUDA C++ programming guide).
SMEM_BYTES_PER_CLK = 128
#: An L2 hit and a device-memory read: 263 and 479 clocks on an idle H100 (arXiv:2402.13499); 800 loaded is
#: estimated.
L2_LATENCY, DRAM_LATENCY = 263, 800
#: SM clocks per warp-wide load or store of the epilogue: a 512-byte access takes four passes of 128 bytes.
EPILOGUE_ACCESS = 4
#: Issue slots per node of the epilogue graph and element: a transcendental takes several, a sum one
#: (estimated).
SLOTS_PER_NODE = 2
#: From launch to streaming at full rate: 34 MB read cold in 9.1 us against 7.3 at 4.65 TB/s (H200, 2026-11).
LAUNCH_US = 1.8
#: Share of device memory's rate that kernels reach which wait for nothing else (fitted to timings of small_m and
#: sm90_wgmma on up to 64 rows, H200, 2026-11).
STREAM_RATE = 0.93
#: Order of the mean that joins times which overlap imperfectly: 1 would add them, infinity take the largest
#: (estimated).
OVERLAP = 4
#: Share of L2 that a working set can count on beside the streams that pass through it (estimated).
L2_SHARE = 0.5
#: Share of the SMs on which clusters of more than two blocks fit: an H200 holds 30 of four and 15 of eight, one block
#: an SM, as its driver counts them.
CLUSTERED = 120 / 132
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


C_contra = TypeVar("C_contra", contravariant=True)


class Model(Protocol[C_contra]):
    """How long a family's kernels take on one problem and GPU."""

    def estimate(self, config: C_contra) -> Estimate:
        """The modelled time of a configuration that is legal there."""


def operand_bytes(
    problem: Problem, device: DeviceSpec, tile: tuple[int, int], raster: int, slots: int, walk: str = "m"
) -> float:
    """Bytes of A and B read from device memory, given the raster.

    `slots` tiles of `tile` = (rows, columns) are in flight together. Blocks walk groups of `raster` tile rows column by
    column: B passes by once a group unless all of it stays in L2, and a group's rows of A pass by once unless they
    outgrow L2, when each wave's columns read them again. With `walk` "n" rows and columns, A and B trade places.
    """
    held = L2_SHARE * device.l2_bytes
    a, b = problem.signature.a, problem.signature.b
    row_bytes = problem.k * lookup(a.dtype).itemsize
    grouped, passing = (problem.m, tile[0], a), (problem.n, tile[1], b)
    if walk == "n":
        grouped, passing = passing, grouped
    rows, columns = ceil(grouped[0] / grouped[1]), ceil(passing[0] / passing[1])
    group = min(raster, rows)
    stays = min(grouped[0], group * grouped[1]) * row_bytes <= held
    grouped_times = 1 if stays else ceil(columns / max(1, slots // group))
    passing_times = 1 if passing[0] * row_bytes <= held else ceil(rows / group)
    read = 0.0
    for (extent, _, access), times in ((grouped, grouped_times), (passing, passing_times)):
        read += extent * times * (STRIDED_WASTE if access.major == "strided" else 1)
    return problem.batch * row_bytes * read


def clusters_at_once(device: DeviceSpec, size: int) -> int:
    """How many clusters of `size` blocks, one an SM, run together: two SMs that share a TPC always hold a pair."""
    sms = device.sm_count if size <= 2 else int(device.sm_count * CLUSTERED)
    return max(1, sms // size)


def overlap(x: float, y: float, z: float) -> float:
    """The time of three activities that overlap imperfectly, from what each takes on its own."""
    return float((x**OVERLAP + y**OVERLAP + z**OVERLAP) ** (1 / OVERLAP))


def epilogue_costs(
    problem: Problem, device: DeviceSpec, sm_clocks: float, *, line: int | None = None
) -> tuple[float, float]:
    """Bytes that the epilogue exchanges with device memory, and SM clocks per element of A @ B.

    An element is shuffled to its row's lane (what passing it through shared memory would take), computed on, and read
    and written at each tensor's width. With a `line` of so many bytes, outputs leave shared memory line by line, in
    words at least. Rows and columns are too few to count.
    """
    signature = problem.signature
    graph = signature.epilogue
    tensors = [(signature.c, False, False)] if signature.c is not None else []
    tensors += [(x, spec.paired, True) for spec, x in zip(graph.outputs, signature.outputs, strict=True)]
    tensors += [
        (x, spec.paired, False)
        for spec, x in zip(graph.operands, signature.operands, strict=True)
        if spec.kind == "tile"
    ]
    lanes = device.fp32_flops / (2 * sm_clocks)
    clocks = 2 * 4 / SMEM_BYTES_PER_CLK + len(graph.nodes) * SLOTS_PER_NODE / lanes
    elements_bytes = 0.0
    for x, paired, output in tensors:
        share = 0.5 if paired else 1.0
        itemsize = lookup(x.dtype).itemsize
        elements_bytes += share * itemsize
        moved, width = float(itemsize), max(1, x.align // itemsize)
        if output and line is not None and x.major != "strided":
            # A line that is not aligned to sectors touches one more.
            moved *= 1 if x.align >= TMA_ALIGN else 1 + SECTOR / line
            width = max(width, WORD // itemsize)
        elif x.major != "n":  # each element is an access and a sector of its own
            moved, width = SECTOR, 1
        clocks += share * max(moved * sm_clocks / device.l2_bytes_per_s, EPILOGUE_ACCESS / (32 * width))
    return elements_bytes * problem.batch * problem.m * problem.n, clocks
