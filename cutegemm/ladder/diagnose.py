"""From a level's counters to its bottleneck and to what to read next: a decision, with its evidence read together.

Bytes near the formula say that less was moved, sectors per request near the ideal that it was moved neatly, the pipe's
share that it was put to use. Bytes that have gone down under a pipe that idles point at conflicts or at occupancy.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.hand_kernels import Level, find
from cutegemm.hand_kernels.walk import Move, Scheme, scheme
from cutegemm.ladder.rungs import Rung, peak
from cutegemm.roofline import Occupancy, compulsory_bytes

_SECTOR, _WARP = 32, 32
#: Where a share of a unit counts as high, and where the arithmetic counts as busy.
HIGH, BUSY_FMA, BUSY_TENSOR, SHORT = 0.6, 0.65, 0.75, 0.9
#: Sectors over the ideal, and conflicts over wavefronts, from which they count.
SCATTERED, CONFLICTED = 1.5, 0.1
#: Resident warps, of those that an SM could hold, below which latency has little to hide behind.
FEW_WARPS = 0.3
#: What to read for fewer words a product, by a level's number.
_TILES: dict[int, str | None] = {1: "level3", 2: "level3", 3: "level4", 4: "level5", 5: "level6"}
_TILES |= {6: "level7", 7: "level8", 8: "level9", 9: "level10", 10: None}


@dataclass(frozen=True, slots=True)
class Metrics:
    """What ncu counted of one launch: bytes, microseconds, and shares from 0 to 1; None where it has no such counter.

    `ld_bytes` are sectors of global loads at L1, on an H200 those of cp.async among them; `cp_async_bytes` is what
    cp.async alone asked for. TMA is in neither.
    """

    time_us: float
    ld_bytes: float | None = None
    cp_async_bytes: float | None = None
    sectors_per_request: float | None = None
    bank_conflicts: float | None = None
    shared_wavefronts: float | None = None
    l1_share: float | None = None
    fma_share: float | None = None
    tensor_share: float | None = None
    dram_bytes: float | None = None

    @property
    def loaded_bytes(self) -> float | None:
        """Bytes of global loads: a level's are plain or cp.async, so that the larger count has them all, and once."""
        return max((x for x in (self.ld_bytes, self.cp_async_bytes) if x is not None), default=None)

    @property
    def conflict_share(self) -> float | None:
        """Bank conflicts over the wavefronts of shared memory, in which they are counted; 0 without any."""
        if self.bank_conflicts is None or self.shared_wavefronts is None:
            return None
        return self.bank_conflicts / self.shared_wavefronts if self.shared_wavefronts else 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a level should cause: bytes by the traffic formula, at L1 in whole sectors with a warp's broadcasts counted
    once, and sectors per request, as its lanes lie and at the least. The last are None where cp.async does it all, and
    bytes at L1 too where TMA does: its copies are no loads of a thread's."""

    formula_bytes: float
    l1_bytes: float | None
    sectors_per_request: float | None
    ideal_sectors: float | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits a level, what says so, and which level to read next, None where there is nothing above."""

    bottleneck: str
    remedy: str
    next: str | None
    evidence: tuple[str, ...]


def expected(rung: Rung) -> Expected:
    """By the walk of a whole tile and step, times their number."""
    n = rung.n
    if rung.level.boxes is not None:
        return Expected(rung.loaded_bytes, None, None, None)
    walk = scheme(rung.level, n, n, n, rung.dtype)
    requests = _requests(walk)
    if not requests:
        return Expected(rung.loaded_bytes, rung.loaded_bytes, None, None)
    sectors = sum(len(_sectors(request)) for request in requests)
    least = sum(-(-len(_bytes(request)) // _SECTOR) for request in requests)
    steps, blocks = n / walk.depth, rung.level.blocks(n, n)
    count = len(requests)
    return Expected(rung.loaded_bytes, sectors * _SECTOR * steps * blocks, sectors / count, least / count)


def _requests(walk: Scheme) -> list[list[tuple[int, int]]]:
    """What the warps of a block ask for in a step with plain loads: each lane's first byte and bytes."""
    level = walk.level
    requests: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for y in range(level.block[1]):
        for x in range(level.block[0]):
            warp = walk.linear((x, y)) // _WARP
            for i, move in enumerate(walk.loads((0, 0), (x, y), 0)):
                for j, access in enumerate(_accesses(walk, move)):
                    requests.setdefault((warp, i, j), []).append(access)
    return list(requests.values())


def _accesses(walk: Scheme, move: Move) -> list[tuple[int, int]]:
    if move.instruction == "cp.async":
        return []
    size, base = move.valid * walk.itemsize, (1 << 50 if move.matrix == "b" else 0) + move.address
    return [(base + at, move.width) for at in range(0, size, move.width)]


def _bytes(request: list[tuple[int, int]]) -> set[int]:
    return {first + i for first, size in request for i in range(size)}


def _sectors(request: list[tuple[int, int]]) -> set[int]:
    return {(first + i) // _SECTOR for first, size in request for i in range(size)}


def diagnose(rung: Rung, metrics: Metrics, wanted: Expected, gpu: DeviceSpec, held: Occupancy | None) -> Diagnosis:
    """The first of these that holds, and the level to read next:

    accesses scattered over sectors -> coalesce; bank conflicts -> padding or a swizzle; FMA pipe busy -> tensor cores;
    tensor cores busy -> shape, padding, split-K; DRAM high and arithmetic low -> tiling; L1 high -> larger or register
    tiles; tensor cores waiting -> stages; else latency, with what the occupancy `held` says of it.
    """
    level, fp32 = rung.level, rung.level.unit == "fp32"
    rate = rung.flops / metrics.time_us * 1e6 / peak(level.unit, gpu)
    pipe = metrics.fma_share if fp32 else metrics.tensor_share
    # mma.sync fills less than the whole tensor pipe of GPUs that have a faster instruction: its rate counts too.
    compute = max(rate, pipe or 0.0)
    dram = None if metrics.dram_bytes is None else metrics.dram_bytes / metrics.time_us * 1e6 / gpu.hbm_bytes_per_s
    seen = _evidence(rung, metrics, wanted, compute, dram, held)
    sectors, conflicts = metrics.sectors_per_request, metrics.conflict_share or 0.0

    def found(bottleneck: str, remedy: str, next: str | None) -> Diagnosis:
        only = None if next is None else find(next).only
        return Diagnosis(bottleneck, remedy, next if only in (None, gpu.arch) else None, seen)

    if sectors and wanted.ideal_sectors and sectors > SCATTERED * wanted.ideal_sectors:
        remedy = "coalesce: neighbouring bytes to neighbouring lanes"
        return found("accesses scattered over sectors", remedy, _above(rung, 1))
    if conflicts > CONFLICTED:
        return found("bank conflicts in shared memory", "padding or a swizzle", _above(rung, 4 if fp32 else 7))
    if fp32 and compute >= BUSY_FMA:
        return found("the FMA pipe", "tensor cores", "level6")
    if not fp32 and compute >= BUSY_TENSOR:
        if compute >= SHORT:
            return found("the tensor cores", "stop: only another instruction is faster", _above(rung, 10))
        return found("a few points short of the tensor cores", "shape, padding, split-K", _above(rung, 9))
    if dram is not None and dram >= HIGH:
        return found("device memory", "tiling, or larger tiles: fewer bytes for each product", _next_tiles(rung))
    if metrics.l1_share is not None and metrics.l1_share >= HIGH:
        remedy = "register tiles" if level.smem_bytes else "tiles in shared memory"
        return found("L1 and shared memory", f"{remedy}: fewer words for each product", _next_tiles(rung))
    if not fp32:
        return found("tensor cores that wait for data", "more stages, fragments loaded ahead", _above(rung, 7))
    if not level.smem_bytes:
        return found("latency of loads", "wider loads, then tiles in shared memory", _next_tiles(rung))
    return found(_idle(held), "more work for a thread, more loads under way", _next_tiles(rung))


def _idle(held: Occupancy | None) -> str:
    """What an idle pipe, with few bytes and no conflicts, comes down to."""
    if held is None or held.share >= FEW_WARPS:
        return "latency: the pipe idles though bytes are down"
    return f"occupancy: too few warps to hide latency, limited by {' and '.join(held.limited_by)}"


def _next_tiles(rung: Rung) -> str | None:
    """The next level up with more outputs for each word that moves; None at the top."""
    return _TILES[_rank(rung.level)]


def _above(rung: Rung, least: int) -> str | None:
    """Level `least`, or the next one after this where that is further up; None at the top. A variant's next is the
    level that it varies."""
    rank = max(least, _rank(rung.level) + ("-" not in rung.level.name))
    return f"level{rank}" if rank <= max(_TILES) else None


def _rank(level: Level) -> int:
    return int(level.name.partition("-")[0].removeprefix("level"))


def _evidence(
    rung: Rung, metrics: Metrics, wanted: Expected, compute: float, dram: float | None, held: Occupancy | None
) -> tuple[str, ...]:
    """The findings side by side, each with what it should be."""
    seen = []
    loaded = metrics.loaded_bytes
    if loaded is not None and wanted.l1_bytes is not None:
        ratio = loaded / wanted.l1_bytes
        how = "what its lanes ask for" if 0.9 <= ratio <= 1.15 else f"{ratio:.2g} times what its lanes ask for"
        seen.append(f"moved {loaded / 1e9:.3g} GB, {how}; the formula has {wanted.formula_bytes / 1e9:.3g}")
    if metrics.sectors_per_request and wanted.ideal_sectors:
        seen.append(f"{metrics.sectors_per_request:.3g} sectors a request, {wanted.ideal_sectors:.3g} at the least")
    if metrics.conflict_share is not None and rung.level.smem_bytes:
        seen.append(f"bank conflicts in {metrics.conflict_share:.0%} of shared memory's wavefronts")
    seen.append(f"{'FMA pipe' if rung.level.unit == 'fp32' else 'tensor cores'} {compute:.0%} busy")
    if dram is not None and metrics.dram_bytes is not None:
        item = lookup(rung.dtype).itemsize
        read = compulsory_bytes(rung.n, rung.n, rung.n, item) - item * rung.n**2
        seen.append(f"DRAM {dram:.0%} busy, each byte read {metrics.dram_bytes / read:.2g} times")
    if held is not None:
        limit = " and ".join(held.limited_by)
        smem = "" if "shared memory" in held.limited_by else ", not shared memory"
        seen.append(f"{held.blocks} blocks an SM ({held.share:.0%} of its warps), limited by {limit}{smem}")
    return tuple(seen)
