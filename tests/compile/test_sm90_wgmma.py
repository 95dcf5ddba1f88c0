"""The SASS of `sm90_wgmma`: wgmma, TMA and register hand-over in the numbers that its loops come to, no spills.

Every configuration is compiled for the signature that it is measured with; then layouts, dtypes and epilogues, each in
another configuration, and those that take most registers in the one with most accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cutegemm import Col, Row, Scalar, Tile, device, epilogue, epilogues, ops
from cutegemm.compiler import Spec, build, sass
from cutegemm.kernels.cluster_sum import starts
from cutegemm.kernels.wgmma_config import CONFIGS, WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import Access, Problem

FAMILY = FAMILIES["sm90_wgmma"]
H200 = device.lookup("H200")
REGISTERS_PER_SM = 65536


@epilogue
def every_kind(acc, bias: Row, scale: Col, residual: Tile, slope: Scalar):
    x = acc * scale + bias
    return {"out": ops.maximum(x, slope * x) + residual, "pre": x}


def problem(layout: str = "nt", *, signature: dict[str, Any] | None = None, **keywords: Any) -> Problem:
    made = contiguous_problem(4096, 4096, 4096, layout=layout, **keywords)
    return replace(made, signature=replace(made.signature, **(signature or {})))


#: What a signature can vary, by what is particular about it.
SIGNATURES = {
    "nn": problem("nn"),
    "tn": problem("tn"),
    "tt": problem("tt"),
    "fp16": problem("tn", dtype="fp16"),
    "fp32 output": problem(out_dtype="fp32"),
    "bias_gelu": problem(epilogue=epilogues.bias_gelu),
    "swiglu": problem(epilogue=epilogues.bias_swiglu),
    "residual": problem("nn", epilogue=epilogues.bias_add),
    "scale_col": problem("tt", epilogue=epilogues.scale_col),
    "two outputs": problem(epilogue=epilogues.bias_gelu_aux, dtype="fp16", out_dtype="fp32"),
    "paired, two outputs": problem("nn", epilogue=epilogues.swiglu_aux),
    "residual nt": problem(epilogue=epilogues.bias_add),
    "every kind": problem("tn", epilogue=every_kind),
    "every kind nt": problem(epilogue=every_kind),
    "C, device scalars": problem(signature={"c": Access("fp32", "n", 16), "alpha": "fp32", "beta": "bf16"}),
    "C, narrow": problem(signature={"c": Access("bf16", "n", 2), "outputs": (Access("bf16", "n", 2),)}),
    "narrow": problem(signature={"outputs": (Access("bf16", "n", 2),)}),
    "narrow fp32": problem(signature={"outputs": (Access("fp32", "m", 4),)}),
    "residual, narrow output": problem(epilogue=epilogues.bias_add, signature={"outputs": (Access("bf16", "n", 4),)}),
    "two outputs, one narrow": problem(
        epilogue=epilogues.bias_gelu_aux, signature={"outputs": (Access("bf16", "n", 2), Access("bf16", "n", 16))}
    ),
    "residual, narrow": problem(
        epilogue=epilogues.bias_add,
        signature={
            "operands": (Access("bf16", "n", 16), Access("bf16", "n", 2)),
            "outputs": (Access("bf16", "n", 2),),
        },
    ),
    "strided output": problem(signature={"outputs": (Access("bf16", "strided", 2),)}),
    "M-major output": problem(signature={"c": Access("fp16", "m", 16), "outputs": (Access("fp16", "m", 16),)}),
}


def specs() -> Iterator[tuple[str, Spec]]:
    for config in CONFIGS:
        yield f"plain-{config}", Spec(FAMILY.name, config, problem().signature, "sm_90a")
    for i, (name, varied) in enumerate(SIGNATURES.items()):
        turn = CONFIGS[i % len(CONFIGS) :] + CONFIGS[: i % len(CONFIGS)]
        config = next(c for c in turn if refusal(varied, FAMILY, c, H200) is None)
        yield f"{name}-{config}", Spec(FAMILY.name, config, varied.signature, "sm_90a")
    fullest = max(CONFIGS, key=lambda config: config.accumulators)
    for name in ("residual nt", "every kind nt", "residual, narrow", "strided output"):
        yield f"{name}-{fullest}", Spec(FAMILY.name, fullest, SIGNATURES[name].signature, "sm_90a")
    for name in ("every kind nt", "narrow"):
        swapped = next(c for c in CONFIGS if c.swap_ab and c.tile_n == 32)
        yield f"{name}-{swapped}", Spec(FAMILY.name, swapped, SIGNATURES[name].signature, "sm_90a")


SPECS = dict(specs())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_machine_code(spec: Spec) -> None:
    config = spec.config
    assert isinstance(config, WgmmaConfig)
    artifact = build(spec, keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0)
    # One k-tile's worth, 16 deep and 64 rows high.
    assert code.opcodes["HGMMA"] == config.tile_k // 16 * (config.group_m // 64)
    assert code.opcodes["USETMAXREG"] == 2
    assert not {"HMMA", "LDGSTS", "LDL", "STL"} & set(code.opcodes)
    assert code.registers * config.threads <= REGISTERS_PER_SM
    solved = spec.signature.transposed() if config.swap_ab else spec.signature
    # Sums go to the other blocks of a cluster 16 bytes at a time, whichever share a warp begins with: without a fence.
    sent = config.cluster_k + starts(config) - 1 if config.cluster_k > 1 else 0
    assert code.opcodes.get("STAS", 0) == sent * config.accumulators // config.cluster_k // 4
    assert code.opcodes.get("UCGABAR_WAIT", 0) == (config.cluster_size > 1)
    staged = config.staging(solved)
    assert code.opcodes["UTMALDG"] >= 2 + len(staged.loads if staged is not None else ())
    if staged is None:
        assert "SHFL" in code.opcodes
        assert "UTMASTG" not in code.opcodes
        return
    assert "SHFL" not in code.opcodes
    stored = [box for box in staged.stores if box.by_tma]
    assert code.opcodes.get("UTMASTG", 0) % max(1, len(stored)) == 0
    assert ("UTMASTG" in code.opcodes) == bool(stored)
    assert ("STSM" in code.opcodes) == any(box.itemsize == 2 and not box.tensor.paired for box in staged.stores)
    assert ("LDSM" in code.opcodes) == any(box.itemsize == 2 and not box.tensor.paired for box in staged.loads)


def test_what_is_compiled_is_legal() -> None:
    problems = {"plain": problem(), **SIGNATURES}
    for name, spec in SPECS.items():
        varied = next(p for p in problems.values() if p.signature == spec.signature)
        assert refusal(varied, FAMILY, spec.config, H200) is None, name
