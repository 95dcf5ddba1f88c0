"""The tile configurations that kernels are built in: plain numbers, free of torch and of the DSL."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.problem import Access

OPERAND_BYTES = 2  # fp16 and bf16, the operands that these tiles hold


def vector_elements(access: Access) -> int:
    """Elements that one copy of an operand moves: what its alignment allows (cp.async moves 16, 8 or 4
    bytes), and one, by a plain load, where that is 2 bytes or no dimension is contiguous."""
    return 1 if access.major == "strided" else max(1, min(access.align, 16) // OPERAND_BYTES)


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel cuts up a problem.

    A block owns `tile_m` x `tile_n` of D and walks K in steps of `tile_k`, `stages` of them in shared memory
    at once; its `warps_m` x `warps_n` warps each own an equal part of the tile. Blocks walk D in groups of
    `raster` tile rows, column by column, so that those in flight together share operands in L2.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps_m: int
    warps_n: int
    raster: int = 8

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    @property
    def warp_m(self) -> int:
        """Rows of D that one warp owns."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that one warp owns."""
        return self.tile_n // self.warps_n

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a tile of A and one of B."""
        return (self.tile_m + self.tile_n) * self.tile_k * OPERAND_BYTES

    @property
    def epilogue_bytes(self) -> int:
        """Shared memory of the epilogue: a band of 16 rows of fp32 per warp, each row 8 floats longer than
        the data.
        """
        return self.warps_m * self.warps_n * 16 * (self.warp_n + 8) * 4

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: the pipeline's stages, whose place the epilogue takes once they are
        spent.
        """
        return max(self.stages * self.stage_bytes, self.epilogue_bytes)

    def registers(self, a: Access, b: Access) -> int:
        """Registers of a thread, estimated, for operands accessed as `a` and `b`.

        Accumulators, two k-steps of fragments, the addresses of the vectors that the thread copies, and 40.
        Fitted to ptxas's counts of 100 kernels for sm_90a (DSL 4.8.1): addresses along a contiguous dimension
        are recomputed from a few, those of a strided operand are all kept.
        """
        accumulators = self.warp_m * self.warp_n // 32
        fragments = 2 * (self.warp_m + self.warp_n) * 16 * OPERAND_BYTES // (32 * 4)
        addresses = 0.0
        for access, tile in ((a, self.tile_m), (b, self.tile_n)):
            vectors = tile * self.tile_k / (vector_elements(access) * self.threads)
            addresses += vectors * (3.5 if access.major == "strided" else 0.5)
        return accumulators + fragments + int(addresses) + 40

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        text = f"tile={tile},stages={self.stages},warps={self.warps_m}x{self.warps_n}"
        return text if self.raster == 8 else f"{text},raster={self.raster}"


#: Every configuration that `sm80_multistage` is built in. Large tiles read the least through L2 and shared
#: memory; small ones fill the GPU when D is small; deep pipelines hide latency when K is long and blocks are
#: few. Narrow copies need an address for each of many small vectors: tiles with more threads or less K serve
#: them.
CONFIGS: tuple[Config, ...] = (
    Config(256, 128, 32, stages=4, warps_m=4, warps_n=2),
    Config(256, 128, 32, stages=3, warps_m=4, warps_n=2),
    Config(128, 256, 32, stages=4, warps_m=2, warps_n=4),
    Config(128, 256, 32, stages=3, warps_m=2, warps_n=4),
    Config(128, 128, 32, stages=5, warps_m=2, warps_n=2),
    Config(128, 128, 32, stages=4, warps_m=2, warps_n=2),
    Config(128, 128, 32, stages=3, warps_m=2, warps_n=2),
    Config(128, 128, 64, stages=4, warps_m=2, warps_n=2),
    Config(128, 128, 64, stages=3, warps_m=2, warps_n=2),
    Config(128, 128, 32, stages=4, warps_m=4, warps_n=2),
    Config(256, 64, 32, stages=4, warps_m=4, warps_n=1),
    Config(64, 256, 32, stages=4, warps_m=1, warps_n=4),
    Config(128, 64, 64, stages=4, warps_m=2, warps_n=2),
    Config(128, 64, 64, stages=3, warps_m=2, warps_n=2),
    Config(64, 128, 64, stages=4, warps_m=2, warps_n=2),
    Config(64, 128, 64, stages=3, warps_m=2, warps_n=2),
    Config(64, 64, 64, stages=6, warps_m=2, warps_n=2),
    Config(64, 64, 64, stages=4, warps_m=2, warps_n=2),
    Config(64, 64, 32, stages=4, warps_m=2, warps_n=2),
)
