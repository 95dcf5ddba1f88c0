"""The walk of levels 6 to 9: a warp's fragments, and which of their elements a lane holds.

wmma keeps the latter to itself: of level 6 a walk says what a warp multiplies, and what each lane copies and stores.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Literal

from cutegemm.fragments import fragment
from cutegemm.hand_kernels.walk import Scheme, Staged, Thread, swizzled

#: Rows and columns of D that a warp has where the source fixes them.
_WARP = {"level6_wmma.cu": (32, 64)}
#: The side of a fragment of A or B.
_SIDE = 16


@dataclass(frozen=True, slots=True)
class FragmentLoad:
    """A warp's load of 16 x 16 of A or B, from (`row`, `column`) of the step's tile on: (m, k) of A, (k, n) of B.

    `place` is the byte of `stages` that this lane gives the address of, with `rows` in memory `pitch` bytes apart in
    level 6, where the address is the fragment's. `holds` has the elements (row, column) of the tile that the lane gets,
    register by register, two each; nothing for wmma.
    """

    matrix: Literal["a", "b"]
    instruction: str
    row: int
    column: int
    place: int
    pitch: int | None
    holds: tuple[tuple[tuple[int, int], ...], ...]


class Warps(Staged):
    """Tensor-core levels: warps of `warp_m` x `warp_n`."""

    @property
    def warp_shape(self) -> tuple[int, int]:
        """Rows and columns of D that a warp computes."""
        fixed = _WARP.get(self.level.source)
        return fixed or (self.parameters["WARP_M"], self.parameters["WARP_N"])

    def warp_origin(self, thread: Thread) -> tuple[int, int]:
        """The warp's first row and column in the tile."""
        height, width = self.warp_shape
        down, right = divmod(self.linear(thread) // 32, self.level.tile_n // width)
        return down * height, right * width

    @abstractmethod
    def fragment_loads(self, thread: Thread, step: int, k: int) -> list[FragmentLoad]:
        """The loads that feed the products of 16 of K from `k`, a multiple of 16 within the step, on."""


class _Wmma(Warps):
    """Level 6: padded rows, and sums that pass through a patch of shared memory."""

    @property
    def _pitches(self) -> tuple[int, int]:
        """Of a row of each tile, in elements: a chunk longer than the tile's."""
        return self.depth + self.per, self.level.tile_n + self.per

    @property
    def a_bytes(self) -> int:
        return self.level.tile_m * self._pitches[0] * self.itemsize

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.depth * self._pitches[1] * self.itemsize

    def a_place(self, row: int, k: int) -> int:
        return (row * self._pitches[0] + k) * self.itemsize

    def b_place(self, k: int, column: int) -> int:
        return self.a_bytes + (k * self._pitches[1] + column) * self.itemsize

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        """What the lane stores, having read it from its warp's patch: a run of 8 of each accumulator."""
        (row, column), lane = self.warp_origin(thread), self.linear(thread) % 32
        height, width = self.warp_shape
        return [
            (row + i + lane // 2, column + j + lane % 2 * 8 + c)
            for i in range(0, height, _SIDE)
            for j in range(0, width, _SIDE)
            for c in range(8)
        ]

    def fragment_loads(self, thread: Thread, step: int, k: int) -> list[FragmentLoad]:
        (row, column), base = self.warp_origin(thread), self.stage(step) * self.stage_bytes
        height, width = self.warp_shape
        a_pitch, b_pitch = (pitch * self.itemsize for pitch in self._pitches)
        how = "wmma::load_matrix_sync"
        return [
            *(
                FragmentLoad("a", how, row + i, k, base + self.a_place(row + i, k), a_pitch, ())
                for i in range(0, height, _SIDE)
            ),
            *(
                FragmentLoad("b", how, k, column + j, base + self.b_place(k, column + j), b_pitch, ())
                for j in range(0, width, _SIDE)
            ),
        ]


class _Mma(Warps):
    """Level 7: swizzled tiles, ldmatrix, mma.sync."""

    def b_place(self, k: int, column: int) -> int:
        chunk, rest = divmod(column, self.per)
        place = 16 * swizzled(k, chunk, self.level.tile_n // self.per)
        return self.a_bytes + place + rest * self.itemsize

    def sums(self, thread: Thread) -> list[tuple[int, int]]:
        """The elements of the tile whose sums the lane's accumulators hold, by product and register."""
        (row, column), lane = self.warp_origin(thread), self.linear(thread) % 32
        height, width = self.warp_shape
        own = _held("mma.m16n8k16", "c")[lane]
        return [
            (row + i + r, column + j + c)
            for i in range(0, height, 16)
            for j in range(0, width, 8)
            for register in own
            for r, c in register
        ]

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        """What the lane stores: of every four products, exchanged among four lanes, one's eight columns."""
        (row, column), lane = self.warp_origin(thread), self.linear(thread) % 32
        height, width = self.warp_shape
        return [
            (row + i + half + lane // 4, column + j + lane % 4 * 8 + c)
            for i in range(0, height, 16)
            for j in range(0, width, 32)
            for half in (0, 8)
            for c in range(8)
        ]

    def fragment_loads(self, thread: Thread, step: int, k: int) -> list[FragmentLoad]:
        (row, column), lane = self.warp_origin(thread), self.linear(thread) % 32
        base, (height, width) = self.stage(step) * self.stage_bytes, self.warp_shape
        loads = []
        for i in range(0, height, _SIDE):
            place = base + self.a_place(row + i + lane % 16, k + lane // 16 * 8)
            loads.append(_matrices("a", "ldmatrix.x4", row + i, k, place, lane))
        for j in range(0, width, _SIDE):
            place = base + self.b_place(k + lane % 16, column + j + lane // 16 * 8)
            loads.append(_matrices("b", "ldmatrix.x4.trans", k, column + j, place, lane))
        return loads


class _Multistage(_Mma):
    """Levels 8 and 9: the last step comes first, and fragments are loaded one depth of 16 ahead."""

    def turn(self, step: int) -> int:
        super().turn(step)
        return (step + 1) % self.steps

    def step_of(self, turn: int) -> int:
        return (turn - 1) % self.steps

    def waits(self, step: int) -> tuple[str, ...]:
        when = "before the last 16 of K of the turn before" if self.turn(step) else "before the loop"
        return tuple(f"{when}, {text}" for text in super().waits(step))


def _matrices(
    matrix: Literal["a", "b"], instruction: str, row: int, column: int, place: int, lane: int
) -> FragmentLoad:
    own = _held(instruction, matrix)[lane]
    holds = tuple(tuple((row + r, column + c) for r, c in register) for register in own)
    return FragmentLoad(matrix, instruction, row, column, place, None, holds)


@cache
def _held(instruction: str, operand: str) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
    """The elements of the operand's tile that a lane holds: by lane, then by register."""
    found = fragment(instruction, operand)
    held: list[list[list[tuple[int, int]]]] = [[[] for _ in range(found.registers)] for _ in range(found.lanes)]
    for element, place in sorted(found.items(), key=lambda item: item[1]):
        held[place.lane][place.register].append(element)
    return tuple(tuple(tuple(register) for register in lane) for lane in held)


SCHEMES: dict[str, type[Scheme]] = {
    "level6_wmma.cu": _Wmma,
    "level7_mma_ptx.cu": _Mma,
    "level8_tuned.cu": _Multistage,
    "level9_specialized.cu": _Multistage,
}
"""By source."""
