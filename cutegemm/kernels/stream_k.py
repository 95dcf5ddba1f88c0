"""Stream-K: which k-tiles of which tiles each cluster of persistent CTAs multiplies, where tiles alone do not divide
evenly among clusters.

Of `tiles`, the first `streamed` are cut along K: all of their k-tiles, one tile's behind the other's, are shared out in
ranges that differ by one k-tile at most, the `cluster`-th range to the `cluster`-th cluster. They are the tiles of the
last, partial wave and of a full one, so that a range is a tile or more; where there is no full wave, all tiles. The
others, whole waves of them, are dealt out as ever.

A cluster has at most one part of a tile that it does not finish: the beginning of the tile in which its range ends.
This part comes first, and its sums are left to the cluster that has the tile's last k-tile, the tile's owner. Then come
the tiles that the cluster finishes: those of its range from the last to the first, and whole ones. So a cluster
collects sums as late as it can, and only from clusters before it, which have left them before anything else: however
few of the clusters run at a time, those that began first never wait for those that have yet to begin.

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
    """What the `cluster`-th of `clusters` does of `tiles` of `k_tiles` each. Tiles and clusters are counted from 0."""

    tiles: Any
    k_tiles: Any
    clusters: Any
    cluster: Any
    select: Select

    @property
    def streamed(self) -> Any:
        """How many tiles are cut along K."""
        rest = self.tiles % self.clusters
        return self.select(rest == 0, 0, _least(self.tiles, rest + self.clusters, self.select))

    @property
    def unfinished(self) -> Any:
        """1 where the range ends within a tile, whose beginning is left to the tile's owner; else 0."""
        return self.select(self._bound(self.cluster + 1) % self.k_tiles == 0, 0, 1)

    @property
    def finished(self) -> Any:
        """How many tiles the cluster finishes."""
        return self._own + (self.tiles - self.streamed) // self.clusters

    def part(self, i: Any) -> tuple[Any, Any, Any]:
        """(tile, first k-tile, k-tile past the last) of the `i`-th tile that the cluster finishes, which its last k-tile
        always belongs to; -1 stands for the part that it leaves."""
        low, high = self._bound(self.cluster), self._bound(self.cluster + 1)
        tile = high // self.k_tiles - 1 - i
        start = tile * self.k_tiles
        begin = self.select(low > start, low - start, 0)
        end = _least(high - start, self.k_tiles, self.select)
        whole = self.streamed + self.cluster + (i - self._own) * self.clusters
        cut = i < self._own
        return self.select(cut, tile, whole), self.select(cut, begin, 0), self.select(cut, end, self.k_tiles)

    def first_helper(self, tile: Any) -> Any:
        """The first of the clusters that hold k-tiles of a tile of this one's range: those from it up to this one."""
        base, extra = self._range
        at = tile * self.k_tiles
        longer, shorter = at // (base + 1), (at - extra) // base
        return self.select(at < extra * (base + 1), longer, shorter)

    @property
    def _own(self) -> Any:
        """How many tiles of its range the cluster finishes."""
        return self._bound(self.cluster + 1) // self.k_tiles - self._bound(self.cluster) // self.k_tiles

    @property
    def _range(self) -> tuple[Any, Any]:
        """k-tiles of a range, and how many ranges, the first ones, have one more."""
        total = self.streamed * self.k_tiles
        return total // self.clusters, total % self.clusters

    def _bound(self, cluster: Any) -> Any:
        """Where a cluster's range begins, in k-tiles from the first tile's first."""
        base, extra = self._range
        return cluster * base + _least(cluster, extra, self.select)


def _least(x: Any, y: Any, select: Select) -> Any:
    return select(x < y, x, y)
