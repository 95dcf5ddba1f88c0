"""What the runner records: one row per contender and problem, with where and with what it was measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One contender on one problem; `us` is None where the result was wrong (`ok` false): it is not timed.

    `layout` is that of `cutegemm.plan`: for A, then B, "n" if the matrix is contiguous as written and "t" if
    it is the transposed view of a contiguous one. `rel_err` is the largest error against fp64 over the
    largest magnitude of the reference, over what `gate` compares; None where the result had a NaN. `kernel`
    says what ran, as far as the contender can tell.
    """

    group: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    layout: str
    epilogue: str
    contender: str
    kernel: str
    us: float | None
    ok: bool
    rel_err: float | None

    @property
    def problem(self) -> tuple[object, ...]:
        """What rows that compete have in common."""
        return (self.group, self.m, self.n, self.k, self.batch, self.dtype, self.layout, self.epilogue)

    @property
    def tflops(self) -> float | None:
        """10^12 floating-point operations of the products per second."""
        return None if self.us is None else 2e-6 * self.batch * self.m * self.n * self.k / self.us


@dataclass(frozen=True, slots=True)
class Results:
    """A results file. `scalars` holds figures that are not a time per problem; their names say the unit."""

    gpu: str
    driver: str
    versions: Mapping[str, str]
    commit: str
    date: str
    suite: str
    rows: tuple[Row, ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)

    def joined(self, earlier: Results) -> Results:
        """These results and what `earlier` has besides. Raises ValueError if it was measured otherwise."""
        for name in ("gpu", "driver", "versions", "commit", "suite"):
            ours, theirs = getattr(self, name), getattr(earlier, name)
            if ours != theirs:
                raise ValueError(f"the earlier results have {name} {theirs!r}, not {ours!r}: name another file")
        measured = {(row.problem, row.contender) for row in self.rows}
        kept = [row for row in earlier.rows if (row.problem, row.contender) not in measured]
        return replace(self, rows=(*kept, *self.rows), scalars={**earlier.scalars, **self.scalars})

    def write(self, path: Path) -> None:
        """Writes the file, a row a line so that differences can be read."""
        head = {k: v for k, v in asdict(self).items() if k not in ("rows", "scalars")}
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
        rows = ",\n".join("  " + json.dumps(asdict(row)) for row in self.rows)
        lines.append(f'"rows": [\n{rows}\n]')
        lines.append(f'"scalars": {json.dumps(dict(self.scalars), indent=1)}')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads a file that `write` wrote. Raises ValueError, naming the file, for one of another form."""
        data: dict[str, Any] = json.loads(path.read_text())
        try:
            rows = tuple(Row(**_exactly(Row, row)) for row in data.pop("rows"))
            return cls(rows=rows, **_exactly(cls, {**data, "rows": None}, skip="rows"))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a results file: {error}") from error


def _exactly(cls: type, data: Mapping[str, Any], skip: str = "") -> dict[str, Any]:
    """`data` less `skip`, if its keys are the fields of `cls`."""
    names = {f.name for f in fields(cls)}
    if data.keys() != names:
        raise ValueError(f"fields {sorted(names ^ data.keys())} missing or unknown")
    return {k: v for k, v in data.items() if k != skip}


def find(root: Path = RESULTS) -> Iterable[tuple[str, Results]]:
    """Every results file under `root/<gpu>/`, as (path relative to `root`, contents), in order of path."""
    for path in sorted(root.glob("*/*.json")):
        yield path.relative_to(root).as_posix(), Results.read(path)
