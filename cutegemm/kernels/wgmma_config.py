"""The configurations that `sm90_wgmma` is built in: plain numbers, free of torch and of the DSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cutegemm.kernels.config import DEFAULT_RASTER, K_BLOCK_BYTES, OPERAND_BYTES, Pad, Reduction, spelled
from cutegemm.kernels.staging import SLOT_BYTES, SLOTS, Staging, staging

if TYPE_CHECKING:
    from cutegemm.problem import Signature

CONSUMERS = 2  # warpgroups that multiply
WARPGROUP = 128  # threads
INSTRUCTION_M = 64  # rows of one wgmma, 16 for each warp of a warpgroup
BARRIER_BYTES = 16  # a stage's full and empty mbarrier
SWIZZLE_BYTES = 128  # the widest swizzle
SWIZZLE_ALIGN = 1024  # it repeats every 8 rows
MAX_ACCUMULATORS = 192  # of a consumer's 232 registers, a thread
SUM_BYTES = 4  # fp32
SMEM_BYTES = 227 * 1024  # that a block can have where there is wgmma
_SLOTS = 4 * CONSUMERS * SLOTS  # of all warps that multiply
FLAG_BYTES = 32  # a block's flags, one for each consumer, in a sector of L2


def clusters_at_once(sm_count: Any, size: int) -> Any:
    """How many clusters of `size` blocks, one block an SM, run together. Two SMs that share a TPC always hold a pair;
    larger clusters do not fill every GPC: an H200, of 132 SMs, holds 30 of four and 15 of eight, as its driver counts
    them. `sm_count` may be the DSL's."""
    return sm_count // size if size <= 2 else sm_count * 10 // 11 // size


@dataclass(frozen=True, slots=True)
class WgmmaConfig:
    """How one kernel cuts up a problem.

    A block works through `tile_m` x `tile_n` tiles of D and walks K in steps of `tile_k`, `stages` of them in shared
    memory at once. Its two consumer warpgroups share each tile, half its rows each, or alternate (`pingpong`): one
    finishes its tile while the other multiplies. `cluster_m` x `cluster_n` blocks work on neighbouring tiles and read
    each operand once between them. They walk D in groups of `raster` tile rows, column by column; or, with `walk` "n",
    in groups of `raster` tile columns, row by row. With `swap_ab` all of this is said of D^T = B^T A^T: `tile_m` lies
    along N, and a small M becomes the instruction's N. K is `split` into so many parts. `cluster_k` of them are in
    blocks of one cluster, of `cluster_m` x `cluster_n` x `cluster_k` in all, which add up their sums through each
    other's shared memory (see `cluster_sum`); what then remains of a tile goes through the workspace, to be added up in
    order or, with `reduction` "atomic", as it comes. With `stream`, clusters get equal shares of the k-tiles of a last,
    partial wave and a full one instead (see `stream_k`). `pad` names operands that are copied first (see `workspace`).
    The producer asks for `burst` k-tiles at a time, as soon as so many stages are free: adjacent lines of the same
    rows, which device memory gives faster one after the other. Of operands that consist of `pieces`, a stage holds all.
    `bits` is what an element of the operands has: 16, or 32 for TF32.
    """

    tile_m: int
    tile_n: int
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False
    raster: int = DEFAULT_RASTER
    tile_k: int = 64
    swap_ab: bool = False
    walk: Literal["m", "n"] = "m"
    split: int = 1
    pad: Pad = "no"
    pieces: int = 1
    cluster_k: int = 1
    reduction: Reduction = "ordered"
    stream: bool = False
    burst: int = 1
    bits: int = 8 * OPERAND_BYTES

    @property
    def threads(self) -> int:
        """Threads of a block: a producer warpgroup and the consumers."""
        return (1 + CONSUMERS) * WARPGROUP

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def share_n(self) -> int:
        """Columns of a tile that one block of a cluster adds up and finishes."""
        return self.tile_n // self.cluster_k

    @property
    def received_bytes(self) -> int:
        """Shared memory for what the other blocks of a cluster have of this one's share of a tile, or of its consumers'
        tiles."""
        return (self.cluster_k - 1) * CONSUMERS * self.group_m * self.share_n * SUM_BYTES

    @property
    def group_m(self) -> int:
        """Rows of D that one consumer warpgroup computes at a time."""
        return self.tile_m if self.pingpong else self.tile_m // CONSUMERS

    @property
    def accumulators(self) -> int:
        """Accumulator registers of a consumer's thread."""
        return self.group_m * self.tile_n // WARPGROUP

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the operands."""
        return self.bits // 8

    @property
    def fragments(self) -> int:
        """Registers of a consumer's thread for a tile of A that passes through them."""
        return self.group_m * self.tile_k // WARPGROUP

    @property
    def turned(self) -> str:
        """The operands that a copy may turn along K, which it does in TF32."""
        return "ab"

    @property
    def along_k(self) -> str:
        """Those of them that have to lie along K: TF32's instruction reads no others in shared memory. A (B with
        `swap_ab`) may pass through registers instead, where they have room for fragments of a whole tile
        (`tf32_registers`)."""
        if self.itemsize == OPERAND_BYTES:
            return ""
        if self.row_bytes < SWIZZLE_BYTES or self.accumulators + self.fragments > MAX_ACCUMULATORS:
            return self.turned
        return self.turned.replace("b" if self.swap_ab else "a", "")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a K-major tile."""
        return self.tile_k * self.itemsize

    @property
    def k_blocks(self) -> int:
        """Instructions along K that multiply a tile."""
        return self.row_bytes // K_BLOCK_BYTES

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage: a tile of A and one of B, or of each of their pieces."""
        return (self.tile_m + self.tile_n) * self.row_bytes * self.pieces

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block: the pipeline's stages, a cluster's sums, the epilogue's slots, and room to align
        their swizzles."""
        return self._bytes_beside_slots + _SLOTS * self.slot_bytes

    @property
    def slot_bytes(self) -> int:
        """Shared memory of each of the epilogue's slots: half of what it would be where the stages leave no room for
        that."""
        return SLOT_BYTES if self._bytes_beside_slots + _SLOTS * SLOT_BYTES <= SMEM_BYTES else SLOT_BYTES // 2

    @property
    def _bytes_beside_slots(self) -> int:
        sums = self.received_bytes + (4 * CONSUMERS * BARRIER_BYTES if self.cluster_k > 1 else 0)
        barriers = _SLOTS * BARRIER_BYTES // 2
        return self.stages * (self.stage_bytes + BARRIER_BYTES) + sums + barriers + 2 * SWIZZLE_ALIGN

    def staging(self, signature: Signature) -> Staging | None:
        """How a consumer's epilogue stages `signature`, the one of the problem that blocks work on."""
        return staging(signature, self.share_n, self.accumulators, self.slot_bytes)

    @property
    def cluster(self) -> str:
        """A cluster's extents, as `kernel=` spells them: along M, N, and K where that is split within it."""
        return f"{self.cluster_m}x{self.cluster_n}" + (f"x{self.cluster_k}" if self.cluster_k > 1 else "")

    @property
    def sums_bytes(self) -> int:
        """Memory for a block's sums of a part of a tile."""
        return self.tile_m * self.tile_n * SUM_BYTES

    def exchange_bytes(self, sm_count: Any) -> Any:
        """Memory in which the blocks of a GPU hand sums of parts of tiles to each other (see `fixup`)."""
        blocks = clusters_at_once(sm_count, self.cluster_size) * self.cluster_size
        return blocks * (self.sums_bytes + FLAG_BYTES) if self.stream else 0

    def options(self) -> dict[str, str]:
        """What a `kernel=` string can say about it, by key."""
        return {
            "tile": f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            "stages": str(self.stages),
            "cluster": self.cluster,
            "schedule": "pingpong" if self.pingpong else "cooperative",
            "raster": str(self.raster),
            "swap_ab": "yes" if self.swap_ab else "no",
            "walk": self.walk,
            "split": "stream" if self.stream else str(self.split),
            "pad": self.pad,
            "pieces": str(self.pieces),
            "reduction": self.reduction,
            "burst": str(self.burst),
            "bits": str(self.bits),
        }

    def __str__(self) -> str:
        return spelled(self.options())


#: Every configuration that `sm90_wgmma` is built in for 16-bit operands, with what each is for. Slices of a tile that
#: lies along M or N are whole swizzle atoms of 64, so other widths serve K-major operands only.
CONFIGS: tuple[WgmmaConfig, ...] = (
    # Many tiles and a short K: nothing waits for an epilogue.
    WgmmaConfig(128, 192, stages=4, cluster_m=2, pingpong=True),
    WgmmaConfig(128, 192, stages=4, cluster_n=2, pingpong=True, walk="n"),
    WgmmaConfig(128, 192, stages=4, pingpong=True),
    WgmmaConfig(128, 176, stages=5, cluster_m=2, pingpong=True),
    WgmmaConfig(128, 160, stages=5, cluster_m=2, pingpong=True),
    WgmmaConfig(128, 160, stages=5, pingpong=True),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, pingpong=True, raster=16),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, pingpong=True),
    WgmmaConfig(128, 128, stages=6, pingpong=True),
    # Few tiles or a long K: a larger tile reads less for each product, and spends less of the power on it.
    WgmmaConfig(128, 256, stages=4, cluster_m=2, raster=16),
    WgmmaConfig(128, 256, stages=4, cluster_n=2, walk="n"),
    WgmmaConfig(128, 256, stages=4),
    WgmmaConfig(256, 128, stages=4, cluster_n=2),
    WgmmaConfig(256, 128, stages=4, cluster_n=2, raster=16, walk="n"),
    WgmmaConfig(256, 160, stages=3, cluster_n=2),
    WgmmaConfig(256, 160, stages=3, cluster_n=2, raster=16, walk="n"),
    WgmmaConfig(256, 128, stages=4),
    # One wave, or little more: what fills the GPU.
    WgmmaConfig(128, 224, stages=4, cluster_m=2),
    WgmmaConfig(128, 224, stages=4),
    WgmmaConfig(128, 192, stages=4, cluster_m=2),
    WgmmaConfig(128, 192, stages=4),
    WgmmaConfig(128, 160, stages=5),
    WgmmaConfig(128, 144, stages=5, walk="n"),
    WgmmaConfig(256, 144, stages=4, cluster_n=2),
    WgmmaConfig(256, 144, stages=4),
    WgmmaConfig(256, 144, stages=4, cluster_n=2, swap_ab=True),
    WgmmaConfig(256, 144, stages=4, swap_ab=True),
    WgmmaConfig(128, 128, stages=6, cluster_m=2),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, cluster_n=2),
    WgmmaConfig(128, 128, stages=6),
    WgmmaConfig(128, 96, stages=6, cluster_m=2),
    WgmmaConfig(128, 96, stages=6),
    # Small problems, for which no tile above makes blocks enough.
    WgmmaConfig(128, 64, stages=8, cluster_m=2),
    WgmmaConfig(128, 64, stages=8),
    WgmmaConfig(64, 128, stages=8, cluster_m=4, cluster_n=2, pingpong=True),
    WgmmaConfig(64, 128, stages=8, cluster_m=2, pingpong=True),
    WgmmaConfig(64, 128, stages=8, pingpong=True),
    WgmmaConfig(64, 96, stages=9, cluster_m=2, pingpong=True),
    WgmmaConfig(64, 64, stages=8, pingpong=True),
    WgmmaConfig(64, 32, stages=14, pingpong=True),
    # A few rows of D: tiles above would multiply mostly padding.
    WgmmaConfig(128, 64, stages=7, cluster_m=4, swap_ab=True),
    WgmmaConfig(128, 64, stages=7, swap_ab=True),
    WgmmaConfig(128, 32, stages=9, cluster_m=4, swap_ab=True),
    WgmmaConfig(128, 32, stages=9, swap_ab=True),
    WgmmaConfig(64, 32, stages=14, pingpong=True, swap_ab=True),
    WgmmaConfig(64, 16, stages=16, pingpong=True, swap_ab=True),
    # Too few tiles for the GPU, and a long K: parts of it are added up in clusters.
    WgmmaConfig(128, 128, stages=5, cluster_k=2, split=2),
    WgmmaConfig(128, 128, stages=5, cluster_m=2, cluster_k=2, split=2),
    WgmmaConfig(128, 128, stages=5, cluster_m=2, cluster_n=2, cluster_k=2, split=2),
    WgmmaConfig(128, 128, stages=4, cluster_m=2, cluster_k=4, split=4),
    WgmmaConfig(64, 64, stages=9, pingpong=True, cluster_m=2, cluster_n=2, cluster_k=2, split=2),
    WgmmaConfig(128, 64, stages=7, cluster_k=2, split=2),
    WgmmaConfig(128, 64, stages=7, cluster_k=4, split=4),
    WgmmaConfig(128, 64, stages=7, cluster_n=2, cluster_k=2, split=2),
    WgmmaConfig(128, 64, stages=7, cluster_n=2, cluster_k=4, split=4),
    WgmmaConfig(128, 64, stages=7, cluster_k=2, split=2, swap_ab=True),
    WgmmaConfig(128, 64, stages=7, cluster_m=2, cluster_k=2, split=2, swap_ab=True),
    WgmmaConfig(128, 32, stages=9, cluster_k=2, split=2, swap_ab=True),
    WgmmaConfig(64, 64, stages=10, pingpong=True, cluster_k=2, split=2, swap_ab=True),
    WgmmaConfig(64, 32, stages=14, pingpong=True, cluster_k=2, split=2, swap_ab=True),
    # The same, where weights pass by once: several lines of a row at a time, for two blocks that share the other
    # operand. (bf16 64 x 28672 x 4096 on an H200, 2026-11: 61.2 us, one line at a time 62.6; in another run 59.3,
    # without sharing 60.5. Where clusters split K several lines make no difference; smaller tiles lose by them.)
    WgmmaConfig(128, 64, stages=7, cluster_m=2, swap_ab=True, burst=2),
    WgmmaConfig(128, 32, stages=9, cluster_m=2, swap_ab=True, burst=4),
    WgmmaConfig(128, 16, stages=11, cluster_m=2, swap_ab=True, burst=4),
)

#: Those for fp32 operands in pieces. There are as many sums as accumulators, and a stage holds three tiles of each
#: operand, half as deep.
OF_PIECES: tuple[WgmmaConfig, ...] = (
    WgmmaConfig(128, 192, stages=3, cluster_m=2, tile_k=32, pieces=3),
    WgmmaConfig(128, 192, stages=3, cluster_n=2, tile_k=32, pieces=3, walk="n"),
    WgmmaConfig(128, 192, stages=3, tile_k=32, pieces=3),
    WgmmaConfig(128, 176, stages=3, cluster_m=2, tile_k=32, pieces=3),
    WgmmaConfig(128, 128, stages=4, cluster_m=2, tile_k=32, pieces=3),
    WgmmaConfig(128, 128, stages=4, tile_k=32, pieces=3),
    WgmmaConfig(128, 64, stages=5, tile_k=32, pieces=3),
    WgmmaConfig(128, 32, stages=6, tile_k=32, pieces=3, swap_ab=True),
)

#: Those for fp32 operands in TF32: a stage has as many bytes as one of 16-bit operands, and half as many of K. Large
#: ones with `swap_ab` are for an N-major B, which passes through registers (see `along_k`).
OF_TF32: tuple[WgmmaConfig, ...] = (
    WgmmaConfig(128, 256, stages=4, cluster_m=2, tile_k=32, raster=16, bits=32),
    WgmmaConfig(128, 256, stages=4, cluster_n=2, tile_k=32, walk="n", bits=32),
    WgmmaConfig(128, 256, stages=4, tile_k=32, bits=32),
    WgmmaConfig(256, 128, stages=4, cluster_n=2, tile_k=32, bits=32),
    WgmmaConfig(256, 128, stages=4, tile_k=32, bits=32),
    WgmmaConfig(128, 192, stages=4, cluster_m=2, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(128, 192, stages=4, cluster_n=2, tile_k=32, pingpong=True, walk="n", bits=32),
    WgmmaConfig(128, 192, stages=4, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(128, 192, stages=4, cluster_m=2, tile_k=32, bits=32),
    WgmmaConfig(128, 192, stages=4, tile_k=32, bits=32),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(128, 128, stages=6, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, tile_k=32, bits=32),
    WgmmaConfig(128, 128, stages=6, tile_k=32, bits=32),
    WgmmaConfig(128, 64, stages=8, tile_k=32, bits=32),
    WgmmaConfig(64, 128, stages=8, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(64, 64, stages=8, tile_k=32, pingpong=True, bits=32),
    WgmmaConfig(128, 256, stages=4, cluster_m=2, tile_k=32, raster=16, swap_ab=True, bits=32),
    WgmmaConfig(128, 256, stages=4, cluster_n=2, tile_k=32, walk="n", swap_ab=True, bits=32),
    WgmmaConfig(128, 256, stages=4, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(256, 128, stages=4, cluster_n=2, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(128, 192, stages=4, cluster_m=2, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(128, 192, stages=4, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(128, 160, stages=5, cluster_m=2, tile_k=32, pingpong=True, swap_ab=True, bits=32),
    WgmmaConfig(128, 128, stages=6, cluster_m=2, tile_k=32, pingpong=True, swap_ab=True, bits=32),
    WgmmaConfig(128, 128, stages=6, tile_k=32, pingpong=True, swap_ab=True, bits=32),
    WgmmaConfig(128, 128, stages=6, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(128, 64, stages=7, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(128, 32, stages=9, tile_k=32, swap_ab=True, bits=32),
    WgmmaConfig(64, 16, stages=16, tile_k=32, pingpong=True, swap_ab=True, bits=32),
)
