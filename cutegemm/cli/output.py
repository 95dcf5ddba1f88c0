"""What the subcommands print with: text for people, or with `--json` one object on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console

Subcommands = Any  # argparse names the type of `add_subparsers()` privately


def console() -> Console:
    """A console on stdout. Where it is no terminal, lines are not wrapped: something else reads them."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=10_000)


def subcommand(subcommands: Subcommands, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """A subcommand's parser with the options that all of them share."""
    parser: argparse.ArgumentParser = subcommands.add_parser(name, help=help, description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def print_json(value: Any) -> None:
    """Prints `value` as JSON."""
    print(json.dumps(value, indent=2))


def fail(error: Exception, *, as_json: bool) -> int:
    """Reports `error` and returns the exit code of a failure."""
    if as_json:
        print_json({"error": type(error).__name__, "message": str(error)})
    else:
        print(f"cutegemm: {error}", file=sys.stderr)
    return 1
