"""Writes the measured part of docs/precision.md: `python -m tools.precision_tables [--check]`.

Errors are those of `benchmarks/results/*/precision.json`, times those of `benchmarks/results/*/fp32.json`; without them
the page has no measured part. Figures are never typed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.precision import MEASURES, REMAINDER, SUITE, read
from benchmarks.report import by_problem, decimal, over, reference, rewrite, table
from benchmarks.results import Results, Row, find
from cutegemm import CuteGemmError, plan
from cutegemm.planner import FAMILIES

PAGE = Path(__file__).parent.parent / "docs" / "precision.md"
BEGIN = "<!-- measured: begin (written by `python -m tools.precision_tables`) -->"
END = "<!-- measured: end -->"
#: What the page calls the contenders that it shows.
SHOWN = {
    "cutegemm": '`"ieee"`',
    "cutegemm@tf32": '`"tf32"`',
    "cutegemm@bf16x6": '`"bf16x6"`',
    "cutegemm@bf16x9": '`"bf16x9"`',
    "cublas": "cuBLAS",
    "cublas@tf32": "cuBLAS, TF32",
}
#: What the page says of each of `MEASURES`.
TITLES = dict(
    zip(
        MEASURES,
        (
            "Root mean square of the error of an element over √Σ(ab)², the natural scale of its sum:",
            "Largest error of an element over that scale:",
            "Largest error over the largest magnitude of the exact result, which shows what cancelling costs:",
        ),
        strict=True,
    )
)
INPUTS = (
    "Errors are against fp64, of the same fp32 inputs in every column. Numbers are standard normal (*normal*) or "
    "uniform between 0 and 1 (*positive*). *Ill-conditioned* sums cancel: each product meets its negative, but for "
    f"about {REMAINDER:g} of it. *Badly scaled*: each number is normal, times 10 to a power that is uniform between -6 "
    "and 6; *scaled rows*: the same, with one power for each row of A and each column of B."
)


def render(files: Iterable[tuple[str, Results]]) -> str:
    """The measured part's Markdown, empty where no file has any. Raises ValueError for a figure of another form."""
    known = list(files)
    errors = [part for path, results in known if results.suite == SUITE for part in _errors(path, results)]
    times = [part for path, results in known if results.suite == "fp32" for part in _times(path, results)]
    parts = ["## Measured"] if errors or times else []
    parts += ["### Errors", INPUTS, *errors] if errors else []
    parts += ["### Times and memory", *times] if times else []
    return "\n\n".join(parts)


def _facts(path: str, results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    facts = f"driver {results.driver}, {versions}; commit {results.commit[:12]}, {results.date}"
    return f"**{results.gpu}** ([{path}](../benchmarks/results/{path})): {facts}."


def _errors(path: str, results: Results) -> Iterator[str]:
    figures = read(results.scalars)
    shown = [name for name in SHOWN if any((name, MEASURES[0]) in each for each in figures.values())]
    yield _facts(path, results)
    for measure, title in TITLES.items():
        lines = []
        for (kind, size), each in figures.items():
            values = (each.get((name, measure)) for name in shown)
            lines.append([kind, size.replace("x", "×"), *("" if x is None else f"{x:.1e}" for x in values)])
        yield title
        yield table(["inputs", "M×N×K", *(SHOWN[name] for name in shown)], lines, left=2)
    lines = []
    for name in shown:
        theirs = reference(name)
        if name == theirs:
            continue
        cells = [SHOWN[name], SHOWN[theirs]]
        for measure in MEASURES[:2]:
            ratios = [x[name, measure] / x[theirs, measure] for x in figures.values() if (theirs, measure) in x]
            cells += [decimal(min(ratios, default=None), 2), decimal(max(ratios, default=None), 2)]
        lines.append(cells)
    yield "Errors over those of cuBLAS in the same precision, the least and the greatest ratio of all rows above:"
    yield table(["", "beside", "rms: least", "greatest", "largest: least", "greatest"], lines, left=2)


def _times(path: str, results: Results) -> Iterator[str]:
    lines = []
    for sides in by_problem(results.rows).values():
        for name, row in sides.items():
            theirs = sides.get(reference(name))
            if name in SHOWN and row is not theirs and row.us is not None and row.tflops is not None:
                beside = "" if theirs is None or theirs.us is None else f"{theirs.us:.1f}"
                times = [f"{row.us:.1f}", f"{row.tflops:.0f}", beside, decimal(over(theirs, row), 2)]
                problem = [f"{row.m}×{row.n}×{row.k}", row.layout, SHOWN[name]]
                lines.append([*problem, *times, _workspace(row, results)])
    if lines:
        yield _facts(path, results)
        titles = ["M×N×K", "layout", "precision", "µs", "TFLOP/s", "cuBLAS in that precision (µs)", "cuBLAS ÷ it"]
        yield table([*titles, "workspace (MiB)"], lines, left=3)


def _workspace(row: Row, results: Results) -> str:
    """MiB that the row's kernel takes beside the tensors; empty where this version has no such kernel, or where the
    kernel's library decides it."""
    _, _, precision = row.contender.partition("@")
    try:
        made = plan(
            row.m,
            row.n,
            row.k,
            dtype=row.dtype,
            layout=row.layout,
            arch=results.gpu,
            kernel=row.kernel,
            precision=precision or None,
        )
    except CuteGemmError:
        return ""
    return f"{made.workspace / 2**20:.0f}" if FAMILIES[made.family].surrounds else ""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; `--check` writes nothing and ends with 1 where the page would change."""
    parser = argparse.ArgumentParser(prog="python -m tools.precision_tables", description="Writes docs/precision.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    args = parser.parse_args(argv)
    before = PAGE.read_text()
    after = rewrite(before, render(find()), BEGIN, END)
    if args.check and before != after:
        print("docs/precision.md is not what the results give: run python -m tools.precision_tables", file=sys.stderr)
        return 1
    if not args.check:
        PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
