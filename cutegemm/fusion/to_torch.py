"""Evaluating a graph with torch: the reference on the CPU, and the oracle in fp64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from cutegemm.fusion.graph import Graph, Kind

_CAST = {"fp16": torch.float16, "bf16": torch.bfloat16}

_OPS: dict[str, Callable[..., Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "normcdf": lambda x: 0.5 * torch.erfc(x * -math.sqrt(0.5)),
    "sigmoid": torch.sigmoid,
    "even": lambda x: x[..., 0::2],
    "odd": lambda x: x[..., 1::2],
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "lt": torch.lt,
    "le": torch.le,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
    "where": torch.where,
}


def evaluate(
    graph: Graph, acc: Tensor, operands: Sequence[Any], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """The graph's outputs in `dtype`, computed in `dtype` on `acc`'s device, for an accumulator (…, M, N).

    Operands follow `graph.operands`: Row (N,) or (*batch, N), Col (M,) or (*batch, M), Tile (…, M, N) (with
    N/2 where `paired`), Scalar a number or a 0-d tensor. An output is (…, M, N), or (…, M, N/2) where
    `paired`, and may be `acc` itself. Differentiable. A `Scalar` number is rounded to fp32 first, and a
    `cast` rounds from fp32, in every `dtype`: that is what a kernel does.
    """
    last_use = {arg: i for i, node in enumerate(graph.nodes) for arg in node.args}
    kept = {spec.node for spec in graph.outputs}
    acc = acc.to(dtype)
    values: list[Tensor | None] = []
    for i, node in enumerate(graph.nodes):
        args = [values[a] for a in node.args]
        if node.op == "acc":
            value: Tensor = acc
        elif node.op == "operand":
            position = int(node.attr)
            value = _operand(operands[position], graph.operands[position].kind, acc, dtype)
        elif node.op == "const":
            value = torch.full((), node.value, dtype=dtype, device=acc.device)
        elif node.op == "cast":
            (x,) = args
            assert x is not None
            value = x.to(torch.float32).to(_CAST[node.attr]).to(dtype)
        else:
            value = _OPS[node.op](*args)
        values.append(value)
        # Oracles of large problems are gigabytes a node: let go of what no later node reads.
        for arg in node.args:
            if last_use[arg] == i and arg not in kept:
                values[arg] = None
    outputs = []
    for spec in graph.outputs:
        out = values[spec.node]
        assert out is not None
        shape = (*acc.shape[:-1], acc.shape[-1] // 2) if spec.paired else acc.shape
        outputs.append(out if out.shape == shape else out.expand(shape).contiguous())
    return tuple(outputs)


def _operand(operand: Any, kind: Kind, acc: Tensor, dtype: torch.dtype) -> Tensor:
    """The operand in `dtype`, shaped to broadcast against (…, M, N)."""
    if isinstance(operand, Real):
        return torch.tensor(float(operand), dtype=torch.float32, device=acc.device).to(dtype)
    tensor: Tensor = operand.to(device=acc.device, dtype=dtype)
    if kind == "row":
        return tensor.unsqueeze(-2)
    return tensor.unsqueeze(-1) if kind == "col" else tensor
