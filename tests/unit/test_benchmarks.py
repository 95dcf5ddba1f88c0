"""The benchmark harness where no GPU is needed: statistics, suites, the results' form and the report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from benchmarks import environment, report, scalars, suites
from benchmarks.results import RESULTS, Results, Row, find
from benchmarks.run import DTYPES, main
from cutegemm import device, epilogues
from cutegemm.deploy import builder
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem
from cutegemm.timing import Effort, contest, host_us, input_sets


class StubDevice:
    """A clock on which a replay lasts what its contender's list says next; it logs the replays."""

    def __init__(self, **ms: list[float]) -> None:
        self.ms = ms
        self.log: list[tuple[str, int]] = []
        self.replays = {name: (lambda name=name: name) for name in ms}

    def clock(self, replay, repeats: int) -> float:
        name = replay()
        self.log.append((name, repeats))
        times = self.ms[name]
        return repeats * (times.pop(0) if len(times) > 1 else times[0])


def test_a_figure_is_the_median_of_rounds_per_call() -> None:
    # The first 1.0 is spent on finding the repeats, every 50.0 on a lead-in.
    device = StubDevice(ours=[1.0, 50.0, 1.0, 50.0, 9.0, 50.0, 2.0, 50.0, 1.0, 50.0, 1.0])
    times = contest(device.replays, calls=4, clock=device.clock, effort=Effort(min_ms=1.0, lead_ms=1.0, rounds=5))
    assert times == {"ours": pytest.approx(1.0e3 / 4)}


def test_contenders_take_turns_in_an_order_that_alternates() -> None:
    device = StubDevice(ours=[50.0], theirs=[60.0])
    times = contest(device.replays, calls=1, clock=device.clock, effort=Effort(min_ms=30.0, rounds=3))
    samples = device.log[3::2]  # two replays find the repeats, then a lead-in comes before each sample
    assert [name for name, _ in samples] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert times == {"ours": 50_000.0, "theirs": 60_000.0}


def test_a_contender_is_its_own_lead_in() -> None:
    device = StubDevice(fast=[1.0], slow=[10.0])
    contest(device.replays, calls=1, clock=device.clock, effort=Effort(min_ms=30.0, lead_ms=60.0, rounds=2))
    turns = device.log[-8:]
    assert turns[0::2] == [("fast", 60), ("slow", 6), ("slow", 6), ("fast", 60)]
    assert turns[1::2] == [("fast", 30), ("slow", 3), ("slow", 3), ("fast", 30)]


def test_every_sample_lasts_the_minimum_time() -> None:
    device = StubDevice(fast=[0.01], slow=[100.0])
    contest(device.replays, calls=1, clock=device.clock, effort=Effort(min_ms=30.0, rounds=2))
    samples = device.log[-7::2]
    assert dict(samples) == {"fast": 3000, "slow": 1}


@pytest.mark.parametrize(("ms", "runs"), [(0.003, 10), (7.0, 10), (400.0, 6), (9000.0, 2)])
def test_rounds_are_as_many_as_the_budget_has(ms: float, runs: int) -> None:
    device = StubDevice(ours=[ms])
    effort = Effort(min_ms=20.0, lead_ms=20.0, rounds=5, budget_ms=3000.0)
    times = contest(device.replays, calls=1, clock=device.clock, effort=effort)
    first = next(i for i, (_, repeats) in enumerate(device.log) if repeats * ms >= 10)  # enough to tell the repeats
    assert times == {"ours": pytest.approx(1e3 * ms)} and len(device.log) - first - 1 == runs


def test_input_sets_exceed_three_times_the_l2() -> None:
    assert input_sets(100, 1000) == 31
    assert input_sets(3000, 1000) == 2
    assert input_sets(3001, 1000) == 1
    assert input_sets(0, 1 << 30, most=64) == 64


def test_host_time_counts_the_timed_calls_only() -> None:
    made = []
    assert host_us(lambda: made.append(0), lambda: None, calls=50) < 1e4
    assert len(made) == 100


def test_the_standard_suite_holds_the_known_groups() -> None:
    cases = suites.load("standard")
    assert [c.group for c in cases if (c.m, c.n, c.k) == (4096, 10240, 8192)] == ["prefill"]
    assert {c.group for c in cases} == {"decode", "prefill", "wgrad", "splitk", "square", "waves", "ragged"}
    assert len(cases) == 52 and {(c.dtype, c.layout, c.epilogue) for c in cases} == {("bf16", "nt", "none")}


def test_a_suite_names_epilogues_by_group() -> None:
    fused = [c.epilogue for c in suites.load("foundation") if c.group == "fused"]
    assert fused == ["none", "bias_gelu"]


def test_a_suite_names_dtypes_and_layouts_by_group() -> None:
    cases = suites.load("hopper")
    groups = {group: [c for c in cases if c.group == group] for group in dict.fromkeys(c.group for c in cases)}
    counts = {"prefill": 8, "wgrad": 3, "square": 4, "fp16": 15, "layouts": 9, "small": 10, "fused": 8}
    assert {group: len(of_it) for group, of_it in groups.items()} == counts
    assert {c.dtype for c in groups["fp16"]} == {"fp16"} and {c.layout for c in groups["fp16"]} == {"nt"}
    others = [c for c in cases if c.group != "fp16"]
    assert {c.dtype for c in others} == {"bf16"}
    assert {c.layout for c in others if c.group != "layouts"} == {"nt"}
    assert [c.layout for c in groups["layouts"]] == ["nn", "tn", "tt"] * 3
    assert [c.epilogue for c in groups["fused"]] == ["none", "bias_gelu_tanh", "bias_add", "swiglu"] * 2
    same = [
        dataclasses.replace(c, group="fp16", dtype="fp16") for c in cases if c.group in ("prefill", "wgrad", "square")
    ]
    assert groups["fp16"] == same
    known = {(c.m, c.n, c.k) for c in suites.load("standard") if c.group in ("prefill", "wgrad", "square")}
    assert {(c.m, c.n, c.k) for c in same} <= known


@pytest.mark.parametrize("name", suites.names())
def test_suites_hold_cases_that_can_be_measured_and_none_twice(name: str) -> None:
    cases = suites.load(name)
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert case.dtype in DTYPES and case.layout in ("nn", "nt", "tn", "tt")
        assert case.epilogue == "none" or case.epilogue in dir(epilogues)


def test_an_unknown_suite_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"'nope'.*foundation.*standard"):
        suites.load("nope")


ROW = Row("square", 4096, 2048, 1024, 1, "bf16", "nt", "none", "cutegemm", "k", 100.0, True, 0.25)
FILE = Results(
    gpu="NVIDIA Test",
    driver="580.1",
    versions={"torch": "2"},
    commit="abc",
    date="2026-01-01",
    suite="s",
    rows=(ROW, dataclasses.replace(ROW, m=8)),
    scalars={"x_us": 1.5},
)


def test_results_survive_writing_and_reading(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "a.json"
    FILE.write(path)
    assert Results.read(path) == FILE
    assert list(find(tmp_path)) == [("gpu/a.json", FILE)]


@pytest.mark.parametrize("spoil", ["missing", "extra", "row"])
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "a.json"
    FILE.write(path)
    data = json.loads(path.read_text())
    if spoil == "missing":
        del data["driver"]
    elif spoil == "extra":
        data["mood"] = "good"
    else:
        del data["rows"][0]["us"]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"a\.json is not a results file.*(driver|mood|us)"):
        Results.read(path)


def test_committed_results_have_the_form_and_only_right_results_are_timed() -> None:
    for path, results in find(RESULTS):
        for row in results.rows:
            assert (row.us is not None) == row.ok, f"{path}: {row}"


def test_throughput_is_two_operations_a_product() -> None:
    assert ROW.tflops == pytest.approx(2 * 4096 * 2048 * 1024 / 100e-6 / 1e12)


def test_the_report_gives_both_sides_and_their_ratio() -> None:
    theirs = dataclasses.replace(ROW, contender="cublas", us=150.0)
    wrong = dataclasses.replace(ROW, contender="other", us=None, ok=False)
    text = report.render([("gpu/a.json", dataclasses.replace(FILE, rows=(ROW, theirs, wrong)))])
    cells = "4096×2048×1024 | bf16 nt | none | 100.0 | 150.0 | wrong result | 172 | 1.50 |  |"
    assert cells in text and "NVIDIA Test" in text and "`x_us`: 1.5" in text


def long_report(**changes: object) -> str:
    """13 problems in two groups: `us` takes 1 µs; `slow` 4, in group y 1; `fast` 2, in the last 0.5."""
    rows = []
    for m in range(13):
        group = "x" if m < 3 else "y"
        for name, us in (("us", 1.0), ("slow", 4.0 if group == "x" else 1.0), ("fast", 0.5 if m == 12 else 2.0)):
            rows.append(dataclasses.replace(ROW, m=m, group=group, contender=name, us=us))
    extra = [dataclasses.replace(rows[0], **changes)] if changes else []
    return report.render([("p", dataclasses.replace(FILE, rows=(*rows, *extra)))])


def test_a_long_table_is_folded_under_groups_that_compare_with_the_fastest() -> None:
    text = long_report()
    summary, folded = text.split("<details>")
    assert (
        "| group | problems | fastest other ÷ us: geometric mean | minimum |\n| --- | ---: | ---: | ---: |" in summary
    )
    assert "| x | 3 | 2.000 | 2.000 |" in summary and "| y | 10 | 0.933 | 0.500 |" in summary
    assert "0×2048×1024" not in summary and "÷ its none" not in summary
    assert folded.startswith("<summary>13 problems</summary>\n\n| M×N×K |") and folded.count("×2048×1024 |") == 13


def test_a_group_counts_what_could_not_be_compared() -> None:
    text = long_report(m=99, us=None, ok=False)
    assert "| x | 3 of 4 | 2.000 | 2.000 |" in text
    assert "| z | 0 of 1 |  |  |" in long_report(m=99, group="z")


def test_a_long_report_says_what_an_epilogue_costs_each_contender() -> None:
    text = long_report(epilogue="swiglu", us=1.25)
    assert "| M×N×K | type | epilogue | us ÷ its none |" in text
    assert "| 0×2048×1024 | bf16 nt | swiglu | 1.25 |" in text.split("<details>")[0]
    assert "÷ its none" not in long_report(epilogue="swiglu", m=99)


def test_the_report_replaces_only_what_stands_between_the_markers() -> None:
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.rewrite(text, "new") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    for bad in ("", report.BEGIN, f"{report.END}{report.BEGIN}", text + text):
        with pytest.raises(ValueError, match="once each"):
            report.rewrite(bad, "new")


def test_the_readme_is_what_the_results_give() -> None:
    assert report.main(["--check"]) == 0


def test_results_join_what_was_measured_alike_and_refuse_the_rest() -> None:
    again = dataclasses.replace(FILE, rows=(dataclasses.replace(ROW, us=7.0),), scalars={"y_us": 2.0})
    joined = again.joined(FILE)
    assert [(row.m, row.us) for row in joined.rows] == [(8, 100.0), (4096, 7.0)]
    assert joined.scalars == {"x_us": 1.5, "y_us": 2.0}
    with pytest.raises(ValueError, match="commit 'abc', not 'def'"):
        dataclasses.replace(again, commit="def").joined(FILE)


@pytest.mark.parametrize(
    ("gpu", "folder"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
    ],
)
def test_results_folders_are_named_after_the_gpu(gpu: str, folder: str) -> None:
    assert environment.folder(gpu) == folder


def test_versions_name_what_computes() -> None:
    assert environment.versions().keys() >= {"torch", "nvidia-cutlass-dsl", "apache-tvm-ffi"}


def test_a_bundles_first_call_is_timed_in_new_processes_that_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ran = [], []

    def build(wanted, devices, out: Path, **_: object) -> None:
        made.append((wanted[0].problem, devices, out))

    def printed(code: str, *arguments: str, env) -> list[float]:
        ran.append((arguments, env))
        return [(0.3, 0.02), (0.2, 0.01), (0.9, 0.03)][len(ran) - 1]

    monkeypatch.setattr(builder, "build", build)
    monkeypatch.setattr(device, "current", lambda: device.lookup("H200"))
    monkeypatch.setattr(scalars, "_printed", printed)
    assert scalars.SCALARS["bundle"]() == {"bundle_first_result_s": 0.3, "bundle_first_gemm_ms": 20.0}
    ((problem, devices, out),) = made
    assert problem == contiguous_problem(4096, 4096, 4096) and devices == [device.lookup("H200")]
    assert [arguments for arguments, _ in ran] == [(str(out),)] * 3
    assert all(env["CUTEGEMM_CACHE_DIR"] != str(out) and env["CUTEGEMM_BUNDLE"] == "" for _, env in ran)
    assert "load_bundle(sys.argv[1])" in scalars._BUNDLE and 'jit="forbid"' in scalars._BUNDLE


def test_a_build_is_of_a_hundred_kernels_by_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(wanted, devices, out: Path, *, jobs: int) -> builder.Report:
        chosen = {
            (made.family, made.config, w.problem.signature)
            for w in wanted
            for made in (plan_problem(w.problem, gpu) for gpu in devices)
        }
        assert jobs == 2 and [gpu.arch for gpu in devices] == ["sm_80", "sm_90a"]
        return builder.Report(len(wanted), {"both": len(chosen)}, 6_000_000, 137.0)

    monkeypatch.setattr(builder, "build", build)
    assert scalars.SCALARS["build"]() == {"build_kernels": 100.0, "build_s": 137.0, "build_mb": 6.0}


def test_what_a_new_process_prints_is_read_as_numbers() -> None:
    code = "import os, sys; print(os.environ['SPEED'], sys.argv[1])"
    assert scalars._printed(code, "2.5", env={"SPEED": "1e-3"}) == [0.001, 2.5]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_the_runner_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", "foundation", "--commit", "c"]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_a_report_of_precisions_compares_each_with_cublas_in_its_own() -> None:
    us = {"cutegemm": 100.0, "cutegemm@tf32": 20.0, "cutegemm@bf16x6": 50.0, "cublas": 110.0, "cublas@tf32": 19.0}
    rows = [dataclasses.replace(ROW, dtype="fp32", contender=name, us=time) for name, time in us.items()]
    text = report.render([("gpu/fp32.json", dataclasses.replace(FILE, rows=tuple(rows), scalars={}))])
    begin = "| 4096×2048×1024 | fp32 nt | none |"
    lines = [line.removeprefix(begin).split() for line in text.splitlines() if line.startswith(begin)]
    assert [" ".join(line) for line in lines] == [
        "cutegemm | 100.0 | 172 | 110.0 | 1.10 |",
        "cutegemm@tf32 | 20.0 | 859 | 19.0 | 0.95 |",
        "cutegemm@bf16x6 | 50.0 | 344 | 110.0 | 2.20 |",
    ]
    few = report.render([("gpu/fp32.json", dataclasses.replace(FILE, rows=(rows[1],), scalars={}))])
    assert f"{begin} cutegemm@tf32 | 20.0 | 859 |  |  |" in few


def test_a_suite_with_a_page_of_its_own_is_not_repeated_in_the_readme() -> None:
    text = report.render([("gpu/precision.json", dataclasses.replace(FILE, suite="precision", rows=()))])
    assert "x_us" not in text and text.endswith("in [docs/precision.md](docs/precision.md).")
