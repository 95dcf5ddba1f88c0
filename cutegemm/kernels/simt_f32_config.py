"""The tile configurations of `simt_f32`: plain numbers, free of torch and of the DSL."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.kernels.config import DEFAULT_RASTER, PLACE_BYTES, Pad, spelled
from cutegemm.problem import Access

FLOAT_BYTES = 4
LANES_M, LANES_N = 4, 8  # a warp's lanes over its rows and columns of D
VECTOR = 4  # floats that one access to shared memory moves
#: Floats between the rows of a tile in shared memory: rows 4 banks apart, so that a warp that writes 8 along K and 4
#: along M or N finds 32 banks.
SKEW = 4


@dataclass(frozen=True, slots=True)
class SimtConfig:
    """How one kernel cuts up a problem.

    A block owns `tile_m` x `tile_n` of D and walks K in steps of `tile_k`, `stages` of them in shared memory at once;
    each of its threads owns `thread_m` x `thread_n`. Blocks walk D in groups of `raster` tile rows, column by column.
    `split` and `pad` are as in `Config`.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    thread_m: int
    thread_n: int
    raster: int = DEFAULT_RASTER
    split: int = 1
    pad: Pad = "no"

    @property
    def warp_m(self) -> int:
        """Rows of D that one warp owns."""
        return LANES_M * self.thread_m

    @property
    def warp_n(self) -> int:
        """Columns of D that one warp owns."""
        return LANES_N * self.thread_n

    @property
    def warps_n(self) -> int:
        """Warps side by side."""
        return self.tile_n // self.warp_n

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.tile_m // self.warp_m) * self.warps_n

    @property
    def turned(self) -> str:
        """The operands that a copy may turn along M or N, where they are fetched by 16 bytes."""
        return "ab"

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a tile of A and one of B, each row with its skew."""
        return (self.tile_m + self.tile_n + 2 * SKEW) * self.tile_k * FLOAT_BYTES

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: the pipeline's stages, and the block's place in D."""
        return self.stages * self.stage_bytes + PLACE_BYTES

    def registers(self, a: Access, b: Access) -> int:
        """Registers of a thread, estimated, however operands are accessed: accumulators, the floats of two k, and 32;
        at least what comes before and after the main loop takes.

        Copies need few, for their addresses are made of the thread's first and uniform distances.
        """
        return max(80, self.thread_m * self.thread_n + 2 * (self.thread_m + self.thread_n) + 32)

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key."""
        return {
            "tile": f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            "stages": str(self.stages),
            "thread": f"{self.thread_m}x{self.thread_n}",
            "raster": str(self.raster),
            "split": str(self.split),
            "pad": self.pad,
        }

    def __str__(self) -> str:
        return spelled(self.options())


def vector_floats(access: Access, mn: str) -> int:
    """Floats that one copy of an operand moves: along `mn`, what its alignment allows (cp.async moves 16, 8 or 4
    bytes); one where it is contiguous along K or nowhere."""
    return min(access.align, 16) // FLOAT_BYTES if access.major == mn else 1


#: Every configuration that `simt_f32` is built in: 8 x 16 a thread where D is large, for of what such a thread issues
#: nine tenths are multiply-adds; smaller ones fill the GPU when D is small.
CONFIGS: tuple[SimtConfig, ...] = (
    SimtConfig(128, 256, 16, stages=4, thread_m=8, thread_n=16),
    SimtConfig(128, 256, 32, stages=3, thread_m=8, thread_n=16),
    SimtConfig(256, 128, 16, stages=4, thread_m=8, thread_n=16),
    SimtConfig(128, 128, 16, stages=4, thread_m=8, thread_n=16),
    SimtConfig(128, 128, 32, stages=3, thread_m=8, thread_n=16),
    SimtConfig(128, 128, 16, stages=3, thread_m=8, thread_n=16),
    SimtConfig(128, 128, 16, stages=4, thread_m=8, thread_n=8),
    SimtConfig(64, 128, 16, stages=4, thread_m=8, thread_n=8),
    SimtConfig(64, 64, 16, stages=4, thread_m=8, thread_n=4),
    SimtConfig(32, 64, 16, stages=4, thread_m=4, thread_n=4),
)
