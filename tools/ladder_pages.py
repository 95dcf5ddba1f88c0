"""Writes the ladder's pages, `docs/ladder/*.md`: `python -m tools.ladder_pages [--check]`.

A page is the lesson of a level's source, the prose of `tools/ladder_text`, figures of `cutegemm.roofline`, the source
itself and what `benchmarks/results/*/ladder.json` holds of it. Figures are never typed: prose names them, as in
"{here.loaded}", and what was not measured says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.results import Results, Row, find
from cutegemm import cli, device
from cutegemm.errors import ArgumentError
from cutegemm.fragments import fragment
from cutegemm.hand_kernels.build import FOLDER
from cutegemm.hand_kernels.levels import LEVELS, Level
from cutegemm.roofline import Verdict, attainable, occupancy, ridge_point
from tools.ladder_figures import GPUS, SIZE, figures, peak, rate, runs, shared_bandwidth
from tools.ladder_source import markdown, sections, split

ROOT = Path(__file__).parent.parent
PAGES, TEXT = ROOT / "docs" / "ladder", Path(__file__).with_name("ladder_text")
WRITTEN = "<!-- Written by `python -m tools.ladder_pages`; its prose is in tools/ladder_text. -->"
#: Between what a text says of the idea and what it says of the profiler.
PROFILER_MARK = "<!-- profiler -->"
UNMEASURED = "not measured yet on this commit"
_SPOKEN = {"fp32": "the CUDA cores' fp32 FMA", "mma": "`mma.sync`", "wgmma": "`wgmma`"}


def ladder() -> dict[str, list[Level]]:
    """The rungs by name, each with its variants; the one a page is about comes first."""
    rungs: dict[str, list[Level]] = {}
    for level in LEVELS:
        rungs.setdefault(level.name.partition("-")[0], []).append(level)
    return {name: sorted(levels, key=lambda level: level.name != name) for name, levels in rungs.items()}


def pages() -> dict[str, str]:
    """Every page's text by its file's name. Raises `KeyError` for a figure that prose names and there isn't, and
    `FileNotFoundError` for a level without prose."""
    rungs = ladder()
    measured = [results for path, results in find() if Path(path).name == "ladder.json"]
    names = list(rungs)
    made = {"README.md": _index(rungs, measured)}
    for i, name in enumerate(names):
        around = (names[i - 1] if i else None, names[i + 1] if i + 1 < len(names) else None)
        made[f"{name}.md"] = _page(name, rungs[name], around, rungs, measured)
    return made


# ---------------------------------------------------------------- a level's page


def _page(
    name: str,
    levels: list[Level],
    around: tuple[str | None, str | None],
    rungs: dict[str, list[Level]],
    measured: Sequence[Results],
) -> str:
    level = levels[0]
    lesson, code = split((FOLDER / level.source).read_text())
    comment, seen = markdown(lesson)
    idea, _, profiler = _prose(name, level).partition(PROFILER_MARK)
    parts = [
        WRITTEN,
        f"# Level {name.removeprefix('level')}: {level.title}",
        _around(around, rungs),
        f"{level.idea[0].upper()}{level.idea[1:]}.",
        _facts(levels),
        "## The idea",
        idea.strip(),
        "## The lesson, as the source has it",
        comment,
        "## What to expect",
        *_expected(level),
        "## The source",
        f"[hand_kernels/{level.source}](../../hand_kernels/{level.source}), after the comment above.",
        *_code(code),
        *_headers(name, rungs),
        "## In the profiler",
        f"{seen[0].upper()}{seen[1:]}",
        profiler.strip(),
        "## Measured",
        _measured(levels, measured),
        "## Try it",
        _commands(_of_level(levels)),
        _around(around, rungs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _prose(name: str, level: Level) -> str:
    known = {other: figures(levels[0]) for other, levels in ladder().items()}
    text: str = (TEXT / f"{name}.md").read_text().format_map({**known, "here": figures(level), "size": SIZE})
    return text


def _around(around: tuple[str | None, str | None], rungs: dict[str, list[Level]]) -> str:
    before, after = around
    links = [] if before is None else [f"← [{_called(before, rungs)}]({before}.md)"]
    links.append("[the ladder](README.md)")
    links += [] if after is None else [f"[{_called(after, rungs)}]({after}.md) →"]
    return " · ".join(links)


def _called(name: str, rungs: dict[str, list[Level]]) -> str:
    return f"Level {name.removeprefix('level')}: {rungs[name][0].title}"


def _facts(levels: list[Level]) -> str:
    titles = ["pin", "what", "tile of D", "step of K", "threads", "stages", "shared memory", "A and B", "for"]
    lines = []
    for level in levels:
        dtype = figures(level).dtype
        depth = f"{level.depth(dtype)} ({dtype})" if level.packed else f"{level.depth(dtype)}"
        smem = f"{level.smem_bytes / 1024:g} KiB" if level.smem_bytes else "none"
        lines.append(
            [f"`hand:{level}`", level.title, f"{level.tile_m} x {level.tile_n}", depth, f"{level.threads}"]
            + [f"{level.stages}", smem, ", ".join(level.dtypes), level.only or f"sm_{level.since} on"]
        )
    return _table(titles, lines)


def _expected(level: Level) -> Iterator[str]:
    here = figures(level)
    yield (
        f"At M = N = K = {SIZE} in {here.dtype}. Work is `gemm_flops(M, N, K)` = 2 M N K; what threads load of A and B "
        f"is `traffic_bytes(M, N, K, {here.item}, {level.reuse[1]}, {level.reuse[0]})`, caches apart; intensity is one "
        "over the other (all in `cutegemm.roofline`)."
    )
    lines = [
        ["work", here.flops],
        ["A, B and D, once each (`compulsory_bytes`)", here.compulsory],
        ["loaded of A and B", f"{here.loaded}: {here.times} times over, on average"],
        ["intensity on what is loaded", here.intensity],
    ]
    if here.fragment is not None:
        rows, columns = here.fragment
        whose = {"fp32": "thread", "mma": "warp", "wgmma": "wgmma"}[level.unit]
        lines.append([f"intensity on what a {whose} takes from shared memory for {rows} x {columns}", here.shared])
    yield _table(["", "figure"], lines)
    fp32_shared = level.unit == "fp32" and level.smem_bytes > 0
    titles = ["GPU", "peak", "ridge", "if all loads went to memory", "ridge of shared memory", "expected"]
    rows_of = []
    able = [gpu for gpu in GPUS if runs(level, gpu)]
    for gpu in able:
        top = peak(level, gpu)
        on_gpu = figures(level, gpu)
        low, high = level.share
        rows_of.append(
            [gpu.name, rate(top), on_gpu.ridge, rate(attainable(here.flop_per_byte, top, gpu.hbm_bytes_per_s))]
            + [on_gpu.shared_ridge if level.smem_bytes else "", f"{rate(low * top)} to {rate(high * top)}"]
        )
    yield _table(titles, rows_of)
    yield (
        f"The peak is that of {_SPOKEN[level.unit]}; the ridge is `ridge_point(peak, bandwidth)`, the next column "
        "`attainable(intensity, peak, bandwidth)`. Expected is "
        f"{here.share} of the peak: what the literature's trend leads to expect, not a pass mark. What is above the "
        "column before it, caches and L2 have served."
        + (" Shared memory is counted by what threads take: a word that lanes share costs less." if fp32_shared else "")
    )
    if level.smem_bytes:
        fits = {
            gpu.name: occupancy(gpu, threads=level.threads, registers=1, smem=level.smem_bytes).limits for gpu in able
        }
        said = "; ".join(
            f"{name} {limits['shared memory']} by shared memory, {limits['threads']} by threads"
            for name, limits in fits.items()
        )
        yield f"Blocks that an SM could hold, registers apart (`occupancy`): {said}."


def _code(code: str) -> Iterator[str]:
    for section in sections(code):
        yield f"### {section.title}"
        yield f"```cpp\n{section.code.rstrip()}\n```"


def _headers(name: str, rungs: dict[str, list[Level]]) -> Iterator[str]:
    """The headers that this level is the first to include, whole: `common.cuh` on the first page, and so on."""
    earlier: set[str] = set()
    for other, levels in rungs.items():
        own = _included((FOLDER / levels[0].source).read_text()) - earlier
        if other == name:
            for header in sorted(own):
                yield f"### {header}"
                yield f"New on this page: [hand_kernels/{header}](../../hand_kernels/{header})."
                yield f"```cpp\n{(FOLDER / header).read_text().rstrip()}\n```"
        earlier |= own


def _included(text: str) -> set[str]:
    return set(re.findall(r'^#include "(\w+\.cuh)"', text, re.M))


def _of_level(levels: list[Level]) -> tuple[str, ...]:
    level = levels[0]
    dtype = figures(level).dtype
    operand = {"level7": "ldmatrix.x4 --operand a", "level8": "mma.m16n8k16 --operand c"}.get(level.name)
    thread = "1,2" if level.block[1] > 2 else "33,0"
    walk = f"cutegemm walk {level.name} --block 0,0 --thread {thread}"
    if level.split_k:  # with too few tiles for a GPU its blocks share them
        walk += f" --size {SIZE}"
    return (
        f"cutegemm ladder --levels {','.join(other.name for other in levels)}",
        *((walk,) if level.unit != "wgmma" else ()),  # no thread of it loads or reads what it multiplies
        f"cutegemm compare {SIZE} {SIZE} {SIZE} --layout nn --dtype {dtype} --kernels hand,torch",
        f"cutegemm plan {SIZE} {SIZE} {SIZE} --layout nn --dtype {dtype} --arch H200 --kernel hand:{level.name}",
        *((f"cutegemm fragments --instr {operand}",) if operand is not None else ()),
    )


# ---------------------------------------------------------------- the index


def _index(rungs: dict[str, list[Level]], measured: Sequence[Results]) -> str:
    lines = []
    for name, levels in rungs.items():
        level, here = levels[0], figures(levels[0])
        link = f"[{_called(name, rungs)}]({name}.md)"
        lines.append([link, level.idea, here.dtype, here.intensity, here.shared, here.share])
    titles = ["level", "idea", "figures in", "intensity on loads", "on shared memory", "expected of its unit's peak"]
    gpu, a100 = GPUS[-1], GPUS[0]
    rows, columns = fragment("mma.m16n8k16", "c").shape
    known: dict[str, object] = {
        "table": _table(titles, lines),
        "commands": _commands(
            (
                "cutegemm ladder",
                "cutegemm walk level3 --block 0,0 --thread 1,2",
                "cutegemm fragments --instr mma.m16n8k16 --operand a",
                "cutegemm fragments --instr ldmatrix.x4 --operand a --plot a.png",
                f"cutegemm compare {SIZE} {SIZE} {SIZE} --layout nn",
                f"cutegemm compare {SIZE} {SIZE} {SIZE} --layout nn --arch A100 --plot rates.png",
            )
        ),
        "under": Verdict.UNDER,
        "slope": Verdict.SLOPE,
        "roof": Verdict.ROOF,
        "gpu": gpu.name,
        "fp32_ridge": f"{ridge_point(gpu.fp32_flops, gpu.hbm_bytes_per_s):.3g}",
        "mma_ridge": f"{ridge_point(gpu.mma_flops, gpu.hbm_bytes_per_s):.3g}",
        "shared_ridge": f"{ridge_point(gpu.fp32_flops, shared_bandwidth(gpu)):.3g}",
        "a100_kib": f"{a100.smem_per_sm / 1024:g}",
        "h100_kib": f"{GPUS[1].smem_per_sm / 1024:g}",
        "c_shape": f"{rows} x {columns}",
        "size": SIZE,
        "count": len(rungs),
        "measured": _measured([levels[0] for levels in rungs.values()], measured),
        **{name: figures(levels[0]) for name, levels in rungs.items()},
    }
    return f"{WRITTEN}\n\n{(TEXT / 'index.md').read_text().format_map(known).strip()}\n"


# ---------------------------------------------------------------- tables


def _measured(levels: Sequence[Level], measured: Sequence[Results]) -> str:
    """A table for each GPU with results of these levels; `UNMEASURED` where there are none."""
    parts = []
    for results in measured:
        own = {f"cutegemm:hand:{level}": level for level in levels}
        rows = [row for row in results.rows if row.contender in own]
        if rows:
            facts = f"**{results.gpu}**, commit {results.commit[:12]}, {results.date}, driver {results.driver}:"
            parts.append(f"{facts}\n\n{_rows(rows, own, results)}")
    return "\n\n".join(parts) if parts else f"{UNMEASURED[0].upper()}{UNMEASURED[1:]}."


def _rows(rows: Sequence[Row], own: dict[str, Level], results: Results) -> str:
    try:
        gpu = device.lookup(results.gpu)
    except ArgumentError:  # measured on a GPU whose peak is not in the data file
        gpu = None
    theirs = {row.problem: row for row in results.rows if row.contender == "cublas"}
    lines = []
    for row in rows:
        level, other = own[row.contender], theirs.get(row.problem)
        problem = [f"`hand:{level}`", f"{row.m}×{row.n}×{row.k}", f"{row.dtype} {row.layout}"]
        if row.us is None or row.tflops is None:
            lines.append([*problem, "" if row.ok else "wrong", "", "", ""])
            continue
        share = "" if gpu is None else f"{row.tflops * 1e12 / peak(level, gpu):.1%}"
        ratio = "" if other is None or other.us is None else f"{other.us / row.us:.2f}"
        lines.append([*problem, f"{row.us:.1f}", f"{row.tflops:.3g}", share, ratio])
    titles = ["kernel", "M×N×K", "type", "µs", "TFLOP/s", "of its unit's peak", "cublas ÷ it"]
    return _table(titles, lines)


def _table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(titles)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines))


def _commands(wanted: Sequence[str]) -> str:
    """Those that this version's command understands, in a block."""
    return "```\n" + "\n".join(command for command in wanted if _understood(command)) + "\n```"


def _understood(command: str) -> bool:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        cli.parser().parse_args(command.split()[1:])
        return True
    return False


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; `--check` ends with 1 where a page would change."""
    parser = argparse.ArgumentParser(prog="python -m tools.ladder_pages", description="Writes docs/ladder.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    args = parser.parse_args(argv)
    made = pages()
    stray = [path for path in PAGES.glob("*.md") if path.name not in made]
    stale = [name for name, text in made.items() if not _holds(PAGES / name, text)]
    if args.check:
        for name in (*stale, *(path.name for path in stray)):
            print(f"docs/ladder/{name} is out of date: python -m tools.ladder_pages", file=sys.stderr)
        return int(bool(stale or stray))
    PAGES.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (PAGES / name).write_text(made[name])
    for path in stray:
        path.unlink()
    return 0


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
