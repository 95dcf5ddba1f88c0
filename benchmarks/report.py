"""Rewrites the README's measured section from the results files: `python -m benchmarks.report [--check]`.

Numbers are never typed: what stands between the two markers is what `render` makes of `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

from benchmarks.results import Results, Row, find

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- measured: begin (written by `python -m benchmarks.report`) -->"
END = "<!-- measured: end -->"
LONG = 12  # a table of more lines is folded away under its summary
#: Suites whose figures have a page of their own.
ELSEWHERE = {"fp32": "docs/precision.md", "precision": "docs/precision.md"}
PROBLEM = ("M×N×K", "type", "epilogue")

#: Rows by problem, then by contender.
Problems = dict[tuple[object, ...], dict[str, Row]]


def render(files: Iterable[tuple[str, Results]]) -> str:
    """The section's Markdown: one part per results file."""
    parts = [_file(path, results) for path, results in files]
    return "\n\n".join(parts) if parts else "No results are recorded yet: `make bench` measures on your GPU."


def rewrite(text: str, section: str, first: str = BEGIN, last: str = END) -> str:
    """`text` with what stands between the markers replaced. Raises ValueError unless there is one pair."""
    head, begin, rest = text.partition(first)
    _, end, tail = rest.partition(last)
    if not (begin and end) or first in tail or last in tail:
        raise ValueError(f"expected {first!r} and {last!r}, once each and in that order")
    return f"{head}{first}\n{section}\n{last}{tail}"


def _file(path: str, results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    facts = f"driver {results.driver}, {versions}; commit {results.commit[:12]}, {results.date}"
    parts = [f"**{results.gpu}**, suite `{results.suite}` ([{path}](benchmarks/results/{path})): {facts}."]
    if results.suite in ELSEWHERE:
        page = ELSEWHERE[results.suite]
        return f"{parts[0]} Its figures are in [{page}]({page})."
    if results.rows:
        parts.append(_tables(results.rows))
    if results.scalars:
        parts.append("\n".join(f"- `{name}`: {value:.6g}" for name, value in results.scalars.items()))
    return "\n\n".join(parts)


def _tables(rows: tuple[Row, ...]) -> str:
    """The table of all problems; if it is long, folded away under what it says by group and by epilogue."""
    contenders = list(dict.fromkeys(row.contender for row in rows))
    problems = by_problem(rows)
    modes = any("@" in contender for contender in contenders)
    each = _by_mode(problems) if modes else _each(problems, contenders)
    if (len(rows) if modes else len(problems)) <= LONG:
        return each
    folded = f"<details><summary>{len(problems)} problems</summary>\n\n{each}\n\n</details>"
    if modes:  # contenders of unlike precision are not each other's measure
        return folded
    parts = (_groups(problems, contenders), _epilogues(problems, contenders), folded)
    return "\n\n".join(part for part in parts if part)


def by_problem(rows: Iterable[Row]) -> Problems:
    """`rows` in order of their problems."""
    problems: Problems = {}
    for row in rows:
        problems.setdefault(row.problem, {})[row.contender] = row
    return problems


def _each(problems: Problems, contenders: list[str]) -> str:
    """A problem a line: everybody's time, our rate, and how much longer than we the others take."""
    ours, *others = contenders
    titles = [*PROBLEM, *(f"{c} (µs)" for c in contenders)]
    titles += [f"{ours} (TFLOP/s)", *(f"{other} ÷ {ours}" for other in others)]
    lines = []
    for sides in problems.values():
        mine = sides.get(ours)
        cells = [*_problem(sides), *(_microseconds(sides.get(c)) for c in contenders)]
        cells.append(f"{mine.tflops:.0f}" if mine and mine.tflops else "")
        cells += [decimal(over(sides.get(other), mine), 2) for other in others]
        lines.append(cells)
    return table(titles, lines, left=len(PROBLEM))


def reference(contender: str) -> str:
    """The contender that one is measured by where there are several precisions of fp32: cuBLAS in TF32 for TF32, and
    strict for the others."""
    return "cublas@tf32" if contender.endswith("@tf32") else "cublas"


def _by_mode(problems: Problems) -> str:
    """A contender a line, beside its `reference`."""
    lines = []
    for sides in problems.values():
        for name, row in sides.items():
            if (theirs := sides.get(reference(name))) is not row:
                rate = "" if row.tflops is None else f"{row.tflops:.0f}"
                times = [_microseconds(row), rate, _microseconds(theirs), decimal(over(theirs, row), 2)]
                lines.append([*_problem(sides), name, *times])
    titles = [*PROBLEM, "contender", "µs", "TFLOP/s", "cuBLAS in its precision (µs)", "cuBLAS ÷ it"]
    return table(titles, lines, left=len(PROBLEM) + 1)


def _groups(problems: Problems, contenders: list[str]) -> str:
    """A group a line: how much longer than we the fastest of the others takes."""
    ours, *others = contenders
    if not others:
        return ""
    ratios: dict[str, list[float | None]] = {}
    for sides in problems.values():
        timed = [ratio for other in others if (ratio := over(sides.get(other), sides.get(ours)))]
        ratios.setdefault(next(iter(sides.values())).group, []).append(min(timed, default=None))
    lines = []
    for group, all_of_it in ratios.items():
        known = [ratio for ratio in all_of_it if ratio]
        count = f"{len(known)} of {len(all_of_it)}" if len(known) < len(all_of_it) else f"{len(known)}"
        mean = geometric_mean(known) if known else None
        lines.append([group, count, decimal(mean, 3), decimal(min(known, default=None), 3)])
    fastest = f"fastest other ÷ {ours}"
    return table(["group", "problems", f"{fastest}: geometric mean", "minimum"], lines, left=1)


def _epilogues(problems: Problems, contenders: list[str]) -> str:
    """A problem with an epilogue a line: its time over the same contender's without one, of the same shape."""
    cost: dict[tuple[object, ...], dict[str, float | None]] = {}
    for key, sides in problems.items():
        plain = problems.get(replace(next(iter(sides.values())), epilogue="none").problem, sides)
        if plain is not sides:
            cost[key] = {c: over(sides.get(c), plain.get(c)) for c in contenders}
    shown = [c for c in contenders if any(by_contender[c] for by_contender in cost.values())]
    if not shown:
        return ""
    lines = [[*_problem(problems[key]), *(decimal(by[c], 2) for c in shown)] for key, by in cost.items()]
    return table([*PROBLEM, *(f"{c} ÷ its none" for c in shown)], lines, left=len(PROBLEM))


def _problem(sides: Mapping[str, Row]) -> list[str]:
    row = next(iter(sides.values()))
    size = f"{row.m}×{row.n}×{row.k}" if row.batch == 1 else f"{row.batch}×({row.m}×{row.n}×{row.k})"
    return [size, f"{row.dtype} {row.layout}", row.epilogue]


def over(above: Row | None, below: Row | None) -> float | None:
    """The ratio of two times; None unless there are both."""
    return above.us / below.us if above and above.us and below and below.us else None


def decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(titles: list[str], lines: Iterable[list[str]], *, left: int) -> str:
    """A Markdown table; columns after the first `left` are numbers."""
    rule = ["---"] * left + ["---:"] * (len(titles) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *lines))


def _microseconds(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row.us:.1f}" if row.us is not None else "wrong result"


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
