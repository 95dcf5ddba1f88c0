"""Rewrites the README's measured section from the results files: `python -m benchmarks.report [--check]`.

Numbers are never typed: what stands between the two markers is what `render` makes of `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

from benchmarks.results import Results, Row, find

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- measured: begin (written by `python -m benchmarks.report`) -->"
END = "<!-- measured: end -->"
LONG = 12  # a table of more problems is folded away under its summary


def render(files: Iterable[tuple[str, Results]]) -> str:
    """The section's Markdown: one part per results file."""
    parts = [_file(path, results) for path, results in files]
    return "\n\n".join(parts) if parts else "No results are recorded yet: `make bench` measures on your GPU."


def rewrite(text: str, section: str) -> str:
    """`text` with what stands between the markers replaced. Raises ValueError unless there is one pair."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end) or BEGIN in tail or END in tail:
        raise ValueError(f"expected {BEGIN!r} and {END!r}, once each and in that order")
    return f"{head}{BEGIN}\n{section}\n{END}{tail}"


def _file(path: str, results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    facts = f"driver {results.driver}, {versions}; commit {results.commit[:12]}, {results.date}"
    parts = [f"**{results.gpu}**, suite `{results.suite}` ([{path}](benchmarks/results/{path})): {facts}."]
    if results.rows:
        parts.append(_table(results.rows))
    if results.scalars:
        parts.append("\n".join(f"- `{name}`: {value:.6g}" for name, value in results.scalars.items()))
    return "\n\n".join(parts)


def _table(rows: tuple[Row, ...]) -> str:
    contenders = list(dict.fromkeys(row.contender for row in rows))
    problems: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        problems.setdefault(row.problem, {})[row.contender] = row
    ours, *others = contenders
    titles = ["M×N×K", "type", "epilogue", *(f"{c} (µs)" for c in contenders)]
    titles += [f"{ours} (TFLOP/s)", *(f"{other} ÷ {ours}" for other in others)]
    lines = [_line(titles), _line(["---"] * 3 + ["---:"] * (len(titles) - 3))]
    ratios: dict[str, list[float]] = {other: [] for other in others}
    for by_contender in problems.values():
        row = next(iter(by_contender.values()))
        size = f"{row.m}×{row.n}×{row.k}" if row.batch == 1 else f"{row.batch}×({row.m}×{row.n}×{row.k})"
        cells = [size, f"{row.dtype} {row.layout}", row.epilogue]
        cells += [_microseconds(by_contender.get(c)) for c in contenders]
        mine = by_contender.get(ours)
        cells.append(f"{mine.tflops:.0f}" if mine and mine.tflops else "")
        for other in others:
            theirs = by_contender.get(other)
            ratio = theirs.us / mine.us if mine and mine.us and theirs and theirs.us else None
            cells.append(f"{ratio:.2f}" if ratio else "")
            if ratio:
                ratios[other].append(ratio)
        lines.append(_line(cells))
    table = "\n".join(lines)
    if len(problems) <= LONG:
        return table
    summary = f"{len(problems)} problems"
    for other, values in ratios.items():
        if values:
            summary += f"; {other} ÷ {ours}: geometric mean {geometric_mean(values):.2f} of {len(values)}"
    return f"<details><summary>{summary}</summary>\n\n{table}\n\n</details>"


def _microseconds(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row.us:.1f}" if row.us is not None else "wrong result"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(argv: list[str] | None = None) -> int:
    """The command line. `--check` writes nothing and fails where the README is not what it would write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only say whether the README is up to date")
    args = parser.parse_args(argv)
    before = README.read_text()
    after = rewrite(before, render(find()))
    if args.check and before != after:
        print("README.md is not what the results give: run python -m benchmarks.report", file=sys.stderr)
        return 1
    if not args.check:
        README.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
