"""Planning stream-K on Hopper: asked for, weighed, priced, refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import plan
from cutegemm.compiler import Spec
from cutegemm.cutlass_cpp.config import CutlassConfig
from cutegemm.device import lookup
from cutegemm.errors import ArgumentError, CuteGemmError, ShapeError, UnsupportedArchitectureError
from cutegemm.kernels import workspace
from cutegemm.kernels.wgmma_config import CONFIGS, FLAG_BYTES, WgmmaConfig
from cutegemm.launch import _workspace
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem
from cutegemm.planner.sm90_wgmma import PersistentModel

H200 = lookup("H200")
PIN = "sm90_wgmma:tile=128x256x64,stages=4,cluster=1x1,schedule=cooperative"
PINGPONG = "sm90_wgmma:tile=128x128x64,stages=6,cluster=1x1,schedule=pingpong"


def split(made: Any) -> str:
    return str(made.config.options()["split"])


def test_asked_for_by_keyword_or_pin() -> None:
    made = plan(2176, 2048, 4096, arch="H200", split_k="stream")
    assert (made.family, split(made)) == ("sm90_wgmma", "stream")
    assert {split(c) for c in made.candidates if c.refusal is None} == {"stream"}
    for keywords in ({}, {"split_k": "stream"}):
        pinned = plan(2176, 2048, 4096, arch="H200", kernel=f"{PIN},split=stream", **keywords)
        assert pinned.kernel == f"{PIN},split=stream"
    # Any size is served, with whole waves of tiles too, or with one short tile.
    for sizes in ((4096, 4224, 4096), (8, 8, 8), (128, 128, 65536)):
        assert plan(*sizes, arch="H200", kernel=f"{PIN},split=stream").kernel == f"{PIN},split=stream"
    fp32 = plan(2176, 2048, 4096, arch="H200", dtype="fp32", precision="bf16x6", split_k="stream")
    assert (fp32.family, split(fp32)) == ("sm90_wgmma", "stream")


def test_other_gpus_have_cutlass() -> None:
    made = plan(2176, 2048, 4096, arch="A100", split_k="stream")
    assert isinstance(made.config, CutlassConfig) and made.config.stream


@pytest.mark.parametrize(
    ("pin", "keywords", "error", "text"),
    [
        (f"{PINGPONG},split=stream", {}, UnsupportedArchitectureError, "split=stream: .*cooperative .* ping-pong"),
        (f"{PIN},split=stream,reduction=atomic", {}, ArgumentError, "reduction=atomic: .*no sums of parts are left"),
        (f"{PIN},split=stream", {"split_k": 2}, ArgumentError, "split_k=2 and kernel=.*which has split=stream"),
        (PIN, {"split_k": "stream"}, ArgumentError, "split_k='stream' and kernel=.*which has split=1"),
        ("sm80_multistage:split=stream", {}, ArgumentError, "split=stream: expected a positive number of parts"),
        ("sm80_multistage", {"split_k": "stream"}, CuteGemmError, "split_k='stream': sm80_multistage has no stream-K"),
    ],
)
def test_refusals_say_what_is_in_the_way(pin: str, keywords: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        plan(512, 512, 4096, arch="H200", kernel=pin, **keywords)


def test_more_k_tiles_than_are_counted() -> None:
    with pytest.raises(ShapeError, match="split=stream: 264 tiles of 16777216 k-tiles each are more than"):
        plan(128, 256, 2**30, arch="H200", kernel=f"{PIN},split=stream")


def test_a_function_of_a_c_library_has_no_place_for_sums() -> None:
    problem = contiguous_problem(2176, 2048, 4096)
    with pytest.raises(UnsupportedArchitectureError, match="split=stream, pad=no: a function of a C library"):
        plan_problem(problem, H200, kernel=f"{PIN},split=stream", workspace=False)
    made = plan_problem(problem, H200, workspace=False)
    assert "stream" not in {split(c) for c in made.candidates if c.family == "sm90_wgmma"}


def test_weighed_where_whole_waves_waste_time() -> None:
    """136 tiles of 128 x 256 on 132 SMs, and a problem that nothing was measured for."""
    tile = "sm90_wgmma:tile=128x256x64"
    made = plan(2176, 2040, 4096, arch="H200", kernel=tile)
    assert split(made) == "stream" and made.measured == 0
    assert made.us < 0.8 * plan(2176, 2040, 4096, arch="H200", kernel=tile, split_k=1).us
    estimate = made.candidates[0].estimate
    assert estimate is not None and 1 < estimate.waves < 1.2
    assert 0 < estimate.terms["fix-up"] < 0.2 * made.us
    assert "us  fix-up" in made.explain() and "split=stream" in made.explain()
    # Not where waves are full, where K is short, or where there are many waves.
    kernel = f"{PIN},split=stream"
    assert kernel in {c.kernel for c in plan(2176, 2040, 4096, arch="H200").candidates}
    for sizes in ((4224, 1024, 4096), (2176, 2040, 512), (8192, 8192, 8192)):
        assert kernel not in {c.kernel for c in plan(*sizes, arch="H200").candidates}


def test_few_more_candidates() -> None:
    candidates = plan(2176, 2040, 4096, arch="H200").candidates
    streamed = [c for c in candidates if c.family == "sm90_wgmma" and split(c) == "stream"]
    assert 0 < len(streamed) < 20 and not any(c.config.pingpong for c in streamed)


@pytest.mark.parametrize("pads", ["no", "ab"])
def test_the_workspace_has_a_place_for_every_block(pads: str) -> None:
    align = 16 if pads == "no" else 2
    pin = "sm90_wgmma:tile=128x192x64,stages=4,cluster=2x1,schedule=cooperative,split=stream"
    kernel = pin if pads == "no" else f"{pin},pad={pads}"
    problem = contiguous_problem(2176, 2049, 4096, align=align)
    made = plan_problem(problem, H200, kernel=kernel)
    sums = 132 * (128 * 192 * 4 + FLAG_BYTES)
    alone = replace(made, config=replace(made.config, stream=False)).workspace
    assert made.workspace == alone + sums and alone % workspace.REGION_ALIGN == 0
    names = [a.name for a in _arguments(made)]
    v = {"m": 2176, "n": 2049, "k": 4096, "l0": 1, "l1": 1, "sm_count": 132}
    constants = tuple(v.get(name, 1) for name in names)
    assert _workspace(Spec(made.family, made.config, problem.signature, "sm_90a"), constants) == made.workspace


def _arguments(made: Any) -> list[Any]:
    from cutegemm.kernels import abi

    return [a for a in abi.arguments(made.problem.signature) if a.kind in ("size", "stride")]


STREAMED = [replace(config, stream=True) for config in CONFIGS if not config.pingpong]


@given(
    m=st.integers(1, 8192), n=st.integers(1, 8192), k=st.integers(1, 8192), config=st.sampled_from(STREAMED),
)  # fmt: skip
def test_the_model_prices_what_is_done(m: int, n: int, k: int, config: WgmmaConfig) -> None:
    problem = contiguous_problem(m, n, k)
    estimate = PersistentModel(problem, H200).estimate(config)
    whole = PersistentModel(problem, H200).estimate(replace(config, stream=False))
    assert estimate.terms["tensor cores"] <= whole.terms["tensor cores"] * 1.0001
    assert estimate.waves == whole.waves and estimate.efficiency <= 1.0001
    assert estimate.us <= whole.us + estimate.terms["fix-up"] + estimate.terms["epilogue"]
    if whole.efficiency == 1:
        assert estimate.terms["fix-up"] == 0 and estimate.us == pytest.approx(whole.us)
