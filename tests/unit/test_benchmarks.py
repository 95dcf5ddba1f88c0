"""The benchmark harness where no GPU is needed: statistics, suites, the results' form and the report."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch

from benchmarks import environment, report, suites
from benchmarks.contenders import Contender, Inputs, named
from benchmarks.results import RESULTS, Results, Row, find
from benchmarks.run import Bench, main
from benchmarks.suites import Case
from benchmarks.timing import Effort, contest, host_us, input_sets


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
    device = StubDevice(ours=[1.0, 1.0, 9.0, 2.0, 1.0, 1.0])  # one 1.0 is spent on finding the repeats
    times = contest(device.replays, calls=4, clock=device.clock, effort=Effort(min_ms=1.0, rounds=5))
    assert times == {"ours": pytest.approx(1.0e3 / 4)}


def test_contenders_take_turns_in_every_round() -> None:
    device = StubDevice(ours=[50.0], theirs=[60.0])
    times = contest(device.replays, calls=1, clock=device.clock, effort=Effort(min_ms=30.0, rounds=3))
    assert [name for name, _ in device.log[2:]] == ["ours", "theirs"] * 3
    assert times == {"ours": 50_000.0, "theirs": 60_000.0}


def test_every_sample_lasts_the_minimum_time() -> None:
    device = StubDevice(fast=[0.01], slow=[100.0])
    contest(device.replays, calls=1, clock=device.clock, effort=Effort(min_ms=30.0, rounds=2))
    samples = device.log[-4:]
    assert dict(samples) == {"fast": 3000, "slow": 1}


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


def test_a_long_table_is_folded_under_its_geometric_mean() -> None:
    sides = (("a", 1.0), ("b", 2.0))
    rows = [dataclasses.replace(ROW, m=m, contender=c, us=us) for m in range(13) for c, us in sides]
    text = report.render([("p", dataclasses.replace(FILE, rows=tuple(rows)))])
    assert "<summary>13 problems; b ÷ a: geometric mean 2.00 of 13</summary>" in text


def test_the_report_replaces_only_what_stands_between_the_markers() -> None:
    text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.rewrite(text, "new") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    for bad in ("", report.BEGIN, f"{report.END}{report.BEGIN}", text + text):
        with pytest.raises(ValueError, match="once each"):
            report.rewrite(bad, "new")


def test_the_readme_is_what_the_results_give() -> None:
    assert report.main(["--check"]) == 0


def wall_clock(replay, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        replay()
    return 1e3 * (time.perf_counter() - start)


def call_in_turn(calls):
    return lambda: [call() for call in calls]


ON_CPU = Bench(
    l2_bytes=1 << 14,
    device="cpu",
    effort=Effort(min_ms=1.0, rounds=3),
    capture=call_in_turn,
    clock=wall_clock,
)


def contender(name: str, compute, *, separate: bool = False) -> Contender:
    return Contender(name, lambda case, inputs: lambda: compute(inputs), lambda case: name, separate)


@pytest.mark.parametrize("epilogue", ["none", "bias_gelu", "swiglu", "add"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_right_results_are_timed_in_every_layout(epilogue: str, layout: str) -> None:
    case = Case("g", 33, 48, 40, "bf16", layout, epilogue)
    cublas, unfused = named("cublas"), named("unfused")
    gemm_here = dataclasses.replace(named("cutegemm"), kernel=lambda case: "reference")
    rows = {row.contender: row for row in ON_CPU.rows(case, [gemm_here, cublas, unfused])}
    assert set(rows) == ({"cutegemm", "cublas"} if epilogue == "none" else {"cutegemm", "unfused"})
    for row in rows.values():
        assert row.ok and row.us is not None and row.us > 0 and 0 <= row.rel_err < 2**-7
        assert (row.m, row.n, row.k, row.layout, row.epilogue) == (33, 48, 40, layout, epilogue)


def all_but_the_last_row(inputs: Inputs) -> torch.Tensor:
    inputs.out[:-1] = inputs.a[:-1] @ inputs.b
    return inputs.out


def past_the_end(inputs: Inputs) -> torch.Tensor:
    torch.mm(inputs.a, inputs.b, out=inputs.out)
    if inputs.out.storage_offset():
        inputs.out.as_strided((1,), (1,), inputs.out.storage_offset() + inputs.out.numel()).fill_(0)
    return inputs.out


def nothing(inputs: Inputs) -> torch.Tensor:
    return inputs.out


def zeros(inputs: Inputs) -> torch.Tensor:
    return inputs.out.zero_()


@pytest.mark.parametrize("compute", [all_but_the_last_row, past_the_end, nothing, zeros])
@pytest.mark.parametrize("separate", [False, True])
def test_a_wrong_contender_is_recorded_and_not_timed(compute, separate: bool) -> None:
    case = Case("g", 32, 48, 40, "bf16", "nt", "none")
    (row,) = ON_CPU.rows(case, [contender("bad", compute, separate=separate)])
    assert row.ok is False and row.us is None
    json.loads(json.dumps(dataclasses.asdict(row), allow_nan=False))


@pytest.mark.parametrize("name", ["cublas2", "cutegemmm", ""])
def test_an_unknown_contender_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected cutegemm, cutegemm:PIN, cublas or unfused"):
        named(name)


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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_the_runner_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", "foundation", "--commit", "c"]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err
