"""The kernels' index arithmetic on plain integers: the walk over D's tiles, and the swizzled shared-memory tiles."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import epilogues
from cutegemm.kernels import abi
from cutegemm.kernels.config import CHUNK_BYTES
from cutegemm.kernels.scheduler import tile_at
from cutegemm.kernels.tile_loader import SharedTile
from cutegemm.kernels.warp_operand import FloatReader
from cutegemm.planner import contiguous_problem

SIZES = st.integers(1, 40)


@given(SIZES, SIZES, st.integers(1, 3), st.sampled_from([1, 4, 8, 16]))
def test_the_walk_visits_every_tile_once(rows: int, columns: int, batch: int, group: int) -> None:
    walk = [tile_at(i, rows, columns, group) for i in range(batch * rows * columns)]
    assert sorted(walk) == [(l, m, n) for l in range(batch) for m in range(rows) for n in range(columns)]  # noqa: E741


def test_the_walk_goes_down_the_columns_of_a_group() -> None:
    assert [tile_at(i, 5, 3, 2)[1:] for i in range(15)] == [
        *((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)),
        *((2, 0), (3, 0), (2, 1), (3, 1), (2, 2), (3, 2)),
        *((4, 0), (4, 1), (4, 2)),
    ]


@given(st.integers(20, 40), st.integers(20, 40))
def test_tiles_in_flight_share_operands(rows: int, columns: int) -> None:
    """132 consecutive tiles of a large D meet few rows and columns: a square of them would meet 23."""
    for start in range(0, rows * columns - 132, 132):
        flight = [tile_at(i, rows, columns, 8)[1:] for i in range(start, start + 132)]
        assert len({m for m, _ in flight}) + len({n for _, n in flight}) <= 8 + 8 + columns


TILES = [
    SharedTile(tile_mn, 2 * depth // itemsize, 3, k_major, itemsize)
    for tile_mn in (32, 64, 128, 256)
    for depth in (32, 64)
    for k_major in (True, False)
    for itemsize in (2, 4)
]
#: What ldmatrix reads: it can't transpose fp32.
MATRICES = [tile for tile in TILES if tile.itemsize == 2 or tile.k_major]
FLOATS = [tile for tile in TILES if tile.itemsize == 4 and not tile.k_major]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_shared_tile_holds_every_element_once(tile: SharedTile) -> None:
    offsets = {tile.byte_offset(mn, k) for mn in range(tile.tile_mn) for k in range(tile.tile_k)}
    assert offsets == set(range(0, tile.stage_bytes, tile.itemsize))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_chunks_stay_whole(tile: SharedTile) -> None:
    for line in range(tile.tile_mn if tile.k_major else tile.tile_k):
        for first in range(0, tile.tile_k if tile.k_major else tile.tile_mn, tile.chunk):
            along = range(first, first + tile.chunk)
            places = [tile.byte_offset(line, i) if tile.k_major else tile.byte_offset(i, line) for i in along]
            assert places[0] % CHUNK_BYTES == 0
            assert places == list(range(places[0], places[0] + CHUNK_BYTES, tile.itemsize))


@pytest.mark.parametrize("tile", MATRICES, ids=str)
def test_a_phase_of_ldmatrix_meets_no_bank_twice(tile: SharedTile) -> None:
    """Eight rows of 16 bytes, adjacent along the dimension that is not contiguous, fill the 128 bytes of all banks."""
    lines = tile.tile_mn if tile.k_major else tile.tile_k
    for start in range(0, lines, 8):
        for first in range(0, tile.row, tile.chunk):
            rows = range(start, start + 8)
            places = [tile.byte_offset(i, first) if tile.k_major else tile.byte_offset(first, i) for i in rows]
            assert len({place % 128 // CHUNK_BYTES for place in places}) == 8


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("tile", FLOATS, ids=str)
def test_fp32_along_m_or_n_is_read_where_it_lies_and_meets_no_bank_twice(
    tile: SharedTile, name: Literal["a", "b"]
) -> None:
    """Register by register of mma.sync m16n8k8 (PTX ISA): a0 to a3 are rows l/4 and l/4 + 8 at k = l % 4, then at
    k + 4; b0 and b1 column l/4 at both."""
    rows = 16 if name == "a" else 8
    for first in range(0, tile.tile_mn, 32):
        readers = [FloatReader.at(tile, None, 1 << 20, first, lane, name) for lane in range(32)]
        for part in range(32 // rows):
            for register in range(rows // 4):
                for block in range(tile.tile_k // 8):
                    addresses = []
                    for lane, reader in enumerate(readers):
                        turn, offset = reader.place(part, register, block)
                        row = part * rows + (register % 2 * 8 if name == "a" else 0) + lane // 4
                        k = block * 8 + (register // 2 if name == "a" else register) * 4 + lane % 4
                        addresses.append((reader.corner ^ turn) + offset)
                        assert addresses[-1] == (1 << 20) + tile.byte_offset(first + row, k)
                    assert len({address // 4 % 32 for address in addresses}) == 32


def test_arguments_of_the_transposed_problem() -> None:
    signature = contiguous_problem(64, 128, 256, epilogue=epilogues.bias_add).signature
    names = [argument.name for argument in abi.arguments(signature)]
    turned = abi.transposed({name: name for name in names})
    assert set(turned) == {argument.name for argument in abi.arguments(signature.transposed())}
    assert (turned["m"], turned["n"], turned["k"], turned["l0"]) == ("n", "m", "k", "l0")
    assert (turned["ptr.a"], turned["stride.b.n"], turned["stride.a.l1"]) == ("ptr.b", "stride.a.m", "stride.b.l1")
    assert (turned["stride.out0.n"], turned["ptr.op0"]) == ("stride.out0.m", "ptr.op0")
    assert abi.transposed(turned) == {name: name for name in names}
