"""For tests of the lowerings: a graph of every node, and CUDA C++ that applies lowered graphs to arrays."""

from __future__ import annotations

from collections.abc import Mapping

from cutegemm import ops
from cutegemm.fusion import Col, Graph, Row, Scalar, Tile, epilogue
from cutegemm.fusion.to_cuda import lanes, lower


@epilogue
def every_node(acc, r: Row, c: Col, t: Tile, s: Scalar):  # type: ignore[no-untyped-def]
    gate, up = ops.pair(acc + r * c)
    x = ops.exp(gate) + ops.log(up) - ops.erf(gate) * ops.tanh(up) / ops.sqrt(abs(gate))
    y = ops.rsqrt(x) + ops.normcdf(-x) * ops.sigmoid(t) + ops.cast(ops.cast(x, "fp16") * s, "bf16")
    z = ops.where(((x < y) & (x <= 1)) | ~(x == t) & (x != s), x, ops.clamp(y, -1, s))
    return {"out": z * c, "pre": acc, "number": ops.gelu(s) + float("inf"), "column": c * 2}


def source(graphs: Mapping[str, Graph], signature: str, statement: str, element: str) -> str:
    """Every graph's lowering, each with a function `run_NAME`.

    `signature` is the function's, its name left out as `{}`; `statement` is its body, with the application as `{}`;
    `element` is what follows `in` or `out` for the k-th argument of `apply`, `{}` being k.
    """
    parts = []
    for name, graph in graphs.items():
        count = lanes(graph)
        given = [f"in{element.format(k)}" for k in range(count.acc + sum(count.operands))]
        results = [f"out{element.format(k)}" for k in range(sum(count.outputs))]
        body = statement.format(f"{name}::apply({', '.join(given + results)});")
        parts.append(f'{lower(graph, name)}\nextern "C" {signature.format(f"run_{name}")} {{\n    {body}\n}}\n')
    return "\n".join(parts)
