"""The ladder as data: what each level is, how it is launched, what it serves and what traffic it should cause.

A level is a configuration of the family `hand`: `gemm(..., kernel="hand:level5")`. Nothing here needs a GPU, torch or a
compiler.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from cutegemm.dtypes import lookup

#: What a block can have without asking, in bytes; more is dynamic and needs an attribute set on the kernel.
STATIC_SHARED_LIMIT = 48 * 1024
#: The least steps along K of a block that shares a tile, and how many may: one of them reads the sums of all.
SPLIT_STEPS, MAX_SPLITS = 4, 8
_ALL = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Level:
    """One hand-written kernel. See `LEVELS`.

    `title` and `idea` introduce it. `share` is the share of the unit's peak that the literature's trend leads to expect
    (fp32 CUDA cores, mma.sync or wgmma): printed beside what is measured, not a pass mark.
    A block of `block` (x, y) threads computes `tile_m` x `tile_n` of D. Along K it goes in steps of `tile_k` elements:
    1 where nothing is staged, and where a step is `packed`, so many bytes, twice as many of 16-bit elements. `stages`
    steps take `smem_bytes` of shared memory, asked for at the launch where `dynamic`. `columns` is how many neighbours
    of a row of D a thread holds: an epilogue with a pair needs 2.
    One read of A from global memory serves `reuse[0]` outputs, one of B `reuse[1]`.
    `dtypes` are those of A and B, `since` the least compute capability (10 * major + minor) and `only` the one
    architecture where that is so. `parameters` are further macros of the source. `headers`: it includes mma.h.
    `split_k`: several blocks may share a tile, each a part of K (`splits`).
    `boxes` (rows, columns), of A and of B, are what TMA copies at a time: the kernel takes their tensor maps too, and
    rows have to be aligned to 16 bytes. `cluster` blocks take the tiles above one another, and where that is more than
    one, clusters stay on their SMs and take tile after tile.
    """

    name: str
    source: str
    title: str
    idea: str
    unit: Literal["fp32", "mma", "wgmma"]
    share: tuple[float, float]
    tile_m: int
    tile_n: int
    block: tuple[int, int]
    reuse: tuple[int, int]
    tile_k: int = 1
    packed: bool = False
    stages: int = 1
    smem_bytes: int = 0
    dynamic: bool = False
    columns: int = 1
    dtypes: tuple[str, ...] = _ALL
    since: int = 75
    only: str | None = None
    headers: bool = False
    split_k: bool = False
    boxes: tuple[tuple[int, int], tuple[int, int]] | None = None
    cluster: int = 1
    parameters: tuple[tuple[str, int], ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1]

    @property
    def dynamic_bytes(self) -> int:
        """Shared memory that a launch has to ask for."""
        return self.smem_bytes if self.dynamic else 0

    def depth(self, dtype: str) -> int:
        """Elements of K in one step."""
        return self.tile_k * (4 // lookup(dtype).itemsize if self.packed else 1)

    def options(self) -> dict[str, str]:
        """The one thing that a `kernel=` string says about it."""
        return {"level": self.name}

    def __str__(self) -> str:
        return self.name

    def blocks(self, m: int, n: int) -> int:
        """Blocks that take a tile each, whole clusters of them."""
        return ceil(m / (self.cluster * self.tile_m)) * self.cluster * ceil(n / self.tile_n)

    def grid(self, m: int, n: int, splits: int, sm_count: int) -> int:
        """Blocks of a launch: all along grid x, which is the one dimension that goes beyond 65,535."""
        blocks = self.blocks(m, n) * splits
        if self.cluster == 1:
            return blocks
        return min(blocks, max(1, sm_count // self.cluster) * self.cluster)

    def splits(self, m: int, n: int, k: int, dtype: str, sm_count: int) -> int:
        """Blocks that share a tile: as many as keep `sm_count` SMs busy where tiles alone don't, if each has some K."""
        if not self.split_k:
            return 1
        steps = ceil(k / self.depth(dtype))
        return max(1, min(sm_count // self.blocks(m, n), steps // SPLIT_STEPS, MAX_SPLITS))

    def part_bytes(self, m: int, n: int, splits: int) -> int:
        """Workspace for the parts' sums, in fp32."""
        return 4 * splits * self.blocks(m, n) * self.tile_m * self.tile_n

    def macros(self, dtype: str) -> dict[str, int]:
        """What the source is compiled with for A and B of `dtype`."""
        tile = {"TILE_M": self.tile_m, "TILE_N": self.tile_n, "TILE_K": self.depth(dtype)}
        cluster = {} if self.cluster == 1 else {"CLUSTER": self.cluster}
        return tile | {"THREADS": self.threads, "STAGES": self.stages} | cluster | dict(self.parameters)

    def loaded_bytes(self, m: int, n: int, k: int, dtype: str) -> int:
        """Bytes of A and B that the threads load from global memory, as the profiler counts them at L1.

        Each of the m n k products needs an element of A and one of B: with nothing shared that is 2 m n k elements
        (Volkov and Demmel 2008); a tile of B x B divides it by B. Broadcasts within a warp are not counted as reuse.
        """
        products = m * n * k
        return (products // self.reuse[0] + products // self.reuse[1]) * lookup(dtype).itemsize

    def intensity(self, m: int, n: int, k: int, dtype: str) -> float:
        """Floating-point operations per byte loaded: 0.25 for the naive level in fp32, B/4 for tiles of B x B."""
        return 2 * m * n * k / self.loaded_bytes(m, n, k, dtype)


def _tuned(name: str, tile_m: int, tile_n: int, tile_k: int, *, stages: int, blocks_per_sm: int = 1) -> Level:
    """A configuration of level 8: warps of 64 x 64."""
    return Level(
        name=name,
        source="level8_tuned.cu",
        title=f"tuned, {tile_m} x {tile_n} x {tile_k}",
        idea=f"level 7 as a template, here with warps of 64 x 64, {stages} stages and fragments loaded ahead",
        unit="mma",
        share=(0.80, 0.90),
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        stages=stages,
        block=(tile_m // 64 * (tile_n // 64) * 32, 1),
        reuse=(tile_n, tile_m),
        smem_bytes=stages * (tile_m + tile_n) * tile_k * 2,
        dynamic=True,
        columns=8,
        dtypes=("fp16", "bf16"),
        since=80,
        parameters=(("WARP_M", 64), ("WARP_N", 64), ("BLOCKS_PER_SM", blocks_per_sm)),
    )


_LEVEL8 = _tuned("level8", 256, 128, 64, stages=3)

LEVELS: tuple[Level, ...] = (
    Level(
        name="level1",
        source="level1_naive.cu",
        title="naive",
        idea="one thread computes one output; threadIdx.x runs along columns",
        unit="fp32",
        share=(0.0, 0.01),
        tile_m=8,
        tile_n=32,
        block=(32, 8),
        reuse=(1, 1),
    ),
    Level(
        name="level1-uncoalesced",
        source="level1_naive.cu",
        title="naive, uncoalesced",
        idea="the same with threadIdx.x along rows: every lane of a warp reads and writes another row",
        unit="fp32",
        share=(0.0, 0.01),
        tile_m=32,
        tile_n=8,
        block=(32, 8),
        reuse=(1, 1),
        parameters=(("X_ALONG_ROWS", 1),),
    ),
    Level(
        name="level2",
        source="level2_vectorized.cu",
        title="vectorized",
        idea="a thread computes four neighbouring outputs and reads 16 bytes at a time",
        unit="fp32",
        share=(0.02, 0.05),
        tile_m=8,
        tile_n=128,
        block=(32, 8),
        reuse=(4, 1),
        columns=4,
        parameters=(("UNROLL", 2),),
    ),
    Level(
        name="level3",
        source="level3_tiled.cu",
        title="tiled",
        idea="a block reads tiles of A and B once, into shared memory, between two barriers",
        unit="fp32",
        share=(0.10, 0.20),
        tile_m=32,
        tile_n=32,
        tile_k=32,
        block=(32, 8),
        reuse=(32, 32),
        smem_bytes=2 * 32 * 32 * 4,
    ),
    Level(
        name="level4",
        source="level4_bank_conflict_free.cu",
        title="bank-conflict-free, swizzled",
        idea="A lies transposed for 16-byte reads, its places permuted so that neither writes nor reads collide",
        unit="fp32",
        share=(0.20, 0.35),
        tile_m=64,
        tile_n=64,
        tile_k=32,
        block=(64, 8),
        reuse=(64, 64),
        smem_bytes=(64 + 64) * 32 * 4,
        parameters=(("SWIZZLED", 1), ("PADDING", 0)),
    ),
    Level(
        name="level4-padded",
        source="level4_bank_conflict_free.cu",
        title="bank-conflict-free, padded",
        idea="the same with rows of the transposed tile four elements longer, and another order of copying",
        unit="fp32",
        share=(0.20, 0.35),
        tile_m=64,
        tile_n=64,
        tile_k=32,
        block=(64, 8),
        reuse=(64, 64),
        smem_bytes=(64 + 4 + 64) * 32 * 4,
        parameters=(("SWIZZLED", 0), ("PADDING", 4)),
    ),
    Level(
        name="level4-conflicting",
        source="level4_bank_conflict_free.cu",
        title="transposed, eight writes to a bank",
        idea="the same with neither: what the profiler shows of bank conflicts",
        unit="fp32",
        share=(0.20, 0.35),
        tile_m=64,
        tile_n=64,
        tile_k=32,
        block=(64, 8),
        reuse=(64, 64),
        smem_bytes=(64 + 64) * 32 * 4,
        parameters=(("SWIZZLED", 0), ("PADDING", 0)),
    ),
    Level(
        name="level5",
        source="level5_register_tiled.cu",
        title="register-tiled",
        idea="a thread computes 8 x 16 outputs from registers while cp.async fetches the next step",
        unit="fp32",
        share=(0.35, 0.50),
        tile_m=128,
        tile_n=128,
        tile_k=8,
        packed=True,
        stages=2,
        block=(128, 1),
        reuse=(128, 128),
        smem_bytes=2 * (128 + 128) * 32,
        columns=4,
        since=80,
        parameters=(("THREAD_M", 8), ("THREAD_N", 16), ("A_BYTES", 8), ("BLOCKS_PER_SM", 2)),
    ),
    Level(
        name="level5-square",
        source="level5_register_tiled.cu",
        title="register-tiled, 8 x 8",
        idea="the same with half the outputs a thread: more words from shared memory, more warps to hide latency",
        unit="fp32",
        share=(0.35, 0.50),
        tile_m=64,
        tile_n=128,
        tile_k=8,
        packed=True,
        stages=2,
        block=(128, 1),
        reuse=(128, 64),
        smem_bytes=2 * (64 + 128) * 32,
        columns=4,
        since=80,
        parameters=(("THREAD_M", 8), ("THREAD_N", 8), ("A_BYTES", 8), ("BLOCKS_PER_SM", 3)),
    ),
    Level(
        name="level6",
        source="level6_wmma.cu",
        title="wmma",
        idea="a warp computes 16 x 16 x 16 products in one call: the tensor cores through nvcuda::wmma",
        unit="mma",
        share=(0.50, 0.70),
        tile_m=128,
        tile_n=128,
        tile_k=32,
        stages=2,
        block=(256, 1),
        reuse=(128, 128),
        smem_bytes=2 * (128 * (32 + 8) + 32 * (128 + 8)) * 2,
        columns=8,
        dtypes=("fp16", "bf16"),
        since=80,
        headers=True,
    ),
    Level(
        name="level7",
        source="level7_mma_ptx.cu",
        title="mma_ptx",
        idea="ldmatrix and mma.sync in PTX from swizzled tiles, three steps of cp.async under way",
        unit="mma",
        share=(0.70, 0.80),
        tile_m=128,
        tile_n=128,
        tile_k=32,
        stages=4,
        block=(256, 1),
        reuse=(128, 128),
        smem_bytes=4 * (128 + 128) * 32 * 2,
        dynamic=True,
        columns=8,
        dtypes=("fp16", "bf16"),
        since=80,
        parameters=(("WARP_M", 32), ("WARP_N", 64), ("BLOCKS_PER_SM", 2)),
    ),
    _tuned("level8-128x128x32", 128, 128, 32, stages=4, blocks_per_sm=2),
    _tuned("level8-128x256x32", 128, 256, 32, stages=4),
    _tuned("level8-256x128x32", 256, 128, 32, stages=4),
    _LEVEL8,
    replace(
        _LEVEL8,
        name="level9",
        source="level9_specialized.cu",
        title="specialized",
        idea="whole tiles copied with no predicates, and K split over blocks where tiles are few, summed in order",
        share=(0.90, 0.95),
        split_k=True,
    ),
    Level(
        name="level10",
        source="level10_wgmma.cu",
        title="wgmma, TMA",
        idea="Hopper's instructions: TMA copies boxes, wgmma multiplies from shared memory, warps have one job each",
        unit="wgmma",
        share=(0.70, 0.85),
        tile_m=128,
        tile_n=256,
        tile_k=64,
        stages=4,
        block=(384, 1),
        reuse=(256, 256),
        smem_bytes=4 * ((128 + 256) * 64 * 2 + 2 * 8),
        dynamic=True,
        columns=8,
        dtypes=("fp16", "bf16"),
        since=90,
        only="sm_90a",
        boxes=((128, 64), (64, 64)),
        cluster=2,
        parameters=(("RASTER", 8),),
    ),
)
"""Every level and its variants, from the slowest to the fastest."""


def find(name: str) -> Level:
    """The level called `name`, such as "level5". Raises `KeyError` with the names that there are."""
    for level in LEVELS:
        if level.name == name:
            return level
    raise KeyError(f"{name!r}: there are {', '.join(level.name for level in LEVELS)}")
