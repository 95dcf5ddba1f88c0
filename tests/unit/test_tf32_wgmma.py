"""TF32 by wgmma without a GPU: what is planned, what is refused, and how operands are turned along K."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutegemm import plan
from cutegemm.device import lookup
from cutegemm.errors import UnsupportedArchitectureError
from cutegemm.kernels import turning, workspace
from cutegemm.kernels.wgmma_config import OF_TF32, WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.pin import parse_pin
from cutegemm.planner.plan import plan_problem
from cutegemm.problem import Access

FAMILY = FAMILIES["sm90_wgmma"]
H200 = lookup("H200")
PIN = f"sm90_wgmma:{OF_TF32[0]}"
SWAPPED = f"sm90_wgmma:{next(config for config in OF_TF32 if config.swap_ab)}"
ALTERNATING = f"sm90_wgmma:{next(config for config in OF_TF32 if config.pingpong and config.swap_ab)}"
FULL = f"sm90_wgmma:{next(config for config in OF_TF32 if config.accumulators == 192)}"
OLDER = "sm80_multistage:tile=64x64x32,stages=4,warps=2x2,bits=32"


def problem(m: int = 4096, n: int = 4096, k: int = 4096, **keywords: Any) -> Any:
    return contiguous_problem(m, n, k, **{"dtype": "fp32", "precision": "tf32"} | keywords)


@pytest.mark.parametrize("gpu", ["H200", "H100 SXM", "H100 PCIe"])
@pytest.mark.parametrize(("layout", "copies"), [("nt", 0), ("nn", 0), ("tt", 0), ("tn", 1)])
def test_hopper_multiplies_tf32_by_wgmma(gpu: str, layout: str, copies: int) -> None:
    made = plan(4096, 4096, 2048, dtype="fp32", precision="tf32", layout=layout, arch=gpu)
    options = made.config.options()
    assert (made.family, options["bits"], made.measured) == ("sm90_wgmma", "32", 0)
    assert len(workspace.operands(options["pad"])) == copies
    assert layout != "nn" or options["swap_ab"] == "yes"
    estimates = [c.estimate for c in made.candidates if c.family == "sm80_multistage" and c.estimate is not None]
    assert made.us < min(estimate.us for estimate in estimates)
    assert made.workspace == 4 * 2048 * 4096 * copies


def test_what_is_not_aligned_is_copied_too() -> None:
    made = plan(4095, 4097, 4093, dtype="fp32", precision="tf32", layout="nn", arch="H200")
    assert (made.family, made.config.options()["pad"]) == ("sm90_wgmma", "ab")


def test_other_gpus_and_other_precisions_have_their_own() -> None:
    assert plan(4096, 4096, 4096, dtype="fp32", precision="tf32", arch="A100").family == "sm80_multistage"
    assert plan(4096, 4096, 4096, dtype="fp32", arch="H200").family == "simt_f32"
    assert plan(4096, 4096, 4096, dtype="fp32", precision="bf16x6", arch="H200").config.options()["bits"] == "16"


@pytest.mark.parametrize(
    ("layout", "kernel", "name"),
    [("nn", PIN, "b"), ("tt", SWAPPED, "a"), ("tt", FULL, "a"), ("nn", FULL, "b"), ("tn", PIN, "b")],
)
def test_operands_along_m_or_n_are_refused_by_name_where_they_may_not_be_copied(
    layout: str, kernel: str, name: str
) -> None:
    text = f"{name} is [mn]-major: TF32's wgmma reads K-major operands: pad={name} would copy it"
    with pytest.raises(UnsupportedArchitectureError, match=text):
        plan_problem(problem(layout=layout), H200, kernel=kernel)


def test_one_operand_passes_through_registers() -> None:
    for layout, kernel in (("tt", PIN), ("nn", SWAPPED), ("nn", ALTERNATING)):
        assert plan_problem(problem(layout=layout), H200, kernel=kernel).kernel == kernel
    made = plan_problem(problem(layout="tn"), H200, padding="predicate")
    assert made.family == "sm80_multistage"
    narrow = WgmmaConfig(128, 128, 4, tile_k=16, bits=32)
    assert [config.along_k for config in (OF_TF32[0], narrow, WgmmaConfig(128, 128, 4))] == ["b", "ab", ""]


def test_what_passes_through_registers_may_be_copied_instead() -> None:
    """The planner weighs both, and a pin may name either."""
    for layout, kernel, pads in (("nn", SWAPPED, ("no", "b")), ("tt", PIN, ("no", "a")), ("tn", PIN, ("b", "ab"))):
        tried = {c.config for c in plan_problem(problem(layout=layout), H200).candidates if c.refusal is None}
        config = parse_pin(kernel).configs[0]
        assert {c.pad for c in tried if c == replace(config, pad=c.pad)} == set(pads)
        for pad in pads:
            pinned = plan_problem(problem(layout=layout), H200, kernel=f"{kernel},pad={pad}")
            assert pinned.config.options()["pad"] == pad
        copied = plan_problem(problem(layout=layout), H200, kernel=kernel.partition(":")[0], padding="copy")
        assert copied.config.options()["pad"] == {"nn": "b", "tt": "a", "tn": "ab"}[layout]


def test_only_copies_that_help_are_made() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="pad=ab: a is aligned to 16 bytes as it is"):
        plan_problem(problem(layout="nn"), H200, kernel=f"{PIN},pad=ab")
    # mma.sync reads along either dimension.
    with pytest.raises(UnsupportedArchitectureError, match="pad=b: b is aligned to 16 bytes as it is"):
        plan_problem(problem(layout="nn"), H200, kernel=f"{OLDER},pad=b")
    made = plan_problem(problem(layout="nn"), H200, kernel=OLDER, padding="copy")
    assert made.config.options()["pad"] == "no"
    made = plan_problem(problem(layout="nn"), H200, kernel="sm90_wgmma:schedule=pingpong,bits=32", padding="copy")
    assert made.config.options()["pad"] == "b"


def test_a_function_of_a_c_library_has_no_memory_to_copy_to() -> None:
    assert plan_problem(problem(layout="tn"), H200, workspace=False).family == "sm80_multistage"
    assert plan_problem(problem(m=4104), H200, workspace=False).family == "sm90_wgmma"


def test_a_width_is_not_taken_for_another() -> None:
    wide = OF_TF32[0]
    found = refusal(contiguous_problem(256, 256, 256), FAMILY, wide, H200)
    assert found is not None and found.reason == "bits=32: a and b are bf16, of 16 bits"
    found = refusal(problem(), FAMILY, replace(wide, bits=16), H200)
    assert found is not None and found.reason == "bits=16: a and b are fp32, of 32 bits"
    found = refusal(problem(), FAMILY, replace(wide, tile_k=64), H200)
    assert found is not None and found.reason == "tile_k=64: must be 16 or 32"


@pytest.mark.parametrize("config", OF_TF32, ids=str)
def test_every_configuration_serves_what_it_is_for(config: WgmmaConfig) -> None:
    assert refusal(problem(), FAMILY, config, H200) is None
    assert config.k_blocks == 4 and config.row_bytes == 128
    assert len({str(other) for other in FAMILY.configs}) == len(FAMILY.configs)


def test_copies_lie_along_k() -> None:
    for layout in ("nn", "nt", "tn", "tt"):
        signature = problem(layout=layout, align=4).signature
        made = workspace.inner(signature, "ab", 1)
        assert made.a == made.b == Access("fp32", "k", 16)
        assert workspace.rows("b", signature.b, "tf32") == ("n", "k")


def test_a_tile_is_turned_in_shared_memory_without_two_threads_in_one_bank() -> None:
    numbers = range(4)
    for places in (turning.written, turning.read):
        taken = [places(thread, turn) for thread in range(turning.THREADS) for turn in range(4)]
        assert sorted(taken) == [(line, chunk) for line in range(turning.TILE) for chunk in range(turning.TILE // 4)]
        for first in range(0, turning.THREADS, 8):  # threads that move 16 bytes at once
            for turn in range(4):
                chunks = [turning.place(*places(thread, turn)) for thread in range(first, first + 8)]
                assert {(chunk + i) % 32 for chunk in chunks for i in numbers} == set(range(32))
    held = {turning.place(line, chunk) + i for line in range(turning.TILE) for chunk in range(16) for i in numbers}
    assert held == set(range(turning.TILE**2))
