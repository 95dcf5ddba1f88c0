"""Split K and copied operands without a GPU: where things lie, what is planned, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import epilogues, gemm, plan
from cutegemm.device import lookup
from cutegemm.errors import ArgumentError, ShapeError, UnsupportedArchitectureError
from cutegemm.fusion.graph import IDENTITY
from cutegemm.kernels import abi, workspace
from cutegemm.planner import contiguous_problem
from cutegemm.planner.pin import parse_pin
from cutegemm.planner.plan import plan_problem
from cutegemm.problem import Access

PIN = "sm90_wgmma:tile=128x128x64,stages=6,cluster=1x1,schedule=cooperative"
OLD_PIN = "sm80_multistage:tile=64x64x64,stages=4,warps=2x2"


def sizes_and_strides(problem: Any, l0: int, l1: int, a_l0: int = 1) -> dict[str, int]:
    """Arguments by name for contiguous tensors; `a_l0` 0: A is broadcast along the faster batch mode."""
    m, n, k = problem.m, problem.n, problem.k
    made = {"m": m, "n": n, "k": k, "l0": l0, "l1": l1, "sm_count": 132}
    rows = {"a": (m, k), "b": (n, k), "out0": (m, n)}
    for name, (lines, length) in rows.items():
        made |= {f"stride.{name}.{dim}": length for dim in ("m", "n", "k")}
        made |= {f"stride.{name}.l0": lines * length, f"stride.{name}.l1": lines * length * l0}
    if not a_l0:
        made["stride.a.l0"] = 0
    return made


def pick(condition: bool, x: int, y: int) -> int:
    return x if condition else y


@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(1, 300), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from(["no", "a", "b", "ab"]), st.integers(1, 9), st.sampled_from([0, 1]),
)  # fmt: skip
def test_regions_are_aligned_and_do_not_overlap(
    m: int, n: int, k: int, l0: int, l1: int, pad: str, split: int, a_l0: int
) -> None:
    problem = contiguous_problem(m, n, k, batch=l0 * l1, align=2)
    v = sizes_and_strides(problem, l0, l1, a_l0)
    regions, size = workspace.layout(problem.signature, pad, split, v, pick)
    assert set(regions) == set(workspace.operands(pad)) | ({"out0"} if split > 1 else set())
    end = 0
    for name, region in regions.items():
        assert region.offset >= end and region.offset % 256 == 0
        item = 4 if name == "out0" else 2
        across = next(dim for dim in ("m", "n", "k") if dim in region.strides)
        pitch, modes = region.strides[across], (l0, l1 * split if name == "out0" else l1)
        assert region.length <= pitch < region.length + workspace.PITCH and pitch * item % 16 == 0
        places = {
            i0 * region.strides["l0"] + i1 * region.strides["l1"] for i0 in range(modes[0]) for i1 in range(modes[1])
        }
        broadcast = name == "a" and not a_l0
        assert len(places) == (modes[1] if broadcast else modes[0] * modes[1])
        # Matrices are apart by whole ones, and the last ends where the region does.
        apart = sorted(places)
        assert all(y - x >= region.lines * pitch for x, y in zip(apart, apart[1:], strict=False))
        end = region.offset + (apart[-1] + region.lines * pitch) * item
    assert end <= size < end + 256 or not regions


def test_what_is_multiplied_is_aligned_and_summed_in_fp32() -> None:
    signature = contiguous_problem(100, 100, 33, epilogue=epilogues.bias_gelu).signature
    padded = workspace.inner(signature, "ab", 1)
    assert padded.a == padded.b == Access("bf16", "k", 16)
    assert replace(padded, a=signature.a, b=signature.b) == signature
    part = workspace.inner(signature, "a", 4)
    assert part.a.align == 16 and part.b == signature.b
    assert part.epilogue == IDENTITY and part.outputs == (workspace.PARTIAL,) and part.operands == ()
    assert "out0" in [t.name for t in abi.tensors(part)]
    assert workspace.padded("b", Access("fp16", "strided", 2)).major == "k"


@pytest.mark.parametrize("split", range(1, 200))
def test_every_part_is_added_once(split: int) -> None:
    lanes = workspace.lanes_of(split)
    turns = -(-split // lanes)
    parts = [turn * lanes + lane for lane in range(lanes) for turn in range(turns)]
    assert sorted(p for p in parts if p < split) == list(range(split))
    assert lanes in (1, 2, 4, 8) and (lanes == 1 or split >= 2 * lanes)


def test_operands_are_copied_where_that_is_faster_or_asked_for() -> None:
    chosen = plan(4095, 4097, 4093, arch="H200")
    assert (chosen.family, chosen.config.options()["pad"]) == ("sm90_wgmma", "ab")
    best = chosen.candidates[0].estimate
    assert best is not None and best.terms["copies"] > 0 and "pad=ab" in chosen.kernel
    as_it_is = plan(4095, 4097, 4093, arch="H200", padding="predicate")
    assert (as_it_is.family, as_it_is.config.options()["pad"]) == ("sm80_multistage", "no")
    assert chosen.us < as_it_is.us
    assert plan(4096, 4096, 4096, arch="H200", padding="copy").config.options()["pad"] == "no"
    one = plan(4096, 4096, 4096, arch="H200", layout="nt", padding="copy")
    assert one.config.options()["pad"] == "no"
    assert plan(64, 4097, 4096, arch="H200", layout="nn", padding="copy").config.options()["pad"] == "b"
    assert plan(4095, 4097, 4093, arch="A100", padding="copy").config.options()["pad"] == "ab"


def test_every_family_that_is_tried_for_a_copy_copies() -> None:
    made = plan(16, 4097, 4093, arch="H200", padding="copy")
    for candidate in made.candidates:
        if candidate.family == "small_m":
            assert candidate.refusal is not None and "small_m copies no operands" in candidate.refusal.reason
        elif candidate.refusal is None or candidate.family == made.family:
            assert candidate.config.options()["pad"] == "ab"


def test_k_is_split_where_tiles_are_few_or_as_asked() -> None:
    few = plan(128, 128, 65536, arch="H200")
    assert int(few.config.options()["split"]) > 8
    estimate = few.candidates[0].estimate
    assert estimate is not None and 0 < estimate.terms["sum of parts"] < few.us
    assert plan(8192, 8192, 8192, arch="H200").config.options()["split"] == "1"
    asked = plan(512, 512, 4096, arch="H200", split_k=3)
    assert asked.config.options()["split"] == "3"
    assert {c.config.options()["split"] for c in asked.candidates if c.refusal is None} == {"3"}
    assert {c.family for c in asked.candidates if c.refusal is None} == {"sm80_multistage", "sm90_wgmma"}
    with pytest.raises(ShapeError, match="split=5: K has 4 steps of 64, and a sum at most 1024 parts"):
        plan(512, 512, 256, arch="H200", kernel=f"{PIN},split=5")
    with pytest.raises(UnsupportedArchitectureError, match="split_k=3: small_m splits K as its configurations say"):
        plan(8, 512, 4096, arch="H200", kernel="small_m:tile=8x32x64", split_k=3)


@pytest.mark.parametrize("pin", [PIN, OLD_PIN])
def test_a_pin_says_both(pin: str) -> None:
    problem = contiguous_problem(300, 300, 333, align=2)
    for options in ("split=4,pad=ab", "pad=ab", "split=2"):
        full = f"{pin},{options}"
        if "pad" not in options and pin == PIN:
            with pytest.raises(UnsupportedArchitectureError, match="a is aligned to 2 bytes: TMA"):
                plan_problem(problem, lookup("H200"), kernel=full)
            continue
        made = plan_problem(problem, lookup("H200"), kernel=full)
        assert made.kernel == full and len(made.candidates) == 1
    assert parse_pin(pin).asked.split == 1 and parse_pin(pin).asked.pad == "no"
    assert parse_pin(pin.partition(":")[0]).asked.split is None


@pytest.mark.parametrize(
    ("pin", "keywords", "text"),
    [
        (f"{PIN},split=0", {}, "split=0: expected a positive number of parts"),
        (f"{PIN},split=two", {}, "split=two: expected a positive number"),
        (f"{PIN},pad=c", {}, "pad=c: expected one of no, a, b, ab"),
        (f"{PIN},split=4", {"split_k": 2}, "split_k=2 and kernel=.*which has split=4"),
        (f"{PIN},pad=ab", {"padding": "predicate"}, "padding='predicate' and kernel=.*which has pad=ab"),
        (PIN, {"padding": "copy"}, "padding='copy' and kernel=.*which has pad=no: expected pad=ab"),
        (f"{PIN},pad=a", {"padding": "copy"}, "padding='copy' and kernel=.*which has pad=a: expected pad=ab"),
        ("sm80_multistage:split=" + "9" * 5000, {}, "split=9999.*: expected a positive number"),
    ],
)
def test_contradictions_are_refused(pin: str, keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        plan(300, 300, 333, arch="H200", kernel=pin, **keywords)


def test_a_copy_of_what_is_aligned_is_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="pad=ab: a is aligned to 16 bytes as it is"):
        plan(256, 256, 256, arch="H200", kernel=f"{PIN},pad=ab")


def test_what_needs_a_gpu_is_refused_on_the_cpu() -> None:
    a, b = torch.ones(4, 4), torch.ones(4, 4)
    for keywords in ({"split_k": 2}, {"split_k": "stream"}, {"padding": "copy"}):
        with pytest.raises(ArgumentError, match="needs CUDA tensors, and a is on cpu"):
            gemm(a, b, **keywords)
    assert torch.equal(gemm(a, b, split_k=1, padding="predicate"), a @ b)


def test_what_counts_in_32_bits_is_bounded() -> None:
    with pytest.raises(ShapeError, match="split=2048: K has 16384 steps of 64, and a sum at most 1024 parts"):
        plan(64, 64, 2**20, arch="H200", kernel=f"{PIN},split=2048")
    # As many rows of a batch, or as long a row, as 32 bits do not count.
    for sizes, keywords in (((2048, 8, 3), {"batch": 2**20}), ((1, 8, 2**31 - 65), {})):
        with pytest.raises(ShapeError, match="too many to copy by 32-bit counts"):
            plan(*sizes, arch="H200", layout="nn", align=2, padding="copy", kernel="sm80_multistage", **keywords)
        made = plan(*sizes, arch="H200", layout="nn", align=2, **keywords)
        assert made.config.options().get("pad", "no") == "no"


def test_no_large_workspace_is_taken_unasked() -> None:
    assert plan(2**20, 4096, 32769, arch="H200").config.options().get("pad", "no") == "no"
    assert plan(2**20, 4096, 32769, arch="H200", padding="copy").config.options()["pad"] == "ab"


def test_a_problem_without_elements_is_refused_and_one_without_products_is_not() -> None:
    problem = contiguous_problem(64, 72, 65, align=2)
    with pytest.raises(ShapeError, match="m=0"):
        plan_problem(replace(problem, m=0), lookup("H200"))
    for kernel in (f"{OLD_PIN},pad=ab", f"{OLD_PIN},split=4"):
        assert plan_problem(replace(problem, k=0), lookup("H200"), kernel=kernel).kernel == kernel


def test_where_there_is_no_workspace_there_is_neither() -> None:
    h200, odd = lookup("H200"), contiguous_problem(4095, 4097, 4093, align=2)
    made = plan_problem(odd, h200, workspace=False)
    assert (made.family, made.config.options()["pad"]) == ("sm80_multistage", "no")
    long = plan_problem(contiguous_problem(128, 128, 65536), h200, workspace=False)
    assert long.workspace == 0 and workspace.parts(long.config) == 1 < long.config.cluster_k
    with pytest.raises(UnsupportedArchitectureError, match="split=4, pad=no: a function of a C library has no work"):
        plan_problem(contiguous_problem(512, 512, 4096), h200, kernel=f"{PIN},split=4", workspace=False)
    clustered = "small_m:tile=8x32x64,stages=5,warps=1x4,split=8"
    assert plan_problem(contiguous_problem(8, 512, 4096), h200, kernel=clustered, workspace=False).kernel == clustered
