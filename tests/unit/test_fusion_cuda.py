"""The CUDA C++ lowering, compiled for the host: its values against torch's, and what its text depends on."""

from __future__ import annotations

import ctypes
import math
import random
import re
import shutil
import struct
import subprocess
from typing import Any

import numpy as np
import pytest
import torch

from cutegemm import epilogues, ops
from cutegemm.errors import EpilogueError
from cutegemm.fusion import IDENTITY, Col, Graph, Node, OutputSpec, Row, Scalar, Tile, epilogue
from cutegemm.fusion.graph import OPS, Builder
from cutegemm.fusion.to_cuda import lanes, lower
from cutegemm.fusion.to_torch import evaluate
from tests import lowered

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
UNARY = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "normcdf", "sigmoid")
# Torch's own fp32 square root is not always the nearest number.
APPROXIMATE = {"exp", "log", "sqrt", "rsqrt", "tanh", "erf", "normcdf", "sigmoid"}
CONSTANTS = [0.0, -0.0, 1.0, -2.5, 0.1, math.pi, 3.4e38, -1e-40, 1.4e-45, math.inf, -math.inf, math.nan]
SPECIAL = [*CONSTANTS, 1e30, -1e30, 65519.99, 65520.0, -(2.0**-25), 88.0, -88.0, -0.3, 6e-8]

Array = np.ndarray[Any, np.dtype[np.float32]]


@epilogue
def hostile(acc, int: Row, template: Col, acc_even: Tile, größe: Scalar, in0: Row, t2: Scalar):  # type: ignore[no-untyped-def]
    first = (acc + int) * template
    return {"register": first - acc_even, "out0": ops.minimum(first, größe), "acc": in0 * t2}


@epilogue
def lanes_of_every_kind(acc, r: Row, c: Col, t: Tile, s: Scalar, half: Row, halves: Tile):  # type: ignore[no-untyped-def]
    gate, up = ops.pair((acc - r) * c)
    early, _ = ops.pair(t * t)
    out = ops.where((gate < up) & ~(half == s), gate - half * 4, ops.maximum(halves, c) - early)
    return {"out": out, "pre": acc * c, "number": s - 1, "column": c - 3, "half": half * s, "late": ops.pair(t)[1] / 2}


def single(op: str, attr: str = "") -> Graph:
    builder = Builder()
    acc = builder.add("acc")
    return builder.finish([], [("out", builder.cast(acc, attr) if op == "cast" else builder.add(op, (acc,)))])


def constants() -> Graph:
    builder = Builder()
    outputs = [("acc", builder.add("acc"))]
    return builder.finish([], outputs + [(f"c{i}", builder.constant(value)) for i, value in enumerate(CONSTANTS)])


def random_graph(seed: int, steps: int = 14) -> Graph:
    """A graph of operations that are exact on both sides, with a `pair` if `seed` is odd."""
    rng, builder = random.Random(seed), Builder()
    kinds = ["row", "col", "tile", "scalar", *(["row", "tile"] if seed % 2 else [])]
    acc, row, col, tile, scalar, *halves = [
        builder.add("acc"), *(builder.add("operand", attr=str(i)) for i in range(len(kinds)))
    ]  # fmt: skip
    whole = [acc, row, col, tile, scalar, *map(builder.constant, CONSTANTS)]

    def grow(numbers: list[int]) -> None:
        conditions = [builder.add("lt", rng.sample(numbers, 2))]
        for _ in range(steps):
            x, y = rng.choice(numbers[-6:]), rng.choice(numbers)
            op = rng.choice(sorted(set(OPS) - APPROXIMATE - {"acc", "operand", "const", "even", "odd"}))
            if OPS[op].gives == "bool":
                args = [x, y] if OPS[op].takes[0] == "f32" else rng.choices(conditions, k=len(OPS[op].takes))
                conditions.append(builder.add(op, args))
            elif op == "cast":
                numbers.append(builder.cast(x, rng.choice(["fp16", "bf16"])))
            elif op == "where":
                numbers.append(builder.add(op, [rng.choice(conditions), x, y]))
            else:
                result = builder.add(op, [x, y][: len(OPS[op].takes)])
                # Which zero is the smaller of two zeros is anyone's choice: make both the same one.
                is_extremum = op in ("minimum", "maximum")
                numbers.append(builder.add("add", [result, builder.constant(0.0)]) if is_extremum else result)

    grow(whole)
    outputs = [("out", builder.add("add", [whole[-1], acc]))]
    outputs += [(f"rest{i}", x) for i, x in enumerate((row, col, tile, scalar, *halves))]
    if halves:
        split = builder.add("sub", [whole[-1], acc])
        half = [builder.add("even", [split]), builder.add("odd", [acc]), builder.add("odd", [split]), *halves, scalar]
        half += [col, *map(builder.constant, CONSTANTS)]
        grow(half)
        outputs.append(("half", builder.add("mul", [half[-1], halves[0]])))
        outputs.append(("halves", builder.add("add", [halves[0], halves[1]])))
    return builder.finish([(f"x{i}", kind) for i, kind in enumerate(kinds)], outputs)  # type: ignore[arg-type]


LIBRARY = {name: getattr(epilogues, name).graph for name in dir(epilogues)}
SINGLE = {**{op: single(op) for op in UNARY}, **{dtype: single("cast", dtype) for dtype in ("fp16", "bf16")}}
RANDOM = {f"random_{seed}": random_graph(seed) for seed in range(48)}
GRAPHS: dict[str, Graph] = {
    "identity": IDENTITY,
    "constants": constants(),
    "hostile": hostile.graph,
    "lanes": lanes_of_every_kind.graph,
    "division": epilogue(lambda acc: acc / 3.0 + 1.0 / acc).graph,
    **{f"library_{name}": graph for name, graph in LIBRARY.items()},
    **{f"single_{name}": graph for name, graph in SINGLE.items()},
    **RANDOM,
}
EXACT = [name for name, graph in GRAPHS.items() if not APPROXIMATE & {node.op for node in graph.nodes}]


def source() -> str:
    """Every graph's lowering, each with a function over arrays: one array an argument of `apply`."""
    signature = "void {}(long n, const float* const* in, float* const* out)"
    return lowered.source(GRAPHS, signature, "for (long i = 0; i < n; ++i) {}", "[{}][i]")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if COMPILER is None:
        pytest.skip("no C++ compiler (c++, g++ or clang++) on this machine")
    folder = tmp_path_factory.mktemp("lowered")
    (folder / "lowered.cpp").write_text(source())
    # Torch rounds every operation: the host's compiler must not contract two to an FMA.
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
    command = [COMPILER, *flags, str(folder / "lowered.cpp"), "-o", str(folder / "lowered.so"), "-lm"]
    compiled = subprocess.run(command, capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[:4000]
    return ctypes.CDLL(str(folder / "lowered.so"))


def run(library: ctypes.CDLL, name: str, given: list[Array]) -> list[Array]:
    """`apply` on every element of `given`, arrays of one length in the order of its arguments."""
    count = lanes(GRAPHS[name])
    assert len(given) == count.acc + sum(count.operands)
    results = [np.full_like(given[0], 12345.0) for _ in range(sum(count.outputs))]

    def pointers(arrays: list[Array]) -> Any:
        return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))

    getattr(library, f"run_{name}")(ctypes.c_long(len(given[0])), pointers(given), pointers(results))
    return results


def by_torch(graph: Graph, given: list[Array], dtype: torch.dtype) -> list[Any]:
    """The same of torch: element i is row i of a batch of one-row problems."""
    count, arrays = lanes(graph), iter(map(torch.from_numpy, given))

    def take(width: int) -> torch.Tensor:
        return torch.stack([next(arrays) for _ in range(width)], -1)

    acc = take(count.acc).unsqueeze(1)
    operands = [take(width) for width in count.operands]
    shaped = [o[:, None] if s.kind in ("tile", "scalar") else o for s, o in zip(graph.operands, operands, strict=True)]
    outputs = evaluate(graph, acc, shaped, dtype)
    return [out[:, 0, i].numpy() for out, width in zip(outputs, count.outputs, strict=True) for i in range(width)]


def some_of_everything(graph: Graph, size: int = 6000) -> list[Array]:
    """Arrays of normal, huge and tiny numbers, special values and small integers (which are often equal)."""
    generator = np.random.default_rng(7)
    count = lanes(graph)

    def array() -> Array:
        normal = generator.standard_normal(size) * 4
        scaled = normal * 2.0 ** generator.integers(-149, 125, size)
        special = generator.choice(SPECIAL, size)
        small = generator.integers(-3, 4, size)
        picks = generator.integers(0, 4, size)
        return np.choose(picks, [normal, scaled, special, small]).astype(np.float32)

    return [array() for _ in range(count.acc + sum(count.operands))]


def every_exponent() -> Array:
    """All upper halves of an fp32 number, with lower halves at, beside and between fp16's and bf16's ties."""
    low = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    return ((np.arange(65536, dtype=np.uint32) << 16)[:, None] | low).ravel().view(np.float32)


def assert_same_bits(got: Array, expected: Array) -> None:
    assert expected.dtype == np.float32
    wrong = np.flatnonzero((got.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(got) & np.isnan(expected)))
    assert not len(wrong), f"{len(wrong)} differ; first: {got[wrong[0]]!r}, expected {expected[wrong[0]]!r}"


def ulps(got: Array, exact: Any) -> float:
    """The greatest error in units of the last place of the right result; infinite where one alone is NaN or inf."""
    rounded = exact.astype(np.float32)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.abs(got.astype(np.float64) - exact) / np.spacing(np.abs(rounded)).astype(np.float64)
    return float(np.max(np.where(same, 0.0, np.nan_to_num(error, nan=np.inf))))


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_every_kind_of_node_is_here() -> None:
    assert {node.op for graph in GRAPHS.values() for node in graph.nodes} == set(OPS)
    exact = {node.op for graph in RANDOM.values() for node in graph.nodes}
    assert exact == set(OPS) - APPROXIMATE, "an operation that no random graph has"


@pytest.mark.parametrize("name", EXACT)
def test_exact_graphs_have_torchs_bits(library: ctypes.CDLL, name: str) -> None:
    given = some_of_everything(GRAPHS[name])
    got, expected = run(library, name, given), by_torch(GRAPHS[name], given, torch.float32)
    assert len(got) == len(expected)
    # Which zero is the larger of two is open, in `maximum` alone; the random graphs make them one.
    extremum = name not in RANDOM and any(node.op in ("minimum", "maximum") for node in GRAPHS[name].nodes)
    for one, other in zip(got, expected, strict=True):
        assert_same_bits(one + 0, other + 0) if extremum else assert_same_bits(one, other)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_casts_round_to_nearest_even(library: ctypes.CDLL, dtype: str) -> None:
    x = every_exponent()
    (got,) = run(library, f"single_{dtype}", [x])
    expected = torch.from_numpy(x).to({"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]).float().numpy()
    assert_same_bits(got, expected)


# What glibc and the plain expressions of the host give; a device's functions have CUDA's own bounds.
@pytest.mark.parametrize(
    ("op", "bound"),
    [("exp", 1.0), ("log", 1.0), ("sqrt", 0.5), ("rsqrt", 1.5), ("tanh", 2.5), ("erf", 1.0), ("neg", 0), ("abs", 0)],
)
def test_functions_are_right_to_ulps(library: ctypes.CDLL, op: str, bound: float) -> None:
    x = every_exponent()
    (got,), (exact,) = run(library, f"single_{op}", [x]), by_torch(SINGLE[op], [x], torch.float64)
    assert ulps(got, exact) <= bound


# The bounds that `approx` states, and what it calls small below them.
@pytest.mark.parametrize(
    ("op", "low", "bound"),
    [("normcdf", -3, 1.5e-6), ("normcdf", -7, 7e-6), ("sigmoid", -8, 6e-7), ("sigmoid", -60, 4e-6)],
)
def test_approximations_are_within_their_bounds(library: ctypes.CDLL, op: str, low: float, bound: float) -> None:
    x = np.concatenate([every_exponent(), np.linspace(low, 10, 200_001, dtype=np.float32)])
    (got,), (exact,) = run(library, f"single_{op}", [x]), by_torch(SINGLE[op], [x], torch.float64)
    assert np.array_equal(np.isnan(got), np.isnan(x))
    inside, below = x > low, x < {"normcdf": -7, "sigmoid": -88}[op]
    assert np.max(np.abs(got[inside] - exact[inside]) / exact[inside]) < bound
    assert np.all(got[below] >= 0) and np.all(got[below] < {"normcdf": 1.3e-12, "sigmoid": 1e-38}[op])


@pytest.mark.parametrize("name", [f"library_{name}" for name in LIBRARY])
def test_library_against_fp64(library: ctypes.CDLL, name: str) -> None:
    generator = np.random.default_rng(3)
    given = [(generator.standard_normal(20_000) * 4).astype(np.float32) for _ in some_of_everything(GRAPHS[name], 1)]
    # A sum rounds to half an ulp, which the tails of normcdf and sigmoid magnify by x ** 2 and by x.
    for one, other in zip(run(library, name, given), by_torch(GRAPHS[name], given, torch.float64), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", [f"library_{name}" for name in LIBRARY])
def test_library_at_special_values(library: ctypes.CDLL, name: str) -> None:
    count = lanes(GRAPHS[name])
    generator = np.random.default_rng(5)
    given = [generator.choice(np.float32(SPECIAL), 4000) for _ in range(count.acc + sum(count.operands))]
    for one, other in zip(run(library, name, given), by_torch(GRAPHS[name], given, torch.float32), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-37, equal_nan=True)


def test_relu_follows_ieee(library: ctypes.CDLL) -> None:
    x = np.float32([math.nan, -math.inf, math.inf, -1.0, 2.0])
    (got,) = run(library, "library_relu", [x])
    np.testing.assert_array_equal(got, np.float32([math.nan, 0.0, math.inf, 0.0, 2.0]))


def test_constants_keep_every_bit(library: ctypes.CDLL) -> None:
    _, *got = run(library, "constants", [np.zeros(1, np.float32)])
    for one, value in zip(got, CONSTANTS, strict=True):
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        assert one.view(np.uint32)[0] == bits, value


def test_lanes() -> None:
    assert lanes(IDENTITY) == (1, (), (1,))
    assert lanes(hostile.graph) == (1, (1, 1, 1, 1, 1, 1), (1, 1, 1))
    assert lanes(lanes_of_every_kind.graph) == (2, (2, 1, 2, 1, 1, 1), (1, 2, 2, 2, 1, 1))


def _first(acc: Any, a: Row, b: Col) -> Any:
    return {"out": acc * a + b, "pre": ops.exp(acc * a)}


def _second(acc: Any, delete: Row, b2: Col) -> Any:
    product = delete * acc
    _ = ops.erf(product)
    return {"out": b2 + product, "pre": ops.exp(delete * acc)}


def test_text_depends_on_the_graph_alone() -> None:
    assert lower(epilogue(_first).graph) == lower(epilogue(_second).graph)
    texts = {lower(graph) for graph in GRAPHS.values()}
    assert len(texts) == len({graph.identity for graph in GRAPHS.values()}) > 80
    assert lower(epilogues.scale_row.graph) != lower(epilogues.scale_col.graph)


def test_names_of_operands_stay_out_of_the_text() -> None:
    text = lower(hostile.graph)
    assert text.isascii() and not re.search(r"template|register", text)


def test_common_expressions_are_computed_once() -> None:
    text = lower(epilogue(lambda acc: {"a": ops.exp(acc) + 1, "b": ops.exp(acc) * ops.exp(acc)}).graph)
    assert text.count("expf(") == 1


def test_halves_that_nobody_reads_are_not_computed() -> None:
    text = lower(epilogue(lambda acc: ops.pair(ops.exp(acc))[1]).graph)
    assert re.findall(r"expf\((\w+)\)", text) == ["acc_odd"]


def test_deep_graphs_lower() -> None:
    def deep(acc: Any) -> Any:
        for i in range(3000):
            acc = acc + i
        return acc

    assert lower(epilogue(deep).graph).count("        const float t") == 3000


@pytest.mark.parametrize("name", ["", "1st", "a b", "größe", "a::b", "_x"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(EpilogueError, match="can't name a C"):
        lower(IDENTITY, name)


@pytest.mark.parametrize(
    ("node", "said"), [(Node("lgamma", (0,)), "lgamma"), (Node("cast", (0,), "fp8"), "cast to fp8")]
)
def test_operations_without_a_lowering_are_named(node: Node, said: str) -> None:
    graph = Graph((), (OutputSpec("out", 1),), (Node("acc"), node), "0")
    with pytest.raises(EpilogueError, match=f"{said} has no lowering to CUDA C"):
        lower(graph)
