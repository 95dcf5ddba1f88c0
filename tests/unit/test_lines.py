"""The lanes' copying of staged lines to outputs that TMA can't take: all of an output once, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.kernels import abi
from cutegemm.kernels.lines import Lines
from cutegemm.kernels.staging import BAND, WORD, Box
from cutegemm.problem import Access

LANES = range(32)
SHAPES = [("bf16", "n", 64), ("fp16", "n", 32), ("bf16", "n", 16), ("bf16", "m", 64), ("bf16", "m", 16)]
SHAPES += [("fp16", "m", 8), ("fp32", "n", 32), ("fp32", "n", 8), ("fp32", "m", 32), ("fp32", "m", 8)]
CASES = [(shape, align) for shape in SHAPES for align in (2, 4, 8, 16) if shape[0] != "fp32" or align >= 4]


def box(shape: tuple[str, str, int], align: int) -> Box:
    dtype, major, columns = shape
    return Box(abi.TensorArgument("out0", Access(dtype, major, align), ("m", "n", "l0", "l1")), columns)


def lines_of(
    box: Box, unit: int, start: int, pitch: int, count: int, length: int, units: int, following: bool
) -> Lines:
    """The lines of one of `units` in a row, over `count` lines of `length` elements."""
    first = unit * box.line
    at, end = start + first * box.itemsize, length - first
    begins, ends = (unit == 0, unit == units - 1 or end <= box.line) if following else (True, True)
    odd, alternating = (x // 2 % 2 for x in (at, pitch))
    return Lines(box, at, pitch, odd, alternating, count, min(end, box.line), int(begins), int(ends))


def copied(lines: Lines) -> Iterator[tuple[int, int, int, int]]:
    """Every store that lanes make: line, first element, address, elements."""
    turn = min(8 * lines.at_once, lines.box.lines)
    for lane in LANES:
        for first in range(0, lines.box.lines, turn):
            yield from ((c.line, c.at, c.address, lines.per_word) for c in lines.words(lane, first, turn) if c.inside)
        if lines.ragged:
            yield from ((c.line, c.at, c.address, 1) for c in lines.singles(lane) if c.inside)


@pytest.mark.parametrize(("shape", "align"), CASES, ids=str)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_element_is_copied_once(shape: tuple[str, str, int], align: int, data: st.DataObject) -> None:
    of = box(shape, align)
    units = data.draw(st.integers(1, 3))
    count, length = data.draw(st.integers(0, 70)), data.draw(st.integers(1, units * of.line + 9))
    start, pitch = (align * data.draw(st.integers(64, 80)) for _ in range(2))
    following = of.n_major and data.draw(st.booleans())
    pitch += -(-length * of.itemsize // align) * align
    written = []
    for unit in range(units):
        lines = lines_of(of, unit, start, pitch, count, length, units, following)
        for line, at, address, size in copied(lines):
            assert 0 <= line < of.lines
            assert at >= (-1 if following and unit else 0)
            assert at + size <= of.line
            assert address == start + line * pitch + (unit * of.line + at) * of.itemsize
            assert address % (size * of.itemsize) == 0
            written += [(line, unit * of.line + at + i) for i in range(size)]
    inside = [(i, j) for i in range(min(count, of.lines)) for j in range(min(length, units * of.line))]
    assert sorted(written) == inside


@pytest.mark.parametrize(("shape", "align"), CASES, ids=str)
@pytest.mark.parametrize("odd", [0, 1])
def test_lanes_write_side_by_side(shape: tuple[str, str, int], align: int, odd: int) -> None:
    """A store instruction writes all words of as many lines as it has lanes for, from left to right."""
    of = box(shape, align)
    start, pitch = 4096 + odd * min(align, 2), 1024
    lines = lines_of(of, 1, start, pitch, of.lines, 3 * of.line, 3, following=True)
    words = of.line_bytes // WORD
    for step in range(0, of.lines, lines.at_once):
        stores = [next(lines.words(lane, step, lines.at_once)) for lane in LANES]
        assert [copy.line - step for copy in stores] == [lane // words for lane in LANES]
        assert all(copy.inside for copy in stores)
        for left, right in zip(stores, stores[1:], strict=False):
            assert right.address - left.address == (WORD if left.line == right.line else WORD + pitch - of.line_bytes)


def test_lines_alternate_where_the_pitch_is_odd() -> None:
    of = box(("bf16", "n", 64), 2)
    lines = lines_of(of, 0, 4096, 2 * 4097, BAND, 64, 1, following=False)
    first = [next(lines.words(0, line, 1)).at for line in range(4)]
    assert first == [0, -1, 0, -1]
    assert [copy.inside for copy in (next(lines.words(0, line, 1)) for line in range(4))] == [True, False, True, False]
