"""Benchmark suites: the problems as data (`<name>.json`) and their reader.

A file gives `dtype`, `layout` and `groups` of problems [m, n, k]; maps from groups to a dtype (`dtypes`) or to
lists (`layouts`, `epilogues`) say what differs in a group. Every problem is a case in each of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

SUITES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Case:
    """One problem of a suite: D (m, n) = epilogue(A (m, k) @ B (k, n)), with `layout` as in `results.Row`."""

    group: str
    m: int
    n: int
    k: int
    dtype: str
    layout: str
    epilogue: str


def names() -> tuple[str, ...]:
    """The suites there are."""
    return tuple(sorted(path.stem for path in SUITES.glob("*.json")))


def load(name: str, groups: Collection[str] | None = None) -> tuple[Case, ...]:
    """The cases of the suite called `name`, of `groups` alone if any are given, in its file's order. Raises ValueError
    for another name, listing what there is."""
    path = SUITES / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no suite {name!r}: expected one of {', '.join(names())}")
    suite = json.loads(path.read_text())
    dtypes, layouts, epilogues = (suite.get(key, {}) for key in ("dtypes", "layouts", "epilogues"))
    return tuple(
        Case(group, m, n, k, dtypes.get(group, suite["dtype"]), layout, epilogue)
        for group, problems in suite["groups"].items()
        if not groups or group in groups
        for m, n, k in problems
        for layout in layouts.get(group, [suite["layout"]])
        for epilogue in epilogues.get(group, ["none"])
    )
