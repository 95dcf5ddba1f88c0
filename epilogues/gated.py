"""Gated units: even columns of N are the gate, odd columns the value it scales (`interleave(w_gate, w_up)`);
width N/2."""

from __future__ import annotations

from cutegemm import ops
from cutegemm.fusion import Row, Value, epilogue


@epilogue
def swiglu(acc: Value) -> Value:
    """silu(gate) * up (Shazeer, arXiv 2002.05202)."""
    gate, up = ops.pair(acc)
    return ops.silu(gate) * up


@epilogue
def geglu(acc: Value) -> Value:
    """gelu(gate) * up."""
    gate, up = ops.pair(acc)
    return ops.gelu(gate) * up


@epilogue
def geglu_tanh(acc: Value) -> Value:
    """gelu_tanh(gate) * up."""
    gate, up = ops.pair(acc)
    return ops.gelu_tanh(gate) * up


@epilogue
def reglu(acc: Value) -> Value:
    """relu(gate) * up."""
    gate, up = ops.pair(acc)
    return ops.relu(gate) * up


@epilogue
def glu(acc: Value) -> Value:
    """sigmoid(gate) * up. torch's `glu` has the gate in the second half of N; here it is in the even
    columns."""
    gate, up = ops.pair(acc)
    return ops.sigmoid(gate) * up


@epilogue
def bias_swiglu(acc: Value, bias: Row) -> Value:
    """silu(gate) * up of x + bias; the bias is (N,), interleaved like the columns."""
    gate, up = ops.pair(acc + bias)
    return ops.silu(gate) * up


@epilogue
def swiglu_aux(acc: Value) -> dict[str, Value]:
    """silu(gate) * up, and x itself, of width N, as the output `pre`."""
    gate, up = ops.pair(acc)
    return {"out": ops.silu(gate) * up, "pre": acc}
