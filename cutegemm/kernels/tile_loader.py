"""Global to shared memory: one operand's tiles by cp.async (16, 8 or 4 bytes) or, for 2-byte alignment, plain loads.

Shared-memory layout of a tile, in elements (a stage is `tile_mn * tile_k` of them, at a 1024-byte boundary):
- K-major: `mn * tile_k + k`, rows of 64 or 128 bytes;
- MN-major: `(mn // w) * w * tile_k + k * w + mn % w`, rows of w = min(64, tile_mn) elements.
Either way a row's 16-byte chunks are permuted by an XOR with the row number, so that the eight rows which one ldmatrix
phase reads lie in eight different bank groups.

Edges: rows past M or N are clamped to the last row (what they compute is never stored), vectors that straddle the edge
and everything past K are zero-filled through cp.async's source size. Nothing outside an operand is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

ITEMSIZE = 2  # fp16 and bf16
CHUNK_BYTES = 16  # what a swizzle moves as one, and what one ldmatrix row holds
CHUNK_ELEMENTS = CHUNK_BYTES // ITEMSIZE


@dataclass(frozen=True)
class SharedTile:
    """The shared-memory layout of one operand's stages."""

    tile_mn: int
    tile_k: int
    stages: int
    k_major: bool

    @property
    def row(self) -> int:
        """Elements in one swizzled row."""
        return self.tile_k if self.k_major else min(64, self.tile_mn)

    @property
    def stage_bytes(self) -> int:
        return self.tile_mn * self.tile_k * ITEMSIZE

    @property
    def _swizzle_bits(self) -> tuple[int, int]:
        """How many chunk bits are permuted, and by which row bits: 8 rows of 64 bytes share a chunk's banks by pairs."""
        row_bytes = self.row * ITEMSIZE
        bits = {32: 1, 64: 2, 128: 3}[row_bytes]
        return bits, 3 - bits

    def tensor(self, pointer: Any) -> Any:
        """A (tile_mn, tile_k, stages) view of `pointer`."""
        bits, _ = self._swizzle_bits
        swizzle = cute.make_swizzle(bits, 4, 3)
        size = self.tile_mn * self.tile_k
        if self.k_major:
            layout = cute.make_layout((self.tile_mn, self.tile_k, self.stages), stride=(self.tile_k, 1, size))
        else:
            w = self.row
            layout = cute.make_layout(
                ((w, self.tile_mn // w), self.tile_k, self.stages), stride=((1, w * self.tile_k), w, size)
            )
        return cute.make_tensor(cute.recast_ptr(pointer, swizzle_=swizzle), layout)

    def byte_offset(self, mn: Any, k: Any) -> Any:
        """Where element (mn, k) of a stage lies, in bytes from the stage's start."""
        if self.k_major:
            row, column = mn, k
        else:
            row, column = (mn // self.row) * self.tile_k + k, mn % self.row
        bits, shift = self._swizzle_bits
        linear = row * (self.row * ITEMSIZE) + column * ITEMSIZE
        return linear ^ (((row >> shift) & ((1 << bits) - 1)) << 4)


@dataclass(frozen=True)
class TileLoader:
    """Moves (tile_mn, tile_k) tiles of one operand; every thread of the CTA takes some of its 16-byte chunks.

    `vector` elements are read at a time: 8, 4 and 2 are cp.async of 16, 8 and 4 bytes; 1 is the plain-load variant,
    which serves 2-byte alignment and any strides, and writes each chunk with one store.
    """

    shared: SharedTile
    threads: int
    vector: int

    def prepare(
        self, tid: Any, base: Any, strides: dict[str, Any], extent_mn: Any, origin: Any, smem: Any
    ) -> Chunks:
        """The addresses that thread `tid` reads and writes.

        `base` is the operand's address for this batch entry, `strides` its strides along "mn" and "k" in elements,
        `origin` the tile's first row of `extent_mn`, `smem` the address of stage 0.
        """
        tile = self.shared
        per_line = (tile.tile_k if tile.k_major else tile.tile_mn) // CHUNK_ELEMENTS
        count = tile.tile_mn * tile.tile_k // CHUNK_ELEMENTS // self.threads
        chunks = []
        for i in range(count):
            line, unit = self._place(tid, i, per_line)
            mn, k = (line, unit * CHUNK_ELEMENTS) if tile.k_major else (unit * CHUNK_ELEMENTS, line)
            row = origin + mn
            rows_left = extent_mn - row
            if tile.k_major:
                row = cutlass.min(row, extent_mn - 1)
            source = base + (Int64(row) * strides["mn"] + Int64(k) * strides["k"]) * ITEMSIZE
            chunks.append(Chunk(source, smem + tile.byte_offset(mn, k), k, rows_left))
        step = strides["k" if tile.k_major else "mn"]
        return Chunks(self, tuple(chunks), Int64(ITEMSIZE) * step)

    def _place(self, tid: Any, i: int, per_line: int) -> tuple[Any, Any]:
        """(line, chunk in the line) of a thread's i-th chunk, kept free of divisions where sizes allow."""
        if self.threads % per_line == 0:
            return tid // per_line + i * (self.threads // per_line), tid % per_line
        linear = tid + i * self.threads
        return linear // per_line, linear % per_line


@dataclass(frozen=True)
class Chunk:
    """16 bytes of a tile: source address at K = 0, address in stage 0, position along K, rows left from its first."""

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

    def fetch(self, advance: Any, stage: Any, k_left: Any = None, part: int = 0, parts: int = 1) -> None:
        """Start copying the tile `advance` bytes along K into `stage`, or the `part`-th of `parts` shares of it.

        `k_left`, the elements of K from the tile's start on, is given for a tile that may end past K.
        """
        shift = stage * self.loader.shared.stage_bytes
        share = [c for i, c in enumerate(self.chunks) if i * parts // len(self.chunks) == part]
        if self.loader.vector == 1:
            values = [[self._read(c, j, advance, k_left) for j in range(CHUNK_ELEMENTS)] for c in share]
            for chunk, bits in zip(share, values, strict=True):
                _store_chunk(chunk.target + shift, bits)
            return
        size = self.loader.vector * ITEMSIZE
        for chunk in share:
            for offset in range(0, CHUNK_BYTES, size):
                width = self._width(chunk, offset // ITEMSIZE, k_left)
                _cp_async(chunk.target + shift + offset, chunk.source + advance + offset, size, width)

    def _width(self, chunk: Chunk, first: int, k_left: Any) -> Any:
        """Bytes to read of the vector that starts at element `first` of a chunk; the rest is zero-filled."""
        vector = self.loader.vector
        if self.loader.shared.k_major:
            if k_left is None:
                return Int32(vector * ITEMSIZE)
            return cutlass.min(cutlass.max(k_left - (chunk.k + first), 0), vector) * ITEMSIZE
        width = cutlass.min(cutlass.max(chunk.rows_left - first, 0), vector) * ITEMSIZE
        if k_left is None:
            return width
        return width & ((Int32(chunk.k) - k_left) >> 31)  # the shift is all ones where the line lies before K

    def _read(self, chunk: Chunk, j: int, advance: Any, k_left: Any) -> Any:
        """The bits of element j of a chunk; zero past an edge, without touching memory there."""
        address = chunk.source + advance + j * self.step
        if self.loader.shared.k_major:
            return _load_bits(address) if k_left is None else _load_bits_if(address, chunk.k + j < k_left)
        if k_left is None:
            return _load_bits_if(address, Int32(j) < chunk.rows_left)
        return _load_bits_if(address, cutlass.min(chunk.rows_left - j, k_left - chunk.k) > 0)


def _load_bits(address: Any) -> Any:
    pointer = cute.make_ptr(cutlass.Int16, address, cute.AddressSpace.gmem, assumed_align=ITEMSIZE)
    return cute.make_tensor(pointer, cute.make_layout(1))[0]


@cute.jit
def _load_bits_if(address: Int64, condition: cutlass.Boolean) -> cutlass.Int16:
    value = cutlass.Int16(0)
    if condition:
        value = _load_bits(address)
    return value


def _store_chunk(address: Any, bits: list[Any]) -> None:
    chunk = cute.make_rmem_tensor((CHUNK_ELEMENTS,), cutlass.Int16)
    for j, value in enumerate(bits):
        chunk[j] = value
    pointer = cute.make_ptr(cutlass.Int16, address, cute.AddressSpace.smem, assumed_align=CHUNK_BYTES)
    cute.autovec_copy(chunk, cute.make_tensor(pointer, cute.make_layout(CHUNK_ELEMENTS)))


def _cp_async(target: Any, source: Any, size: int, width: Any) -> None:
    """cp.async of `size` bytes of which `width` are read and the rest zero-filled.

    16 bytes bypass L1 (`.cg`); smaller copies exist only with `.ca`. The L2 prefetch hint pulls in the other half of
    a 128-byte line, which a neighbouring thread or the next k-tile reads.
    """
    cache = "cg" if size == CHUNK_BYTES else "ca"
    cute.arch.inline_ptx(
        f"cp.async.{cache}.shared.global.L2::128B [{{$r0}}], [{{$r1}}], {size}, {{$r2}};",
        read_only_args=[Int32(target), Int64(source), Int32(width)],
    )
