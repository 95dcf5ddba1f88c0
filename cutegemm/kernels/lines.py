"""How a warp's lanes copy the lines of a box to an output that TMA can't take: index arithmetic alone.

Lanes write a line side by side in words of 4 bytes. Rows that are aligned to no more than an element of 2 bytes may be
odd, which their addresses tell: then the words of a line are its elements (-1, 0), (1, 2), …, else (0, 1), (2, 3), ….
Element -1 is the last that the unit before has of the row, where that is still in its slot. An element whose word
reaches past either end of what there is goes by itself.

All numbers may be plain or the DSL's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.kernels.staging import WORD, Box


@dataclass(frozen=True)
class Lines:
    """A unit's lines in `box`, which lie `pitch` bytes apart in global memory, the first at `start`.

    The first `count` of them lie in the matrix, with `end` elements each; `end` is at most what a line has. `begins` is
    1 where no element precedes a line, else 0; `ends` is 1 where none follows that would complete a word.
    """

    box: Box
    start: Any
    pitch: Any
    count: Any
    end: Any
    begins: Any
    ends: Any

    @property
    def may_be_odd(self) -> bool:
        """Whether a line may start in the middle of a word."""
        return self.box.tensor.access.align < WORD

    @property
    def per_word(self) -> int:
        """Elements of a word."""
        return WORD // self.box.itemsize

    @property
    def at_once(self) -> int:
        """Lines that the lanes of a warp write a word each of at once."""
        return 32 * WORD // self.box.line_bytes

    @property
    def ragged(self) -> Any:
        """Whether elements may go by themselves."""
        if self.per_word == 1:
            return False
        cut = self.end < self.box.line
        return cut | (self.begins == 1) | (self.ends == 1) if self.may_be_odd else cut

    def odd(self, line: Any) -> Any:
        """1 where a line starts in the middle of a word, else 0."""
        return ((self.start >> 1) ^ (line & (self.pitch >> 1))) & 1 if self.may_be_odd else 0

    def place(self, lane: Any) -> tuple[Any, Any]:
        """Which of the lines that are written at once a lane has a word of, and its first element if no line is odd."""
        words = self.box.line // self.per_word
        return lane // words, lane % words * self.per_word

    def whole(self, line: Any, first: Any) -> Any:
        """Whether the word whose first element is `first` is there and in the matrix."""
        return (line < self.count) & (first >= self.begins - 1) & (first + self.per_word <= self.end)

    def single(self, i: Any) -> tuple[Any, Any]:
        """The line and element of the `i`-th candidate to go by itself: the first and the last of each line."""
        return i // 2, (i & 1) * (self.end - 1)

    def alone(self, i: Any) -> Any:
        """Whether the `i`-th candidate is in the matrix, and its word is not whole."""
        line, at = self.single(i)
        odd = self.odd(line)
        head = ((i & 1) == 0) & (odd == 1) & (self.begins == 1)
        tail = ((i & 1) == 1) & ((at & 1) == odd) & (self.ends == 1)
        return (line < self.count) & (self.end > 0) & (head | tail)

    def address(self, line: Any, at: Any) -> Any:
        """That of an element in global memory."""
        return self.start + line * self.pitch + at * self.box.itemsize
