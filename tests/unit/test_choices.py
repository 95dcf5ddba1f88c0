"""The planner's table of measured choices: what is tried, and how an entry joins the others."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import choices
from benchmarks.suites import Case
from cutegemm import device, plan
from cutegemm.planner import tables
from cutegemm.problem import PRECISIONS


def test_candidates_are_the_models_fastest_and_what_was_measured_before() -> None:
    case, gpu = Case("square", 4096, 4096, 4096, "bf16", "nt", "none"), device.lookup("H200")
    found = choices.candidates(case, gpu, 3)
    made = plan(4096, 4096, 4096, dtype="bf16", layout="nt", arch="H200")
    modelled = {c.kernel: c.estimate.us for c in made.candidates if c.estimate is not None}
    assert found[:3] == sorted(modelled, key=modelled.__getitem__)[:3]
    assert len(set(found)) == len(found)
    assert set(found[3:]) == (set(tables.times(made.problem, gpu)) & modelled.keys()) - set(found[:3])


def test_a_measured_problem_takes_the_place_of_its_older_entry() -> None:
    case = Case("square", 64, 32, 16, "bf16", "nt", "none")
    other = choices.entry(Case("square", 64, 32, 16, "bf16", "tn", "none"), {"x": 1.0})
    old, new = choices.entry(case, {"x": 3.0, "y": 2.0}), choices.entry(case, {"x": 1.004, "y": 5.0})
    assert list(old["us"]) == ["y", "x"]
    table = choices.joined({"gpu": "X", "problems": [old, other]}, new)
    assert table == {"gpu": "X", "problems": [other, new]}
    assert json.loads(choices.text(table)) == table
    assert new["us"] == {"x": 1.0, "y": 5.0}


TF32 = Case("square", 4096, 4096, 4096, "fp32", "nn", "none")


def test_candidates_of_fp32_are_of_the_precision_and_of_what_is_only_chosen_if_measured() -> None:
    gpu = device.lookup("H200")
    families = {p: {k.partition(":")[0] for k in choices.candidates(TF32, gpu, 2, p)} for p in PRECISIONS}
    assert families == {
        "ieee": {"simt_f32"},
        "tf32": {"sm90_wgmma", "cutlass_cpp"},
        "bf16x6": {"sm90_wgmma"},
        "bf16x9": {"sm90_wgmma"},
    }
    for kernel in choices.candidates(TF32, gpu, 2, "tf32"):
        assert choices._spec(TF32, kernel, gpu, "tf32").signature.precision == "tf32"


def test_candidates_are_the_same_once_they_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device.lookup("H200")
    found = choices.candidates(TF32, gpu, 2, "tf32")
    entry = tables.Measured(**choices.entry(TF32, dict.fromkeys(found, 1.0), "tf32"))
    monkeypatch.setattr(tables, "measured", lambda name: (entry,))
    assert choices.candidates(TF32, gpu, 2, "tf32") == found


def test_what_is_chosen_from_is_what_the_table_can_hold() -> None:
    gpu = device.lookup("H200")
    ragged = dataclasses.replace(TF32, m=4095, n=4097, k=4093)
    bf16 = Case("square", 64, 64, 64, "bf16", "nt", "none")
    cases = (TF32, ragged, bf16, dataclasses.replace(bf16, epilogue="relu"))
    assert [choices.held(case, gpu, "tf32") for case in cases] == [True, False, False, False]
    assert [choices.held(case, gpu, None) for case in cases] == [False, False, True, False]


@pytest.mark.parametrize(
    ("precision", "names"),
    [
        (None, ["cutegemm:x", "cublaslt"]),
        ("ieee", ["cutegemm:x", "cublas"]),
        ("tf32", ["cutegemm:x@tf32", "cublas@tf32"]),
        ("bf16x6", ["cutegemm:x@bf16x6", "cublas"]),
    ],
)
def test_choices_are_timed_beside_cublas_in_the_same_precision(precision: str | None, names: list[str]) -> None:
    assert [contender.name for contender in choices.contenders(["x"], precision)] == names


def test_a_table_has_an_entry_for_each_precision() -> None:
    table = {"problems": [choices.entry(TF32, {"x": 1.0}, "ieee"), choices.entry(TF32, {"x": 3.0}, "tf32")]}
    new = choices.entry(TF32, {"y": 2.0}, "tf32")
    assert new["precision"] == "tf32"
    assert choices.joined(table, new)["problems"] == [table["problems"][0], new]
