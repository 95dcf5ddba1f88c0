"""Stream-K: which k-tiles of which tiles each cluster of persistent CTAs multiplies, where tiles alone do not divide
evenly among clusters.

Of `tiles`, the first `streamed` are cut along K: all of their k-tiles, one tile's behind the other's, are shared out in
ranges that differ by one k-tile at most, the `cluster`-th range to the `cluster`-th cluster. They are the tiles of the
last, partial wave and of a full one, so that a range is a tile or more; where there is no full wave, all tiles. The
others, whole waves of them, are dealt out as ever.

A cluster has at most one part of a tile that it does not finish: the beginning of the tile in which its range ends.
This part comes first, and its sums are left to the cluster that has the tile's last k-tile, the tile's owner. Then come
the tiles that the cluster finishes: those of its range from the last to the first, and whole ones. So a cluster
collects sums as late as it can, and only from clusters before it, which leave them before anything else: where few of
the clusters run at a time, and they start in order, none waits for one that has yet to start.

The arithmetic is the same on Python's integers and on the DSL's: `select(condition, x, y)` is x where the condition
holds. Free of torch and of the DSL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Select = Callable[[Any, Any, Any], Any]

#: Fewest k-tiles of a range, on average: with less to do, handing sums over takes longer than multiplying.
LEAST_K_TILES = 4
#: Most clusters to a tile, on average: its owner adds up their sums one after the other.
MOST_SHARERS = 8


def clusters_of(tiles: Any, k_tiles: Any, slots: Any, select: Select) -> Any:
    """How many clusters share the work out where `slots` run at a time. `slots` x `k_tiles` has to fit the integers."""
    few = _least(tiles, slots, select)
    useful = _least(few * k_tiles // LEAST_K_TILES, few * MOST_SHARERS, select)
    return _least(slots, select(useful > few, useful, few), select)


@dataclass(frozen=True)
class Share:
    """What one of `clusters` clusters does of tiles of `k_tiles` each; tiles, k-tiles and clusters count from 0.

    Its range ends in the tile `last`, before the k-tile `end`; `unfinished` is 1 where that leaves a part, beginning at
    `begin`, which the cluster does not finish, else 0. Before that tile lie `own` tiles of the range, of the first of
    which it has the k-tiles from `first` on: those before, if any, are the sums that the clusters from `helper` to this
    one leave. Whole tiles come last, every `clusters`-th from `whole` on; `finished` counts them and the `own`.
    """

    k_tiles: Any
    clusters: Any
    cluster: Any
    last: Any
    begin: Any
    end: Any
    unfinished: Any
    own: Any
    first: Any
    helper: Any
    whole: Any
    finished: Any
    select: Select

    @staticmethod
    def of(tiles: Any, k_tiles: Any, clusters: Any, cluster: Any, select: Select) -> Share:
        """The share of the `cluster`-th."""
        cut = streamed(tiles, clusters, select)
        total = cut * k_tiles
        base, extra = total // clusters, total % clusters  # the first ranges have one more
        low = cluster * base + _least(cluster, extra, select)
        high = low + base + select(cluster < extra, 1, 0)
        lowest, last = low // k_tiles, high // k_tiles
        start, longer = lowest * k_tiles, extra * (base + 1)
        helper = select(start < longer, start // (base + 1), (start - extra) // _most(base, 1, select))
        return Share(
            k_tiles, clusters, cluster, last, select(low > last * k_tiles, low - last * k_tiles, 0), high % k_tiles,
            select(high % k_tiles == 0, 0, 1), last - lowest, low - start, helper, cut + cluster,
            last - lowest + (tiles - cut) // clusters, select,
        )  # fmt: skip

    def walk(self, i: Any) -> tuple[Any, Any, Any]:
        """(tile, first k-tile, how many) of the `i`-th of all the cluster's parts, the unfinished one first."""
        tile, first = self.part(i - self.unfinished)
        leaving = i < self.unfinished
        begin = self.select(leaving, self.begin, first)
        return tile, begin, self.select(leaving, self.end, self.k_tiles) - begin

    def part(self, i: Any) -> tuple[Any, Any]:
        """(tile, first k-tile) of the `i`-th tile that the cluster finishes: the part's last k-tile is the tile's."""
        tile = self.select(i < self.own, self.last - 1 - i, self.whole + (i - self.own) * self.clusters)
        return tile, self.select(i == self.own - 1, self.first, 0)


def streamed(tiles: Any, clusters: Any, select: Select) -> Any:
    """How many tiles are cut along K: none where whole waves of them are all."""
    rest = tiles % clusters
    return select(rest == 0, 0, _least(tiles, rest + clusters, select))


def _least(x: Any, y: Any, select: Select) -> Any:
    return select(x < y, x, y)


def _most(x: Any, y: Any, select: Select) -> Any:
    return select(x > y, x, y)
