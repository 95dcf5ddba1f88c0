"""The ladder as data: what each level is, how it is launched, what it serves and what traffic it should cause.

A level is a configuration of the family `hand`: `gemm(..., kernel="hand:level5")`. Nothing here needs a GPU, torch or a
compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from cutegemm.dtypes import lookup

#: What a block can have without asking, in bytes; more is dynamic and needs an attribute set on the kernel.
STATIC_SHARED_LIMIT = 48 * 1024
_ALL = ("fp32", "fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Level:
    """One hand-written kernel. See `LEVELS`.

    `title` and `idea` introduce it. `share` is the share of the unit's peak that the literature's trend leads to expect
    (fp32 CUDA cores, mma.sync or wgmma): printed beside what is measured, not a pass mark.
    A block of `block` (x, y) threads computes `tile_m` x `tile_n` of D; along K it goes in steps of `depth_bytes` a row
    (0: nothing is staged), `stages` of them in shared memory, which takes `shared_bytes`, asked for at the launch where
    `dynamic`. `columns` is how many neighbouring outputs of a row a thread holds: an epilogue with a pair needs 2.
    One read of A from global memory serves `reuse[0]` outputs, one of B `reuse[1]`.
    `dtypes` are those of A and B, `since` the least compute capability (10 * major + minor) and `only` the one
    architecture where that is so. `parameters` are further macros of the source. `headers`: it includes mma.h.
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
    depth_bytes: int = 0
    stages: int = 1
    shared_bytes: int = 0
    dynamic: bool = False
    columns: int = 1
    dtypes: tuple[str, ...] = _ALL
    since: int = 75
    only: str | None = None
    headers: bool = False
    parameters: tuple[tuple[str, int], ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1]

    @property
    def tile_k(self) -> int:
        """Elements of K in one step, for the widest dtype that the level serves; 1 where nothing is staged."""
        return self.depth("fp32" if "fp32" in self.dtypes else self.dtypes[0])

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.shared_bytes

    @property
    def dynamic_bytes(self) -> int:
        """Shared memory that a launch has to ask for."""
        return self.shared_bytes if self.dynamic else 0

    def depth(self, dtype: str) -> int:
        """Elements of K in one step."""
        return max(1, self.depth_bytes // lookup(dtype).itemsize)

    def options(self) -> dict[str, str]:
        """The one thing that a `kernel=` string says about it."""
        return {"level": self.name}

    def __str__(self) -> str:
        return self.name

    def blocks(self, m: int, n: int) -> int:
        """Blocks of a launch: all along grid x, which is the one dimension that goes beyond 65,535."""
        return ceil(m / self.tile_m) * ceil(n / self.tile_n)

    def macros(self) -> dict[str, int]:
        """What the source is compiled with."""
        named = {"TILE_M": self.tile_m, "TILE_N": self.tile_n, "THREADS": self.threads, "STAGES": self.stages}
        return named | ({"DEPTH_BYTES": self.depth_bytes} if self.depth_bytes else {}) | dict(self.parameters)

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
)
"""Every level and its variants, from the slowest to the fastest."""


def find(name: str) -> Level:
    """The level called `name`, such as "level5". Raises `KeyError` with the names that there are."""
    for level in LEVELS:
        if level.name == name:
            return level
    raise KeyError(f"{name!r}: there are {', '.join(level.name for level in LEVELS)}")
