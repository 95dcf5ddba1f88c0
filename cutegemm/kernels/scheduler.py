"""Which tile of D comes when: a linear index -> batch entry, tile row, tile column.

Tiles are walked in groups of `group` tile rows, down the columns within a group, so that blocks in flight together read
few distinct rows of A and columns of B. The arithmetic is the same on Python's integers and on the DSL's.
"""

from __future__ import annotations

from typing import Any

import cutlass


def tile_at(index: Any, rows: Any, columns: Any, group: int) -> tuple[Any, Any, Any]:
    """(batch entry, tile row, tile column) of the `index`-th of (batch x) `rows` x `columns` tiles."""
    batch, place = index // (rows * columns), index % (rows * columns)
    per_group = group * columns
    first = place // per_group * group
    height = cutlass.min(rows - first, group)  # the last group may be lower
    within = place % per_group
    return batch, first + within % height, within // height
