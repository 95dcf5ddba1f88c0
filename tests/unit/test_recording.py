"""Recorded runs: that any call and any epilogue survives as text, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cutegemm import epilogues, errors, launch, recording
from cutegemm.deploy import builder, spec_file
from cutegemm.errors import ArgumentError, EpilogueError
from cutegemm.fusion import serial
from cutegemm.fusion.registry import registered
from cutegemm.planner import contiguous_problem
from tests.bundles import H200, bf16, call, softened
from tests.gpu import problems


@pytest.mark.parametrize("fused", [softened, *(entries[0].epilogue for entries in registered().values())], ids=str)
def test_a_graph_survives_as_text(fused: Any) -> None:
    before = fused.graph
    after = serial.from_data(json.loads(json.dumps(serial.to_data(before))))
    assert after == before and after.describe() == before.describe()
    assert (after.operands, after.outputs, after.nodes) == (before.operands, before.outputs, before.nodes)


def graph_with(**changes: Any) -> dict[str, Any]:
    return {**serial.to_data(epilogues.bias_gelu.graph), **changes}


NODES = serial.to_data(epilogues.bias_gelu.graph)["nodes"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "needs identity"),
        ({"nodes": []}, "needs identity"),
        (graph_with(more=1), "nothing else"),
        (graph_with(identity="0"), "identity is [0-9a-f]{64}, and the data says '0'"),
        (graph_with(nodes=3), "expected a list"),
        (graph_with(nodes=[3]), "node 3 of a graph is not well-formed"),
        (graph_with(nodes=[["launch", [], ""]]), "not well-formed"),
        (graph_with(nodes=[["add", [0], ""]]), "not well-formed"),
        (graph_with(nodes=[["neg", [0], ""]]), r"node 0 \(neg\) takes \[0\]: expected nodes before it"),
        (graph_with(nodes=[["acc", [], ""], ["neg", [-1], ""]]), "expected nodes before it"),
        (graph_with(nodes=[["operand", [], "1"]]), "node 0 is operand '1': there are 1"),
        (graph_with(nodes=[["acc", [], "x"]]), "not well-formed"),
        (graph_with(nodes=[["const", [], "1.0.0"]]), "constant '1.0.0' is not a hexadecimal float"),
        (graph_with(nodes=[["acc", [], ""], ["cast", [0], "int3"]]), "int3"),
        (graph_with(operands=[["bias", "sheet"]]), "operand .* is not well-formed"),
        (graph_with(outputs=[["out", 99]]), "output 'out' is node 99"),
        (graph_with(outputs=[["out", True]]), "not well-formed"),
        (graph_with(outputs=[]), "at least one output"),
        (graph_with(outputs=[["out", 0]]), "."),
    ],
)
def test_a_graph_that_is_not_one_is_refused(data: Any, message: str) -> None:
    with pytest.raises(EpilogueError, match=message):
        serial.from_data(data)


@pytest.mark.parametrize("number", [i for i in range(60) if i % 5 != 4])  # those are large, and no different
def test_any_call_survives_as_text(number: int) -> None:
    made = problems.make(number, device="cpu")
    problem = call(made.a, made.b, **made.keywords, out=made.out).recipe.problem
    again = recording.from_data(json.loads(json.dumps(recording.to_data(problem, None))))
    assert again == (problem, None)


@pytest.mark.usefixtures("fresh_process", "h200")
def test_first_calls_are_recorded_and_their_kernels_are_what_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("CUTEGEMM_JIT", "0")
    monkeypatch.setenv("CUTEGEMM_LOG", str(log))
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "none"))
    a, b = bf16(96, 64), bf16(128, 64).t()
    fused = softened(bf16(128), bf16(96))
    calls = [
        call(a, b),
        call(a, b, epilogue=fused),
        call(a, b, epilogue=fused),
        call(a, b, c=bf16(96, 128).t().contiguous().t(), out_dtype=torch.float32),
        call(a[::2, ::2], b[::2], out=bf16(128, 48).t()),  # computed transposed
    ]
    for one in calls:
        with pytest.raises(errors.KernelNotBuiltError):
            launch.prepare(one)
    found = recording.read(log)
    assert len(log.read_text().splitlines()) == len(found) == 4
    distinct = [calls[i] for i in (0, 1, 3, 4)]
    assert [item.problem for item in found] == [one.recipe.problem for one in distinct]
    wanted = spec_file.recorded(found)
    assert [builder._plan((item, H200)) for item in wanted] == [launch.choose(one).spec for one in distinct]
    assert wanted[0].label == "n 128 k 64 bf16 nt none"
    assert wanted[1].label.endswith(f"epilogue {softened.graph.identity[:12]}")


def test_a_log_that_can_not_be_written_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recording._written.clear()
    monkeypatch.setenv("CUTEGEMM_LOG", str(tmp_path))
    problem = contiguous_problem(64, 64, 64)
    with pytest.warns(RuntimeWarning, match="calls are not recorded: .*Is a directory") as caught:
        recording.record(problem, None)
        recording.record(problem, None)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "schema"),
        ('{"schema": 1}', "schema 1: this cutegemm reads 2"),
        ("m=-1", "expected ints of at least 0"),
        ('k="64"', "expected ints of at least 0"),
        ("a=3", "TypeError"),
        ('a={"dtype": 3, "major": "k", "align": 16}', "3: expected text"),
        ('a={"dtype": "bf16", "major": "k", "align": "16"}', "align='16': expected an int"),
        ("outputs=[]", r"\(0, 0\) outputs and operands: the epilogue has \(1, 0\)"),
        ("alpha=1", "1: expected text"),
        ("epilogue={}", "needs identity"),
    ],
)
def test_a_line_that_is_not_of_a_log_is_named(tmp_path: Path, line: str, message: str) -> None:
    data = recording.to_data(contiguous_problem(64, 64, 64))
    path = tmp_path / "calls.jsonl"
    if not line.startswith(("{", "[")):
        key, _, value = line.partition("=")
        line = json.dumps({**data, key: json.loads(value)})
    path.write_text(json.dumps(data) + "\n" + line + "\n")
    with pytest.raises(ArgumentError, match=f"calls.jsonl, line 2 is not of a recorded run: .*{message}"):
        recording.read(path)


def test_a_log_without_calls_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(ArgumentError, match="holds no calls"):
        recording.read(tmp_path / "empty")
    with pytest.raises(ArgumentError, match="can't be read"):
        recording.read(tmp_path / "nowhere")
