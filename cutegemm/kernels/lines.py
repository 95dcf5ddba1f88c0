"""How a warp's lanes copy a unit's lines to an output that TMA can't take: index arithmetic alone.

Lanes write a line side by side in words of 4 bytes. Rows that are aligned to no more than an element of 2 bytes may be
odd, which their addresses tell: then the words of a line are its elements (-1, 0), (1, 2), …, else (0, 1), (2, 3), ….
Element -1 is the last that the unit before has of the row, where that is still in its slot. An element whose word
reaches past either end of what there is goes by itself: at most the first and the last of a line.

All numbers may be plain or the DSL's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutegemm.kernels.staging import WORD, Box

_LANES = 32


@dataclass(frozen=True)
class Copy:
    """What a lane copies: elements from `at` of a line on, to `address`, if `inside`."""

    line: Any
    at: Any
    address: Any
    inside: Any


@dataclass(frozen=True)
class Lines:
    """A unit's lines in `box`, which lie `pitch` bytes apart in global memory, the first at `start`.

    `odd` is 1 where that starts in the middle of a word, `alternating` where the next does and it does not, or the
    other way round. The first `count` lines lie in the matrix, with `end` elements each, at most what the box has of
    them. `begins` is 1 where no element precedes a line, `ends` where none follows that would complete a word. All of
    these are else 0.
    """

    box: Box
    start: Any
    pitch: Any
    odd: Any
    alternating: Any
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
        """Lines that the lanes write a word each of at a time."""
        return _LANES * WORD // self.box.line_bytes

    @property
    def ragged(self) -> Any:
        """Whether elements may go by themselves."""
        if self.per_word == 1:
            return False
        cut = self.end < self.box.line
        return cut | (self.begins == 1) | (self.ends == 1) if self.may_be_odd else cut

    def words(self, lane: Any, first: Any, count: int) -> Iterator[Copy]:
        """A lane's words of `count` lines from `first` on, a multiple of `at_once` each."""
        per_line = self.box.line // self.per_word
        line, at = first + lane // per_line, lane % per_line * self.per_word
        address = self.start + line * self.pitch + at * self.box.itemsize
        for _ in range(0, count, self.at_once):
            element = at - self._odd(line)
            there = (element >= self.begins - 1) & (element + self.per_word <= self.end)
            yield Copy(line, element, address & -WORD, (line < self.count) & there)
            line, address = line + self.at_once, address + self.at_once * self.pitch

    def singles(self, lane: Any) -> Iterator[Copy]:
        """A lane's elements that go by themselves: of all lines, the first by even lanes and the last by odd ones."""
        for first in range(0, 2 * self.box.lines, _LANES):
            line, last = (first + lane) // 2, lane & 1
            at = last * (self.end - 1)
            odd = self._odd(line)
            head = (last == 0) & (odd == 1) & (self.begins == 1)
            tail = (last == 1) & ((at & 1) == odd) & (self.ends == 1)
            address = self.start + line * self.pitch + at * self.box.itemsize
            there = (line < self.count) & (line < self.box.lines)
            yield Copy(line, at, address, there & (self.end > 0) & (head | tail))

    def _odd(self, line: Any) -> Any:
        """1 where a line starts in the middle of a word, else 0."""
        return self.odd ^ (line & self.alternating) if self.may_be_odd else 0
