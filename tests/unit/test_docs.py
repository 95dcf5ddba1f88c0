"""What the documents say works: their Python blocks run on the CPU, the commands they name exist."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutegemm.cli import parser

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def python_blocks() -> list[object]:
    """Every ```python block, as a pytest parameter named by its document and line."""
    blocks = []
    for path in DOCUMENTS:
        text = path.read_text()
        for match in FENCE.finditer(text):
            if match[1] == "python":
                line = text.count("\n", 0, match.start()) + 2
                blocks.append(pytest.param(match[2], id=f"{path.relative_to(ROOT)}:{line}"))
    return blocks


def commands(text: str) -> list[str]:
    """The shell commands in a document: lines of fenced blocks that are not Python, and inline code."""
    fenced = [line for m in FENCE.finditer(text) if m[1] != "python" for line in m[2].splitlines()]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    stripped = (command.removeprefix("$ ").strip() for command in (*fenced, *inline))
    return [command for command in stripped if re.match(r"(make|cutegemm|python -m) ", command)]


def problem(command: str) -> str | None:
    """Why `command` could not be run as written, or None."""
    words = command.partition("#")[0].split()
    if words[0] == "make":
        phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.M)
        assert phony is not None
        unknown = [w for w in words[1:] if "=" not in w and w not in phony[1].split()]
        return f"no make target {unknown}" if unknown else None
    if words[0] == "cutegemm":
        with contextlib.suppress(SystemExit):
            parser().parse_args([w.strip("'\"") for w in words[1:] if w not in ("|", ">")])
            return None
        return "the command line does not parse"
    module = words[2]
    return None if importlib.util.find_spec(module) else f"no module {module}"


@pytest.mark.parametrize("code", python_blocks())
def test_python_blocks_run(code: str) -> None:
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_commands_exist(path: Path) -> None:
    problems = {command: why for command in commands(path.read_text()) if (why := problem(command))}
    assert not problems


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text())
    assert [t for t in targets if not (path.parent / t).exists()] == []


def test_the_checks_can_fail() -> None:
    assert problem("make tea") and problem("cutegemm brew") and problem("python -m no_such_module")
    assert commands("```\nmake tea  # hot\n```\nand `cutegemm brew`, `make it so`") == [
        "make tea  # hot",
        "cutegemm brew",
        "make it so",
    ]


def test_every_subcommand_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    (subcommands,) = [a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)]
    names = ["demo", "plan", "compare", "doctor", "epilogues", "fragments", "ladder", "walk", "build"]
    assert list(subcommands.choices) == names
    for name, sub in subcommands.choices.items():
        assert "--json" in sub.format_help(), name
        with pytest.raises(SystemExit) as exit:
            sub.parse_args(["--help"])
        assert exit.value.code == 0 and name in capsys.readouterr().out
