"""Sizes and strides as numbers: which bytes a view touches, whether two share any, how dimensions merge.

Strides are in elements and never negative, as torch's are; addresses and extents are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

#: Nodes that one exact overlap search may visit (about 0.1 s); past them two views count as overlapping.
SEARCH_LIMIT = 50_000


class View(NamedTuple):
    """The bytes of a strided view: its address, its element's size, and its shape and strides in elements."""

    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last one; 0 for an empty view."""
        if 0 in self.shape:
            return 0
        return (_reach(self.shape, self.strides) + 1) * self.itemsize

    def same_elements(self, other: View) -> bool:
        """Whether both views put the same elements at the same places, strides of size-1 dimensions aside."""
        return (
            (self.address, self.itemsize, self.shape) == (other.address, other.itemsize, other.shape)
            and all(s == t for n, s, t in zip(self.shape, self.strides, other.strides, strict=True) if n > 1)
        )  # fmt: skip


def self_overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a view share their place.

    Exact but for layouts whose search passes `SEARCH_LIMIT`, which count as overlapping.
    """
    if 0 in shape:
        return False
    dims = sorted(((s, n) for n, s in zip(shape, strides, strict=True) if n > 1), reverse=True)
    for i, (stride, size) in enumerate(dims):
        inner = dims[i + 1 :]
        reach = sum(s * (n - 1) for s, n in inner)
        if stride > reach:
            continue
        # Two indices meet if their difference d, positive in this dimension and zero in the outer ones, has
        # stride * d + sum(inner) == 0; shifting inner differences by n - 1 leaves unknowns that start at 0.
        if _solvable(((stride, size - 2), *((s, 2 * (n - 1)) for s, n in inner)), reach - stride):
            return True
    return False


def overlaps(x: View, y: View) -> bool:
    """Whether two views share a byte; interleaved ones (a matrix's even and odd columns) do not.

    Exact but for pairs whose search passes `SEARCH_LIMIT`, which count as overlapping.
    """
    if x.nbytes == 0 or y.nbytes == 0:
        return False
    if x.address + x.nbytes <= y.address or y.address + y.nbytes <= x.address:
        return False
    unit = x.itemsize if x.itemsize == y.itemsize and (x.address - y.address) % x.itemsize == 0 else 1
    scale_x, scale_y = x.itemsize // unit, y.itemsize // unit
    # x.address + sum(x) + byte == y.address + sum(y) + byte', y's unknowns mirrored so that all terms add.
    terms = [(s * scale_x, n - 1) for n, s in zip(x.shape, x.strides, strict=True)]
    terms += [(s * scale_y, n - 1) for n, s in zip(y.shape, y.strides, strict=True)]
    terms.append((1, scale_x + scale_y - 2))
    target = (y.address - x.address) // unit + _reach(y.shape, y.strides) * scale_y + scale_y - 1
    return _solvable(tuple(terms), target)


def collapse(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Merge dimensions that every tensor walks as one; returns the merged sizes and each tensor's strides.

    `strides` holds one sequence per tensor. Size-1 dimensions vanish.
    """
    dims = [(n, tuple(t[i] for t in strides)) for i, n in enumerate(sizes) if n != 1]
    merged = True
    while merged:
        merged = False
        for i, j in ((i, j) for i in range(len(dims)) for j in range(len(dims)) if i != j):
            (outer, outer_strides), (inner, inner_strides) = dims[i], dims[j]
            if all(s == t * inner for s, t in zip(outer_strides, inner_strides, strict=True)):
                dims[j] = (outer * inner, inner_strides)
                del dims[i]
                merged = True
                break
    return tuple(n for n, _ in dims), [tuple(s[t] for _, s in dims) for t in range(len(strides))]


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


@lru_cache(maxsize=4096)
def _solvable(terms: tuple[tuple[int, int], ...], target: int) -> bool:
    """Whether sum(c * x) == target has integers 0 <= x <= bound, over `terms` of (c, bound), every c >= 0.

    A search over the terms from the largest coefficient down. What the rest can still add bounds each unknown
    to a few values when strides nest, and the rest's common divisor cuts interleaved views off at once.
    """
    bounds: dict[int, int] = {}
    for coefficient, bound in terms:
        if coefficient and bound:
            bounds[coefficient] = bounds.get(coefficient, 0) + bound
    ordered = sorted(bounds.items(), reverse=True)
    reach, divisor = [0], [0]  # of the terms from position -1 - i on
    for coefficient, bound in reversed(ordered):
        reach.append(reach[-1] + coefficient * bound)
        divisor.append(math.gcd(divisor[-1], coefficient))
    budget = SEARCH_LIMIT

    def search(i: int, left: int) -> bool:
        nonlocal budget
        rest = len(ordered) - i
        if not 0 <= left <= reach[rest]:
            return False
        if rest == 0 or left == 0:
            return left == 0
        if left % divisor[rest]:
            return False
        coefficient, bound = ordered[i]
        low = max(0, -(-(left - reach[rest - 1]) // coefficient))
        for x in range(low, min(bound, left // coefficient) + 1):
            budget -= 1
            if budget < 0 or search(i + 1, left - coefficient * x):
                return True
        return False

    return search(0, target)
