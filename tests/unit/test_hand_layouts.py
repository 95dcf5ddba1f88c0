"""The kernels' own formulas as host code: bank conflicts of levels 4, 5 and 7 to 9; on level 10, where wgmma finds what
TMA has written, and which tiles are whose.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from cutegemm.hand_kernels import build, find
from tests import on_host
from tests.on_host import compiler

_SOURCE = """
#include "layouts.cuh"
template <int PAD, bool SWIZZLE> using A = TransposedTile<64, 32, PAD, SWIZZLE>;
#define EXPORT(NAME, ...) \\
    extern "C" int NAME##_place(int row, int k) { return A<__VA_ARGS__>::place(row, k); } \\
    extern "C" int NAME##_row(int piece) { return A<__VA_ARGS__>::row_of(piece); } \\
    extern "C" int NAME##_k(int piece) { return A<__VA_ARGS__>::k_of(piece); } \\
    extern "C" int NAME##_words() { return A<__VA_ARGS__>::WORDS; }
EXPORT(swizzled, 0, true)
EXPORT(padded, 4, false)
EXPORT(conflicting, 0, false)
#define ROWS(CHUNKS) \\
    extern "C" int place##CHUNKS(int row, int chunk) { return SwizzledRows<CHUNKS>::place(row, chunk); }
ROWS(2)
ROWS(4)
ROWS(8)
ROWS(16)
ROWS(32)
extern "C" unsigned long long operand_a(unsigned tile, int k) { return wgmma_a(tile, k); }
extern "C" unsigned long long operand_b(unsigned tile, int k) { return wgmma_b<64>(tile, k); }
"""
_TILES = """
#include "cuda.hpp"
#define TILE_M 128
#define TILE_N 256
using Element = unsigned short;
struct EpilogueArguments {};
struct Epilogue {
    template <int N>
    void write(int, int, int, const float (&)[N]) const {}
};
#include "common.cuh"
extern "C" void tile(int m, int n, unsigned number, int* place) {
    Arguments args = {};
    args.m = m;
    args.n = n;
    const Tile tile = tile_of<8, 2 * TILE_M>(args, number);
    place[0] = tile.row;
    place[1] = tile.column;
}
"""
VARIANTS = ("swizzled", "padded", "conflicting")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("layouts")
    (folder / "layouts.cpp").write_text(_SOURCE)
    command = [compiler(), "-std=c++17", "-shared", "-fPIC", f"-I{build.FOLDER}", "-o", folder / "layouts.so"]
    subprocess.run([*command, folder / "layouts.cpp"], check=True)
    return ctypes.CDLL(str(folder / "layouts.so"))


def passes(words: Iterable[int], width: int = 1) -> int:
    """How many passes a warp's access takes, `width` words at each of its lanes' first words: the busiest bank's
    different words. Wide accesses go in parts of 32 words: 8 lanes of 16 bytes, 16 of 8."""
    firsts = list(words)
    assert all(first % width == 0 for first in firsts), "an access is aligned to its width"
    total = 0
    for start in range(0, len(firsts), 32 // width):
        banks: dict[int, set[int]] = defaultdict(set)
        for first in firsts[start : start + 32 // width]:
            for word in range(first, first + width):
                banks[word % 32].add(word)
        total += max(map(len, banks.values()))
    return total


def test_the_count_itself() -> None:
    assert passes(range(32)) == 1 and passes([0] * 32) == 1
    assert passes(range(0, 64, 2)) == 2 and passes(range(0, 1024, 32)) == 32
    assert passes(range(0, 128, 4), width=4) == 4 and passes([0] * 32, width=4) == 4
    assert passes(range(0, 256, 8), width=4) == 8


@pytest.mark.parametrize(("variant", "expected"), [("swizzled", 1), ("padded", 1), ("conflicting", 8)])
def test_level4_writes_of_a(layouts: ctypes.CDLL, variant: str, expected: int) -> None:
    place, row, k = (getattr(layouts, f"{variant}_{name}") for name in ("place", "row", "k"))
    for warp in range(16):
        pieces = range(32 * warp, 32 * warp + 32)
        for i in range(4):
            assert passes(place(row(p), k(p) + i) for p in pieces) == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_level4_copies_every_element_to_a_place_of_its_own(layouts: ctypes.CDLL, variant: str) -> None:
    place, row, k = (getattr(layouts, f"{variant}_{name}") for name in ("place", "row", "k"))
    elements = {(row(p), k(p) + i) for p in range(512) for i in range(4)}
    every = {(r, c) for r in range(64) for c in range(32)}
    assert elements == every
    places = {place(r, c) for r, c in elements}
    assert len(places) == len(elements) and min(places) >= 0 and max(places) < getattr(layouts, f"{variant}_words")()


@pytest.mark.parametrize("variant", VARIANTS)
def test_level4_reads_of_a_are_broadcasts_of_16_aligned_bytes(layouts: ctypes.CDLL, variant: str) -> None:
    place = getattr(layouts, f"{variant}_place")
    for k in range(32):
        for row in range(0, 64, 4):
            assert place(row, k) % 4 == 0
            assert [place(row + i, k) for i in range(4)] == list(range(place(row, k), place(row, k) + 4))


def test_level4_b(layouts: ctypes.CDLL) -> None:
    pieces = [thread // 16 * 64 + thread % 16 * 4 for thread in range(512)]
    assert all(passes(pieces[start : start + 32], width=4) == 4 for start in range(0, 512, 32))
    assert passes(range(32)) == 1


def test_level5_reads_and_writes_of_a(layouts: ctypes.CDLL) -> None:
    place = layouts.place2
    assert {place(row, chunk) for row in range(128) for chunk in range(2)} == set(range(256))
    # cp.async writes two chunks of a row, rows in order.
    assert passes((4 * place(i // 2, i % 2) for i in range(32)), width=4) == 4
    # Lanes read one chunk, or half of one, of eight neighbouring rows, four lanes each.
    for first in range(0, 128, 8):
        for chunk in range(2):
            for half in (0, 2):
                assert passes((4 * place(first + lane // 4, chunk) + half for lane in range(32)), width=2) == 2
            assert passes((4 * place(first + lane // 4, chunk) for lane in range(32)), width=4) == 4
            # Without the permutation rows would meet; here even all eight together don't.
            assert passes((4 * place(first + lane % 8, chunk) for lane in range(32)), width=4) == 4
            # Eight rows further down the order is the same: the kernel adds a constant.
            assert place(first + 8 + 5, chunk) == place(first + 5, chunk) + 16


def test_level5_reads_of_b() -> None:
    assert passes((4 * (lane % 4) for lane in range(32)), width=4) == 4


@pytest.mark.parametrize("chunks", [4, 8, 16, 32])
def test_tiles_of_levels_7_to_9(layouts: ctypes.CDLL, chunks: int) -> None:
    def place(row: int, chunk: int) -> int:
        return int(getattr(layouts, f"place{chunks}")(row, chunk))

    assert sorted(place(row, chunk) for row in range(64) for chunk in range(chunks)) == list(range(64 * chunks))
    # ldmatrix: one chunk of eight neighbouring rows for each of four matrices, of A along the rows or of B along K.
    for row in range(0, 64, 16):
        for chunk in range(0, chunks, 2):
            assert passes((4 * place(row + lane % 16, chunk + lane // 16) for lane in range(32)), width=4) == 4
    # cp.async: neighbouring threads copy neighbouring chunks.
    for first in range(0, 64 * chunks, 32):
        assert passes((4 * place(i // chunks, i % chunks) for i in range(first, first + 32)), width=4) == 4
    # What the kernels make of the first place: a multiple of 8 rows down, an exclusive or in the row.
    for row in range(0, 64, 8):
        for chunk in range(chunks):
            assert place(row + 5, chunk) == (place(5, 0) ^ chunk) + row * chunks


def _read(descriptor: int, along_rows: int, across: int) -> int:
    """The address at which wgmma reads, `across` rows down and `along_rows` elements along them: PTX's canonical layout
    of the 128-byte swizzle, in which bits 4-6 of an address are permuted by bits 7-9."""
    assert descriptor >> 62 == 1 and descriptor >> 49 & 7 == 0
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    address = start + across // 8 * stride + across % 8 * 128
    address += along_rows // 64 * leading + along_rows % 64 * 2
    return address ^ (address >> 7 & 7) << 4


def _written(layouts: ctypes.CDLL, box: int, row: int, column: int) -> int:
    """Where TMA writes an element of a box of rows of 64, which lies at a multiple of 1024: chunks of 16 bytes."""
    return int(box + 16 * layouts.place8(row, column // 8) + 2 * (column % 8))


def test_level10_reads_what_tma_wrote(layouts: ctypes.CDLL) -> None:
    for descriptor in (layouts.operand_a, layouts.operand_b):
        descriptor.restype = ctypes.c_uint64
    for tile in (1024, 3 * 48 * 1024 + 16 * 1024 + 1024):
        for k in range(0, 64, 16):
            a, b = layouts.operand_a(tile, k), layouts.operand_b(tile, k)
            for i in range(16):
                # A is read along K: 64 rows of it. B along N: 16 rows of 256 columns, in four boxes of 64 x 64.
                assert all(_read(a, i, row) == _written(layouts, tile, row, k + i) for row in range(64))
                for column in range(256):
                    box = tile + column // 64 * 64 * 128
                    assert _read(b, column, i) == _written(layouts, box, k + i, column % 64)


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("tiles")
    for path in (*build.FOLDER.glob("*.cu*"), *on_host.HERE.glob("*.cuh"), *on_host.HERE.glob("*.h*")):
        shutil.copy(path, folder)
    (folder / "tiles.cpp").write_text(_TILES)
    library = folder / "tiles.so"
    command = [compiler(), "-std=c++20", "-w", "-shared", "-fPIC", f"-I{folder}", "-o", library]
    subprocess.run([*command, folder / "tiles.cpp"], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (256, 256), (257, 256), (2300, 5000), (8192, 8192), (4096, 300)])
def test_level10_clusters_cover_d_once(m: int, n: int, tiles: ctypes.CDLL) -> None:
    level, place = find("level10"), (ctypes.c_int * 2)()
    found = set()
    for number in range(level.blocks(m, n) // level.cluster):
        tiles.tile(m, n, number, place)
        found.add(tuple(place))
    assert len(found) == level.blocks(m, n) // level.cluster
    assert found == {(row, column) for row in range(0, m, 256) for column in range(0, n, 256)}
