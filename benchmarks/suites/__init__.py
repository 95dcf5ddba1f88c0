"""Benchmark suites: the problems as data (`<name>.json`) and their reader."""

from __future__ import annotations

import json
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


def load(name: str) -> tuple[Case, ...]:
    """The cases of the suite called `name`, in its file's order. Raises ValueError, listing what there is."""
    path = SUITES / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"no suite {name!r}: expected one of {', '.join(names())}")
    suite = json.loads(path.read_text())
    epilogues: dict[str, list[str]] = suite.get("epilogues", {})
    return tuple(
        Case(group, m, n, k, suite["dtype"], suite["layout"], epilogue)
        for group, problems in suite["groups"].items()
        for m, n, k in problems
        for epilogue in epilogues.get(group, ["none"])
    )
