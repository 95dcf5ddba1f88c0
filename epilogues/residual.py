"""Whole-tensor and scalar operands: residual additions, gates and scales."""

from __future__ import annotations

from cutegemm.fusion import Col, Row, Scalar, Tile, Value, epilogue


@epilogue
def add(acc: Value, other: Tile) -> Value:
    """x + other, element by element: a residual connection."""
    return acc + other


@epilogue
def mul(acc: Value, other: Tile) -> Value:
    """x * other, element by element."""
    return acc * other


@epilogue
def bias_add(acc: Value, bias: Row, other: Tile) -> Value:
    """x + bias + other: a bias and a residual connection."""
    return acc + bias + other


@epilogue
def scale(acc: Value, factor: Scalar) -> Value:
    """x * factor, one run-time number."""
    return acc * factor


@epilogue
def scale_row(acc: Value, factors: Row) -> Value:
    """x * factors, one number a column."""
    return acc * factors


@epilogue
def scale_col(acc: Value, factors: Col) -> Value:
    """x * factors, one number a row."""
    return acc * factors
