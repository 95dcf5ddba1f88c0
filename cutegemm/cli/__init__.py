"""The `cutegemm` command: a module per subcommand, whose `add` registers its options and `run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cutegemm.cli import build, compare, demo, doctor, epilogues, fragments, ladder, plan, walk
from cutegemm.cli.output import fail
from cutegemm.errors import CuteGemmError

__all__ = ["main"]


def parser() -> argparse.ArgumentParser:
    """The command's parser, subcommands included."""
    top = argparse.ArgumentParser(
        prog="cutegemm", description="Matrix multiplication on NVIDIA GPUs with fused epilogues."
    )
    subcommands = top.add_subparsers(required=True, metavar="command")
    for module in (demo, plan, compare, doctor, epilogues, fragments, ladder, walk, build):
        module.add(subcommands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (`sys.argv` if None) and returns its exit code.

    0: done. 1: what was asked for failed, with the reason on stderr (with `--json`, as an object on stdout).
    2: the command line was not understood.
    """
    args = parser().parse_args(argv)
    try:
        return int(args.run(args))
    except CuteGemmError as error:
        return fail(error, as_json=args.json)
    except ImportError as error:
        hint = ImportError(f"{error}; `cutegemm doctor` says what to install")
        return fail(hint, as_json=args.json)
    except BrokenPipeError:  # a reader such as `head` that has seen enough
        sys.stderr.close()
        return 0
