"""Planning for `sm90_wgmma`: its model's trends, and what measurements override."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import suites
from cutegemm import epilogues
from cutegemm.device import lookup
from cutegemm.kernels import wgmma_config
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import contiguous_problem, plan, tables
from cutegemm.planner.sm90_wgmma import PersistentModel

H200 = lookup("H200")



def wgmma(m: int, n: int, k: int, config: WgmmaConfig, **problem: Any) -> float:
    return PersistentModel(contiguous_problem(m, n, k, **problem), H200).estimate(config).us


SHARED, ALTERNATING = WgmmaConfig(128, 256, stages=4), WgmmaConfig(128, 128, stages=6, cluster_m=2, pingpong=True)


MEASURED = tables.measured("H200")


def test_the_model_chooses_well_among_what_was_measured() -> None:
    regrets = {}
    hopper = {(case.m, case.n, case.k) for case in suites.load("hopper")}
    fitted = [x for x in MEASURED if x.precision is None and (x.m, x.n, x.k) in hopper]
    for entry in fitted:
        sizes = (entry.m, entry.n, entry.k)
        times = {config: entry.us.get(f"sm90_wgmma:{config}") for config in wgmma_config.CONFIGS}
        known_ = {config: us for config, us in times.items() if us is not None}
        guesses = {config: wgmma(*sizes, config, layout=entry.layout) for config in known_}
        worth = {config: us for config, us in known_.items() if us < 1.25 * min(known_.values())}
        for config, us in worth.items():  # what setting up takes has not been fitted
            assert guesses[config] == pytest.approx(us, rel=0.15, abs=4.0), (sizes, str(config))
        regrets[(*sizes, entry.layout)] = known_[min(guesses, key=guesses.__getitem__)] / min(known_.values()) - 1
    assert len(regrets) == len(fitted) > 30
    assert sum(regrets.values()) / len(regrets) < 0.011
    assert max(regret for (m, *_), regret in regrets.items() if m != 1024) < 0.041


def described(entry: tables.Measured) -> str:
    return "-".join(filter(None, (f"{entry.m}x{entry.n}x{entry.k}", entry.layout, entry.precision)))


@pytest.mark.parametrize("entry", MEASURED, ids=described)
def test_what_was_measured_overrides_the_model(entry: tables.Measured) -> None:
    times = entry.us
    for dtype in ("bf16", "fp16") if entry.precision is None else ("fp32",):
        asked: Any = {"dtype": dtype, "layout": entry.layout, "precision": entry.precision}
        made = plan(entry.m, entry.n, entry.k, arch="NVIDIA H200", **asked)
        assert made.kernel == min(times, key=times.__getitem__)
        assert made.measured == len(times)
        assert f"the fastest of {len(times)} measured" in made.explain()
        assert made.to_dict()["measured"] == len(times)
    assert made.candidates[0].kernel == made.kernel
    modelled = [c.estimate.us for c in made.candidates[1:] if c.estimate is not None]
    assert modelled == sorted(modelled)


def test_what_was_measured_is_registered_and_legal() -> None:
    for entry in MEASURED:
        dtype = "bf16" if entry.precision is None else "fp32"
        asked: Any = {"dtype": dtype, "layout": entry.layout, "precision": entry.precision}
        candidates = plan(entry.m, entry.n, entry.k, arch="H200", **asked).candidates
        assert set(entry.us) <= {c.kernel for c in candidates if c.refusal is None}


def test_a_pin_is_served_by_what_was_measured_of_its_own() -> None:
    made = plan(4096, 4096, 4096, arch="H200", kernel="sm80_multistage")
    assert (made.kernel, made.measured) == ("sm80_multistage:tile=256x128x64,stages=3,warps=4x2", 2)


@pytest.mark.parametrize(
    "change",
    [
        {"m": 4096 + 8},
        {"batch": 2},
        {"out_dtype": "fp32"},
        {"epilogue": epilogues.relu},
        {"k": 4096 + 8},
        {"arch": "H100 SXM"},
        {"kernel": "sm80_multistage:tile=64x64x64"},
        {"kernel": "sm90_wgmma:tile=64x64x64"},
    ],
    ids=str,
)
def test_measurements_are_of_one_problem(change: dict[str, Any]) -> None:
    problem = {"m": 4096, "n": 4096, "k": 4096, "arch": "H200"}
    assert plan(**problem).measured > 0
    made = plan(**{**problem, **change})
    assert made.measured == 0
    assert "measured for this problem" not in made.explain()


def test_an_unknown_gpu_has_no_measurements() -> None:
    assert tables.measured("NVIDIA H200 MIG 1g.18gb") == ()
    assert tables.measured("A100") == ()


def test_a_few_rows_become_the_instructions_columns() -> None:
    made = plan(16, 28672, 4096, arch="H200", kernel="sm90_wgmma")
    assert made.config.swap_ab
    assert (made.problem.m, made.problem.n) == (16, 28672)
    paired = plan(16, 28672, 4096, arch="H200", epilogue=epilogues.swiglu, kernel="sm90_wgmma")
    assert not paired.config.swap_ab
    assert not plan(4096, 28672, 4096, arch="H200").config.swap_ab


def test_persistent_blocks_wait_for_the_longest_chain() -> None:
    for config in (SHARED, ALTERNATING):
        one, two = (wgmma(128 * rows, config.tile_n * 11, 4096, config) for rows in (12, 14))
        assert two > 1.3 * one
    pairs = replace(SHARED, cluster_m=2)
    estimate = PersistentModel(contiguous_problem(4096, 4096, 64), H200).estimate(pairs)
    assert (estimate.tiles, estimate.waves) == (512, 256 / 66)
    assert estimate.efficiency == 256 / (66 * 4)


def test_ping_pong_hides_all_epilogues_but_the_last() -> None:
    def costs(config: WgmmaConfig) -> float:
        return wgmma(128 * 66, 256 * 16, 1024, config, out_dtype="fp32") - wgmma(128 * 66, 256 * 16, 1024, config)

    assert 0 < costs(ALTERNATING) < 0.5 * costs(SHARED)


def test_multicast_saves_energy() -> None:
    assert wgmma(8192, 8192, 8192, replace(SHARED, cluster_m=2)) < wgmma(8192, 8192, 8192, SHARED)
    # But half of a cluster has nothing to do where D is one tile high.
    assert wgmma(128, 8192, 8192, replace(SHARED, cluster_m=2)) > wgmma(128, 8192, 8192, SHARED)


@given(
    m=st.integers(1, 8192),
    n=st.integers(1, 8192),
    k=st.integers(1, 8192),
    config=st.sampled_from(wgmma_config.CONFIGS),
)
def test_more_of_k_never_takes_wgmma_less_time(m: int, n: int, k: int, config: WgmmaConfig) -> None:
    assert wgmma(m, n, k + 64, config) >= wgmma(m, n, k, config)
