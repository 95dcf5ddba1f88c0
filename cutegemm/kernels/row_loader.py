"""Rows of a K-major operand to shared memory by cp.async, with a predicate on every copy.

The layout in shared memory is that of `tile_loader`, which serves every other operand. Where copies have a predicate,
zeros take the place of what lies past an edge, rows past the last one cost no traffic, and only a copy that straddles
the end of K is made element by element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES
from cutegemm.kernels.tile_loader import CHUNK_ELEMENTS, SharedTile, load_bits_if


@dataclass(frozen=True)
class RowLoader:
    """Moves (tile_mn, tile_k) tiles of a K-major operand; each of `threads` takes the same columns of several rows.

    `vector` elements are copied at a time: 8, 4 or 2.
    """

    shared: SharedTile
    threads: int
    vector: int

    def prepare(self, tid: Any, base: Any, stride: Any, extent: Any, origin: Any, smem: Any) -> Rows:
        """The addresses that thread `tid` reads and writes: `base` is the operand's address for this batch entry,
        `stride` its rows' distance in elements, `origin` the tile's first row of `extent`, `smem` the address of
        stage 0."""
        (first, k), *_ = places = self.places(tid)
        source = base + (Int64(origin + first) * stride + Int64(k)) * OPERAND_BYTES
        return Rows(
            self, source, Int64(self._rows_apart * OPERAND_BYTES) * stride, k,
            tuple(smem + self.shared.byte_offset(mn, k) for mn, k in places),
            tuple(origin + mn < extent for mn, _ in places),
        )  # fmt: skip

    def places(self, tid: Any) -> list[tuple[Any, Any]]:
        """Row and first column of each 16-byte chunk of a tile that thread `tid` copies."""
        per_row = self.shared.tile_k // CHUNK_ELEMENTS
        first, k = tid // per_row, tid % per_row * CHUNK_ELEMENTS
        return [(first + ahead, k) for ahead in range(0, self.shared.tile_mn, self._rows_apart)]

    @property
    def _rows_apart(self) -> int:
        """Rows that the threads take at a time."""
        return self.threads * CHUNK_ELEMENTS // self.shared.tile_k


@dataclass(frozen=True)
class Rows:
    """One thread's share of every tile: the source of its first chunk at K = 0 and the distance to the next, the
    position along K that all have, and each chunk's address in stage 0 and whether its row exists."""

    loader: RowLoader
    source: Any
    step: Any
    k: Any
    targets: tuple[Any, ...]
    inside: tuple[Any, ...]

    def fetch(self, advance: Any, stage: Any) -> None:
        """Start copying the tile `advance` bytes along K, which lies before K's end, into `stage`."""
        shift = stage * self.loader.shared.stage_bytes
        for i, (target, inside) in enumerate(zip(self.targets, self.inside, strict=True)):
            source = self.source + advance + i * self.step
            for offset in range(0, CHUNK_BYTES, self._size):
                cp_async_if(target + shift + offset, source + offset, self._size, inside)

    @cute.jit
    def fetch_last(self, advance: Int64, k_left: Int32) -> None:
        """Start copying the tile `advance` bytes along K, `k_left` of whose columns lie before K's end, into stage
        0."""
        left = k_left - self.k
        for i in cutlass.range_constexpr(len(self.targets)):
            source = self.source + advance + i * self.step
            for offset in cutlass.range_constexpr(0, CHUNK_BYTES, self._size):
                end = left - (offset // OPERAND_BYTES + self.loader.vector)
                cp_async_if(
                    self.targets[i] + offset, source + offset, self._size, Boolean((end >= 0) & self.inside[i])
                )
        # Copies that end past K have left zeros: what lies before it goes over them.
        if left > 0:
            if left % self.loader.vector != 0:
                if left < CHUNK_ELEMENTS:
                    self._fetch_elements(advance, left)

    def _fetch_elements(self, advance: Any, left: Any) -> None:
        """Copy the first `left` elements of each chunk, and zeros behind them."""
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        for i, (target, inside) in enumerate(zip(self.targets, self.inside, strict=True)):
            source = self.source + advance + i * self.step
            pointer = cute.make_ptr(cutlass.Int16, target, cute.AddressSpace.smem, assumed_align=CHUNK_BYTES)
            chunk = cute.make_tensor(pointer, cute.make_layout(CHUNK_ELEMENTS))
            for j in range(CHUNK_ELEMENTS - 1):
                chunk[j] = load_bits_if(source + j * OPERAND_BYTES, Boolean((left > j) & inside))

    @property
    def _size(self) -> int:
        return self.loader.vector * OPERAND_BYTES


def cp_async_if(target: Any, source: Any, size: int, condition: Any) -> None:
    """cp.async of `size` bytes, or zeros in their place, which touches no memory: see `tile_loader` for its form."""
    cache = "cg" if size == CHUNK_BYTES else "ca"
    present = Int32(cutlass.select_(condition, Int32(size), Int32(0)))
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global.L2::128B [{{$r0}}], [{{$r1}}], {size}, {{$r2}};",
        read_only_args=[Int32(target), Int64(source), present],
    )
