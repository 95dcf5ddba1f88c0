"""The configurations that `small_m` is built in: plain numbers, free of torch and of the DSL."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES, registers_of_a_chunk
from cutegemm.problem import Access

INSTRUCTION_N = 16  # weights, the rows of mma.sync m16n8k16
GRID_YZ = 65535  # blocks along the grid's other dimensions, where batches lie
SMEM_ALIGN = 1024  # bytes: the swizzle repeats every 8 rows of 128
_PAD = 4  # words that spread the rows of partial sums over the banks


@dataclass(frozen=True, slots=True)
class SmallMConfig:
    """How one kernel cuts up a problem.

    A block owns all of D's rows, at most `tile_m`, and `tile_n` of its columns. Its `warps_k` groups take K's tiles of
    `tile_k` in turns, with `stages` of them in a ring of shared memory of their own; the `warps_n` warps of a group
    share out the columns. `split` blocks, a cluster, take K's tiles in turns between all their groups.
    """

    tile_m: int
    tile_n: int
    stages: int
    warps_n: int
    warps_k: int
    split: int = 1
    tile_k: int = 64

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.group_threads * self.warps_k

    @property
    def group_threads(self) -> int:
        """Threads of a group: those that share a ring."""
        return 32 * self.warps_n

    @property
    def warp_n(self) -> int:
        """Columns of D that one warp multiplies."""
        return self.tile_n // self.warps_n

    @property
    def groups(self) -> int:
        """Groups that share out K's tiles: a cluster's."""
        return self.warps_k * self.split

    @property
    def weight_bytes(self) -> int:
        """Shared memory of a group's weights in one stage."""
        return self.tile_n * self.tile_k * OPERAND_BYTES

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage of one group: a tile of weights and one of A."""
        return self.weight_bytes + self.tile_m * self.tile_k * OPERAND_BYTES

    @property
    def partial_pitch(self) -> int:
        """Words from one row of a group's partial sums to the next."""
        return self.tile_n + _PAD

    @property
    def partial_bytes(self) -> int:
        """Shared memory of one group's partial sums."""
        return self.tile_m * self.partial_pitch * 4

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: its groups' rings, and in the same bytes afterwards their partial sums."""
        return self.warps_k * max(self.stages * self.stage_bytes, self.partial_bytes)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of weights that a block has on their way at a time."""
        return self.warps_k * (self.stages - 1) * self.weight_bytes

    def registers(self, a: Access, b: Access) -> int:
        """Registers of a thread, estimated, for operands accessed as `a` and `b`: accumulators, fragments of two
        16-deep steps, what copying takes (A that does not lie along K is read element by element), and 40."""
        accumulators = self.warp_n * self.tile_m // 32
        fragments = 2 * (self.warp_n + self.tile_m) * 16 * OPERAND_BYTES // (32 * 4)
        if a.major != "k":
            a = Access(a.dtype, "strided", OPERAND_BYTES)
        copies = 0.0
        for access, tile in ((a, self.tile_m), (b, self.tile_n)):
            chunks = tile * self.tile_k * OPERAND_BYTES / (CHUNK_BYTES * self.group_threads)
            copies += chunks * registers_of_a_chunk(access, 1.5)
        return accumulators + fragments + int(copies) + 40

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key."""
        return {
            "tile": f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            "stages": str(self.stages),
            "warps": f"{self.warps_n}x{self.warps_k}",
            "split": str(self.split),
        }

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, value in self.options().items())


#: Every configuration that `small_m` is built in. What a block reads of A beside its weights is tile_m / tile_n of
#: them, through L2: more rows want wider tiles, and those a split of K to make blocks enough. Each height has some for
#: several blocks on an SM, of which one streams while another starts or ends, and some for one block with a deep ring,
#: where there are no more blocks than SMs; and one that fits 99 KiB.
CONFIGS: tuple[SmallMConfig, ...] = (
    SmallMConfig(8, 32, stages=3, warps_n=1, warps_k=4),
    SmallMConfig(8, 32, stages=5, warps_n=1, warps_k=4),
    SmallMConfig(8, 32, stages=5, warps_n=1, warps_k=8),
    SmallMConfig(8, 16, stages=5, warps_n=1, warps_k=4),
    SmallMConfig(8, 16, stages=3, warps_n=1, warps_k=8),
    SmallMConfig(8, 16, stages=4, warps_n=1, warps_k=8),
    SmallMConfig(8, 64, stages=3, warps_n=2, warps_k=4),
    SmallMConfig(8, 64, stages=5, warps_n=2, warps_k=4),
    SmallMConfig(8, 64, stages=5, warps_n=2, warps_k=4, split=2),
    SmallMConfig(8, 32, stages=5, warps_n=1, warps_k=4, split=4),
    SmallMConfig(8, 32, stages=5, warps_n=1, warps_k=4, split=8),
    SmallMConfig(16, 32, stages=4, warps_n=1, warps_k=4),
    SmallMConfig(16, 32, stages=3, warps_n=1, warps_k=8),
    SmallMConfig(16, 64, stages=5, warps_n=2, warps_k=2),
    SmallMConfig(16, 64, stages=5, warps_n=2, warps_k=4),
    SmallMConfig(16, 64, stages=5, warps_n=2, warps_k=4, split=2),
    SmallMConfig(16, 64, stages=5, warps_n=2, warps_k=2, split=4),
    SmallMConfig(16, 64, stages=5, warps_n=2, warps_k=2, split=8),
    SmallMConfig(32, 64, stages=4, warps_n=2, warps_k=2),
    SmallMConfig(32, 128, stages=5, warps_n=4, warps_k=1),
    SmallMConfig(32, 128, stages=5, warps_n=4, warps_k=2),
    SmallMConfig(32, 64, stages=4, warps_n=2, warps_k=4, split=2),
    SmallMConfig(32, 128, stages=5, warps_n=4, warps_k=2, split=4),
    SmallMConfig(32, 64, stages=4, warps_n=2, warps_k=2, split=8),
    SmallMConfig(64, 64, stages=3, warps_n=2, warps_k=2),
    SmallMConfig(64, 128, stages=4, warps_n=4, warps_k=1),
    SmallMConfig(64, 128, stages=4, warps_n=4, warps_k=2),
    SmallMConfig(64, 128, stages=4, warps_n=4, warps_k=2, split=4),
    SmallMConfig(64, 128, stages=4, warps_n=4, warps_k=1, split=8),
)
