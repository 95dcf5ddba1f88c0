"""An epilogue from registers straight to global memory, for outputs and operands of any stride and alignment.

An mma fragment (mma.sync and wgmma alike) scatters eight adjacent columns of a row over four lanes, two each. Four such
groups of eight are transposed among the four lanes by shuffles, after which every lane has `WIDTH` adjacent columns.
There every operand and output is one contiguous vector, loaded and stored with the widest access its alignment allows,
and a gated unit's even and odd columns meet in one lane. No shared memory and no barrier is needed.

Where an output's rows are aligned to 2 or 4 bytes only, single accesses of lanes 16 bytes apart would each write to a
sector of their own. There the four lanes trade once more: each then holds every fourth pair of columns of their 32, and
they store side by side.

Edges are predicated per row and per vector; a vector that straddles N falls back to single elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from cutegemm.kernels import abi
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.epilogue import Epilogue, Place, copy_vector, count
from cutegemm.kernels.staging import BAND

WIDTH = 8  # columns per lane: one 16-byte store of a 16-bit output
CHUNK = 4 * WIDTH  # columns of a row that four lanes share out


@dataclass(frozen=True)
class WarpEpilogue(Epilogue):
    """The epilogue of one warp tile of `warp_m` x `warp_n`."""

    warp_m: int
    warp_n: int
    band_step: int = BAND  # rows from one band to the next
    width: int = WIDTH  # columns of a row that a lane finishes at a time

    @cute.jit
    def run(self, accumulators: cute.Tensor, lane: Int32, row0: Int32, l0: Int32, l1: Int32, column0: Int32) -> None:
        """Finish the warp tile whose first element is (row0, column0) of batch entry (l0, l1).

        `accumulators` are ((2 columns, 2 row halves), bands, groups of 8 columns).
        """
        scalars = self.scalars()
        for chunk in cutlass.range_constexpr(self.warp_n // CHUNK):
            place = Place(l0, l1, column0 + chunk * CHUNK + (lane % 4) * WIDTH)
            rows = {name: self.load_row(operand, place, WIDTH) for name, operand in self.operands("row").items()}
            for band in cutlass.range_constexpr(self.warp_m // BAND):
                for half in cutlass.range_constexpr(2):
                    groups = [[accumulators[(c, half), band, 4 * chunk + j] for c in range(2)] for j in range(4)]
                    fragment = cute.make_rmem_tensor((WIDTH,), Float32)
                    for i, value in enumerate(_transpose(groups, lane)):
                        fragment[i] = value
                    row = row0 + band * self.band_step + half * 8 + lane // 4
                    self.finish(fragment.load(), row, place, scalars, rows, lane)

    def finish(self, acc: Any, row: Any, place: Place, scalars: dict[str, Any], rows: dict[str, Any],
               lane: Any = None) -> None:  # fmt: skip
        """Epilogue and stores of one lane's `width` columns of one row.

        Given its number `lane`, four lanes in a row have the columns of a chunk between them, and all of a warp call.
        """
        inside = row < self.values["m"]
        operands = dict(rows)
        for name, tensor in self.operands("col").items():
            # The row's number for every column; `lower` takes half of them where columns are paired.
            operands[name] = cute.full((self.width,), self.load_col(tensor, row, inside, place), Float32)
        tiles = self.operands("tile")
        if self.signature.c is not None:
            tiles["c"] = self.tensors()["c"]
        for name, tensor in tiles.items():
            operands[name] = self.load(tensor, row, inside, place, self.width)
        outputs = self.combine(acc, scalars, operands)
        for i, value in enumerate(outputs):
            tensor = self.tensors()[f"out{i}"]
            width, extent, at = self.domain(tensor, place, self.width)
            dtype = NUMERIC[tensor.access.dtype]
            fragment = cute.make_rmem_tensor((width,), dtype)
            fragment.store(value.to(dtype))
            target, adjacent = self.vector(tensor, row, at, width)
            if lane is not None and adjacent and width == WIDTH and dtype.width == 16 and tensor.access.align <= 4:
                words = [cute.recast_tensor(fragment, Int32)[j] for j in range(4)]
                for j, word in enumerate(_transpose([[word] for word in words], lane, Int32)):
                    cute.recast_tensor(fragment, Int32)[j] = word
                first = Place(at.l0, at.l1, at.column - lane % 4 * (WIDTH - 2))
                self._store_pairs(fragment, tensor, row, inside, extent, first)
            else:
                copy_vector(fragment, target, count(inside, extent, at.column), adjacent, width)

    def _store_pairs(self, fragment: cute.Tensor, tensor: abi.TensorArgument, row: Any, inside: Any, extent: Any,
                     first: Place) -> None:  # fmt: skip
        """Store four pairs of columns, `WIDTH` columns apart, the first of them at `first`."""
        for j in range(WIDTH // 2):
            at = first.right(j * WIDTH)
            target, adjacent = self.vector(tensor, row, at, 2)
            pair = cute.make_rmem_tensor((2,), fragment.element_type)
            pair[0], pair[1] = fragment[2 * j], fragment[2 * j + 1]
            copy_vector(pair, target, count(inside, extent, at.column), adjacent, 2)


def _transpose(groups: list[list[Any]], lane: Any, kind: Any = Float32) -> list[Any]:
    """Column pairs of four groups, as mma spreads them over four lanes -> the eight columns of group `lane % 4`.

    A 4x4 transpose of values of a `kind`, in two exchanges: with the neighbour in bit 0, then in bit 1, of the lane's
    number. It is its own inverse.
    """
    for bit in (1, 2):
        upper = (lane & bit) != 0
        for j in range(4):
            if j & bit:
                continue
            for c in range(len(groups[j])):
                low, high = groups[j][c], groups[j | bit][c]
                sent = kind(cutlass.select_(upper, low, high))
                kept = kind(cutlass.select_(upper, high, low))
                received = cute.arch.shuffle_sync_bfly(sent, offset=bit)
                groups[j][c] = kind(cutlass.select_(upper, received, kept))
                groups[j | bit][c] = kind(cutlass.select_(upper, kept, received))
    return [column for group in groups for column in group]
