"""The canonical form: two spellings share an identity, two functions never do; checked by evaluating too."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import ops
from cutegemm.errors import DTypeError, EpilogueError
from cutegemm.fusion import IDENTITY, Col, Epilogue, Graph, Row, Scalar, Tile, epilogue
from cutegemm.fusion.graph import Builder
from cutegemm.fusion.to_torch import evaluate

Tree = tuple[Any, ...]
KINDS = (Row, Col, Tile, Scalar)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "minimum": ops.minimum,
    "maximum": ops.maximum,
}
COMMUTATIVE = {"add", "mul", "minimum", "maximum", "eq", "ne", "and", "or"}
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp": ops.exp,
    "tanh": ops.tanh,
    "erf": ops.erf,
    "normcdf": ops.normcdf,
    "sigmoid": ops.sigmoid,
}
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}
LOGICAL: dict[str, Callable[..., Any]] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "not": lambda x: ~x,
}
TORCH: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "minimum", "maximum", "neg", "abs")},
    **{name: getattr(torch, name) for name in ("exp", "tanh", "erf", "sigmoid", "lt", "le", "eq", "ne", "where")},
    "normcdf": lambda x: torch.erfc(x * -math.sqrt(0.5)) * 0.5,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "not": torch.logical_not,
}

constants = st.sampled_from([0.0, -0.0, 1.0, 2.0, 0.5, -1.5, math.inf, math.nan])
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.just(("acc",)),
    st.tuples(st.just("operand"), st.integers(0, 3)),
    st.tuples(st.just("const"), constants),
)


def _grow(numbers: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    comparison = st.tuples(st.sampled_from(sorted(COMPARISONS)), numbers, numbers)
    condition = st.one_of(
        comparison,
        st.tuples(st.sampled_from(["and", "or"]), comparison, comparison),
        st.tuples(st.just("not"), comparison),
    )
    return st.one_of(
        st.tuples(st.sampled_from(sorted(BINARY)), numbers, numbers),
        st.tuples(st.sampled_from(sorted(UNARY)), numbers),
        st.tuples(st.just("where"), condition, numbers, numbers),
    )


trees = st.recursive(leaves, _grow, max_leaves=12)


def spell(tree: Tree, values: dict[str, Any], choose: random.Random, share: bool) -> Any:
    """Run `tree` on traced values: commutative arguments in a random order, repeated parts shared or not."""
    key = repr(tree)  # as text, for (0.0,) == (-0.0,)
    name, *args = tree
    if name in ("acc", "operand") or (share and key in values):
        return values[key]
    if name == "const":
        # A bare number is no traced value, so make one: x + (-0.0) would change the tree.
        acc = values["('acc',)"]
        return type(acc)(acc._builder, acc._builder.constant(args[0]))
    done = [spell(arg, values, choose, share) for arg in args]
    if name in COMMUTATIVE and choose.random() < 0.5:
        done.reverse()
    if name in BINARY:
        result = BINARY[name](*done)
    elif name in COMPARISONS:
        result = done[1] > done[0] if name == "lt" and choose.random() < 0.5 else COMPARISONS[name](*done)
    elif name == "where":
        result = ops.where(*done)
    else:
        logical: dict[str, Callable[..., Any]] = {
            "and": lambda x, y: x & y,
            "or": lambda x, y: x | y,
            "not": lambda x: ~x,
        }
        result = {**UNARY, **logical}[name](*done)
    if share:
        values[key] = result
    return result


def trace(tree: Tree, seed: int = 0, prefix: str = "p", share: bool = False) -> Epilogue:
    """An epilogue of `tree`, multiplied by its four operands so that none is unused."""

    def body(acc: Any, *operands: Any, **named: Any) -> Any:
        given_operands = [*operands, *named.values()]
        leaves = {("acc",): acc, **{("operand", i): x for i, x in enumerate(given_operands)}}
        values = {repr(leaf): x for leaf, x in leaves.items()}
        choose = random.Random(seed)
        ops.exp(acc)  # dead code is not part of the function
        result = spell(tree, values, choose, share) + acc
        for operand in given_operands:
            result = result * operand
        return result

    names = [f"{prefix}{i}" for i in range(4)]
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("acc", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        + [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
            for name, kind in zip(names, KINDS, strict=True)
        ]
    )
    return epilogue(body)


def canonical(tree: Tree) -> str:
    """The tree as text with commutative arguments sorted: an independent definition of sameness."""
    name, *args = tree
    if name in ("acc", "operand"):
        return repr(tree)
    if name == "const":
        return f"const {float(args[0]).hex()}"
    parts = [canonical(arg) for arg in args]
    return f"{name}({', '.join(sorted(parts) if name in COMMUTATIVE else parts)})"


def run(tree: Tree, acc: torch.Tensor, operands: list[torch.Tensor]) -> torch.Tensor:
    name, *args = tree
    if name == "acc":
        return acc
    if name == "operand":
        return operands[args[0]]
    if name == "const":
        return torch.tensor(args[0], dtype=acc.dtype)
    return TORCH[name](*(run(arg, acc, operands) for arg in args))


ACC = torch.tensor([[-2.0, -0.0, 0.5, 3.0], [math.nan, math.inf, -math.inf, 1e-3]], dtype=torch.float64)
OPERANDS = [
    torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64),
    torch.tensor([-0.25, 4.0], dtype=torch.float64),
    torch.tensor([[0.0, 1.0, -3.0, 2.5], [1.0, 0.0, math.nan, -1.0]], dtype=torch.float64),
    torch.tensor(1.5, dtype=torch.float64),
]


@settings(max_examples=200, deadline=None)
@given(trees, st.integers(0, 2**32), st.booleans())
def test_spellings_share_the_identity(tree: Tree, seed: int, share: bool) -> None:
    first = trace(tree).graph
    second = trace(tree, seed, prefix="other", share=share).graph
    assert first.identity == second.identity
    assert first == second and hash(first) == hash(second)
    assert first.nodes == second.nodes


@settings(max_examples=300, deadline=None)
@given(trees, trees)
def test_identity_is_shared_only_by_the_same_expression(left: Tree, right: Tree) -> None:
    same = canonical(left) == canonical(right)
    assert (trace(left).graph.identity == trace(right).graph.identity) is same


@settings(max_examples=200, deadline=None)
@given(trees, st.integers(0, 2**32))
def test_the_canonical_form_computes_the_same(tree: Tree, seed: int) -> None:
    (got,) = evaluate(trace(tree, seed).graph, ACC, OPERANDS, torch.float64)
    row, col, tile, scalar = OPERANDS
    broadcast = [row, col[:, None], tile, scalar]
    expected = run(tree, ACC, broadcast) + ACC
    for operand in broadcast:
        expected = expected * operand
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda acc: acc * 2, lambda acc: acc * 2.0),
        (lambda acc: 1 + acc, lambda acc: acc + 1.0),
        (lambda acc: acc**2, lambda acc: acc * acc),
        (lambda acc: acc * 0.1, lambda acc: acc * 0.10000000149011612),
        (lambda acc: ops.where(acc > 0, acc, 0), lambda acc: ops.where(0 < acc, acc, 0)),  # noqa: SIM300
        (lambda acc: ops.cast(acc, "bf16"), lambda acc: ops.cast(acc, "torch.bfloat16")),
        (lambda acc: ops.cast(acc, "fp32"), lambda acc: acc),
        (lambda acc: acc, lambda acc: +acc),
        (lambda acc: acc * math.nan, lambda acc: acc * -math.nan),
    ],
)
def test_one_function(left: Callable[..., Any], right: Callable[..., Any]) -> None:
    assert epilogue(left).graph == epilogue(right).graph


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda acc: acc + 0.0, lambda acc: acc + -0.0),
        (lambda acc: acc * math.nan, lambda acc: acc * math.inf),
        (lambda acc: acc * math.inf, lambda acc: acc * -math.inf),
        (lambda acc: acc - 1, lambda acc: 1 - acc),
        (lambda acc: acc / 2, lambda acc: 2 / acc),
        (lambda acc: ops.gelu(acc), lambda acc: ops.gelu_tanh(acc)),
        (lambda acc: ops.cast(acc, "bf16"), lambda acc: ops.cast(acc, "fp16")),
        (lambda acc: (acc + 1) + 2, lambda acc: acc + (1 + 2)),
        (lambda acc: ops.pair(acc)[0], lambda acc: ops.pair(acc)[1]),
        (lambda acc: ops.where(acc < 0, acc, 0), lambda acc: ops.where(acc < 0, 0, acc)),
        (lambda acc: {"a": acc, "b": -acc}, lambda acc: {"b": -acc, "a": acc}),
        (lambda acc: {"a": acc}, lambda acc: {"b": acc}),
        (lambda acc: acc, lambda acc: {"out": acc, "copy": acc}),
    ],
)
def test_two_functions(left: Callable[..., Any], right: Callable[..., Any]) -> None:
    assert epilogue(left).graph != epilogue(right).graph


def test_kind_position_and_name_of_operands() -> None:
    @epilogue
    def row(acc, x: Row, y: Row):  # type: ignore[no-untyped-def]
        return acc * x + y

    @epilogue
    def renamed(acc, u: Row, v: Row):  # type: ignore[no-untyped-def]
        return v + u * acc

    @epilogue
    def swapped(acc, x: Row, y: Row):  # type: ignore[no-untyped-def]
        return acc * y + x

    @epilogue
    def column(acc, x: Row, y: Col):  # type: ignore[no-untyped-def]
        return acc * x + y

    assert row.graph == renamed.graph
    assert len({row.graph, swapped.graph, column.graph}) == 3


def test_identity_is_the_same_in_every_process() -> None:
    code = (
        "from cutegemm.fusion import epilogue, Row\nfrom cutegemm import ops\n"
        "@epilogue\ndef f(acc, b: Row):\n"
        "    return {'out': ops.gelu(b + acc) * 0.3 + ops.exp(acc * b), 'pre': acc + b}\n"
        "print(f.graph.identity)"
    )
    seen = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seen.add(done.stdout.strip())
    assert len(seen) == 1 and len(seen.pop()) == 64


def test_deep_graphs() -> None:
    depth = 5_000

    @epilogue
    def deep(acc, bias: Row):  # type: ignore[no-untyped-def]
        for i in range(depth):
            acc = acc * 0.5 + bias if i % 2 else abs(acc)
        return acc

    graph = deep.graph
    assert len(graph.nodes) > depth
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert graph.transposed().transposed() == graph
    assert len(graph.then(graph).nodes) > 2 * depth
    assert len(graph.describe()) > depth
    (out,) = evaluate(graph, torch.ones(1, 2), [torch.zeros(2)])
    assert torch.equal(out, torch.zeros(1, 2))


def test_sharing_is_not_exponential() -> None:
    @epilogue
    def doubled(acc):  # type: ignore[no-untyped-def]
        for _ in range(200):
            acc = acc * acc + acc
        return acc

    assert len(doubled.graph.nodes) == 401


def test_pickle_keeps_everything() -> None:
    @epilogue
    def f(acc, bias: Row):  # type: ignore[no-untyped-def]
        return {"out": ops.gelu(acc + bias), "pre": acc}

    again = pickle.loads(pickle.dumps(f))
    assert (again.name, again.graph, str(again.graph)) == ("f", f.graph, str(f.graph))


def test_listing() -> None:
    @epilogue
    def f(acc, bias: Row, s: Scalar):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc)
        return {"out": ops.cast((gate - up) / 0.1, "bf16") + bias, "pre": acc - s}

    assert f.graph.describe() == [
        "(acc, bias: Row[N/2], s: Scalar) -> out[N/2], pre",
        "  t0 = even(acc)",
        "  t1 = odd(acc)",
        "  t2 = t0 - t1",
        "  t3 = t2 / 0.1",
        "  t4 = cast(t3, bf16)",
        *(line for line in f.graph.describe() if line in ("  t5 = t4 + bias", "  t5 = bias + t4")),
        "  t6 = acc - s",
        "  out = t5",
        "  pre = t6",
    ]
    assert str(f.graph) == "\n".join(f.graph.describe())


@pytest.mark.parametrize("value", [3.4028234663852886e38, 1e-45, 0.1, 16777217, math.inf, -0.0])
def test_constants_print_as_they_round(value: float) -> None:
    graph = epilogue(lambda acc: acc * value).graph
    (constant,) = (node for node in graph.nodes if node.op == "const")
    text = next(part for part in graph.describe()[1].split() if part not in ("t0", "=", "acc", "*"))
    assert torch.tensor(float(text)).item() == constant.value == torch.tensor(float(value)).item()
    assert math.copysign(1, constant.value) == math.copysign(1, value)


@pytest.mark.parametrize("value", [3.5e38, -1e300, 10**400])
def test_constants_beyond_fp32_are_refused(value: float) -> None:
    with pytest.raises(EpilogueError, match="beyond fp32's range"):
        epilogue(lambda acc: acc * value)


def test_paired_specs() -> None:
    @epilogue
    def f(acc, full: Row, half: Row, c: Col, t: Tile, s: Scalar, lone: Row):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc * full + c)
        return {"out": ops.silu(gate) * up * c + half * s + t, "pre": acc, "row": lone * 2, "col": c * s}

    assert {spec.name: spec.paired for spec in f.graph.operands} == {
        "full": False, "half": True, "c": False, "t": True, "s": False, "lone": False,
    }  # fmt: skip
    assert [(spec.name, spec.paired) for spec in f.graph.outputs] == [
        ("out", True), ("pre", False), ("row", False), ("col", False),
    ]  # fmt: skip
    assert f.graph.has_pair and not IDENTITY.has_pair


def _mixed_late(acc: Any, b: Row) -> dict[str, Any]:
    gate, _ = ops.pair(acc)
    return {"a": gate + b, "b": acc * b}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda acc: ops.pair(acc)[0] + acc, "add mixes values of width N"),
        (lambda acc: ops.where(acc > 0, ops.pair(acc)[1], 0.0), "where mixes values of width N"),
        (lambda acc: ops.pair(ops.pair(acc)[0])[0], "pair of a value that has width N/2 already"),
        (_mixed_late, "mixes values of width N"),
    ],
)
def test_mixed_widths_are_refused(body: Callable[..., Any], message: str) -> None:
    with pytest.raises(EpilogueError, match=message):
        epilogue(body)


def test_pair_of_what_does_not_vary() -> None:
    def f(acc, c: Col):  # type: ignore[no-untyped-def]
        return ops.pair(acc)[0] + ops.pair(c)[0]

    with pytest.raises(EpilogueError, match="does not vary along N"):
        epilogue(f)


class TestComposition:
    @staticmethod
    def graphs() -> tuple[Graph, Graph, Graph]:
        @epilogue
        def f(acc, b: Row):  # type: ignore[no-untyped-def]
            return {"out": acc + b, "pre": acc}

        @epilogue
        def g(acc, b: Row, s: Scalar):  # type: ignore[no-untyped-def]
            return {"mid": ops.gelu(acc) * b, "scaled": acc * s}

        @epilogue
        def h(acc, t: Tile):  # type: ignore[no-untyped-def]
            return acc + t

        return f.graph, g.graph, h.graph

    def test_equals_the_function_written_in_one(self) -> None:
        f, g, h = self.graphs()

        @epilogue
        def whole(acc, b: Row, b_2: Row, s: Scalar, t: Tile):  # type: ignore[no-untyped-def]
            x = acc + b
            return {"out": ops.gelu(x) * b_2 + t, "pre": acc, "scaled": x * s}

        composed = f.then(g).then(h)
        assert composed == whole.graph
        assert [s.name for s in composed.operands] == ["b", "b_2", "s", "t"]

    def test_is_associative_and_has_a_unit(self) -> None:
        f, g, h = self.graphs()
        assert f.then(g).then(h) == f.then(g.then(h))
        assert IDENTITY.then(f) == f
        assert f.then(IDENTITY) == f

    def test_carried_outputs_may_not_collide(self) -> None:
        f, _, _ = self.graphs()
        with pytest.raises(EpilogueError, match="two outputs are called 'pre'"):
            f.then(f)

    def test_widths_follow_the_composition(self) -> None:
        f, _, _ = self.graphs()
        half = epilogue(lambda acc: ops.pair(acc)[0]).graph
        assert [spec.paired for spec in half.then(f).operands] == [True]
        assert [spec.paired for spec in f.then(half).outputs] == [True, False]
        with pytest.raises(EpilogueError, match="width N/2 already"):
            half.then(half)


def test_transposed_swaps_rows_and_columns() -> None:
    @epilogue
    def f(acc, r: Row, c: Col, t: Tile, s: Scalar):  # type: ignore[no-untyped-def]
        return (acc + r) * c + t * s

    flipped = f.graph.transposed()
    assert [spec.kind for spec in flipped.operands] == ["col", "row", "tile", "scalar"]
    row, col, tile, scalar = OPERANDS
    (expected,) = evaluate(f.graph, ACC, [row, col, tile, scalar], torch.float64)
    (got,) = evaluate(flipped, ACC.T, [row, col, tile.T, scalar], torch.float64)
    torch.testing.assert_close(got.T, expected, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(EpilogueError, match="can't be transposed"):
        epilogue(lambda acc: ops.pair(acc)[0]).graph.transposed()


def test_builder_refuses_wrong_types_and_outputs() -> None:
    builder = Builder()
    acc = builder.add("acc")
    compared = builder.add("lt", (acc, acc))
    with pytest.raises(EpilogueError, match="exp takes numbers, and got a comparison"):
        builder.add("exp", (compared,))
    with pytest.raises(EpilogueError, match="not takes comparisons"):
        builder.add("not", (acc,))
    with pytest.raises(EpilogueError, match="'out' is a comparison"):
        builder.finish([], [("out", compared)])
    with pytest.raises(EpilogueError, match="at least one output"):
        builder.finish([], [])
    with pytest.raises(DTypeError, match="bf15"):
        builder.cast(acc, "bf15")
    with pytest.raises(EpilogueError, match="cast to int8 is not served: expected one of fp16, bf16, fp32"):
        builder.cast(acc, "int8")
    for name in ("", "a b", "class", "_x"):
        with pytest.raises(EpilogueError, match="can't be a NamedTuple's field"):
            builder.finish([], [(name, acc)])


def test_composing_again_is_a_look_up() -> None:
    from cutegemm.fusion import epilogue as trace

    @trace
    def first(acc, left: Row):
        return acc + left

    @trace
    def second(acc, right: Row):
        return acc * right

    @trace
    def renamed(acc, other: Row):
        return acc * other

    assert first.graph.then(second.graph) is first.graph.then(second.graph)
    assert [spec.name for spec in first.graph.then(renamed.graph).operands] == ["left", "other"]
