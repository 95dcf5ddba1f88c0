"""The configurations that CUTLASS C++ kernels are generated in: plain numbers, free of torch and of CUTLASS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cutegemm.dtypes import lookup
from cutegemm.kernels.config import Pad, spelled

_USUAL_ALIGN = 16
#: What a configuration's text leaves out.
_UNSAID = {
    "stages": "0",
    "warps": "1x1",
    "cluster": "1x1",
    "swizzle": "1",
    "raster": "auto",
    "reduction": "turnstile",
    "pack": "no",
    "align": str(_USUAL_ALIGN),
}

#: Into how many parts K is split, or that blocks get equal shares of all steps.
Split = int | Literal["stream"]
Schedule = Literal["twostage", "multistage", "cooperative", "pingpong"]
Raster = Literal["auto", "m", "n"]
Reduction = Literal["turnstile", "parallel"]


@dataclass(frozen=True, slots=True)
class CutlassConfig:
    """One CUTLASS kernel, whatever its operands are.

    A block computes `tile_m` x `tile_n` of D in steps along K of `depth_bytes` of a row. `schedule` is the kernel's
    kind: "twostage" (tensor cores of sm_75), "multistage" (cp.async, sm_80 and newer), both with `warps_m` x `warps_n`
    warps, and "cooperative" or "pingpong" (TMA and wgmma, sm_90a) with clusters of `cluster_m` x `cluster_n` blocks.
    `stages` of 0 are as many as fit. Of Hopper's, clusters take up to `swizzle` tiles side by side in turn, which share
    operands in L2, and go on along `raster`.

    `split` parts of K make a tile: summed in fp32 in the order of K, by blocks that wait for one another ("turnstile")
    or by a kernel of its own ("parallel"). `stream`: blocks get equal shares of all steps, whichever tiles they are of.
    Of Hopper's kernels `pack` names the operands that are copied first, into rows of K as TMA and wgmma take them.
    `align` is what rows and addresses of A and B have to be aligned to in bytes, and the most that one copy moves.
    """

    schedule: Schedule
    tile_m: int
    tile_n: int
    depth_bytes: int
    stages: int
    warps_m: int = 1
    warps_n: int = 1
    cluster_m: int = 1
    cluster_n: int = 1
    swizzle: int = 1
    raster: Raster = "auto"
    split: int = 1
    reduction: Reduction = "turnstile"
    stream: bool = False
    pack: Pad = "no"
    align: int = _USUAL_ALIGN

    @property
    def hopper(self) -> bool:
        """Whether it is made of CUTLASS 3's collectives."""
        return self.schedule in ("cooperative", "pingpong")

    @property
    def shares_tiles(self) -> bool:
        """Whether blocks add their sums of a tile up among themselves."""
        return self.stream or (self.split > 1 and self.reduction == "turnstile")

    @property
    def since(self) -> int:
        """The least compute capability, 10 x major + minor."""
        return {"twostage": 75, "multistage": 80}.get(self.schedule, 90)

    @property
    def splitting(self) -> Split:
        """`split_k=` of it."""
        return "stream" if self.stream else self.split

    def splits(self, split: Split) -> Iterator[CutlassConfig]:
        """The configurations that split K so, of this one which does not. Stream-K on Hopper is for cooperative
        warps, and two-stage kernels have it as well."""
        if split == "stream":
            if self.schedule != "pingpong":
                yield replace(self, stream=True)
        elif split == 1:
            yield self
        else:
            if self.schedule != "pingpong":
                yield replace(self, split=split)
            if not self.hopper:
                yield replace(self, split=split, reduction="parallel")

    def depth(self, dtype: str) -> int:
        """Elements of a step along K."""
        return self.depth_bytes // lookup(dtype).itemsize

    @property
    def tile_k(self) -> int:
        """Elements of a step along K, of 16 bits each."""
        return self.depth_bytes // 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        if self.hopper:
            return 384
        return 32 * self.warps_m * self.warps_n

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block's stages; the epilogue's comes on top where the stages are as many as fit."""
        return max(self.stages, 2) * (self.tile_m + self.tile_n) * self.depth_bytes

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key."""
        return {
            "tile": f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            "stages": str(self.stages),
            "warps": f"{self.warps_m}x{self.warps_n}",
            "cluster": f"{self.cluster_m}x{self.cluster_n}",
            "schedule": self.schedule,
            "swizzle": str(self.swizzle),
            "raster": self.raster,
            "split": str(self.splitting),
            "reduction": self.reduction,
            "pack": self.pack,
            "align": str(self.align),
        }

    def __str__(self) -> str:
        return spelled({key: x for key, x in self.options().items() if _UNSAID.get(key) != x})


def _aligned(config: CutlassConfig) -> Iterator[CutlassConfig]:
    """The configuration, and those whose copies are narrower: cp.async moves at least 4 bytes, plain loads any."""
    yield config
    for align in (8, 4) if config.schedule == "multistage" else (8, 4, 2):
        yield replace(config, align=align)


def _configs() -> Iterator[CutlassConfig]:
    # 64 x 64 outputs a warp where the tile allows it: CUTLASS's own choices for these architectures.
    for m, n, warps in ((256, 128, (4, 2)), (128, 256, (2, 4)), (128, 128, (2, 2)), (64, 64, (2, 2))):
        yield from _aligned(CutlassConfig("twostage", m, n, 64, 2, *warps))
    for m, n, depth, stages, warps in (
        (256, 128, 64, 3, (4, 2)),
        (128, 256, 64, 3, (2, 4)),
        (256, 128, 128, 3, (4, 2)),
        (128, 256, 128, 3, (2, 4)),
        (128, 128, 64, 4, (2, 2)),
        (128, 128, 64, 5, (2, 2)),
        (128, 64, 64, 6, (2, 2)),
        (64, 64, 64, 6, (2, 2)),
    ):
        yield from _aligned(CutlassConfig("multistage", m, n, depth, stages, *warps))
    hopper: tuple[tuple[int, int, int, int, Schedule], ...] = (
        (128, 256, 8, 2, "cooperative"),  # 8 tiles side by side: 6% faster than 1 (8192 x 8192 x 8192, H200, 2026-11)
        (256, 128, 8, 2, "cooperative"),
        (128, 128, 8, 2, "cooperative"),
        (64, 256, 8, 2, "pingpong"),
        (64, 128, 8, 2, "pingpong"),
        (64, 64, 1, 1, "pingpong"),
    )
    for m, n, swizzle, cluster, schedule in hopper:
        config = CutlassConfig(schedule, m, n, 128, 0, cluster_m=cluster, swizzle=swizzle, raster="n")
        for pack in get_args(Pad):
            yield replace(config, pack=pack)


#: Every configuration that the planner knows; `splits` makes those that split K.
CONFIGS: tuple[CutlassConfig, ...] = tuple(_configs())
