"""Correctness before timing: results against fp64, by the bound and in the guarded outputs that tests use."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.helpers import Expectation, assert_within, expect

#: Separate calls round in between, which the tests' bound forbids: roundings of the largest magnitude.
SEPARATE_ROUNDINGS = 4


class Verdict(NamedTuple):
    """Whether a result is right, its largest error over the largest magnitude, and what is wrong."""

    ok: bool
    rel_err: float | None
    why: str = ""


class Gate:
    """The fp64 result of one call, and how far from it a result may be."""

    def __init__(self, a: Tensor, b: Tensor, epilogue: Any) -> None:
        self._expected: Expectation = expect(a, b, epilogue=epilogue)[0]
        self._largest = float(self._expected.value.abs().max())

    def judge(self, result: Tensor, *, separate: bool = False) -> Verdict:
        """Compares `result`; `separate` says that it comes of several calls with a rounding after each."""
        error = float((result.double() - self._expected.value).abs().max()) / self._largest
        rel_err = error if math.isfinite(error) else None
        if separate:
            allowed = SEPARATE_ROUNDINGS * torch.finfo(result.dtype).eps / 2
            ok = error <= allowed  # False for a NaN
            return Verdict(ok, rel_err, "" if ok else f"error {error:.1e}, allowed {allowed:.1e}")
        try:
            assert_within(result, self._expected)
        except AssertionError as wrong:
            return Verdict(False, rel_err, str(wrong))
        return Verdict(True, rel_err)
