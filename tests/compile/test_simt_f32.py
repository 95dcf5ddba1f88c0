"""The SASS of `simt_f32`: a main loop of little but multiply-adds, no spills, copies in the numbers they come to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutegemm import device, epilogues
from cutegemm.compiler import Spec, build, sass
from cutegemm.kernels import workspace
from cutegemm.kernels.simt_f32_config import SimtConfig, vector_floats
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.pin import parse_pin
from cutegemm.problem import Access, Problem
from tests import machine_code
from tests.compile.test_sm80_multistage import every_kind

FAMILY = FAMILIES["simt_f32"]


def problem(layout: str = "nn", *, signature: dict[str, Any] | None = None, **keywords: Any) -> Problem:
    made = contiguous_problem(4096, 4096, 4096, dtype="fp32", layout=layout, **keywords)
    return replace(made, signature=replace(made.signature, **(signature or {})))


def named(options: str, **own: Any) -> SimtConfig:
    """The registered configuration that `options` name, with what is its `own`."""
    found: SimtConfig
    (found,) = parse_pin(f"simt_f32:{options}").configs
    return replace(found, **own)


LARGE, SMALL = "tile=128x256x16", "tile=32x64x16"
#: What a kernel is compiled for, by what is particular about it: architecture, configuration, problem.
CASES: dict[str, tuple[str, SimtConfig, Problem]] = {
    "nn": ("sm_90a", named(LARGE), problem("nn")),
    "nt, 4 bytes": ("sm_80", named("tile=128x128x16,stages=3"), problem("nt", align=4)),
    "tn, C, device scalars": (
        "sm_120a",
        named("tile=128x128x16,thread=8x8"),
        problem("tn", signature={"c": Access("fp32", "n", 16), "alpha": "fp32", "beta": "bf16"}),
    ),
    "tt, every kind, split": ("sm_86", named("tile=64x128x16", split=3), problem("tt", epilogue=every_kind)),
    "swiglu": ("sm_89", named("tile=64x64x16"), problem(epilogue=epilogues.bias_swiglu, out_dtype="bf16")),
    "strided A, copied B": (
        "sm_100a",
        named(SMALL, pad="b"),
        problem(signature={"a": Access("fp32", "strided", 4), "b": Access("fp32", "n", 4)}),
    ),
    "nt, turned": ("sm_90a", named(LARGE, pad="ab"), problem("nt")),
    "4 bytes, turned A, copied B, split": ("sm_80", named("tile=256x128x16", split=3, pad="ab"), problem(align=4)),
    "strided A, turned": (
        "sm_100a",
        named(SMALL, pad="ab"),
        problem("nt", signature={"a": Access("fp32", "strided", 4)}),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_machine_code(case: tuple[str, SimtConfig, Problem], tmp_path: Path) -> None:
    arch, config, made = case
    assert refusal(made, FAMILY, config, device.lookup(arch)) is None
    artifact = build(Spec(FAMILY.name, config, made.signature, arch), keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    assert (code.spills, code.local_bytes) == (0, 0)
    if made.signature.c is None:  # which is read when accumulators still are held
        assert code.registers <= config.registers(made.signature.a, made.signature.b)
    assert not {"HMMA", "HGMMA", "LDSM", "LDL", "STL"} & set(code.opcodes)  # strict: no tensor core rounds an operand
    path = tmp_path / "kernel.cubin"
    path.write_bytes(artifact.cubin)
    loops = list(_loops(machine_code.disassemble(path)))
    blackwell = device.lookup(arch).compute_capability >= (10, 0)
    unrolled = 2 if blackwell else 4
    fma = config.thread_m * config.thread_n * unrolled
    inner = min((loop for loop in loops if loop.count("FFMA") == fma), key=len)
    reads = (config.thread_m + config.thread_n) // 4 * unrolled
    assert inner.count("LDS") == reads
    assert len(inner) - inner.count("MOV") <= fma + reads + 8
    assert inner.count("MOV") <= (16 if blackwell else 0)
    inside = workspace.inner(made.signature, config.pad, 1)
    moved = [
        (tile * config.tile_k // config.threads, vector_floats(access, mn))
        for tile, access, mn in ((config.tile_m, inside.a, "m"), (config.tile_n, inside.b, "n"))
    ]
    # The k-tile that may end past K float by float, the rest of the prologue's and the loop's one.
    copies = sum(floats + (config.stages - 1) * floats // vector for floats, vector in moved)
    assert code.opcodes["LDGSTS"] == copies
    # What is turned passes through shared memory: 16 numbers a thread, four at a time.
    accesses = {name: getattr(made.signature, name) for name in workspace.operands(config.pad)}
    turned = sum(access.major in ("k", "strided") for access in accesses.values())
    assert code.opcodes.get("LDG", 0) >= 16 * turned and code.opcodes["STS"] >= 4 * turned


def _loops(listing: str) -> list[list[str]]:
    """The operations of each loop, from the target of a jump backwards to the jump; loops within it included."""
    lines = listing.splitlines()
    labels = {match[1]: i for i, line in enumerate(lines) if (match := re.match(r"^(\.L_x_\d+):", line))}
    jumps = [(labels[match[1]], i) for i, line in enumerate(lines) if (match := re.search(r"BRA.*(\.L_x_\d+)", line))]
    return [
        [name.partition(".")[0] for name in machine_code.mnemonics("\n".join(lines[start : end + 1])).elements()]
        for start, end in jumps
        if start < end
    ]


def test_cases_cover_the_layouts_and_architectures() -> None:
    assert {arch for arch, _, _ in CASES.values()} == {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}
