"""The CuTe lowering, compiled alone: what the instructions cost, and that no slow path is taken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutegemm import epilogues, ops
from cutegemm.errors import EpilogueError
from cutegemm.fusion import Col, Graph, Row, Scalar, epilogue
from tests import machine_code
from tests.lowered import every_node
from tests.machine_code import ARITHMETIC, count, mnemonics

cutlass = pytest.importorskip("cutlass")

from cutlass import Float32, cute  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor  # noqa: E402

from cutegemm.fusion.to_cute import lower  # noqa: E402

SIZE = 8
THREADS = 128


def disassemble(graph: Graph, arch: str, folder: Path, size: int = SIZE) -> str:
    """The SASS of a kernel in which each thread applies `graph` to `size` elements."""
    apply = lower(graph)
    first_output = 1 + len(graph.operands)

    @cute.kernel
    def kernel(arguments: list[Any]) -> None:
        thread = cute.arch.thread_idx()[0]
        values = []
        for i in cutlass.range_constexpr(first_output):
            is_tensor = cutlass.const_expr(isinstance(arguments[i], cute.Tensor))
            values.append(arguments[i][thread, None].load() if is_tensor else arguments[i])
        outputs = apply(values[0], values[1:])
        for i in cutlass.range_constexpr(len(outputs)):
            arguments[first_output + i][thread, None].store(outputs[i])

    @cute.jit
    def launch(arguments: list[Any]) -> None:
        kernel(arguments).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    def fragment(paired: bool) -> Any:
        shape = (THREADS, size // 2 if paired else size)
        return make_fake_compact_tensor(Float32, shape, stride_order=(1, 0), assumed_align=16)

    operands = [Float32(1.0) if s.kind == "scalar" else fragment(s.paired) for s in graph.operands]
    arguments = [fragment(False), *operands, *(fragment(s.paired) for s in graph.outputs)]
    cute.compile(launch, arguments, options=f"--gpu-arch {arch} --keep-cubin --dump-dir {folder}")
    (cubin,) = folder.glob("*.cubin")
    return machine_code.disassemble(cubin)


def instructions(graph: Graph, arch: str, folder: Path, size: int = SIZE) -> Counter[str]:
    """That kernel's instructions, as counts of mnemonics."""
    return mnemonics(disassemble(graph, arch, folder, size))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_every_node_compiles_without_slow_paths(arch: str, tmp_path: Path) -> None:
    found = instructions(every_node.graph, arch, tmp_path)
    assert count(found, "LDL", "STL", "CALL", "BSSY") == 0, found
    assert count(found, "STG") > 0


# For 8 elements: MUFU operations; for one: all arithmetic, comparisons and selects included. On an H200, an
# SM issues 4 instructions a cycle and starts 16 MUFU lanes, so these figures are what an epilogue adds to a
# mainloop.
COSTS = {
    "relu": (0, 1),
    "leaky_relu": (0, 2),
    "clamp": (0, 2),
    "gelu": (8, 14),
    "bias_gelu": (8, 15),
    "bias_gelu_aux": (8, 15),
    "gelu_tanh": (16, 8),
    "silu": (16, 5),
    "bias_silu": (16, 6),
    "sigmoid": (16, 4),
    "tanh": (16, 16),
    "swiglu": (8, 3),
    "geglu": (4, 8),
    "bias_add": (0, 2),
    "scale": (0, 1),
}


@pytest.mark.parametrize(
    ("name", "arch"), [*((name, "sm_90a") for name in COSTS), ("bias_gelu", "sm_80"), ("clamp", "sm_80")]
)
def test_costs(name: str, arch: str, tmp_path: Path) -> None:
    found = instructions(getattr(epilogues, name).graph, arch, tmp_path)
    mufu, arithmetic = COSTS[name]
    assert count(found, "LDL", "STL", "CALL", "BSSY", "BRX") == 0, found
    assert count(found, "MUFU") == mufu, found
    assert count(found, *ARITHMETIC) <= arithmetic * SIZE, found


def test_maximum_propagates_nan(tmp_path: Path) -> None:
    assert instructions(epilogues.relu.graph, "sm_90a", tmp_path)["FMNMX.NAN"] == SIZE


def test_scalars_are_computed_once(tmp_path: Path) -> None:
    @epilogue
    def f(acc, s: Scalar):  # type: ignore[no-untyped-def]
        return acc * ops.sigmoid(s)

    assert count(instructions(f.graph, "sm_90a", tmp_path), "MUFU") == 2


@pytest.mark.parametrize("size", [2, 12, 32])
def test_any_even_number_of_elements(size: int, tmp_path: Path) -> None:
    @epilogue
    def f(acc, r: Row, c: Col):  # type: ignore[no-untyped-def]
        gate, up = ops.pair(acc)
        return {"out": ops.silu(gate) * up * c + r, "pre": acc + c}

    found = instructions(f.graph, "sm_90a", tmp_path, size)
    assert count(found, "MUFU.EX2") == size // 2
    assert count(found, "FADD", "FFMA") >= size // 2 + size
    assert count(found, "LDL", "STL") == 0


def test_constants_arrive_as_fp32(tmp_path: Path) -> None:
    graph = epilogue(lambda acc: {"a": acc + float("inf"), "b": acc * 0.1}).graph
    listing = disassemble(graph, "sm_90a", tmp_path)
    assert len(re.findall(r"FADD.*\+INF", listing)) == SIZE
    assert len(re.findall(r"FMUL.*, 0\.100000001490", listing)) == SIZE


@pytest.mark.parametrize(
    ("graph", "size", "operands", "message"),
    [
        (epilogues.bias.graph, 8, [], "expected 1 operands, got 0"),
        (epilogues.swiglu.graph, 7, [], "even number of elements a thread, got 7"),
        (epilogues.bias.graph, 8, [4], "operand 'bias': expected 8 elements, got 4"),
    ],
)
def test_misuse_is_refused(graph: Graph, size: int, operands: list[int], message: str) -> None:
    class Fragment:
        def __init__(self, size: int) -> None:
            self.size = size
            self.shape = (size,)

        def to_elements(self) -> tuple[Any, ...]:
            class Element:
                def to(self, dtype: Any) -> Element:
                    return self

            return (Element(),) * self.size

    apply: Callable[..., Any] = lower(graph)
    with pytest.raises(EpilogueError, match=message):
        apply(Fragment(size), [Fragment(n) for n in operands])
