"""What one thread of a level loads, reads, multiplies and stores in each step along K: its .cu file as arithmetic.

A `Scheme` is a level on a problem of packed row-major matrices: A (m, k), B (k, n), D (m, n), in bytes from each
matrix's start. `scheme` makes one. Nothing here needs a GPU, torch or a compiler.

Addresses in shared memory are bytes from the start of an array of the source: `a_tile` and `b_tile` of levels 3 and 4,
whose order the compiler chooses, and `stages` of the later ones.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cutegemm.dtypes import lookup
from cutegemm.errors import ArgumentError, DTypeError
from cutegemm.hand_kernels.levels import Level

Matrix = Literal["a", "b", "d"]
Thread = tuple[int, int]
#: Rows of tiles that blocks go down before the next column (`tile_of` in common.cuh).
_GROUP = 8


@dataclass(frozen=True, slots=True)
class Move:
    """Neighbouring elements of a matrix's row that a thread loads or stores.

    `elements` of them from (`row`, `column`) on, of which the first `valid` exist: the others are zero, or not stored.
    `address` is in bytes from the matrix's start, `width` the bytes of one access. Where they go to shared memory,
    `places` has each element's byte in the array `array`; where to registers, nothing.
    """

    matrix: Matrix
    row: int
    column: int
    elements: int
    valid: int
    address: int
    width: int
    instruction: str
    array: str | None = None
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """One access of a thread to shared memory: `size` bytes from byte `place` of `array`, elements of `matrix`. `what`
    names them by their row and column in the step's tile."""

    matrix: Matrix
    array: str
    place: int
    size: int
    what: str


class Scheme(ABC):
    """How the threads of a block share out a level's work. Blocks are (x, y): the tile's column and row among tiles.

    `depth` elements of K make a step, and there are `steps`. `ahead` steps are on their way while one is computed, and
    `stages` have room.
    """

    #: Arrays in shared memory, of A's tile and of B's; none where nothing is shared.
    arrays: tuple[str, ...] = ()

    def __init__(self, level: Level, m: int, n: int, k: int, dtype: str) -> None:
        for name, size in (("m", m), ("n", n), ("k", k)):
            if size < 1:
                raise ArgumentError(f"{name}={size}: expected at least 1")
        if dtype not in level.dtypes:
            raise DTypeError(f"dtype={dtype!r}: {level} serves {', '.join(level.dtypes)}")
        self.level, self.m, self.n, self.k, self.dtype = level, m, n, k, dtype
        self.itemsize = lookup(dtype).itemsize
        self.depth = level.depth(dtype)
        self.parameters = dict(level.parameters)
        self.ahead = level.stages - 1
        self.a_align, self.b_align = (_align(size * self.itemsize) for size in (k, n))

    @property
    def steps(self) -> int:
        """Steps along K."""
        return -(-self.k // self.depth)

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along N and along M."""
        return -(-self.n // self.level.tile_n), -(-self.m // self.level.tile_m)

    def origin(self, block: tuple[int, int]) -> tuple[int, int]:
        """D's first row and column in the block's tile. Raises `ArgumentError` for a block that the grid lacks."""
        for name, at, size in zip("xy", block, self.grid, strict=True):
            if not 0 <= at < size:
                raise ArgumentError(f"block {name}={at}: the grid has {size} tiles along {'NM'[name == 'y']}")
        return block[1] * self.level.tile_m, block[0] * self.level.tile_n

    def block_index(self, block: tuple[int, int]) -> int:
        """blockIdx.x of the block that has this tile: blocks go down 8 rows of tiles before the next column."""
        self.origin(block)
        tiles_n, tiles_m = self.grid
        first = block[1] // _GROUP * _GROUP
        return first * tiles_n + block[0] * min(_GROUP, tiles_m - first) + block[1] - first

    def linear(self, thread: Thread) -> int:
        """The thread's number in its block: 32 in a row are a warp. Raises `ArgumentError` where there is none."""
        for name, at, size in zip("xy", thread, self.level.block, strict=True):
            if not 0 <= at < size:
                raise ArgumentError(f"thread {name}={at}: a block of {self.level} has {size} along {name}")
        return thread[1] * self.level.block[0] + thread[0]

    def turn(self, step: int) -> int:
        """The turn of the main loop that computes `step`, from 0. Raises `ArgumentError` past the last step."""
        if not 0 <= step < self.steps:
            raise ArgumentError(f"step {step}: K={self.k} is {self.steps} steps of {self.depth}")
        return step

    def stage(self, step: int) -> int:
        """Which of the stages holds `step`."""
        return self.turn(step) % self.level.stages

    @abstractmethod
    def loads(self, block: tuple[int, int], thread: Thread, step: int) -> list[Move]:
        """What the thread loads from global memory for `step`."""

    def a_place(self, row: int, k: int) -> int:
        """Where element (row, k) of A's tile lies in its array, stage 0, in bytes; of levels that have `arrays`."""
        raise NotImplementedError

    def b_place(self, k: int, column: int) -> int:
        """Where element (k, column) of B's tile lies in its array, stage 0, in bytes; of levels that have `arrays`."""
        raise NotImplementedError

    @property
    def stage_bytes(self) -> int:
        """From one stage to the next."""
        return 0

    @abstractmethod
    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        """The elements (row, column) of the tile whose sums the thread holds."""

    def reads(self, thread: Thread, step: int, k: int) -> list[Read]:
        """The reads of shared memory that feed the products of `k`, counted within the step."""
        return []

    def stores(self, block: tuple[int, int], thread: Thread) -> list[Move]:
        """What the thread stores of D after the last step, with no epilogue."""
        row, column = self.origin(block)
        runs: list[tuple[int, int, int]] = []
        for r, c in sorted(self.outputs(thread)):
            last = runs[-1] if runs else None
            if last is not None and (last[0], last[1] + last[2]) == (r, c) and last[2] < self.level.columns:
                runs[-1] = (r, last[1], last[2] + 1)
            else:
                runs.append((r, c, 1))
        moves = (self._store(row + r, column + c, count) for r, c, count in runs)
        return [move for move in moves if move.valid > 0]

    def started(self, step: int) -> str:
        """When the loads of `step` are started."""
        return "in this step"

    @abstractmethod
    def waits(self, step: int) -> tuple[str, ...]:
        """What a thread waits for around the products of `step`."""

    def _store(self, row: int, column: int, count: int) -> Move:
        valid = min(count, self.n - column) if row < self.m else 0
        width = _run_width(count, valid, self.itemsize, self.b_align)
        address = (row * self.n + column) * self.itemsize
        return Move("d", row, column, count, max(0, valid), address, width, "st.global")

    def _move(
        self, matrix: Literal["a", "b"], row: int, column: int, count: int, width: int, how: str, places: Sequence[int]
    ) -> Move:
        rows, columns = (self.m, self.k) if matrix == "a" else (self.k, self.n)
        valid = max(0, min(count, columns - column)) if row < rows else 0
        array = self.arrays[matrix == "b"] if places else None
        address = (row * columns + column) * self.itemsize
        return Move(matrix, row, column, count, valid, address, width, how, array, tuple(places))

    def _run(self, matrix: Literal["a", "b"], row: int, column: int, count: int, places: Sequence[int] = ()) -> Move:
        """Through registers, as `load_run` has it."""
        columns, align = (self.k, self.a_align) if matrix == "a" else (self.n, self.b_align)
        width = _run_width(count, columns - column, self.itemsize, align)
        how = "ld.global, st.shared" if places else "ld.global"
        return self._move(matrix, row, column, count, width, how, places)

    def _chunk(self, matrix: Literal["a", "b"], row: int, column: int, place: int) -> Move:
        """16 bytes, as `copy_chunk` has it."""
        align = self.a_align if matrix == "a" else self.b_align
        width = align if align >= 4 else self.itemsize
        how = "cp.async" if align >= 4 else "ld.global, st.shared"
        per = 16 // self.itemsize
        places = [place + i * self.itemsize for i in range(per)]
        return self._move(matrix, row, column, per, width, how, places)


class Staged(Scheme):
    """What levels from 5 on share: tiles of 16-byte chunks in stages, copied by cp.async `ahead` steps ahead."""

    arrays = ("stages", "stages")

    @property
    def per(self) -> int:
        """Elements of a chunk."""
        return 16 // self.itemsize

    @property
    def a_bytes(self) -> int:
        """A's tile of a stage, behind which B's lies."""
        return self.level.tile_m * self.depth * self.itemsize

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.depth * self.level.tile_n * self.itemsize

    def loads(self, block: tuple[int, int], thread: Thread, step: int) -> list[Move]:
        number, (row, column), per = self.linear(thread), self.origin(block), self.per
        k, base = step * self.depth, self.stage(step) * self.stage_bytes
        moves = []
        for i in range(number, self.level.tile_m * self.depth // per, self.level.threads):
            r, first = i // (self.depth // per), i % (self.depth // per) * per
            moves.append(self._chunk("a", row + r, k + first, base + self.a_place(r, first)))
        for i in range(number, self.depth * self.level.tile_n // per, self.level.threads):
            r, first = i // (self.level.tile_n // per), i % (self.level.tile_n // per) * per
            moves.append(self._chunk("b", k + r, column + first, base + self.b_place(r, first)))
        return moves

    def a_place(self, row: int, k: int) -> int:
        chunk, rest = divmod(k, self.per)
        return 16 * swizzled(row, chunk, self.depth // self.per) + rest * self.itemsize

    def b_place(self, k: int, column: int) -> int:
        return self.a_bytes + (k * self.level.tile_n + column) * self.itemsize

    def started(self, step: int) -> str:
        turn = self.turn(step)
        if turn < self.ahead:
            return "before the loop"
        return f"while step {self.step_of(turn - self.ahead)} is computed, {_count(self.ahead, 'turn')} earlier"

    def step_of(self, turn: int) -> int:
        """The step that a turn computes."""
        return turn

    def pending(self, step: int) -> int:
        """Groups of copies that a thread which waits for `step` leaves under way."""
        return self.ahead - 1

    def waits(self, step: int) -> tuple[str, ...]:
        pending = self.pending(step)
        text = f"cp.async.wait_group {pending}: all of this thread's copies but the last {_count(pending, 'group')}"
        return (
            text if pending else "cp.async.wait_group 0: all of this thread's copies",
            "a barrier: the step is there for all threads, and the stage that is filled next is no longer read",
        )


def scheme(level: Level, m: int, n: int, k: int, dtype: str | None = None) -> Scheme:
    """`level`'s scheme for D (m, n) = A (m, k) @ B (k, n), in `dtype` (default: fp32, or bf16 on the tensor cores).

    Raises `ArgumentError` for a size below 1 and for a level whose loads are TMA's, `DTypeError` for a dtype that the
    level doesn't serve.
    """
    from cutegemm.hand_kernels import walk_fp32, walk_mma

    if level.boxes is not None:
        raise ArgumentError(
            f"{level} has no walk: its loads are TMA's, which copies whole boxes for one thread, and wgmma reads them "
            "from shared memory by itself; ask for level8, whose threads do both"
        )
    kind = (walk_fp32.SCHEMES | walk_mma.SCHEMES)[level.source]
    return kind(level, m, n, k, dtype or ("fp32" if "fp32" in level.dtypes else "bf16"))


def swizzled(row: int, chunk: int, chunks: int) -> int:
    """Where a chunk of a row lies, in chunks: `SwizzledRows` of layouts.cuh."""
    period = min(chunks, 8)
    return row * chunks + (chunk ^ row // (8 // period) % period)


def _align(pitch: int) -> int:
    """What rows `pitch` bytes apart are aligned to, up to 16, in a matrix that begins aligned to 16."""
    return math.gcd(pitch, 16)


def _run_width(count: int, valid: int, itemsize: int, align: int) -> int:
    """Bytes of one access to a run: as wide as it goes where all of it exists, else an element's."""
    size = min(count * itemsize, 16)
    return size if 4 <= size <= align and valid >= count else itemsize


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
