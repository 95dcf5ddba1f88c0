"""The tile configurations that kernels are built in: plain numbers, free of torch and of the DSL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from cutegemm.dtypes import lookup
from cutegemm.problem import Access

OPERAND_BYTES = 2  # fp16 and bf16, the operands that tiles hold unless a configuration says otherwise
CHUNK_BYTES = 16  # what a thread copies to one place in shared memory, and what the swizzle moves as one
ROW_BYTES = 128  # of the longest row that a swizzle permutes
K_BLOCK_BYTES = 32  # of a row of A, or a column of B, that one mma multiplies: 16 elements of 16 bits, 8 of TF32
PLACE_BYTES = 16  # a block's place in D: tile row and column, and two batch indices
DEFAULT_RASTER = 8
_USUAL = {
    "raster": str(DEFAULT_RASTER),
    "swap_ab": "no",
    "walk": "m",
    "split": "1",
    "pad": "no",
    "bits": str(8 * OPERAND_BYTES),
    "pieces": "1",
    "reduction": "ordered",
    "burst": "1",
}

#: Operands that a kernel multiplies copies of, their rows aligned to 16 bytes.
Pad = Literal["no", "a", "b", "ab"]

#: How parts of K become one sum: kept apart and added in an order that never changes, or as they come, into one.
Reduction = Literal["ordered", "atomic"]


class KernelConfig(Protocol):
    """What every family's configurations have: frozen dataclasses that say how a kernel cuts up a problem."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def tile_m(self) -> int:
        """Rows of a block's tile of D."""

    @property
    def tile_n(self) -> int:
        """Columns of a block's tile of D."""

    @property
    def tile_k(self) -> int:
        """Depth of one step along K."""

    @property
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key; `str` spells it so."""


def spelled(options: Mapping[str, str]) -> str:
    """Options as `key=value,…`; usual values of some go without saying."""
    return ",".join(f"{key}={x}" for key, x in options.items() if _USUAL.get(key) != x)


def vector_elements(access: Access) -> int:
    """Elements that one copy of an operand moves: what its alignment allows (cp.async moves 16, 8 or 4
    bytes), and one, by a plain load, where that is 2 bytes or no dimension is contiguous."""
    return 1 if access.major == "strided" else max(1, min(access.align, 16) // lookup(access.dtype).itemsize)


def plain_loads(access: Access) -> bool:
    """Whether an operand is beyond cp.async: aligned to 2 bytes, or without a contiguous dimension."""
    return access.major == "strided" or access.align < _LEAST_ASYNC


_LEAST_ASYNC = 4  # bytes
#: Registers for each 16 bytes that a thread copies, by the bytes of one copy: along K, and along M or N, where each
#: vector has an edge of its own. A strided operand has an address for every element, all kept.
_ALONG_K = {16: 0.45, 8: 1.5, 4: 1.8, 2: 6.0}
_ALONG_MN = {16: 1.5, 8: 3.0, 4: 6.5, 2: 6.0}
_STRIDED = 3.5  # of an element


def registers_of_a_chunk(access: Access, least: float) -> float:
    """Registers for each 16 bytes that a thread copies; `least` where they lie along M or N."""
    if access.major == "strided":
        return _STRIDED * (CHUNK_BYTES // lookup(access.dtype).itemsize)
    size = vector_elements(access) * lookup(access.dtype).itemsize
    return _ALONG_K[size] if access.major == "k" else max(_ALONG_MN[size], least)


@dataclass(frozen=True, slots=True)
class Config:
    """How one kernel cuts up a problem.

    A block owns `tile_m` x `tile_n` of D and walks K in steps of `tile_k`, `stages` of them in shared memory
    at once; its `warps_m` x `warps_n` warps each own an equal part of the tile. Blocks walk D in groups of
    `raster` tile rows, column by column, so that those in flight together share operands in L2. `split` blocks share a
    tile, each with a part of K, and `pad` names operands that are copied first (see `workspace`). `bits` is what an
    element of the operands has: 16, or 32 for TF32.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    warps_m: int
    warps_n: int
    raster: int = DEFAULT_RASTER
    split: int = 1
    pad: Pad = "no"
    bits: int = 8 * OPERAND_BYTES

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the operands."""
        return self.bits // 8

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
        return (self.tile_m + self.tile_n) * self.tile_k * self.itemsize

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: the pipeline's stages, and the block's place in D."""
        return self.stages * self.stage_bytes + PLACE_BYTES

    def registers(self, a: Access, b: Access) -> int:
        """Registers of a thread, estimated, for operands accessed as `a` and `b`.

        Accumulators, two k-steps of fragments, what copying takes, and 40. Fitted to ptxas's counts of 250 kernels
        (DSL 4.8.1) so that whatever spills is above the 255 that a thread has.
        """
        accumulators = self.warp_m * self.warp_n // 32
        fragments = 2 * (self.warp_m + self.warp_n) * K_BLOCK_BYTES // (32 * 4)
        copies = 0.0
        for access, tile, least in ((a, self.tile_m, 2.9), (b, self.tile_n, 1.5)):
            chunks = tile * self.tile_k * self.itemsize / (CHUNK_BYTES * self.threads)
            copies += chunks * registers_of_a_chunk(access, least)
        return accumulators + fragments + int(copies) + 40

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key."""
        return {
            "tile": f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            "stages": str(self.stages),
            "warps": f"{self.warps_m}x{self.warps_n}",
            "raster": str(self.raster),
            "split": str(self.split),
            "pad": self.pad,
            "bits": str(self.bits),
        }

    def __str__(self) -> str:
        return spelled(self.options())


#: Every configuration that `sm80_multistage` is built in. Large tiles read the least through L2 and shared memory (bf16
#: 4096 x 4096 x 4096 in bursts of milliseconds on an H200, 2026-11: 128x256x64 446 TFLOP/s, 128x128x64 399, 64x64x64
#: 273; under sustained load the clock is lower), and those of 32 along K fit a GPU with 99 KiB for a block; small ones
#: fill the GPU when D is small. A warp tile of 64x64 leaves no registers for plain loads: tiles of eight warps and
#: small ones serve those.
CONFIGS: tuple[Config, ...] = (
    Config(128, 256, 64, stages=3, warps_m=2, warps_n=4, raster=16),
    Config(256, 128, 64, stages=3, warps_m=4, warps_n=2),
    Config(128, 256, 32, stages=4, warps_m=2, warps_n=4),
    Config(256, 128, 32, stages=4, warps_m=4, warps_n=2),
    Config(128, 128, 64, stages=3, warps_m=2, warps_n=2),
    Config(128, 128, 32, stages=4, warps_m=2, warps_n=2),
    Config(128, 128, 32, stages=4, warps_m=4, warps_n=2),
    Config(256, 64, 64, stages=3, warps_m=4, warps_n=2),
    Config(64, 256, 64, stages=3, warps_m=2, warps_n=4),
    Config(128, 64, 64, stages=3, warps_m=2, warps_n=2),
    Config(64, 128, 64, stages=3, warps_m=2, warps_n=2),
    Config(64, 64, 64, stages=4, warps_m=2, warps_n=2),
    Config(64, 64, 32, stages=4, warps_m=2, warps_n=2),
    Config(128, 256, 32, stages=3, warps_m=2, warps_n=4, raster=16, bits=32),
    Config(256, 128, 32, stages=3, warps_m=4, warps_n=2, bits=32),
    Config(128, 128, 32, stages=3, warps_m=2, warps_n=2, bits=32),
    Config(128, 128, 16, stages=4, warps_m=2, warps_n=2, bits=32),
    Config(128, 64, 32, stages=3, warps_m=2, warps_n=2, bits=32),
    Config(64, 128, 32, stages=3, warps_m=2, warps_n=2, bits=32),
    Config(64, 64, 32, stages=4, warps_m=2, warps_n=2, bits=32),
    Config(64, 64, 16, stages=4, warps_m=2, warps_n=2, bits=32),
)
