"""The models that a kernel is judged by: work, traffic, the roofline, and how many blocks an SM holds.

FLOP counts a multiplication and an addition as two. Intensity is in FLOP per byte of device memory, rates are FLOP/s
and B/s, times seconds. A GEMM is D (M, N) = A (M, K) @ B (K, N). Every function raises `ArgumentError` for a value
that no kernel or GPU can have.

The roofline is Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError

__all__ = [
    "MAX_REGISTERS",
    "MAX_THREADS",
    "Occupancy",
    "Verdict",
    "attainable",
    "compulsory_bytes",
    "gemm_flops",
    "gemm_intensity",
    "intensity",
    "occupancy",
    "ridge_point",
    "roofline_time",
    "traffic_bytes",
    "verdict",
]

#: Threads of a block and registers of a thread, at most, on every architecture.
MAX_THREADS, MAX_REGISTERS = 1024, 255

_WARP = 32
# What an SM's register file is given out in: 256 registers at a time to a warp, from the quarter of the file that
# belongs to the warp's own scheduler.
_REGISTER_UNIT, _SCHEDULERS = 256, 4


# ---------------------------------------------------------------- work and traffic


def gemm_flops(m: int, n: int, k: int) -> int:
    """FLOP of an (m, k) @ (k, n) product: 2 m n k."""
    _counts(m=m, n=n, k=k)
    return 2 * m * n * k


def compulsory_bytes(m: int, n: int, k: int, itemsize: int, out_itemsize: int | None = None) -> int:
    """Bytes that an (m, k) @ (k, n) product can't avoid: A and B read once, D written once.

    `itemsize` is the bytes of an element of A and B, `out_itemsize` of D (default: the same).
    """
    out_itemsize = itemsize if out_itemsize is None else out_itemsize
    _counts(m=m, n=n, k=k, itemsize=itemsize, out_itemsize=out_itemsize)
    return itemsize * (m * k + k * n) + out_itemsize * m * n


def traffic_bytes(m: int, n: int, k: int, itemsize: int, tile_m: int = 1, tile_n: int | None = None) -> int:
    """Bytes of A and B that blocks of `tile_m` x `tile_n` of D read from global memory, caches apart.

    Each column of tiles reads A and each row of tiles B: `itemsize * m n k (1 / tile_m + 1 / tile_n)` where the tiles
    divide D, so 2 N^3 / B elements for a square problem in tiles of B x B. `tile_n` defaults to `tile_m`; a tile of 1,
    the default, is the naive kernel, which reads both elements of every product: 2 m n k elements.
    """
    tile_n = tile_m if tile_n is None else tile_n
    _counts(m=m, n=n, k=k, itemsize=itemsize, tile_m=tile_m, tile_n=tile_n)
    return itemsize * k * (m * -(-n // tile_n) + n * -(-m // tile_m))


def intensity(flops: float, moved_bytes: float) -> float:
    """Arithmetic intensity, in FLOP/B, of `flops` on `moved_bytes` from and to device memory.

    A vector addition in fp32 has `intensity(1, 12)`: 0.083 FLOP/B.
    """
    _positive(flops=flops, moved_bytes=moved_bytes)
    return flops / moved_bytes


def gemm_intensity(m: int, n: int, k: int, itemsize: int, out_itemsize: int | None = None) -> float:
    """The highest intensity, in FLOP/B, that a kernel for (m, k) @ (k, n) can have: on `compulsory_bytes` alone."""
    return intensity(gemm_flops(m, n, k), compulsory_bytes(m, n, k, itemsize, out_itemsize))


# ---------------------------------------------------------------- the roofline


def ridge_point(peak: float, bandwidth: float) -> float:
    """The intensity, in FLOP/B, from which `peak` FLOP/s binds and no longer `bandwidth` B/s: their ratio."""
    _positive(peak=peak, bandwidth=bandwidth)
    return peak / bandwidth


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """FLOP/s that a kernel of `intensity` FLOP/B can reach: min(peak, intensity * bandwidth)."""
    _positive(intensity=intensity, peak=peak, bandwidth=bandwidth)
    return min(peak, intensity * bandwidth)


def roofline_time(flops: float, moved_bytes: float, peak: float, bandwidth: float) -> float:
    """Seconds that `flops` and `moved_bytes` need at the least, fully overlapped: the longer of the two."""
    _positive(flops=flops, moved_bytes=moved_bytes, peak=peak, bandwidth=bandwidth)
    return max(flops / peak, moved_bytes / bandwidth)


class Verdict(Enum):
    """Where a kernel stands under the roofline, and what that asks for; `str` says both."""

    UNDER = "under the slope: mend the access"
    SLOPE = "on the slope: raise intensity"
    ROOF = "on the roof: stop"

    def __str__(self) -> str:
        return self.value


def verdict(achieved: float, intensity: float, peak: float, bandwidth: float, *, near: float = 0.8) -> Verdict:
    """What to do about a kernel that does `achieved` FLOP/s at `intensity` FLOP/B.

    Under `near` of what is `attainable` there, neither unit is busy and the way data reaches them is at fault:
    coalescing, bank conflicts, too few loads in flight; that holds right of the ridge too. Otherwise memory is busy
    (left of the ridge) or the arithmetic is (from it on). Where "near" begins is a convention: copies reach 0.8 to
    0.9 of a datasheet's bandwidth.
    """
    _positive(achieved=achieved, near=near)
    if achieved < near * attainable(intensity, peak, bandwidth):
        return Verdict.UNDER
    return Verdict.SLOPE if intensity < ridge_point(peak, bandwidth) else Verdict.ROOF


# ---------------------------------------------------------------- occupancy


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks and warps of a kernel an SM holds at once; no blocks: the kernel can't be launched.

    `limits` has, by resource ("registers", "shared memory", "threads", "blocks"), the blocks that it alone would
    allow. `max_warps` is what the SM could hold.
    """

    blocks: int
    warps: int
    max_warps: int
    limits: Mapping[str, int]

    @property
    def share(self) -> float:
        """Resident warps over those that the SM could hold."""
        return self.warps / self.max_warps

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no more blocks than there are."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(device: DeviceSpec, *, threads: int, registers: int, smem: int = 0) -> Occupancy:
    """The occupancy of blocks of `threads`, with `registers` a thread and `smem` bytes of shared memory a block.

    Warps take registers in units of 256 from their scheduler's quarter of the file, blocks take shared memory in units
    of 128 bytes (256 before sm_80), with what the driver reserves for each, out of the largest carve-out. These are the
    rules of the CUDA toolkit's cuda_occupancy.h.
    Raises `ArgumentError` for a block that no GPU could launch; one that this GPU can't has no blocks.
    """
    _counts(threads=threads, registers=registers)
    for name, value, most in (("threads", threads, MAX_THREADS), ("registers", registers, MAX_REGISTERS)):
        if value > most:
            raise ArgumentError(f"{name}={value}: at most {most}")
    if smem < 0:
        raise ArgumentError(f"smem={smem}: expected bytes, 0 or more")
    warps = -(-threads // _WARP)
    max_warps = device.max_threads_per_sm // _WARP
    warp_registers = _round_up(registers * _WARP, _REGISTER_UNIT)
    warps_by_registers = device.registers_per_sm // _SCHEDULERS // warp_registers * _SCHEDULERS
    limits = {
        "registers": warps_by_registers // warps,
        "shared memory": _blocks_by_smem(device, smem),
        "threads": max_warps // warps,
        "blocks": device.max_blocks_per_sm,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, max_warps, limits)


def _blocks_by_smem(device: DeviceSpec, smem: int) -> int:
    if smem > device.smem_per_block:
        return 0
    taken = _round_up(smem + device.smem_reserved_per_block, 128 if device.compute_capability >= (8, 0) else 256)
    return device.smem_per_sm // taken if taken else device.max_blocks_per_sm


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _counts(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}={value!r}: expected a whole number of at least 1")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ArgumentError(f"{name}={value!r}: expected a positive, finite number")
