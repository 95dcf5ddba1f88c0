"""A level's source, taken apart for its page: the lesson at the top, and the code in sections, verbatim."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

PROFILER = "In the profiler:"


class Section(NamedTuple):
    """Neighbouring lines of a source, and what they are."""

    title: str
    code: str


def split(text: str) -> tuple[str, str]:
    """The comment at the top of a source without its slashes, and everything after it. Joined again as they were, the
    two are the file."""
    lines = text.splitlines(keepends=True)
    end = next((i for i, line in enumerate(lines) if not line.startswith("//")), len(lines))
    lesson = "".join(line[2:].removeprefix(" ") for line in lines[:end])
    return lesson, "".join(lines[end:])


def markdown(lesson: str) -> tuple[str, str]:
    """The lesson as Markdown, and of it what it says about the profiler, which comes last.

    Its first line is the page's title and left out; lines that are indented are a figure or a list, and kept as they
    are.
    """
    body = lesson.split("\n", 1)[1].strip("\n")
    rest, _, profiler = body.partition(f"\n{PROFILER}")
    return "\n\n".join(_paragraphs(rest)), " ".join(profiler.split())


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        lines = paragraph.split("\n")
        while lines:
            indented = lines[0].startswith("  ")
            count = next((i for i, line in enumerate(lines) if line.startswith("  ") != indented), len(lines))
            part, lines = "\n".join(lines[:count]), lines[count:]
            yield f"```text\n{part}\n```" if indented else part


def sections(code: str) -> list[Section]:
    """The code in sections: what it is made with, every type and function, and the kernel's parts.

    Sections end where a line is blank, and joined by nothing they are `code` again.
    """
    found: list[Section] = []
    for piece in _pieces(code, ""):
        title = _title(piece)
        if title == "The kernel":
            found += _kernel(piece)
        elif found and title == found[-1].title == "What it is made of":
            found[-1] = Section(title, found[-1].code + piece)
        else:
            found.append(Section(title, piece))
    return found


def _pieces(code: str, indent: str) -> Iterator[str]:
    """`code` up to and with each blank line that a line at `indent` follows, outside of any deeper block."""
    piece: list[str] = []
    lines = code.splitlines(keepends=True)
    for i, line in enumerate(lines):
        piece.append(line)
        after = lines[i + 1] if i + 1 < len(lines) else ""
        if not line.strip() and re.match(rf"{indent}[^\s}}]", after):
            yield "".join(piece)
            piece = []
    if piece:
        yield "".join(piece)


def _title(piece: str) -> str:
    if re.search(r"\bKERNEL\(", piece):
        return "The kernel"
    types = re.findall(r"^(?:struct|union)(?: alignas\(\d+\))? (\w+)", piece, re.M)
    if types:
        return " and ".join(f"`{name}`" for name in dict.fromkeys(types))
    functions = [name for name in re.findall(r"^INLINE [^(=]*?(\w+)(?:<\w+>)?\(", piece, re.M) if name != "void"]
    if functions:
        return " and ".join(f"`{name}`" for name in dict.fromkeys(functions))
    return "What it is made of"


def _kernel(piece: str) -> Iterator[Section]:
    """The kernel's parts: its place, the walk along K, the sums' way to D. A part of both is named for both."""
    parts = list(_pieces(piece, "    "))
    if len(parts) == 1:
        yield Section("The kernel", piece)
        return
    title, code = "The kernel: its place", ""
    for part in parts:
        walks = re.search(r"for \((int (k|step) = 0)?; |multistage<|\bcompute\(", part)
        ends = re.search(r"\bwrite\(|Epilogue epilogue", part)
        now = title
        if walks:
            now = "The kernel: along K, and sums into D" if ends else "The kernel: along K"
        elif ends:
            now = "The kernel: sums into D"
        if code and now != title:
            yield Section(title, code)
            code = ""
        title, code = now, code + part
    yield Section(title, code)
