"""Formulas for the functions whose library versions are slow or inexact where an epilogue needs them.

Each is written once, over an `Arithmetic`: the CuTe lowering instantiates it on registers, the tests on numpy
with every operation rounded as the hardware rounds it. Errors below are relative, measured that way against
fp64, for a MUFU that is 2 ulp off.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeVar

T = TypeVar("T")

# Coefficients, lowest first, of p with normcdf(-t) = 2 ** p(t) for t >= 0: a weighted minimax fit of
# log2(erfc(t / sqrt(2)) / 2) on [0, 7] (Lawson's iteration on 4000 Chebyshev points, p(0) = -1 held exactly,
# errors weighted by 1 / max(1, |p| / 8) because rounding p to fp32 costs as much there anyway), rounded to
# fp32. p falls for ever beyond 7, so the tail goes to 0.
_LOG2_UPPER_TAIL = (
    -1.0,
    -1.1511224508285522,
    -0.4590780735015869,
    -0.05282331630587578,
    0.007443674840033054,
    -0.0003617743495851755,
    -0.0001221808633999899,
    3.4640026569832116e-05,
    -4.337012342148228e-06,
    2.8262957130209543e-07,
    -7.732549711647607e-09,
)


class Arithmetic(Protocol[T]):
    """fp32 operations on a value type T, each one instruction of the device."""

    def constant(self, value: float) -> T:
        """The fp32 constant `value`."""

    def absolute(self, x: T) -> T:
        """|x|."""

    def add(self, x: T, y: T) -> T:
        """x + y."""

    def multiply(self, x: T, y: T) -> T:
        """x * y."""

    def fma(self, x: T, y: T, z: T) -> T:
        """x * y + z, rounded once."""

    def exp2(self, x: T) -> T:
        """2 ** x, about 2 ulp; subnormal results are 0."""

    def reciprocal(self, x: T) -> T:
        """1 / x, about 1 ulp; subnormal results are 0."""

    def select_negative(self, x: T, if_negative: T, otherwise: T) -> T:
        """`if_negative` where x < 0, else `otherwise`."""


def normcdf(m: Arithmetic[T], x: T) -> T:
    """The normal distribution function: 10 FMA and one MUFU.EX2, no cancellation on either side of 0.

    Error: 1.5e-6 for x > -3, 7e-6 for x > -7; below that the value is less than 1.3e-12 and falls to 0 a
    little early. Limits: 0 at -inf, 1 at inf, 1/2 at ±0, NaN at NaN.
    """
    t = m.absolute(x)
    power = m.constant(_LOG2_UPPER_TAIL[-1])
    for coefficient in reversed(_LOG2_UPPER_TAIL[:-1]):
        power = m.fma(power, t, m.constant(coefficient))
    tail = m.exp2(power)
    rest = m.fma(tail, m.constant(-1.0), m.constant(1.0))
    return m.select_negative(x, tail, rest)


def sigmoid(m: Arithmetic[T], x: T) -> T:
    """1 / (1 + 2 ** (-x log2 e)): one MUFU.EX2 and one MUFU.RCP.

    Error: 6e-7 for x > -8, then growing with |x| as the rounding of the exponent does: 4e-6 at -60. Below -88
    the value is 0 (it is less than 1e-38). Limits: 0 at -inf, 1 at inf, NaN at NaN.
    """
    falling = m.exp2(m.multiply(x, m.constant(-math.log2(math.e))))
    return m.reciprocal(m.add(m.constant(1.0), falling))
