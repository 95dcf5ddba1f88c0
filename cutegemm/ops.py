"""What an epilogue's body may call besides operators: element-wise functions of traced values.

Values are fp32. Functions follow torch's of the same name, at ±inf, NaN and ±0 too; the composed ones are
written in terms of the same few nodes that a user has, in forms that keep their relative accuracy where the
textbook form cancels.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from cutegemm.errors import EpilogueError, NotAvailableError
from cutegemm.fusion.trace import Value, apply

__all__ = [
    "abs",
    "cast",
    "clamp",
    "erf",
    "exp",
    "gelu",
    "gelu_tanh",
    "leaky_relu",
    "log",
    "maximum",
    "minimum",
    "normcdf",
    "pair",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "where",
]


def exp(x: Value) -> Value:
    """e to the power x."""
    return apply("exp", x)


def log(x: Value) -> Value:
    """Natural logarithm; NaN below 0, -inf at 0."""
    return apply("log", x)


def sqrt(x: Value) -> Value:
    """Square root; NaN below 0."""
    return apply("sqrt", x)


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x); NaN below 0, inf at 0."""
    return apply("rsqrt", x)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return apply("tanh", x)


def erf(x: Value) -> Value:
    """The error function."""
    return apply("erf", x)


def normcdf(x: Value) -> Value:
    """The standard normal distribution function, erfc(-x / sqrt(2)) / 2, with relative accuracy in its lower
    tail."""
    return apply("normcdf", x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def abs(x: Value) -> Value:
    """Absolute value."""
    return apply("abs", x)


def minimum(x: Value | float, y: Value | float) -> Value:
    """The smaller one; NaN if either is NaN."""
    return apply("minimum", x, y)


def maximum(x: Value | float, y: Value | float) -> Value:
    """The larger one; NaN if either is NaN."""
    return apply("maximum", x, y)


def where(condition: Value, x: Value | float, y: Value | float) -> Value:
    """x where the comparison `condition` holds, y elsewhere; NaN and Inf of the one not chosen do not
    spread."""
    return apply("where", condition, x, y)


def cast(x: Value, dtype: str) -> Value:
    """x rounded to `dtype` ("fp16" or "bf16", or torch's name of it) where it stands; it goes on as fp32."""
    return apply("cast", x, attr=str(dtype))


def pair(x: Value) -> tuple[Value, Value]:
    """The even and the odd columns of x (…, M, N), each (…, M, N/2): column i of the result is 2i and 2i + 1
    of x.

    For gated units: interleave the rows of the two weights (even rows the gate) and both halves meet in one
    kernel.
    """
    return apply("even", x), apply("odd", x)


def relu(x: Value) -> Value:
    """max(x, 0); relu(NaN) is NaN."""
    return maximum(x, 0.0)


def leaky_relu(x: Value, slope: Value | float = 0.01) -> Value:
    """x where x > 0, slope * x elsewhere."""
    return where(x > 0.0, x, x * slope)


def clamp(x: Value, low: Value | float | None = None, high: Value | float | None = None) -> Value:
    """x held between `low` and `high`, either of which may be left out; NaN stays NaN. If low > high:
    high."""
    if low is None and high is None:
        raise EpilogueError("clamp needs low, high or both")
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def gelu(x: Value) -> Value:
    """x * normcdf(x): the exact GELU, torch's `gelu(x, approximate="none")` (Hendrycks and Gimpel, arXiv
    1606.08415)."""
    return x * normcdf(x)


def gelu_tanh(x: Value) -> Value:
    """The tanh approximation of GELU, torch's `gelu(x, approximate="tanh")`.

    0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x * sigmoid(2u): the same function,
    without the cancellation of 1 + tanh(u) below 0.
    """
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    return x * sigmoid(x * (scale + (scale * 0.044715) * (x * x)))


def silu(x: Value) -> Value:
    """x * sigmoid(x), also called swish."""
    return x * sigmoid(x)


def _reduction(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotAvailableError(f"{name}: reductions in an epilogue are not available in this version")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not available in this version: calling it raises `NotAvailableError` naming {name}."
    return refuse


row_max, row_min, row_sum, row_mean = map(_reduction, ("row_max", "row_min", "row_sum", "row_mean"))
col_max, col_min, col_sum, col_mean = map(_reduction, ("col_max", "col_min", "col_sum", "col_mean"))
