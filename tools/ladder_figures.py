"""The ladder's figures, each from a formula of `cutegemm.roofline` or a fact of `cutegemm.device`: nothing is typed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cutegemm import device
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.hand_kernels.build import FOLDER
from cutegemm.hand_kernels.levels import Level
from cutegemm.planner.model import SMEM_BYTES_PER_CLK
from cutegemm.roofline import attainable, compulsory_bytes, gemm_flops, intensity, ridge_point, traffic_bytes

#: The problem of the pages' figures, M = N = K, and the GPUs they are given for; prose speaks of the last.
SIZE = 4096
GPUS = tuple(device.lookup(name) for name in ("A100", "H100 SXM", "H200"))


def peak(level: Level, gpu: DeviceSpec) -> float:
    """FLOP/s of the unit that the level computes with."""
    return {"fp32": gpu.fp32_flops, "mma": gpu.mma_flops, "wgmma": gpu.peak_flops}[level.unit]


def runs(level: Level, gpu: DeviceSpec) -> bool:
    """Whether the GPU's architecture has what the level is made of."""
    major, minor = gpu.compute_capability
    return 10 * major + minor >= level.since and level.only in (None, gpu.arch)


def shared_bandwidth(gpu: DeviceSpec) -> float:
    """B/s that all SMs together read from shared memory."""
    return SMEM_BYTES_PER_CLK * gpu.sm_count * gpu.clock_hz


@dataclass(frozen=True, slots=True)
class Figures:
    """A level's figures at M = N = K = `SIZE`, as its prose names them ({here.intensity}): numbers with their units."""

    level: Level
    dtype: str
    gpu: DeviceSpec

    @property
    def item(self) -> int:
        return lookup(self.dtype).itemsize

    @property
    def loaded_bytes(self) -> int:
        """What threads load of A and B; one read of A serves `reuse[0]` columns, one of B `reuse[1]` rows."""
        return traffic_bytes(SIZE, SIZE, SIZE, self.item, self.level.reuse[1], self.level.reuse[0])

    @property
    def flop_per_byte(self) -> float:
        return intensity(gemm_flops(SIZE, SIZE, SIZE), self.loaded_bytes)

    @property
    def fragment(self) -> tuple[int, int] | None:
        """Rows and columns of the outputs that one read of shared memory feeds: a thread's of CUDA cores, a warp's or
        one wgmma's of tensor cores. None where nothing is shared."""
        level, given = self.level, dict(self.level.parameters)
        if level.smem_bytes == 0:
            return None
        if level.unit == "fp32":
            outputs = level.tile_m * level.tile_n // level.threads
            return given.get("THREAD_M", outputs), given.get("THREAD_N", 1)
        if "WARP_M" in given:
            return given["WARP_M"], given["WARP_N"]
        found = re.search(r"W(?:ARP|GMMA)_M = (\d+), W(?:ARP|GMMA)_N = (\d+)", (FOLDER / level.source).read_text())
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def shared_flop_per_byte(self) -> float | None:
        """FLOP per byte read from shared memory."""
        if self.fragment is None:
            return None
        rows, columns = self.fragment
        return intensity(gemm_flops(rows, columns, 1), traffic_bytes(rows, columns, 1, self.item, rows, columns))

    # What prose names.

    @property
    def flops(self) -> str:
        return f"{gemm_flops(SIZE, SIZE, SIZE) / 1e9:.0f} GFLOP"

    @property
    def loaded(self) -> str:
        return size(self.loaded_bytes)

    @property
    def compulsory(self) -> str:
        return size(compulsory_bytes(SIZE, SIZE, SIZE, self.item))

    @property
    def times(self) -> str:
        """How many times over A and B are loaded."""
        return f"{self.loaded_bytes / (2 * SIZE * SIZE * self.item):.0f}"

    @property
    def intensity(self) -> str:
        return f"{self.flop_per_byte:.3g} FLOP/B"

    @property
    def shared(self) -> str:
        """Empty where nothing is shared."""
        return "" if self.shared_flop_per_byte is None else f"{self.shared_flop_per_byte:.3g} FLOP/B"

    @property
    def ridge(self) -> str:
        return f"{ridge_point(peak(self.level, self.gpu), self.gpu.hbm_bytes_per_s):.3g} FLOP/B"

    @property
    def shared_ridge(self) -> str:
        return f"{ridge_point(peak(self.level, self.gpu), shared_bandwidth(self.gpu)):.3g} FLOP/B"

    @property
    def peak(self) -> str:
        return rate(peak(self.level, self.gpu))

    @property
    def attainable(self) -> str:
        return rate(attainable(self.flop_per_byte, peak(self.level, self.gpu), self.gpu.hbm_bytes_per_s))

    @property
    def load_time(self) -> str:
        """How long device memory would take over all that is loaded."""
        return f"{self.loaded_bytes / self.gpu.hbm_bytes_per_s * 1e3:.3g} ms"

    @property
    def tiles(self) -> str:
        return f"{self.level.blocks(SIZE, SIZE)}"

    @property
    def waves(self) -> str:
        return f"{self.level.blocks(SIZE, SIZE) / self.gpu.sm_count:.3g}"

    @property
    def stage_clocks(self) -> str:
        """Clocks that an SM's unit takes over one step of a block, at its peak."""
        step = gemm_flops(self.level.tile_m, self.level.tile_n, self.level.depth(self.dtype))
        return f"{step * self.gpu.sm_count * self.gpu.clock_hz / peak(self.level, self.gpu):.0f} clocks"

    @property
    def share(self) -> str:
        low, high = self.level.share
        return f"{low:.0%} to {high:.0%}"


def figures(level: Level, gpu: DeviceSpec = GPUS[-1]) -> Figures:
    """Those of a level in fp32, or in bf16 where it has no fp32."""
    return Figures(level, "fp32" if "fp32" in level.dtypes else "bf16", gpu)


def size(count: float) -> str:
    """Bytes in words: decimal units, three digits."""
    unit, divisor = next((u, d) for u, d in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1)) if count >= d)
    return f"{count / divisor:.3g} {unit}"


def rate(flops: float) -> str:
    """FLOP/s in words."""
    return f"{flops / 1e12:.3g} TFLOP/s"
