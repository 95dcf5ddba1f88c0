"""Activations: functions of the accumulator alone."""

from __future__ import annotations

from cutegemm import ops
from cutegemm.fusion import Scalar, Value, epilogue


@epilogue
def relu(acc: Value) -> Value:
    """max(x, 0); NaN stays NaN."""
    return ops.relu(acc)


@epilogue
def leaky_relu(acc: Value, slope: Scalar = 0.01) -> Value:  # type: ignore[assignment]
    """x where x > 0, slope * x elsewhere."""
    return ops.leaky_relu(acc, slope)


@epilogue
def gelu(acc: Value) -> Value:
    """The exact GELU: x times the standard normal distribution function of x."""
    return ops.gelu(acc)


@epilogue
def gelu_tanh(acc: Value) -> Value:
    """The tanh approximation of GELU."""
    return ops.gelu_tanh(acc)


@epilogue
def silu(acc: Value) -> Value:
    """x * sigmoid(x), also called swish."""
    return ops.silu(acc)


@epilogue
def sigmoid(acc: Value) -> Value:
    """1 / (1 + exp(-x))."""
    return ops.sigmoid(acc)


@epilogue
def tanh(acc: Value) -> Value:
    """Hyperbolic tangent."""
    return ops.tanh(acc)


@epilogue
def clamp(acc: Value, low: Scalar, high: Scalar) -> Value:
    """x held between two run-time numbers; NaN stays NaN."""
    return ops.clamp(acc, low, high)
