"""The `cutegemm` command: what it prints, its JSON, and its exit codes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from cutegemm import cli, epilogues
from cutegemm.cli import demo
from cutegemm.planner import plan


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    out, err = capsys.readouterr()
    return code, out, err


def test_plan_prints_the_explanation(capsys) -> None:
    code, out, _ = run(capsys, "plan", "4096", "14336", "4096", "--arch", "sm_90a", "--epilogue", "bias_gelu")
    expected = plan(4096, 14336, 4096, arch="sm_90a", epilogue=epilogues.bias_gelu)
    assert code == 0 and out == expected.explain() + "\n"


def test_every_option_of_plan_reaches_the_planner(capsys) -> None:
    options = "--dtype fp16 --out-dtype fp32 --arch A100 --batch 3 --layout tn --align 8 --epilogue add"
    pin = "sm80_multistage:stages=3"
    code, out, _ = run(capsys, "plan", "40", "56", "72", *options.split(), "--kernel", pin, "--json")
    expected = plan(
        40,
        56,
        72,
        dtype="fp16",
        out_dtype="fp32",
        arch="A100",
        batch=3,
        layout="tn",
        align=8,
        epilogue=epilogues.add,
        kernel=pin,
    )
    assert code == 0 and json.loads(out) == json.loads(json.dumps(expected.to_dict()))


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        (["plan", "4", "4", "4", "--arch", "sm_999"], "UnsupportedArchitectureError", "sm_999"),
        (["plan", "4", "4", "4", "--arch", "V100"], "UnsupportedArchitectureError", "sm_70"),
        (["plan", "0", "4", "4"], "ShapeError", "m=0"),
        (["plan", "4", "4", "4", "--dtype", "int3"], "DTypeError", "int3"),
        (["plan", "4", "4", "4", "--epilogue", "nope"], "EpilogueError", "nope"),
        (["plan", "4", "4", "4", "--kernel", "cutlass"], "ArgumentError", "unknown family 'cutlass'"),
        (["epilogues", "nope"], "EpilogueError", "nope"),
    ],
)
def test_a_named_error_ends_with_1_and_says_why(capsys, argv, error, words) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 1 and out == "" and err.startswith("cutegemm: ") and words in err
    code, out, err = run(capsys, *argv, "--json")
    report = json.loads(out)
    assert code == 1 and err == "" and report["error"] == error and words in report["message"]


@pytest.mark.parametrize("line", ["", "brew", "plan 4 4", "plan 4 4 x", "demo --loud"])
def test_what_is_not_understood_ends_with_2(capsys, line) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(line.split())
    assert exit.value.code == 2 and "usage: cutegemm" in capsys.readouterr().err


def test_epilogues_lists_operands_outputs_and_provider(capsys) -> None:
    code, out, _ = run(capsys, "epilogues")
    (line,) = [line for line in out.splitlines() if line.startswith("bias_gelu_aux(")]
    assert code == 0 and line.split()[:5] == ["bias_gelu_aux(bias:", "Row)", "out,", "pre", "cutegemm"]
    assert "out (N/2)" in next(line for line in out.splitlines() if line.startswith("swiglu("))


def test_verbose_prints_the_graph_of_the_named_ones_only(capsys) -> None:
    code, out, _ = run(capsys, "epilogues", "bias_relu", "--verbose")
    assert code == 0 and str(epilogues.bias_relu.graph) in out and "swiglu" not in out


def test_epilogues_as_json_match_the_library(capsys) -> None:
    code, out, _ = run(capsys, "epilogues", "--json")
    entries = {entry["name"]: entry for entry in json.loads(out)}
    assert code == 0 and set(dir(epilogues)) <= set(entries)
    assert entries["leaky_relu"]["operands"] == [{"name": "slope", "kind": "scalar", "paired": False}]
    assert entries["leaky_relu"]["defaults"] == {"slope": 0.01}
    assert entries["swiglu"]["outputs"] == [{"name": "out", "paired": True}]
    assert entries["gelu"]["identity"] == epilogues.gelu.graph.identity
    assert entries["gelu"]["distribution"] == "cutegemm"


def test_the_demo_checks_plans_and_builds(capsys) -> None:
    code, out, _ = run(capsys, "demo", "--json")
    report = json.loads(out)
    assert code == 0 and report["check"]["right"]
    assert 0 < report["check"]["error"] < report["check"]["torch_error"]
    assert report["check"]["us"] > 0 and report["check"]["torch_us"] > 0
    assert report["plan"]["device"]["arch"] == report["build"]["arch"] == "sm_90a"
    assert report["build"]["kernel"] == report["plan"]["kernel"]
    assert report["build"]["opcodes"]["HGMMA"] > 0 and report["build"]["spills"] == 0


def test_the_demo_fails_on_a_wrong_result(monkeypatch, capsys) -> None:
    check = demo.Check("here", "stub", 8, 8, 8, error=1, torch_error=1, excess=1.5, us=1, torch_us=1)
    monkeypatch.setattr(demo, "compare", lambda: check)
    built = {"kernel": "k", "seconds": 1.0, "cubin_bytes": 2048, "unread": "cuobjdump is missing"}
    monkeypatch.setattr(demo, "build", lambda chosen: built)
    code, out, _ = run(capsys, "demo")
    assert code == 1 and "WRONG" in out
    monkeypatch.setattr(demo, "compare", lambda: dataclasses.replace(check, excess=0.5))
    code, out, _ = run(capsys, "demo")
    assert code == 0 and "WRONG" not in out and "2 KiB" in out and "cuobjdump is missing" in out


def test_a_missing_package_points_to_the_doctor(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "cutlass", None)
    check = demo.Check("here", "stub", 8, 8, 8, error=1, torch_error=1, excess=0.5, us=1, torch_us=1)
    monkeypatch.setattr(demo, "compare", lambda: check)
    code, out, _ = run(capsys, "demo", "--json")
    assert code == 1 and "cutegemm doctor" in json.loads(out)["message"]


def test_the_module_is_the_command() -> None:
    argv = [sys.executable, "-m", "cutegemm", "plan", "8", "8", "8", "--arch", "sm_80"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "sm80_multistage" in done.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m cutegemm plan 64 64 64 --arch sm_80 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
