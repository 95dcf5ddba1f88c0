"""Parts of K added up in no fixed order, without a GPU: what asks for it, what it takes, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from cutegemm import gemm, plan
from cutegemm.deploy import builder, spec_file
from cutegemm.device import lookup
from cutegemm.errors import ArgumentError
from cutegemm.kernels import workspace
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import contiguous_problem
from cutegemm.planner.pin import parse_pin

PIN = "sm90_wgmma:tile=64x128x64,stages=8,cluster=2x1,schedule=pingpong"
ATOMIC = f"{PIN},split=8,reduction=atomic"


def reductions(**keywords: Any) -> set[tuple[str, str]]:
    """(family, reduction) of the kernels that are tried."""
    made = plan(200, 264, 65536, arch="H200", **keywords)
    return {(c.family, c.config.options().get("reduction", "ordered")) for c in made.candidates if c.refusal is None}


def test_sums_in_any_order_have_to_be_asked_for() -> None:
    assert ("sm90_wgmma", "atomic") not in reductions()
    assert ("sm90_wgmma", "atomic") in reductions(deterministic=False)
    assert ("sm90_wgmma", "atomic") in reductions(deterministic=False, split_k=8)
    assert reductions(deterministic=False, kernel=f"{PIN},split=8") == {("sm90_wgmma", "ordered")}
    assert reductions(deterministic=False, kernel=ATOMIC) == {("sm90_wgmma", "atomic")}
    assert ("sm80_multistage", "atomic") not in reductions(deterministic=False)


def test_there_is_one_sum_and_it_starts_from_zeros() -> None:
    made = plan(200, 264, 65536, arch="H200", kernel=ATOMIC, deterministic=False)
    assert made.kernel == ATOMIC
    assert made.workspace == -(-200 * 264 * 4 // workspace.REGION_ALIGN) * workspace.REGION_ALIGN
    estimate = made.candidates[0].estimate
    assert estimate is not None and {"zeros", "sum of parts"} <= estimate.terms.keys()
    ordered = plan(200, 264, 65536, arch="H200", kernel=f"{PIN},split=8")
    assert ordered.workspace > 7 * made.workspace
    config = WgmmaConfig(128, 64, stages=7, cluster_k=4, split=12, reduction="atomic")
    assert (workspace.parts(config), workspace.sums(config)) == (3, 1)


@pytest.mark.parametrize(
    ("pin", "keywords", "text"),
    [
        (ATOMIC, {}, "reduction=atomic: it adds parts in no fixed order, and deterministic is True"),
        (f"{PIN},reduction=atomic", {"deterministic": False, "split_k": 1}, "reduction=atomic: with split=1 no sums"),
        (f"{PIN},reduction=turnstile", {}, "reduction=turnstile: expected one of ordered, atomic"),
        ("sm80_multistage:reduction=atomic", {}, "'reduction=atomic' is not key=value with a key of"),
    ],
)
def test_what_contradicts_it_is_refused_by_name(pin: str, keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        plan(200, 264, 65536, arch="H200", kernel=pin, **keywords)


def test_a_pin_says_it_and_a_bundle_has_it() -> None:
    assert parse_pin(ATOMIC).asked.reduction == "atomic"
    assert parse_pin(PIN).asked.reduction == "ordered"
    assert parse_pin("sm90_wgmma:split=8").asked.reduction is None
    problem = contiguous_problem(200, 264, 65536)
    spec = builder._plan((spec_file.Wanted(problem, ATOMIC, ""), lookup("H200")))
    assert spec.config == WgmmaConfig(64, 128, 8, cluster_m=2, pingpong=True, split=8, reduction="atomic")


def test_on_the_cpu_it_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    assert torch.equal(gemm(a, b, deterministic=False), a @ b)
