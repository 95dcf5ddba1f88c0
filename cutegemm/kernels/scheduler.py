"""Which tile of D comes when: a linear index -> batch entry, tile row, tile column; and which part of K.

Tiles are walked in groups of `group` tile rows, down the columns within a group, so that blocks in flight together read
few distinct rows of A and columns of B. The arithmetic is the same on Python's integers and on the DSL's.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute


def tile_at(index: Any, rows: Any, columns: Any, group: int) -> tuple[Any, Any, Any]:
    """(batch entry, tile row, tile column) of the `index`-th of (batch x) `rows` x `columns` tiles."""
    batch, place = index // (rows * columns), index % (rows * columns)
    per_group = group * columns
    first = place // per_group * group
    height = cutlass.min(rows - first, group)  # the last group may be lower
    within = place % per_group
    return batch, first + within % height, within // height


def tile_of_block(v: dict[str, Any], config: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(tile row, tile column, l0, l1, part of K) of this CTA, for arguments `v` by name: parts are the slowest."""
    rows, columns = cute.ceil_div(v["m"], config.tile_m), cute.ceil_div(v["n"], config.tile_n)
    block, _, _ = cute.arch.block_idx()
    batch, row, column = tile_at(block, rows, columns, config.raster)
    return row, column, *place_of(batch, v, config.split)


def place_of(batch: Any, v: dict[str, Any], parts: int) -> tuple[Any, Any, Any]:
    """(l0, l1, part of K) of a batch entry, where each place of the batch has so many `parts`."""
    if parts == 1:
        return batch % v["l0"], batch // v["l0"], 0
    outer = batch // v["l0"]
    return batch % v["l0"], outer % v["l1"], outer // v["l1"]


def part_of_k(v: dict[str, Any], config: Any, part: Any) -> tuple[Any, Any]:
    """Where a part of K begins, and how long it is: whole k-tiles, the last parts shorter or empty."""
    if config.split == 1:
        return 0, v["k"]
    depth = cute.ceil_div(cute.ceil_div(v["k"], config.tile_k), config.split) * config.tile_k
    first = cutlass.min(part * depth, v["k"])
    return first, cutlass.min(depth, v["k"] - first)
