"""The device's formulas, on numpy with every operation rounded to fp32, against fp64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cutegemm.fusion import approx

SMALLEST_NORMAL = 2.0**-126


class Emulated:
    """`approx.Arithmetic` on numpy: one fp32 rounding an operation, MUFU results off by `ulps`, subnormals
    flushed.

    CUDA's documentation bounds ex2.approx.ftz by 2 ulp and rcp.approx.ftz by 1.
    """

    def __init__(self, ulps: float) -> None:
        self.ulps = ulps

    def constant(self, value: float) -> Any:
        assert np.float32(value) == value or value not in approx._LOG2_UPPER_TAIL, "not an fp32 number"
        return np.float32(value)

    def absolute(self, x: Any) -> Any:
        return np.abs(x)

    def add(self, x: Any, y: Any) -> Any:
        return np.float32(x + y)

    def multiply(self, x: Any, y: Any) -> Any:
        return np.float32(x * y)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return np.float32(np.float64(x) * np.float64(y) + np.float64(z))

    def exp2(self, x: Any) -> Any:
        return self._mufu(np.exp2(np.float64(x)), 2.0)

    def reciprocal(self, x: Any) -> Any:
        return self._mufu(1.0 / np.float64(x), 1.0)

    def select_negative(self, x: Any, if_negative: Any, otherwise: Any) -> Any:
        return np.where(x < 0, if_negative, otherwise)

    def _mufu(self, exact: Any, bound: float) -> Any:
        rounded = np.float32(exact * (1 + self.ulps * bound * 2.0**-23))
        return np.where(np.abs(rounded) < SMALLEST_NORMAL, np.float32(0), rounded)


def relative_error(got: Any, expected: Any) -> Any:
    return np.max(np.abs(np.float64(got) - expected) / np.abs(expected))


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("ulps", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("low", "high", "bound"), [(-1, 100, 1e-6), (-3, -1, 1.5e-6), (-7, -3, 7e-6)])
def test_normcdf(ulps: float, low: float, high: float, bound: float) -> None:
    x = np.linspace(low, high, 200_001, dtype=np.float32)
    expected = 0.5 * torch.erfc(torch.from_numpy(np.float64(x)) * -(0.5**0.5)).numpy()
    assert relative_error(approx.normcdf(Emulated(ulps), x), expected) < bound


def test_normcdf_beyond_its_fit() -> None:
    x = np.linspace(-300, -7, 200_001, dtype=np.float32)
    got = np.float64(approx.normcdf(Emulated(0.0), x))
    expected = 0.5 * torch.erfc(torch.from_numpy(np.float64(x)) * -(0.5**0.5)).numpy()
    assert np.all(np.abs(got - expected) < 1e-15) and np.all(got >= 0) and np.all(got[x < -12] < 1e-33)
    assert np.all(np.diff(got) >= 0)


def test_gelu_at_the_value_where_its_spellings_part() -> None:
    x = np.float32(-2.7)
    assert x * approx.normcdf(Emulated(0.0), x) == pytest.approx(-2.7 * 0.5 * math.erfc(2.7 / math.sqrt(2)), rel=1.5e-6)


@pytest.mark.parametrize("ulps", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize(("low", "high", "bound"), [(-8, 100, 8e-7), (-60, -8, 4e-6)])
def test_sigmoid(ulps: float, low: float, high: float, bound: float) -> None:
    x = np.linspace(low, high, 200_001, dtype=np.float32)
    expected = torch.sigmoid(torch.from_numpy(np.float64(x))).numpy()
    assert relative_error(approx.sigmoid(Emulated(ulps), x), expected) < bound


def test_limits() -> None:
    x = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, -200.0, 200.0, -3e38, 3e38], dtype=np.float32)
    expected = np.array([0, 1, np.nan, 0.5, 0.5, 0, 1, 0, 1], dtype=np.float32)
    np.testing.assert_array_equal(approx.normcdf(Emulated(0.0), x), expected)
    np.testing.assert_array_equal(approx.sigmoid(Emulated(0.0), x), expected)
