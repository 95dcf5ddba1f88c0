"""Stream-K's arithmetic: every k-tile is multiplied once, and nobody waits for a cluster that may not have begun."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.kernels.stream_k import LEAST_K_TILES, MOST_SHARERS, Share, clusters_of, streamed


def pick(condition: bool, x: int, y: int) -> int:
    return x if condition else y


def shares(tiles: int, k_tiles: int, slots: int) -> list[Share]:
    clusters = clusters_of(tiles, k_tiles, slots, pick)
    return [Share.of(tiles, k_tiles, clusters, cluster, pick) for cluster in range(clusters)]


def parts(share: Share) -> list[tuple[int, int, int]]:
    """(tile, first k-tile, k-tile past the last) in the order in which a cluster's producer walks them."""
    walked = [share.walk(i) for i in range(share.unfinished + share.finished)]
    parts = [(tile, first, first + depth) for tile, first, depth in walked]
    # Consumers walk the same.
    left = [(share.last, share.begin, share.end)] * share.unfinished
    assert parts == left + [(*share.part(i), share.k_tiles) for i in range(share.finished)]
    return parts


def check(tiles: int, k_tiles: int, slots: int) -> None:
    found = shares(tiles, k_tiles, slots)
    assert 1 <= len(found) <= slots
    walked: list[tuple[int, int]] = []
    left: dict[int, tuple[int, int, int]] = {}
    owners: dict[int, int] = {}
    for share in found:
        own = parts(share)
        for at, (tile, begin, end) in enumerate(own):
            assert 0 <= begin < end <= k_tiles
            walked += [(tile, k) for k in range(begin, end)]
            if end < k_tiles:  # left before anything else, and before anything is waited for
                assert at == 0 and share.unfinished
                left[share.cluster] = (tile, begin, end)
            else:
                assert owners.setdefault(tile, share.cluster) == share.cluster
                # The one place where a cluster waits is the end of what it does of its range.
                assert begin == 0 or at == share.unfinished + share.own - 1
    assert sorted(walked) == [(tile, k) for tile in range(tiles) for k in range(k_tiles)]
    assert sorted(owners) == list(range(tiles))
    collected: list[int] = []
    for share in found:
        for tile, begin, end in parts(share):
            if end < k_tiles or begin == 0:
                continue
            helpers = range(share.helper, share.cluster)
            assert helpers
            ranges = [left[helper] for helper in helpers]
            assert {t for t, _, _ in ranges} == {tile}
            assert [ranges[0][1], ranges[-1][2]] == [0, begin]
            assert all(x[2] == y[1] for x, y in pairwise(ranges))  # in the order of K
            collected += helpers
    assert sorted(collected) == sorted(left)  # every sum that is left is collected once
    loads = [sum(end - begin for _, begin, end in parts(share)) for share in found]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8])
def test_small_work_exhaustively(slots: int) -> None:
    for tiles in range(1, 4 * slots + 2):
        for k_tiles in range(1, 14):
            check(tiles, k_tiles, slots)


@pytest.mark.parametrize("slots", [132, 66, 33])
@pytest.mark.parametrize("waves", [0, 1, 2])
@pytest.mark.parametrize("rest", [-1, 0, 1, 4, 31])
def test_work_of_a_gpu(slots: int, waves: int, rest: int) -> None:
    for k_tiles in (1, 5, 64, 129):
        if (tiles := waves * slots + rest) > 0:
            check(tiles, k_tiles, slots)


@given(st.integers(1, 500), st.integers(1, 70), st.integers(1, 150))
def test_any_work(tiles: int, k_tiles: int, slots: int) -> None:
    check(tiles, k_tiles, slots)


@given(st.integers(1, 20), st.integers(1, 50), st.integers(1, 40))
def test_whole_waves_are_not_cut(waves: int, k_tiles: int, slots: int) -> None:
    for share in shares(waves * slots, k_tiles, slots):
        assert (share.own, share.unfinished, share.finished) == (0, 0, waves)
        assert parts(share) == [(share.cluster + i * slots, 0, k_tiles) for i in range(waves)]


@given(st.integers(1, 20), st.integers(1, 50), st.integers(2, 40), st.data())
def test_body_and_tail(waves: int, k_tiles: int, slots: int, data: st.DataObject) -> None:
    """Past whole waves it is the tail and one wave that are cut: a range is a tile at least, of one helper."""
    rest = data.draw(st.integers(1, slots - 1))
    for share in shares(waves * slots + rest, k_tiles, slots):
        assert streamed(waves * slots + rest, slots, pick) == slots + rest
        assert sum(end - begin for _, begin, end in parts(share)) >= waves * k_tiles
        assert share.first == 0 or share.cluster - share.helper == 1


@given(st.integers(1, 131), st.integers(1, 3000))
def test_tiles_of_less_than_a_wave_are_shared_by_few(tiles: int, k_tiles: int) -> None:
    count = clusters_of(tiles, k_tiles, 132, pick)
    assert tiles <= count <= min(132, MOST_SHARERS * tiles)
    assert count == tiles or tiles * k_tiles >= LEAST_K_TILES * count
