"""The CuTe lowering's values, run on the CPU: a `@cute.jit` function that launches nothing executes there.

Only what is not an NVIDIA instruction can run (nor a cast to bf16): functions with a MUFU are left to the tests on a
GPU and to those of `approx`. Inputs are small integers, for which fp32 is exact: so are the comparisons here.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import ops
from cutegemm.fusion import Col, Epilogue, Graph, Row, Scalar, Tile, epilogue
from cutegemm.fusion.to_torch import evaluate

cutlass = pytest.importorskip("cutlass")

from cutlass import Float32, cute  # noqa: E402
from cutlass.cute.runtime import from_dlpack  # noqa: E402

from cutegemm.fusion.to_cute import lower  # noqa: E402


def run(graph: Graph, acc: torch.Tensor, operands: list[Any]) -> list[torch.Tensor]:
    """The outputs of `graph` for the elements of one row, as one thread computes them."""
    apply = lower(graph)
    outputs = [torch.empty(acc.numel() // 2 if spec.paired else acc.numel()) for spec in graph.outputs]
    first_output = 1 + len(operands)

    @cute.jit
    def thread(arguments: list[Any]) -> None:
        values = []
        for i in cutlass.range_constexpr(first_output):
            is_tensor = cutlass.const_expr(isinstance(arguments[i], cute.Tensor))
            values.append(arguments[i].load() if is_tensor else arguments[i])
        results = apply(values[0], values[1:])
        for i in cutlass.range_constexpr(len(results)):
            arguments[first_output + i].store(results[i])

    given_operands = [from_dlpack(o) if isinstance(o, torch.Tensor) else Float32(o) for o in operands]
    arguments = [from_dlpack(acc), *given_operands, *map(from_dlpack, outputs)]
    cute.compile(thread, arguments)(arguments)
    return outputs


def check(graph: Graph, size: int) -> None:
    generator = torch.Generator().manual_seed(size)

    def integers(count: int) -> torch.Tensor:
        return torch.randint(-2, 3, (count,), generator=generator).float()

    acc, column = integers(size), 3.0
    for_thread: list[Any] = []
    for_torch: list[Any] = []
    for spec in graph.operands:
        if spec.kind == "scalar":
            for_thread.append(2.0)
            for_torch.append(2.0)
        elif spec.kind == "col":
            for_thread.append(torch.full((size,), column))
            for_torch.append(torch.tensor([column]))
        else:
            values = integers(size // 2 if spec.paired else size)
            for_thread.append(values)
            for_torch.append(values[None] if spec.kind == "tile" else values)
    got = run(graph, acc, for_thread)
    for one, other in zip(got, evaluate(graph, acc[None], for_torch), strict=True):
        torch.testing.assert_close(one, other[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("size", [2, 8, 12, 24])
def test_pairs_columns_and_several_outputs(size: int) -> None:
    @epilogue
    def f(acc, r: Row, c: Col, t: Tile, s: Scalar):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc - r)
        z = ops.where((gate > 1) | ~(up > s) & (gate != t), 1 - gate, s - up * c)
        return {"out": z + c * t - (2 - t), "pre": 3 - acc, "number": s * s, "column": c - s}

    check(f.graph, size)


def test_cast_rounds() -> None:
    graph = epilogue(lambda acc: {"a": ops.cast(acc * 2049, "fp16"), "b": ops.cast(acc * 65536, "fp16") * 3}).graph
    check(graph, 8)


def test_conditions_of_scalars_alone() -> None:
    @epilogue
    def f(acc, s: Scalar, t: Tile):  # type: ignore[no-untyped-def]
        chosen = ops.where((s > 1) & (acc > t), acc, ops.where(s == 2, t, -1))
        return {"out": chosen, "never": ops.where(s != 2, acc, 5), "both": ops.where(~(s < 2) | (acc < 0), acc, t)}

    check(f.graph, 8)


LEAVES = st.one_of(
    st.sampled_from(["acc", "r", "c", "t", "s"]), st.sampled_from([0.0, -0.0, 1.0, -2.0, math.inf, math.nan])
)
TREES = st.recursive(
    LEAVES,
    lambda sub: st.one_of(
        st.tuples(st.sampled_from(["+", "-", "*"]), sub, sub),
        st.tuples(st.sampled_from(["neg", "abs", "fp16"]), sub),
        st.tuples(st.sampled_from(["<", "<=", "==", "!=", "&", "|", "~"]), sub, sub, sub),
    ),
    max_leaves=8,
)


def build(tree: Any) -> Epilogue:
    @epilogue
    def f(acc, r: Row, c: Col, t: Tile, s: Scalar):  # type: ignore[no-untyped-def]
        names = {"acc": acc, "r": r, "c": c, "t": t, "s": s}

        def value(tree: Any) -> Any:
            if isinstance(tree, float):
                return s * 0 + tree
            if isinstance(tree, str):
                return names[tree]
            name, *args = tree
            x, *rest = map(value, args)
            match name:
                case "+":
                    return x + rest[0]
                case "-":
                    return x - rest[0]
                case "*":
                    return x * rest[0]
                case "neg":
                    return -x
                case "abs":
                    return abs(x)
                case "fp16":
                    return ops.cast(x, "fp16")
            y, z = rest
            conditions = {
                "<": lambda: x < y,
                "<=": lambda: x <= y,
                "==": lambda: x == y,
                "!=": lambda: x != y,
                "&": lambda: (x < y) & (y < z),
                "|": lambda: (x < y) | (z > 1),
                "~": lambda: ~(x < y),
            }
            return ops.where(conditions[name](), y, z)

        return {"out": value(tree) + acc, "rest": r + c + t + s}

    return f


@settings(max_examples=40)
@given(TREES)
def test_any_graph(tree: Any) -> None:
    check(build(tree).graph, 8)
