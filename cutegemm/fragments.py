"""Which lane and register of a warp hold which element of a tile, as the PTX ISA defines it.

Each layout is the PTX ISA's own formula for the element that a lane finds in a register, in its chapters on the
matrix fragments of `mma` and of `wgmma.mma_async` and on `ldmatrix` and `stmatrix`. Pure Python: neither a GPU nor a
compiler is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from cutegemm.errors import ArgumentError

__all__ = ["INSTRUCTIONS", "Fragment", "Place", "fragment"]

#: What `fragment` knows, as its errors and the command's help spell it.
INSTRUCTIONS = (
    "mma.m16n8k16 (16-bit A and B), mma.m16n8k8 (tf32), ldmatrix.x1|x2|x4[.trans], stmatrix.x1|x2|x4[.trans], "
    "wgmma.m64nNk16 (N = 8, 16, ... 256)"
)
_AXES = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n"), "r": ("row", "column")}


class Place(NamedTuple):
    """Where an element is: `half` 1 is the upper 16 bits of a register, 0 the lower ones or all 32.

    `lane` counts within a warp, for wgmma within the warpgroup of 128 threads.
    """

    lane: int
    register: int
    half: int


@dataclass(frozen=True, slots=True, eq=False)
class Fragment(Mapping[tuple[int, int], Place]):
    """One operand of one instruction: a mapping from each element (row, column) of its tile to its `Place`.

    `axes` names rows and columns, `bits` is the size of an element. For ldmatrix and stmatrix, `addresses[lane]` is
    the first of the eight elements that the lane's address points at, which lie along axis `along` in shared memory;
    lanes from `len(addresses)` on give none that is used.
    """

    instr: str
    operand: str
    bits: int
    lanes: int
    registers: int
    places: Mapping[tuple[int, int], Place] = field(repr=False)
    addresses: tuple[tuple[int, int], ...] = ()
    along: str | None = None

    @property
    def axes(self) -> tuple[str, str]:
        """What rows and columns are: m and k of A, k and n of B, m and n of C."""
        return _AXES[self.operand]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the tile."""
        row, column = max(self.places)
        return row + 1, column + 1

    def __getitem__(self, element: tuple[int, int]) -> Place:
        return self.places[element]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def fragment(instr: str, operand: str) -> Fragment:
    """The fragment that `instr` has of `operand`: "a" (M, K), "b" (K, N) or "c" (M, N), which is D too.

    ldmatrix serves "a" and "b" as mma.m16n8k16 takes them, stmatrix "c" rounded to 16 bits: their 8x8 matrices go down
    the tile first, then across (x4: 16x16). Without `.trans`, A and C are row-major in shared memory and B is
    column-major; with it, the other way round. Operand "r" of either is the instruction alone: its matrices as they lie
    in shared memory, one below the other, so that row i is where lane i points.
    Raises `ArgumentError`, naming the choices, for an instruction or operand that has no defined layout.
    """
    if instr.startswith("wmma."):
        raise ArgumentError(
            f"{instr}: the layout of a wmma fragment is opaque: the CUDA C++ programming guide leaves it unspecified "
            "and free to change between architectures. Use load_matrix_sync and store_matrix_sync, or "
            "mma.m16n8k16, whose layout is defined"
        )
    if instr == "mma.m16n8k16":
        found = _mma_16_bit(instr)
    elif instr == "mma.m16n8k8":
        found = _mma_tf32(instr)
    elif match := re.fullmatch(r"(ld|st)matrix\.x([124])(\.trans)?", instr):
        operands = ("a", "b", "r") if match[1] == "ld" else ("c", "r")
        found = {operand: _matrices(instr, operand, int(match[2]), bool(match[3])) for operand in operands}
    elif (match := re.fullmatch(r"wgmma\.m64n(\d+)k16", instr)) and int(match[1]) in range(8, 257, 8):
        found = _wgmma(instr, int(match[1]))
    else:
        raise ArgumentError(f"unknown instruction {instr!r}: known are {INSTRUCTIONS}")
    if operand not in found:
        why = "; b is read from shared memory, through a descriptor" if instr.startswith("wgmma") else ""
        raise ArgumentError(f"{instr} has no operand {operand!r} in registers: it has {', '.join(found)}{why}")
    return found[operand]


# ---------------------------------------------------------------- the PTX ISA's formulas

# From (lane, register, half) to (row, column).
_At = Callable[[int, int, int], tuple[int, int]]


def _fragment(instr: str, operand: str, bits: int, registers: int, at: _At, *, lanes: int = 32) -> Fragment:
    everywhere = product(range(lanes), range(registers), range(32 // bits))
    places = {at(*place): Place(*place) for place in everywhere}
    return Fragment(instr, operand, bits, lanes, registers, dict(sorted(places.items())))


def _quad(lane: int) -> tuple[int, int]:
    """PTX's `groupID` and `threadID_in_group`: the row of an 8x8 block, and the quarter of that row."""
    return divmod(lane % 32, 4)


def _a_16_bit(lane: int, register: int, half: int) -> tuple[int, int]:
    group, thread = _quad(lane)
    return group + 8 * (register % 2), 2 * thread + half + 8 * (register // 2)


def _accumulator(lane: int, register: int, half: int) -> tuple[int, int]:
    group, thread = _quad(lane)
    return group + 8 * (register // 2 % 2), 2 * thread + register % 2 + 8 * (register // 4)


def _mma_16_bit(instr: str) -> dict[str, Fragment]:
    def b(lane: int, register: int, half: int) -> tuple[int, int]:
        group, thread = _quad(lane)
        return 2 * thread + half + 8 * register, group

    return {
        "a": _fragment(instr, "a", 16, 4, _a_16_bit),
        "b": _fragment(instr, "b", 16, 2, b),
        "c": _fragment(instr, "c", 32, 4, _accumulator),
    }


def _mma_tf32(instr: str) -> dict[str, Fragment]:
    def a(lane: int, register: int, half: int) -> tuple[int, int]:
        group, thread = _quad(lane)
        return group + 8 * (register % 2), thread + 4 * (register // 2)

    def b(lane: int, register: int, half: int) -> tuple[int, int]:
        group, thread = _quad(lane)
        return thread + 4 * register, group

    return {
        "a": _fragment(instr, "a", 32, 4, a),
        "b": _fragment(instr, "b", 32, 2, b),
        "c": _fragment(instr, "c", 32, 4, _accumulator),
    }


def _wgmma(instr: str, n: int) -> dict[str, Fragment]:
    """Each warp of the warpgroup has 16 rows, laid out as mma's."""

    def of_warp(at: _At) -> _At:
        def placed(lane: int, register: int, half: int) -> tuple[int, int]:
            row, column = at(lane, register, half)
            return 16 * (lane // 32) + row, column

        return placed

    return {
        "a": _fragment(instr, "a", 16, 4, of_warp(_a_16_bit), lanes=128),
        "c": _fragment(instr, "c", 32, n // 2, of_warp(_accumulator), lanes=128),
    }


def _matrices(instr: str, operand: str, count: int, trans: bool) -> Fragment:
    """`count` matrices of 8x8 elements of 16 bits: register i has its part of matrix i."""
    # A matrix's rows, as they lie in shared memory, are columns of the tile where B is column-major or A or C is.
    across = operand != "r" and trans != (operand == "b")

    def in_tile(matrix: int, row: int, column: int) -> tuple[int, int]:
        down, right = (matrix, 0) if operand == "r" else (matrix % 2, matrix // 2)
        i, j = (column, row) if across else (row, column)
        return 8 * down + i, 8 * right + j

    def at(lane: int, register: int, half: int) -> tuple[int, int]:
        group, thread = _quad(lane)
        first, second = group, 2 * thread + half
        return in_tile(register, *((second, first) if trans else (first, second)))

    return replace(
        _fragment(instr, operand, 16, count, at),
        addresses=tuple(in_tile(matrix, row, 0) for matrix in range(count) for row in range(8)),
        along=_AXES[operand][0 if across else 1],
    )
