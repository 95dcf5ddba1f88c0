"""A bias along N, alone and under the usual activations, with the pre-activation as a second output where
training needs it."""

from __future__ import annotations

from cutegemm import ops
from cutegemm.fusion import Col, Row, Value, epilogue


@epilogue
def bias(acc: Value, bias: Row) -> Value:
    """x + bias, one number a column."""
    return acc + bias


@epilogue
def bias_col(acc: Value, bias: Col) -> Value:
    """x + bias, one number a row: the bias of a transposed product."""
    return acc + bias


@epilogue
def bias_relu(acc: Value, bias: Row) -> Value:
    """relu(x + bias)."""
    return ops.relu(acc + bias)


@epilogue
def bias_gelu(acc: Value, bias: Row) -> Value:
    """gelu(x + bias)."""
    return ops.gelu(acc + bias)


@epilogue
def bias_gelu_tanh(acc: Value, bias: Row) -> Value:
    """gelu_tanh(x + bias)."""
    return ops.gelu_tanh(acc + bias)


@epilogue
def bias_silu(acc: Value, bias: Row) -> Value:
    """silu(x + bias)."""
    return ops.silu(acc + bias)


@epilogue
def bias_relu_aux(acc: Value, bias: Row) -> dict[str, Value]:
    """relu(x + bias), and the pre-activation x + bias as the output `pre`."""
    pre = acc + bias
    return {"out": ops.relu(pre), "pre": pre}


@epilogue
def bias_gelu_aux(acc: Value, bias: Row) -> dict[str, Value]:
    """gelu(x + bias), and the pre-activation x + bias as the output `pre`."""
    pre = acc + bias
    return {"out": ops.gelu(pre), "pre": pre}


@epilogue
def bias_silu_aux(acc: Value, bias: Row) -> dict[str, Value]:
    """silu(x + bias), and the pre-activation x + bias as the output `pre`."""
    pre = acc + bias
    return {"out": ops.silu(pre), "pre": pre}
