"""The SASS of split K and copied operands: the product's own instructions, and beside it kernels that spill nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutegemm import epilogues
from cutegemm.compiler import Spec, build, sass
from cutegemm.device import lookup
from cutegemm.kernels import workspace
from cutegemm.planner import contiguous_problem
from cutegemm.planner.plan import plan_problem

HOPPER = "sm90_wgmma:tile=128x128x64,stages=6,cluster=2x1,schedule=pingpong,raster=16"
SWAPPED = "sm90_wgmma:tile=64x32x64,stages=14,cluster=1x1,schedule=pingpong,swap_ab=yes"
CLUSTERED = "sm90_wgmma:tile=128x64x64,stages=7,cluster=1x1x4,schedule=cooperative"
OLDER = "sm80_multistage:tile=64x64x64,stages=4,warps=2x2"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "split": ("H200", f"{HOPPER},split=6", {"epilogue": epilogues.bias_gelu}),
    "split, many parts, swapped": ("H200", f"{SWAPPED},split=40", {"epilogue": epilogues.swiglu}),
    "split in clusters": ("H200", f"{CLUSTERED},split=4", {"epilogue": epilogues.bias_swiglu}),
    "split in clusters and beyond, in any order": ("H200", f"{CLUSTERED},split=12,reduction=atomic", {}),
    "copies": ("H200", f"{HOPPER},pad=ab", {"align": 2}),
    "both": ("H200", f"{HOPPER},split=3,pad=ab", {"align": 4, "layout": "tn"}),
    "sm_80, both": ("A100", f"{OLDER},split=4,pad=ab", {"align": 2, "layout": "nn"}),
    "sm_120a, split": ("RTX 5090", f"{OLDER},split=9", {}),
}


def spec_of(gpu: str, kernel: str, keywords: dict[str, Any]) -> Spec:
    k = 4096 if keywords.get("align", 16) == 16 else 4096 + keywords["align"] // 2
    device = lookup(gpu)
    problem = contiguous_problem(512, 512, k, **keywords)
    made = plan_problem(problem, device, kernel=kernel, deterministic="atomic" not in kernel)
    return Spec(made.family, made.config, problem.signature, device.arch)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_machine_code(case: tuple[str, str, dict[str, Any]]) -> None:
    spec = spec_of(*case)
    config: Any = spec.config
    artifact = build(spec, keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert code.spills == 0 and not {"LDL", "STL"} & set(code.opcodes)
    once = {"split": getattr(config, "cluster_k", 1), "pad": "no"}
    if workspace.atomic(config):
        once["reduction"] = "ordered"
    alone = sass.read(cubin_of(replace(spec, config=replace(config, **once)), case))
    product = "HGMMA" if spec.family == "sm90_wgmma" else "HMMA"
    assert code.opcodes[product] == alone.opcodes[product] > 0
    if config.pad != "no":  # rows are loaded and stored outside of any pipeline
        assert all(code.opcodes[name] > alone.opcodes.get(name, 0) for name in ("LDG", "STG"))
    if workspace.parts(config) > 1:
        assert code.opcodes["LDG"] >= 2 * -(-workspace.sums(config) // 8)
        stores = {"UTMAREDG" if workspace.atomic(config) else "UTMASTG"} if spec.family == "sm90_wgmma" else set()
        assert {"UTMASTG", "UTMAREDG"} & set(code.opcodes) == stores


def cubin_of(spec: Spec, case: tuple[str, str, dict[str, Any]]) -> bytes:
    """The cubin of the product alone, on aligned operands."""
    _, _, keywords = case
    problem = contiguous_problem(512, 512, 4096, **{**keywords, "align": 16, "epilogue": None})
    cubin = build(replace(spec, signature=problem.signature), keep_cubin=True).cubin
    assert cubin is not None
    return cubin
