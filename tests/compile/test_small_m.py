"""The SASS of `small_m`: tensor cores, ldmatrix and 16-byte copies in the numbers that its loops come to, no spills.

Every configuration is compiled for one architecture after another; then what a signature can vary, in one configuration
after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cutegemm import Col, Row, Scalar, Tile, device, epilogue, epilogues, ops
from cutegemm.compiler import Spec, build, sass
from cutegemm.kernels.config import vector_elements
from cutegemm.kernels.small_m_config import CONFIGS, SmallMConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import Access, Problem

FAMILY = FAMILIES["small_m"]
ARCHITECTURES = ("sm_90a", "sm_80", "sm_86", "sm_89", "sm_100a", "sm_120a")


@epilogue
def every_kind(acc, bias: Row, scale: Col, residual: Tile, slope: Scalar):
    x = acc * scale + bias
    return {"out": ops.maximum(x, slope * x) + residual, "pre": x}


def problem(layout: str = "nt", *, signature: dict[str, Any] | None = None, **keywords: Any) -> Problem:
    made = contiguous_problem(8, 4096, 4096, layout=layout, **keywords)
    return replace(made, signature=replace(made.signature, **(signature or {})))


#: What a signature can vary, by what is particular about it.
SIGNATURES = {
    "nn": problem("nn"),
    "nn, 4 bytes": problem("nn", align=4),
    "nn, 2 bytes": problem("nn", align=2),
    "tt": problem("tt"),
    "8 bytes": problem(align=8),
    "4 bytes": problem(align=4),
    "2 bytes": problem(align=2),
    "strided A": problem(signature={"a": Access("bf16", "strided", 2)}),
    "strided B": problem(signature={"b": Access("bf16", "strided", 2)}),
    "fp16": problem(dtype="fp16", out_dtype="fp32"),
    "swiglu": problem(epilogue=epilogues.bias_swiglu),
    "paired, two outputs": problem(epilogue=epilogues.swiglu_aux),
    "every kind": problem(epilogue=every_kind),
    "C, device scalars": problem(signature={"c": Access("fp32", "n", 16), "alpha": "fp32", "beta": "bf16"}),
    "M-major output": problem(signature={"c": Access("fp16", "m", 16), "outputs": (Access("fp16", "m", 16),)}),
}


def legal(varied: Problem, config: SmallMConfig, arch: str) -> bool:
    return refusal(replace(varied, m=config.tile_m), FAMILY, config, device.lookup(arch)) is None


def specs() -> Iterator[tuple[str, Spec]]:
    plain = problem()
    for i, config in enumerate(CONFIGS):
        turn = ARCHITECTURES[i % len(ARCHITECTURES) :] + ARCHITECTURES[: i % len(ARCHITECTURES)]
        arch = next(arch for arch in turn if legal(plain, config, arch))
        yield f"{config}-{arch}", Spec(FAMILY.name, config, plain.signature, arch)
    for i, (name, varied) in enumerate(SIGNATURES.items()):
        turns = CONFIGS[5 * i % len(CONFIGS) :] + CONFIGS[: 5 * i % len(CONFIGS)]
        arch = ARCHITECTURES[i % len(ARCHITECTURES)]
        config = next(c for c in turns if legal(varied, c, arch))
        yield f"{name}-{config}-{arch}", Spec(FAMILY.name, config, varied.signature, arch)


SPECS = dict(specs())


def copies(rows: int, access: Access, config: SmallMConfig) -> int:
    """cp.async instructions of one fetch of an operand's tile: below 4 bytes it does not exist, and A is read along K
    or element by element."""
    vector = vector_elements(access)
    if vector == 1 or (access.major == "m"):
        return 0
    return rows * config.tile_k // (vector * config.group_threads)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_machine_code(spec: Spec) -> None:
    config, s = spec.config, spec.signature
    assert isinstance(config, SmallMConfig)
    artifact = build(spec, keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0)
    assert not {"HGMMA", "UTMALDG", "LDL", "STL"} & set(code.opcodes)
    k_blocks = config.tile_k // 16
    assert code.opcodes["HMMA"] == k_blocks * (config.warp_n // 16) * (config.tile_m // 8)
    assert code.opcodes["LDSM"] == k_blocks * (config.warp_n // 16 + -(-config.tile_m // 16))
    # The prologue's fetches and the loop's one: for 16 bytes' alignment as many as 16 bytes each make a tile.
    fetched = copies(config.tile_n, s.b, config) + copies(config.tile_m, s.a, config)
    assert code.opcodes.get("LDGSTS", 0) == config.stages * fetched
    assert ("UCGABAR_WAIT" in code.opcodes) == (config.split > 1)
    # Programmatic dependent launch: griddepcontrol.
    assert ("ACQBULK" in code.opcodes) == (spec.arch not in ("sm_80", "sm_86", "sm_89"))


def test_what_is_compiled_covers_what_there_is() -> None:
    assert {spec.config for spec in SPECS.values()} == set(CONFIGS)
    assert {spec.arch for spec in SPECS.values()} == set(ARCHITECTURES)
