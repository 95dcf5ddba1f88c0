"""Global to shared memory: one operand's tiles by cp.async (16, 8 or 4 bytes) or, for 2-byte alignment, plain loads.

Shared-memory layout of a tile, in elements of 2 or 4 bytes (a stage is `tile_mn * tile_k` of them, at a 1024-byte
boundary):
- K-major: `mn * tile_k + k`, rows of 64 or 128 bytes;
- MN-major: `(mn // w) * w * tile_k + k * w + mn % w`, rows of w elements: 128 bytes, or the tile's width.
Either way a row's 16-byte chunks are permuted by an XOR with the row number, so that the eight rows which one ldmatrix
phase reads lie in eight different bank groups. ldmatrix can't transpose fp32: along M or N it is read by single floats,
eight of each of four rows at a time, and units of 32 bytes are permuted by the row number modulo 4.

Edges: what lies past M or N is clamped to the last row or vector (what it computes is never stored), and what lies past
K is zero. A vector that straddles the end of a row is copied whole where another row follows: the bytes between rows
are part of the operand's memory. Nothing before an operand's first byte or after its last is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cutegemm.kernels.config import CHUNK_BYTES, OPERAND_BYTES, ROW_BYTES

CHUNK_ELEMENTS = CHUNK_BYTES // OPERAND_BYTES
BITS = {2: cutlass.Int16, 4: cutlass.Int32}  # elements by their bytes, whatever they stand for
_UNIT_BITS = 5  # fp32 along M or N is permuted in units of 32 bytes


@dataclass(frozen=True)
class SharedTile:
    """The shared-memory layout of one operand's stages; elements are `itemsize` bytes, 2 or 4."""

    tile_mn: int
    tile_k: int
    stages: int
    k_major: bool
    itemsize: int = OPERAND_BYTES

    @property
    def row(self) -> int:
        """Elements in one swizzled row."""
        return self.tile_k if self.k_major else min(ROW_BYTES // self.itemsize, self.tile_mn)

    @property
    def chunk(self) -> int:
        """Elements in 16 bytes."""
        return CHUNK_BYTES // self.itemsize

    @property
    def stage_bytes(self) -> int:
        return self.tile_mn * self.tile_k * self.itemsize

    @property
    def _swizzle_bits(self) -> tuple[int, int]:
        """How many chunk bits are permuted, and by which row bits: of rows of 64 bytes, two share a line of banks."""
        row_bytes = self.row * self.itemsize
        bits = {32: 1, 64: 2, 128: 3}[row_bytes]
        return bits, 3 - bits

    def tensor(self, pointer: Any) -> Any:
        """A (tile_mn, tile_k, stages) view of `pointer` in 16-bit elements, for ldmatrix: of fp32, which has to be
        K-major, two stand for one along K."""
        bits, _ = self._swizzle_bits
        swizzle = cute.make_swizzle(bits, 4, 3)
        tile_k = self.tile_k * self.itemsize // OPERAND_BYTES
        size = self.tile_mn * tile_k
        if self.k_major:
            layout = cute.make_layout((self.tile_mn, tile_k, self.stages), stride=(tile_k, 1, size))
        else:
            w = self.row
            layout = cute.make_layout(((w, self.tile_mn // w), tile_k, self.stages), stride=((1, w * tile_k), w, size))
        return cute.make_tensor(cute.recast_ptr(pointer, swizzle_=swizzle), layout)

    def byte_offset(self, mn: Any, k: Any) -> Any:
        """Where element (mn, k) of a stage lies, in bytes from the stage's start."""
        if self.k_major:
            row, column = mn, k
        else:
            row, column = (mn // self.row) * self.tile_k + k, mn % self.row
        linear = row * (self.row * self.itemsize) + column * self.itemsize
        if self.itemsize > OPERAND_BYTES and not self.k_major:
            return linear ^ ((row & 3) << _UNIT_BITS)
        bits, shift = self._swizzle_bits
        return linear ^ (((row >> shift) & ((1 << bits) - 1)) << 4)


@dataclass(frozen=True)
class TileLoader:
    """Moves (tile_mn, tile_k) tiles of one operand; every thread of the CTA takes some of its 16-byte chunks.

    `vector` elements are read at a time: 16, 8 and 4 bytes are copied by cp.async. The `plain`-load variant serves
    2-byte alignment and any strides, and writes each chunk with one store.
    """

    shared: SharedTile
    threads: int
    vector: int
    plain: bool

    def prepare(self, tid: Any, base: Any, strides: dict[str, Any], extent_mn: Any, origin: Any, smem: Any) -> Chunks:
        """The addresses that thread `tid` reads and writes.

        `base` is the operand's address for this batch entry, `strides` its strides along "mn" and "k" in elements,
        `origin` the tile's first row of `extent_mn`, `smem` the address of stage 0.
        """
        place = self._along_k if self.shared.k_major else self._along_mn
        chunks = place(tid, base, strides, extent_mn, origin, smem)
        step = strides["k" if self.shared.k_major else "mn"]
        return Chunks(self, chunks, Int64(self.shared.itemsize) * step)

    def _along_k(
        self, tid: Any, base: Any, strides: dict[str, Any], extent_mn: Any, origin: Any, smem: Any
    ) -> tuple[Chunk, ...]:
        """Chunks of a K-major tile: a few threads a row, every thread the same columns of several rows."""
        tile, chunks = self.shared, []
        per_row = tile.tile_k // tile.chunk
        for i in range(tile.tile_mn * per_row // self.threads):
            mn, k = tid // per_row + i * (self.threads // per_row), tid % per_row * tile.chunk
            row = cutlass.min(origin + mn, extent_mn - 1)
            source = base + (Int64(row) * strides["mn"] + Int64(k) * strides["k"]) * tile.itemsize
            chunks.append(Chunk(source, smem + tile.byte_offset(mn, k), k, extent_mn - row))
        return tuple(chunks)

    def _along_mn(
        self, tid: Any, base: Any, strides: dict[str, Any], extent_mn: Any, origin: Any, smem: Any
    ) -> tuple[Chunk, ...]:
        """Chunks of an MN-major tile: a few threads a swizzled row, every thread the same place in all rows of a line.

        Their sources are one address and a distance to each further row, which is 0 past the edge of M or N.
        """
        tile, chunks = self.shared, []
        per_row = tile.row // tile.chunk
        mn = tid % per_row * tile.chunk
        last = (extent_mn - 1) // tile.chunk * tile.chunk
        for i in range(tile.tile_k * per_row // self.threads):
            k = tid // per_row + i * (self.threads // per_row)
            for ahead in range(0, tile.tile_mn, tile.row):
                row = cutlass.min(origin + mn, last)
                if ahead:
                    row += Int32(cutlass.select_(origin + mn + ahead < extent_mn, Int32(ahead), Int32(0)))
                source = base + (Int64(row) * strides["mn"] + Int64(k) * strides["k"]) * tile.itemsize
                chunks.append(Chunk(source, smem + tile.byte_offset(mn + ahead, k), k, extent_mn - row))
        return tuple(chunks)


@dataclass(frozen=True)
class Chunk:
    """16 bytes of a tile: source address at K = 0, address in stage 0, position along K, and how many rows the operand
    has from this one on."""

    source: Any
    target: Any
    k: Any
    rows_left: Any


@dataclass(frozen=True)
class Chunks:
    """One thread's share of every tile; `step` is the distance in bytes between a chunk's elements."""

    loader: TileLoader
    chunks: tuple[Chunk, ...]
    step: Any

    def fetch(self, advance: Any, stage: Any, part: int = 0, parts: int = 1) -> None:
        """Start copying the tile `advance` bytes along K, which lies before K's end, into `stage`; or the `part`-th of
        `parts` shares of it."""
        shift = stage * self.loader.shared.stage_bytes
        share = [c for i, c in enumerate(self.chunks) if i * parts // len(self.chunks) == part]
        if not self.loader.plain:
            for chunk in share:
                self._copy(chunk, advance, shift)
            return
        values = [[self._element(c, j, advance, None) for j in range(self.loader.shared.chunk)] for c in share]
        for chunk, bits in zip(share, values, strict=True):
            _store_chunk(chunk.target + shift, bits)

    @cute.jit
    def fetch_last(self, advance: Int64, k_left: Int32) -> None:
        """Start copying the tile `advance` bytes along K, `k_left` of whose columns lie before K's end, into stage 0.

        Chunks that end past K, and the last line's chunks that end past M or N, are copied element by element.
        """
        for i in cutlass.range_constexpr(len(self.chunks)):
            chunk = self.chunks[i]
            if cutlass.const_expr(self.loader.plain):
                self._copy_elements(chunk, advance, k_left)
            else:
                if self._whole(chunk, k_left):
                    self._copy(chunk, advance, 0)
                else:
                    self._copy_elements(chunk, advance, k_left)

    def _whole(self, chunk: Chunk, k_left: Any) -> Any:
        """Whether all of a chunk's bytes belong to the operand's memory."""
        if self.loader.shared.k_major:
            return chunk.k + self.loader.shared.chunk <= k_left
        # One more line of K may be missing where the chunk has all its rows.
        return chunk.k + Int32(chunk.rows_left < self.loader.shared.chunk) < k_left

    def _copy(self, chunk: Chunk, advance: Any, shift: Any) -> None:
        itemsize = self.loader.shared.itemsize
        size = self.loader.vector * itemsize
        for offset in range(0, CHUNK_BYTES, size):
            source = chunk.source + advance
            if offset and not self.loader.shared.k_major:  # a vector past the edge reads the chunk's first instead
                inside = chunk.rows_left > offset // itemsize
                source += Int64(cutlass.select_(inside, Int64(offset), Int64(0)))
            else:
                source += offset
            cp_async(chunk.target + shift + offset, source, size)

    def _copy_elements(self, chunk: Chunk, advance: Any, k_left: Any) -> None:
        elements = range(self.loader.shared.chunk)
        _store_chunk(chunk.target, [self._element(chunk, j, advance, k_left) for j in elements])

    def _element(self, chunk: Chunk, j: int, advance: Any, k_left: Any) -> Any:
        """The bits of element j of a chunk; zero past an edge, without touching memory there.

        `k_left` is None for a tile that lies before K's end.
        """
        address = chunk.source + advance + j * self.step
        bits = BITS[self.loader.shared.itemsize]
        if self.loader.shared.k_major:
            return _load_bits(address, bits) if k_left is None else load_bits_if(address, chunk.k + j < k_left, bits)
        if k_left is None:
            return load_bits_if(address, Int32(j) < chunk.rows_left, bits)
        return load_bits_if(address, cutlass.min(chunk.rows_left - j, k_left - chunk.k) > 0, bits)


def _load_bits(address: Any, bits: Any) -> Any:
    pointer = cute.make_ptr(bits, address, cute.AddressSpace.gmem, assumed_align=bits.width // 8)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


@cute.jit
def load_bits_if(address: Int64, condition: cutlass.Boolean, bits: cutlass.Constexpr = cutlass.Int16) -> Any:
    value = bits(0)
    if condition:
        value = _load_bits(address, bits)
    return value


def _store_chunk(address: Any, values: list[Any]) -> None:
    chunk = cute.make_rmem_tensor((len(values),), BITS[CHUNK_BYTES // len(values)])
    for j, value in enumerate(values):
        chunk[j] = value
    pointer = cute.make_ptr(chunk.element_type, address, cute.AddressSpace.smem, assumed_align=CHUNK_BYTES)
    cute.autovec_copy(chunk, cute.make_tensor(pointer, cute.make_layout(len(values))))


def cp_async(target: Any, source: Any, size: int) -> None:
    """cp.async of `size` bytes.

    16 bytes bypass L1 (`.cg`); smaller copies exist only with `.ca`. The L2 prefetch hint pulls in the other half of
    a 128-byte line, which a neighbouring thread or the next k-tile reads.
    """
    cache = "cg" if size == CHUNK_BYTES else "ca"
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global.L2::128B [{{$r0}}], [{{$r1}}], {size};",
        read_only_args=[Int32(target), Int64(source)],
    )
