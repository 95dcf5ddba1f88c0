"""Global to shared memory for `simt_f32`: fp32 tiles of one operand by cp.async, laid out along M or N.

Shared-memory layout of a tile, in floats: `k * (tile_mn + SKEW) + mn`, whatever the operand's layout in memory: one
access to shared memory then gives a thread four neighbours along M or N. An operand that is contiguous there is copied
in vectors of 4, 2 or 1; any other float by float, which turns it on the way: a warp takes 8 along K of 4 rows, whole
sectors of 32 bytes in memory and 32 different banks.

Edges: what lies past M, N or K is zero; nothing is read there. Every copy has a predicate for its row. The k-tile that
may end past K is copied float by float, with one for K too; elsewhere a vector that straddles the end of a line is
copied whole: another line follows, and what lies between is the operand's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutlass import Int64

from cutegemm.kernels.row_loader import cp_async_if
from cutegemm.kernels.simt_f32_config import FLOAT_BYTES, SKEW

_ALONG_K = 8  # floats of a row that neighbouring lanes copy: a sector


@dataclass(frozen=True)
class FloatTile:
    """The shared-memory layout of one operand's stages."""

    tile_mn: int
    tile_k: int

    @property
    def pitch(self) -> int:
        """Floats from one k to the next."""
        return self.tile_mn + SKEW

    @property
    def stage_bytes(self) -> int:
        return self.pitch * self.tile_k * FLOAT_BYTES


@dataclass(frozen=True)
class FloatLoader:
    """Moves (tile_mn, tile_k) tiles of one operand; every thread of the CTA takes an equal share.

    `vector` floats, 4, 2 or 1, are copied at a time along M or N; `turned` operands are not contiguous there.
    """

    shared: FloatTile
    threads: int
    vector: int
    turned: bool

    def places(self, tid: Any) -> tuple[list[Any], list[Any]]:
        """(rows of the tile, places along K) of thread `tid`: it copies each row at each place."""
        tile_mn, tile_k = self.shared.tile_mn, self.shared.tile_k
        if self.turned:
            row, rows_apart = tid // _ALONG_K, self.threads // _ALONG_K
            k, apart = tid % _ALONG_K, _ALONG_K
        else:
            vectors = tile_mn // self.vector
            row, rows_apart = tid % min(vectors, self.threads) * self.vector, self.threads * self.vector
            k, apart = tid // vectors, max(1, self.threads // vectors)
        return [row + i for i in range(0, tile_mn, rows_apart)], [k + i for i in range(0, tile_k, apart)]

    def prepare(self, tid: Any, base: Any, strides: dict[str, Any], extent: Any, origin: Any, smem: Any) -> Floats:
        """The addresses that thread `tid` reads and writes.

        `base` is the operand's address for this batch entry, `strides` its strides along "mn" and "k" in floats,
        `origin` the tile's first row of `extent`, `smem` the address of stage 0.
        """
        rows, places = self.places(tid)
        row, k = origin + rows[0], places[0]
        return Floats(
            self, base + (Int64(row) * strides["mn"] + Int64(k) * strides["k"]) * FLOAT_BYTES,
            smem + (k * self.shared.pitch + rows[0]) * FLOAT_BYTES, extent - row, k,
            Int64(FLOAT_BYTES) * strides["mn"], Int64(FLOAT_BYTES) * strides["k"],
        )  # fmt: skip


@dataclass(frozen=True)
class Floats:
    """One thread's share of every tile: the source and the target in stage 0 of its first copy at K = 0, how many rows
    the operand has from there on and the copy's place along K, and the bytes between neighbours in memory."""

    loader: FloatLoader
    source: Any
    target: Any
    rows_left: Any
    k: Any
    step_mn: Any
    step_k: Any

    def fetch(self, source: Any, stage: Any, rows_left: Any) -> None:
        """Start copying the tile whose first copy reads at `source`, and which lies before K's end, to `stage`, in
        bytes from stage 0; of its rows `rows_left`, the others as zeros."""
        target = self.target + stage
        for row, k, offset in self._copies():
            there = source + (row * self.step_mn + k * self.step_k)
            cp_async_if(target + offset, there, self.loader.vector * FLOAT_BYTES, rows_left > row)

    def fetch_last(self, source: Any, k_left: Any) -> None:
        """Start copying the tile whose first copy reads at `source`, `k_left` of whose columns lie before K's end, into
        stage 0."""
        for row, k, offset in self._copies():
            for j in range(self.loader.vector):
                there = source + ((row + j) * self.step_mn + k * self.step_k)
                inside = (self.k + k < k_left) & (self.rows_left > row + j)
                cp_async_if(self.target + (offset + j * FLOAT_BYTES), there, FLOAT_BYTES, inside)

    def _copies(self) -> Iterator[tuple[int, int, int]]:
        """Rows and places along K beyond the thread's first copy, and how far each goes from there, in bytes."""
        rows, places = self.loader.places(0)
        for row in rows:
            for k in places:
                yield row, k, (k * self.loader.shared.pitch + row) * FLOAT_BYTES
