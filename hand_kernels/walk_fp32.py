"""The walk of levels 1 to 5: what each thread loads, reads and multiplies on its own, for the CUDA cores."""

from __future__ import annotations

from cutegemm.hand_kernels.levels import Level
from cutegemm.hand_kernels.walk import Move, Read, Scheme, Staged, Thread

#: A warp's lanes along M and N on level 5.
_LANES_M, _LANES_N = 8, 4


class _Direct(Scheme):
    """Levels 1 and 2: from global memory to registers. A step is one k, or as many as the thread has columns."""

    def __init__(self, level: Level, m: int, n: int, k: int, dtype: str) -> None:
        super().__init__(level, m, n, k, dtype)
        self.depth = level.columns

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        self.linear(thread)
        x, y = thread
        if self.parameters.get("X_ALONG_ROWS"):
            return [(x, y)]
        run = self.level.columns
        return [(y, run * x + j) for j in range(run)]

    def loads(self, block: tuple[int, int], thread: Thread, step: int) -> list[Move]:
        self.turn(step)
        (first, column), origin = self.outputs(thread)[0], self.origin(block)
        row, column, k, run = origin[0] + first, origin[1] + column, step * self.depth, self.level.columns
        if row >= self.m or column >= self.n:
            return []
        left, count, width = min(run, self.k - k), min(run, self.n - column), self.itemsize
        if left == count == run:
            return [self._run("a", row, k, run), *(self._run("b", k + i, column, run) for i in range(run))]
        return [
            self._move("a", row, k, left, width, "ld.global", ()),
            *(self._move("b", k + i, column, count, width, "ld.global", ()) for i in range(left)),
        ]

    def waits(self, step: int) -> tuple[str, ...]:
        return ("the loads themselves: a product waits for its own elements of A and B, and for no other thread",)


class _Tiled(Scheme):
    """Level 3: each of the tiles' rows by a row of threads."""

    arrays = ("a_tile", "b_tile")

    def loads(self, block: tuple[int, int], thread: Thread, step: int) -> list[Move]:
        self.linear(thread)
        (row, column), (x, y), k = self.origin(block), thread, self.turn(step) * self.depth
        moves = []
        for i in range(y, self.level.tile_m, self.level.block[1]):
            moves.append(self._run("a", row + i, k + x, 1, [self.a_place(i, x)]))
            moves.append(self._run("b", k + i, column + x, 1, [self.b_place(i, x)]))
        return moves

    def a_place(self, row: int, k: int) -> int:
        return 4 * (row * self.depth + k)

    def b_place(self, k: int, column: int) -> int:
        return 4 * (k * self.level.tile_n + column)

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        self.linear(thread)
        return [(row, thread[0]) for row in range(thread[1], self.level.tile_m, self.level.block[1])]

    def reads(self, thread: Thread, step: int, k: int) -> list[Read]:
        outputs = self.outputs(thread)
        column = outputs[0][1]
        return [
            Read("b", "b_tile", self.b_place(k, column), 4, f"B[{k}][{column}]"),
            *(Read("a", "a_tile", self.a_place(row, k), 4, f"A[{row}][{k}]") for row, _ in outputs),
        ]

    def waits(self, step: int) -> tuple[str, ...]:
        return (
            "a barrier before the products: the tiles are filled",
            "a barrier after them: the tiles are used, and may be overwritten",
        )


class _Transposed(_Tiled):
    """Level 4: A's tile transposed (`TransposedTile` in layouts.cuh), swizzled, padded or neither."""

    def a_place(self, row: int, k: int) -> int:
        if self.parameters["SWIZZLED"]:
            row ^= 4 * (k // 4 % 8)
        return 4 * (k * (self.level.tile_m + self.parameters["PADDING"]) + row)

    def loads(self, block: tuple[int, int], thread: Thread, step: int) -> list[Move]:
        piece, (row, column), k = self.linear(thread), self.origin(block), self.turn(step) * self.depth
        per_row = 2 if self.parameters["PADDING"] else self.depth // 4
        a_row = piece // per_row % self.level.tile_m
        a_k = 4 * (piece % per_row + per_row * (piece // (per_row * self.level.tile_m)))
        b_k, b_column = divmod(piece, self.level.tile_n // 4)
        b_places = [self.b_place(b_k, 4 * b_column + i) for i in range(4)]
        return [
            self._run("a", row + a_row, k + a_k, 4, [self.a_place(a_row, a_k + i) for i in range(4)]),
            self._run("b", k + b_k, column + 4 * b_column, 4, b_places),
        ]

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        self.linear(thread)
        rows = self.level.tile_m // self.level.block[1]
        return [(rows * thread[1] + r, thread[0]) for r in range(rows)]

    def reads(self, thread: Thread, step: int, k: int) -> list[Read]:
        outputs = self.outputs(thread)
        column = outputs[0][1]
        return [
            Read("b", "b_tile", self.b_place(k, column), 4, f"B[{k}][{column}]"),
            *(
                Read("a", "a_tile", self.a_place(row, k), 16, f"A[{row}..{row + 3}][{k}]")
                for row, _ in outputs[::4]
            ),
        ]


class _RegisterTiled(Staged):
    """Level 5: rows 8 apart, by runs of 16 bytes of columns. A stage is filled again as soon as it has been read."""

    def __init__(self, level: Level, m: int, n: int, k: int, dtype: str) -> None:
        super().__init__(level, m, n, k, dtype)
        self.ahead = level.stages

    def _first(self, thread: Thread) -> tuple[int, int]:
        """The thread's first row in the tile, and its first chunk of columns."""
        warp, lane = divmod(self.linear(thread), 32)
        warp_m, warp_n = self.parameters["THREAD_M"] * _LANES_M, self.parameters["THREAD_N"] * _LANES_N
        down, right = divmod(warp, self.level.tile_n // warp_n)
        return down * warp_m + lane // _LANES_N, right * (warp_n // self.per) + lane % _LANES_N

    def _rows(self, thread: Thread) -> list[int]:
        """The thread's rows in the tile."""
        return [self._first(thread)[0] + _LANES_M * i for i in range(self.parameters["THREAD_M"])]

    def _columns(self, thread: Thread) -> list[int]:
        """The first columns of its runs."""
        runs = self.parameters["THREAD_N"] // self.per
        return [(self._first(thread)[1] + _LANES_N * r) * self.per for r in range(runs)]

    def outputs(self, thread: Thread) -> list[tuple[int, int]]:
        columns = [first + j for first in self._columns(thread) for j in range(self.per)]
        return [(row, column) for row in self._rows(thread) for column in columns]

    def stores(self, block: tuple[int, int], thread: Thread) -> list[Move]:
        (row, column), per = self.origin(block), self.per
        firsts = [(r, c) for r, c in self.outputs(thread) if c % per == 0]
        moves = (self._store(row + r, column + c, per) for r, c in firsts)
        return [move for move in moves if move.valid > 0]

    def reads(self, thread: Thread, step: int, k: int) -> list[Read]:
        base, size = self.stage(step) * self.stage_bytes, self.parameters["A_BYTES"]
        deep = size // self.itemsize
        first = k // deep * deep
        span = f"{first}..{first + deep - 1}"
        return [
            *(
                Read("a", "stages", base + self.a_place(row, first), size, f"A[{row}][{span}]")
                for row in self._rows(thread)
            ),
            *(
                Read("b", "stages", base + self.b_place(k, c), 16, f"B[{k}][{c}..{c + self.per - 1}]")
                for c in self._columns(thread)
            ),
        ]

    def waits(self, step: int) -> tuple[str, ...]:
        when = "in the step before, ahead of its last k" if self.turn(step) else "before the loop"
        return tuple(f"{when}, {text}" for text in super().waits(step))

    def pending(self, step: int) -> int:
        return self.level.stages - (2 if self.turn(step) else 1)


SCHEMES: dict[str, type[Scheme]] = {
    "level1_naive.cu": _Direct,
    "level2_vectorized.cu": _Direct,
    "level3_tiled.cu": _Tiled,
    "level4_bank_conflict_free.cu": _Transposed,
    "level5_register_tiled.cu": _RegisterTiled,
}
"""By source."""
