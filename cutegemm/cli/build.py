"""`cutegemm build`: the kernels for a list of problems and architectures, compiled into a bundle; no GPU needed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cutegemm import device, recording
from cutegemm.cli.output import Subcommands, print_json, subcommand
from cutegemm.compiler import c_source
from cutegemm.deploy import builder, spec_file, wheel
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "build",
        "kernels for named architectures and problems, as a bundle to run where nothing compiles",
        "Plans every problem of the spec, and of the recorded run, for every architecture, compiles the kernels in "
        "parallel and writes them with a manifest. load_bundle(path) or CUTEGEMM_BUNDLE=path serves gemm from them.",
    )
    parser.add_argument("--arch", required=True, help="architectures or GPUs, comma-separated: sm_80,H200")
    parser.add_argument("--spec", type=Path, metavar="TOML", help="the problems, as [[problem]] tables")
    parser.add_argument("--from-log", type=Path, metavar="FILE", help="a run recorded with CUTEGEMM_LOG=FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the bundle goes")
    parser.add_argument(
        "--wheel",
        nargs="?",
        const="",
        metavar="NAME[==VERSION]",
        help="also write the bundle as a wheel, beside FOLDER: installed, it is found by itself",
    )
    parser.add_argument(
        "--c-abi",
        action="store_true",
        help="also make the problems that have a name functions of a C library, in FOLDER/c, with its header",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes that compile (default: one a core)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    devices = _devices(args.arch)
    if args.spec is None and args.from_log is None:
        raise ArgumentError("nothing to build: give --spec, --from-log, or both")
    wanted = [] if args.spec is None else spec_file.read(args.spec)
    if args.from_log is not None:
        wanted += spec_file.recorded(recording.read(args.from_log))
    named = None if args.wheel is None else wheel.identify(args.wheel, args.out)
    with _progress() as advance:
        report = builder.build(wanted, devices, args.out, jobs=args.jobs, c_library=args.c_abi, advance=advance)
    packed = None if named is None else wheel.write(args.out, *named, args.out.absolute().parent)
    if args.json:
        print_json({"out": str(args.out), "wheel": None if packed is None else str(packed), **asdict(report)})
        return 0
    counts = ", ".join(f"{count} for {arch}" for arch, count in report.kernels.items())
    total, size = sum(report.kernels.values()), report.bytes / 1e6
    took = f"for {report.problems} problems, in {report.seconds:.0f} s"
    print(f"{args.out}: {total} kernel{'s' * (total != 1)} ({counts}), {size:.1f} MB, {took}")
    if report.c_functions:
        print(f"{args.out / builder.C_FOLDER}: {', '.join(c_source.PREFIX + name for name in report.c_functions)}")
    if packed is not None:
        print(packed)
    return 0


def _devices(names: str) -> list[DeviceSpec]:
    found = {spec.name: spec for name in names.split(",") if (spec := device.lookup(name.strip()))}
    return list(found.values())


@contextmanager
def _progress() -> Iterator[builder.Advance]:
    """A bar on stderr where that is a terminal, and nothing elsewhere."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("planned", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total)
