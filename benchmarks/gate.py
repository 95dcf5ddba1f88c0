"""Correctness before timing: results against fp64, by the bound and in the guarded outputs that tests use.

Large problems are judged by a sample, because an fp64 reference of all of 16384x16384x16384, with its bounds, takes
many gigabytes. Whole rows and whole columns are compared: between them they pass through every tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm.fusion import BoundEpilogue, OperandSpec
from cutegemm.problem import STRICT
from tests.helpers import Expectation, assert_within, expect

FP32 = torch.float32
#: Where results may be rounded more often than the tests' bound allows: roundings of the largest magnitude.
LOOSE_ROUNDINGS = 4
#: Problems of more multiplications than this are judged by a sample.
WHOLE = 8192**3
#: Rows, and columns, in a sample: evenly spread, each block of 128 has one in matrices of up to 16384.
SAMPLE = 128


class Verdict(NamedTuple):
    """Whether a result is right, its largest error over the largest magnitude, and what is wrong."""

    ok: bool
    rel_err: float | None
    why: str = ""


class Gate:
    """The fp64 result of one call, of a sample if it multiplies more than `whole` times, and how far from it a
    result may be."""

    def __init__(self, a: Tensor, b: Tensor, epilogue: BoundEpilogue | None, *, whole: int = WHOLE) -> None:
        if len(a) * b.numel() <= whole:
            self._parts = [_Part(expect(a, b, epilogue=epilogue)[0])]
        else:
            self._parts = [_rows(a, b, epilogue), _columns(a, b, epilogue)]
        self._largest = max(float(part.expected.value.abs().max()) for part in self._parts)
        # What adding up K products in fp32 may lose: little beside a 16-bit output's rounding, most of an fp32 one's.
        ranges = [part.expected.high - part.expected.low for part in self._parts]
        self._spread = max(float(width.max()) for width in ranges) / 2 / self._largest
        # Products of operands that keep 11 bits are each off by up to 2^-10 of themselves (2^-11 to the nearest).
        few = slice(None, None, max(1, len(a) // SAMPLE))
        self._coarse = float((a[few].abs() @ b.abs()).max()) * 2.0**-10 / self._largest if a.dtype == FP32 else 0.0

    def judge(self, result: Tensor, *, loose: bool = False, precision: str = STRICT) -> Verdict:
        """Compares `result`; `loose` and `precision` are the contender's."""
        if nans := int(result.isnan().sum()):  # what nobody wrote is NaN, and may lie outside of the sample
            return Verdict(False, None, f"{nans} elements are NaN")
        seen = [(part.of(result), part.expected) for part in self._parts]
        error = max(float((given.double() - right.value).abs().max()) for given, right in seen) / self._largest
        rel_err = error if math.isfinite(error) else None
        coarse = self._coarse if precision == "tf32" else 0.0
        if loose or coarse:
            allowed = LOOSE_ROUNDINGS * torch.finfo(result.dtype).eps / 2 + self._spread + coarse
            ok = error <= allowed
            return Verdict(ok, rel_err, "" if ok else f"error {error:.1e}, allowed {allowed:.1e}")
        try:
            for given, right in seen:
                assert_within(given, right)
        except AssertionError as wrong:
            return Verdict(False, rel_err, str(wrong))
        return Verdict(True, rel_err)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a result has to be, or its rows (`dim` 0) or columns (`dim` 1) at `indices`."""

    expected: Expectation
    dim: int = 0
    indices: Tensor | None = None

    def of(self, result: Tensor) -> Tensor:
        return result if self.indices is None else result.index_select(self.dim, self.indices)


def _rows(a: Tensor, b: Tensor, epilogue: BoundEpilogue | None) -> _Part:
    rows = _spread(len(a), a.device)

    def cut(operand: Any, spec: OperandSpec) -> Any:
        return operand[rows] if spec.kind in ("col", "tile") else operand

    return _Part(expect(a[rows], b, epilogue=_each_operand(epilogue, cut))[0], 0, rows)


def _columns(a: Tensor, b: Tensor, epilogue: BoundEpilogue | None) -> _Part:
    """Columns of the product come in pairs where the epilogue pairs them: a paired output has one of each."""
    width = 2 if epilogue is not None and epilogue.graph.has_pair else 1
    units = _spread(b.shape[1] // width, b.device)
    columns = (width * units[:, None] + torch.arange(width, device=b.device)).flatten()

    def cut(operand: Any, spec: OperandSpec) -> Any:
        return operand[..., units if spec.paired else columns] if spec.kind in ("row", "tile") else operand

    paired = epilogue is not None and epilogue.graph.outputs[0].paired
    expected = expect(a, b[:, columns], epilogue=_each_operand(epilogue, cut))[0]
    return _Part(expected, 1, units if paired else columns)


def _spread(size: int, device: torch.device) -> Tensor:
    """Indices from 0 to `size` - 1, both among them: `SAMPLE` of them, or all."""
    return torch.linspace(0, size - 1, min(SAMPLE, size), dtype=torch.float64, device=device).long()


def _each_operand(epilogue: BoundEpilogue | None, change: Callable[[Any, OperandSpec], Any]) -> BoundEpilogue | None:
    if epilogue is None:
        return None
    pairs = zip(epilogue.operands, epilogue.graph.operands, strict=True)
    return replace(epilogue, operands=tuple(change(operand, spec) for operand, spec in pairs))
