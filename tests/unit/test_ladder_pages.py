"""The ladder's pages: as the tool writes them, with the sources whole, and with no figure that was not computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.results import Results, Row
from cutegemm.hand_kernels.build import FOLDER
from cutegemm.hand_kernels.levels import LEVELS, find
from cutegemm.planner.model import SMEM_BYTES_PER_CLK
from tools import ladder_pages
from tools.ladder_figures import SIZE, figures, shared_bandwidth, size
from tools.ladder_source import markdown, sections, split

SOURCES = sorted({level.source for level in LEVELS})
RUNGS = ladder_pages.ladder()


def test_the_pages_are_what_the_tool_writes() -> None:
    assert ladder_pages.main(["--check"]) == 0


def test_a_stale_a_missing_and_a_stray_page_fail_the_check(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(ladder_pages, "PAGES", tmp_path / "ladder")
    assert ladder_pages.main(["--check"]) == 1 and not (tmp_path / "ladder").exists()
    assert ladder_pages.main([]) == 0 and ladder_pages.main(["--check"]) == 0
    stray = tmp_path / "ladder" / "level99.md"
    stray.write_text("gone")
    (tmp_path / "ladder" / "level1.md").write_text("old")
    capsys.readouterr()
    assert ladder_pages.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "level1.md is out of date" in said and "level99.md" in said and "level2.md" not in said
    assert ladder_pages.main([]) == 0 and not stray.exists() and ladder_pages.main(["--check"]) == 0


def test_every_level_has_a_page_and_a_text() -> None:
    assert [level.name for levels in RUNGS.values() for level in levels[:1]] == list(RUNGS)
    assert {path.stem for path in ladder_pages.TEXT.glob("level*.md")} >= set(RUNGS)
    assert set(ladder_pages.pages()) == {"README.md", *(f"{name}.md" for name in RUNGS)}


@pytest.mark.parametrize("source", SOURCES)
def test_sections_are_the_source_verbatim(source: str) -> None:
    text = (FOLDER / source).read_text()
    lesson, code = split(text)
    assert "".join(section.code for section in sections(code)) == code
    comment = "".join(f"// {line}".rstrip() + "\n" for line in lesson.splitlines())
    assert comment + code == text
    titles = [section.title for section in sections(code)]
    assert any(title.startswith("The kernel") for title in titles) and titles[0] == "What it is made of"


@pytest.mark.parametrize("source", SOURCES)
def test_every_lesson_ends_with_the_profiler(source: str) -> None:
    body, profiler = markdown(split((FOLDER / source).read_text())[0])
    assert body and profiler and "In the profiler" not in body and "\n" not in profiler


def test_pages_link_up_and_down() -> None:
    made = ladder_pages.pages()
    assert "](level2.md) · [the ladder](README.md) · [Level 4" in made["level3.md"]
    assert "←" not in made["level1.md"] and "→" not in made[f"{list(RUNGS)[-1]}.md"]
    assert all(f"]({name}.md)" in made["README.md"] for name in RUNGS)


def test_figures_are_the_roofline_s() -> None:
    naive, tiled = figures(find("level1")), figures(find("level3"))
    assert naive.flop_per_byte == 0.25 and tiled.flop_per_byte == 8
    assert naive.loaded == size(2 * SIZE**3 * 4) and naive.times == str(SIZE)
    assert [figures(find(name)).fragment for name in ("level1", "level3", "level4", "level5", "level6", "level8")] == [
        None,
        (4, 1),
        (8, 1),
        (8, 16),
        (32, 64),
        (64, 64),
    ]
    assert figures(find("level5")).shared_flop_per_byte == pytest.approx(8 / 3)
    assert figures(find("level8")).shared_flop_per_byte == 32
    gpu = naive.gpu
    assert shared_bandwidth(gpu) == SMEM_BYTES_PER_CLK * gpu.sm_count * gpu.clock_hz
    for level in LEVELS:
        own = figures(level)
        assert own.flop_per_byte == pytest.approx(level.intensity(SIZE, SIZE, SIZE, own.dtype))


def row(contender: str, us: float | None, ok: bool = True) -> Row:
    return Row("fp32", 4096, 4096, 4096, 1, "fp32", "nn", "none", contender, contender, us, ok, 1e-6)


def results(gpu: str) -> Results:
    rows = (
        row("cutegemm:hand:level3", 20_000.0),
        row("cutegemm:hand:level4", None, ok=False),
        row("cublas", 3000.0),
    )
    return Results(gpu, "580", {}, "0123456789abcdef", "2026-01-02", "ladder", rows)


def test_measured_tables_come_from_results_alone() -> None:
    level3, level4, level5 = find("level3"), find("level4"), find("level5")
    assert ladder_pages._measured([level3], []) == "Not measured yet on this commit."
    assert ladder_pages._measured([level5], [results("NVIDIA H200")]) == "Not measured yet on this commit."
    table = ladder_pages._measured([level3, level4], [results("NVIDIA H200")])
    share = 2 * 4096**3 / 20_000e-6 / figures(level3).gpu.fp32_flops
    assert "**NVIDIA H200**, commit 0123456789ab, 2026-01-02" in table
    assert f"| `hand:level3` | 4096×4096×4096 | fp32 nn | 20000.0 | 6.87 | {share:.1%} | 0.15 |" in table
    assert "| `hand:level4` | 4096×4096×4096 | fp32 nn | wrong |  |  |  |" in table
    assert "| 20000.0 | 6.87 |  | 0.15 |" in ladder_pages._measured([level3], [results("some new GPU")])


def test_pages_name_only_commands_that_there_are() -> None:
    named = ladder_pages._commands(("cutegemm compare 8 8 8", "cutegemm brew tea"))
    assert named == "```\ncutegemm compare 8 8 8\n```"
