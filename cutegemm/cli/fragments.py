"""`cutegemm fragments`: which lane and register hold which element of a tensor-core instruction's operand."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from cutegemm import plots
from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.errors import ArgumentError
from cutegemm.fragments import INSTRUCTIONS, Fragment, Place, fragment

_WIDTH = 120
_HEADING = 8
_STYLES = ("cyan", "yellow", "green", "magenta", "blue", "red")  # a register's, so that the 8x8 blocks stand out


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "fragments",
        "which lane and register hold which element of an instruction's operand",
        f"Prints the operand's tile with each element's lane and register, from the PTX ISA's formulas. Knows "
        f"{INSTRUCTIONS}. Needs no GPU.",
    )
    parser.add_argument("--instr", required=True, metavar="NAME", help="such as mma.m16n8k16 or ldmatrix.x4.trans")
    parser.add_argument(
        "--operand",
        required=True,
        metavar="a|b|c|r",
        help="a (M, K), b (K, N) or c (M, N), which is D too; r: the matrices of ldmatrix and stmatrix on their own",
    )
    parser.add_argument("--rows", type=_span, metavar="START:STOP", help="only these rows (default: all)")
    parser.add_argument(
        "--columns", type=_span, metavar="START:STOP", help="only these columns (default: the first that fit)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the grid to FILE, say a.png (needs matplotlib)")
    parser.set_defaults(run=run)


def _span(text: str) -> range:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected START:STOP such as 8:16, got {text!r}")
    return range(int(match[1]), int(match[2]))


def run(args: argparse.Namespace) -> int:
    found = fragment(args.instr, args.operand)
    rows, columns = found.shape
    if args.plot is not None:
        plots.ready(args.plot)
        drawn = _within("rows", args.rows or range(rows), rows)
        plots.grid(found, drawn, _within("columns", args.columns or range(columns), columns), args.plot)
    if args.json:
        print_json(_data(found))
        return 0
    out = console()
    cell = 1 + max(len(_cell(found, place)) for place in found.values())
    fit = max(8, (min(out.width, _WIDTH) - _HEADING) // cell // 8 * 8)
    shown = _within("rows", args.rows or range(rows), rows), _within("columns", args.columns or range(fit), columns)
    for line in _lines(found, cell, *shown):
        out.print(line, no_wrap=True, crop=False, overflow="ignore")
    if args.columns is None and fit < columns:
        out.print(f"columns 0 to {fit - 1} of {columns}: --columns {fit}:{min(2 * fit, columns)} shows the next")
    return 0


def _within(option: str, wanted: range, size: int) -> range:
    if wanted.start >= size:
        raise ArgumentError(f"--{option} {wanted.start}:{wanted.stop}: the tile has {size} {option}")
    return range(wanted.start, min(wanted.stop, size))


def _lines(found: Fragment, cell: int, rows: range, columns: range) -> Iterator[Text]:
    row_axis, column_axis = found.axes
    height, width = found.shape
    name = found.operand if found.operand != "r" else "its matrices"
    what = f"{height}x{width} elements of {found.bits} bits in {found.registers} registers of {found.lanes} lanes"
    yield Text(f"{found.instr}, {name} ({row_axis}, {column_axis}): {what}")
    halves = ", and l or h for its lower or upper half" if found.bits == 16 else ""
    yield Text(f"each element: lane.rRegister{halves}")
    if found.addresses:
        yield Text(f"each address: 8 elements, {found.along} counting up")
        for lane in range(0, len(found.addresses), 8):
            first, last = found.addresses[lane], found.addresses[lane + 7]
            yield Text(
                f"  lanes {lane:>2} to {lane + 7:>2} point at {_element(found, first)} to {_element(found, last)}"
            )
    heading = "".join(f"{f'{column_axis[:3]} {column}':<{cell}}" for column in columns)
    yield Text(" " * _HEADING + heading.rstrip(), "bold")
    for row in rows:
        line = Text(f"{f'{row_axis} {row}':<{_HEADING}}", "bold")
        for column in columns:
            place = found[row, column]
            line.append(f"{_cell(found, place):<{cell}}", f"not bold {_STYLES[place.register % len(_STYLES)]}")
        line.rstrip()
        yield line


def _cell(found: Fragment, place: Place) -> str:
    return f"{place.lane}.r{place.register}{'lh'[place.half] if found.bits == 16 else ''}"


def _element(found: Fragment, element: tuple[int, int]) -> str:
    return ", ".join(f"{axis} {index}" for axis, index in zip(found.axes, element, strict=True))


def _data(found: Fragment) -> dict[str, Any]:
    rows, columns = found.shape
    return {
        "instr": found.instr,
        "operand": found.operand,
        "axes": found.axes,
        "shape": found.shape,
        "bits": found.bits,
        "lanes": found.lanes,
        "registers": found.registers,
        # elements[row][column]: lane, register, half
        "elements": [[found[row, column] for column in range(columns)] for row in range(rows)],
        "addresses": found.addresses,
        "along": found.along,
    }
