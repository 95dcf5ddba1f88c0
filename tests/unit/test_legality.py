"""The legality predicate: each rule refuses its own mutant, with the reason, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutegemm.device import DeviceSpec, lookup
from cutegemm.errors import CuteGemmError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.fusion.graph import Builder, Graph
from cutegemm.kernels.config import CONFIGS, Config, vector_elements
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.model import blocks_per_sm
from cutegemm.problem import Access, Problem

FAMILY = FAMILIES["sm80_multistage"]
CONFIG = Config(128, 128, 32, stages=4, warps_m=2, warps_n=2)
PROBLEM = contiguous_problem(256, 512, 128)
H200 = lookup("H200")


def reason(
    problem: Problem = PROBLEM, config: Config = CONFIG, device: DeviceSpec = H200
) -> tuple[str, str, type[CuteGemmError]] | None:
    found = refusal(problem, FAMILY, config, device)
    return None if found is None else (found.rule, str(found), found.error)


def signed(**changes: Any) -> Problem:
    return replace(PROBLEM, signature=replace(PROBLEM.signature, **changes))


def pair_graph() -> Graph:
    builder = Builder()
    acc = builder.add("acc")
    even, odd = builder.add("even", (acc,)), builder.add("odd", (acc,))
    return builder.finish([], [("out", builder.add("mul", (even, odd)))])


def row_graph() -> Graph:
    builder = Builder()
    total = builder.add("add", (builder.add("acc"), builder.add("operand", attr="0")))
    return builder.finish([("bias", "row")], [("out", total)])


def test_the_unchanged_problem_is_legal() -> None:
    assert reason() is None


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_registered_configurations_are_legal_with_wide_copies(config: Config, gpu: str) -> None:
    assert reason(config=config, device=lookup(gpu)) is None


def test_registered_configurations_are_distinct() -> None:
    assert len({str(config) for config in CONFIGS}) == len(CONFIGS)


@pytest.mark.parametrize("major", ["k", "m", "strided"])
@pytest.mark.parametrize("align", [2, 4, 8, 16])
@pytest.mark.parametrize("gpu", ["RTX 3060", "H200", "GB10"])
def test_every_alignment_and_major_has_a_configuration(major: str, align: int, gpu: str) -> None:
    if major == "strided":
        align = 2
    problem = signed(a=Access("bf16", major, align), b=Access("bf16", "k", align))
    assert any(reason(problem, config, lookup(gpu)) is None for config in CONFIGS)


@pytest.mark.parametrize(
    ("problem", "rule", "text", "error"),
    [
        (signed(b=Access("fp16", "k", 16)), "operand dtype", "a is bf16 and b is fp16", DTypeError),
        (
            signed(a=Access("fp32", "k", 16), b=Access("fp32", "k", 16)),
            "operand dtype",
            "serves fp16, bf16",
            DTypeError,
        ),
        (
            signed(outputs=(Access("int8", "n", 16),)),
            "epilogue dtype",
            "output 'out' is int8: .* fp32",
            DTypeError,
        ),
        (signed(c=Access("fp64", "n", 16)), "epilogue dtype", "c is fp64", DTypeError),
        (signed(alpha="int32"), "epilogue dtype", "alpha is int32", DTypeError),
        (replace(PROBLEM, m=0), "size", "m=0, n=512", ShapeError),
        (replace(PROBLEM, batch=0), "size", "batch=0", ShapeError),
        (replace(PROBLEM, k=-1), "size", "k=-1", ShapeError),
        (replace(PROBLEM, n=2**31 - 1), "size", "n=2147483647: rounded up", ShapeError),
        (replace(PROBLEM, k=2**31), "size", "k=2147483648", ShapeError),
        (replace(PROBLEM, m=2**24, n=2**24), "grid", "17179869184 tiles", ShapeError),
        (replace(PROBLEM, n=511, signature=replace(PROBLEM.signature, epilogue=pair_graph())), "size",
         "n=511: .* even n", ShapeError),
    ],
)  # fmt: skip
def test_problems_refused(problem: Problem, rule: str, text: str, error: type[CuteGemmError]) -> None:
    found = reason(problem)
    assert found is not None
    assert found[0] == rule
    assert found[2] is error
    with pytest.raises(error, match=text):
        raise error(found[1])


def test_operand_dtypes() -> None:
    bound = signed(epilogue=row_graph(), operands=(Access("bf16", "n", 16),))
    assert reason(bound) is None
    found = reason(signed(epilogue=row_graph(), operands=(Access("int64", "n", 16),)))
    assert found is not None
    assert "operand 'bias' is int64" in found[1]


def test_a_device_scalar_may_be_fp64_and_a_float_one_is_anything() -> None:
    builder = Builder()
    scaled = builder.add("mul", (builder.add("acc"), builder.add("operand", attr="0")))
    graph = builder.finish([("factor", "scalar")], [("out", scaled)])
    assert reason(signed(epilogue=graph, operands=(Access("fp64", "tensor", 8),))) is None
    assert reason(signed(epilogue=graph, operands=(Access("fp32", "float", 4),))) is None
    assert reason(signed(epilogue=graph, operands=(Access("int8", "tensor", 1),))) is not None


@pytest.mark.parametrize(
    ("change", "rule", "text"),
    [
        ({"stages": 1}, "stages", "stages=1"),
        ({"raster": 0}, "tile", "positive"),
        ({"tile_m": 120}, "warp tile", "multiple of 16x16"),
        ({"warps_n": 16}, "warp tile", "multiple of 16x16"),
        ({"warps_m": 1}, "warp tile", "128x64: at most 64x64"),
        ({"warps_n": 1}, "warp tile", "64x128: at most 64x64"),
        ({"tile_n": 96}, "warp tile", "width 48"),
        ({"tile_k": 48}, "swizzle", "tile_k=48"),
        ({"tile_m": 96, "warps_m": 2}, "swizzle", "tile_m=96"),
        ({"tile_n": 64, "tile_k": 16, "warps_m": 8}, "copies", "128 copies .* 512 threads"),
        ({"tile_m": 1024, "tile_n": 1024, "warps_m": 16, "warps_n": 16}, "threads", "8192 threads"),
    ],
)
def test_tiles_refused(change: dict[str, int], rule: str, text: str) -> None:
    found = reason(config=replace(CONFIG, **change))
    assert found is not None
    assert found[0] == rule
    with pytest.raises(UnsupportedArchitectureError, match=text):
        raise found[2](found[1])


def test_shared_memory_is_the_opt_in_limit_of_the_gpu() -> None:
    deep = replace(CONFIG, stages=6)  # 6 stages of 16 KiB, and 16 bytes
    assert deep.smem_bytes == 98320
    assert reason(config=deep, device=replace(H200, smem_per_block=98320)) is None
    found = reason(config=deep, device=replace(H200, smem_per_block=98319))
    assert found is not None
    assert found[:2] == ("shared memory", "98320 bytes of shared memory: a block on H200 has 98319")


def test_registers_depend_on_how_operands_are_copied() -> None:
    assert reason(signed(a=Access("bf16", "k", 4), b=Access("bf16", "k", 4))) is None
    found = reason(signed(a=Access("bf16", "k", 2), b=Access("bf16", "k", 2)))
    assert found is not None
    assert found[0] == "registers"
    assert "to copy a by 2 bytes and b by 2 bytes: a thread has 255" in found[1]
    found = reason(signed(a=Access("bf16", "strided", 2)))
    assert found is not None
    assert "to copy a strided by 2 bytes and b by 16 bytes" in found[1]


@pytest.mark.parametrize(
    ("align", "counted"),  # ptxas for sm_90a, K-major operands, on 2026-11-29
    [
        (16, [240, 242, 244, 168, 113, 96]),
        (4, [248, 248, 250, 168, 128, 96]),
    ],
)
def test_estimated_registers_are_close_to_what_ptxas_counts(align: int, counted: list[int]) -> None:
    wide = Access("bf16", "k", align)
    tiles = [
        (256, 128, 32, 4, 2),
        (128, 256, 32, 2, 4),
        (128, 128, 32, 2, 2),
        (128, 64, 64, 2, 2),
        (64, 64, 64, 2, 2),
    ]
    configs = [
        Config(m, n, k, 4, warps_m, warps_n) for m, n, k, warps_m, warps_n in (*tiles, (64, 64, 32, 2, 2))
    ]
    for config, count in zip(configs, counted, strict=True):
        assert config.registers(wide, wide) == pytest.approx(count, abs=18), config


def test_registers_of_a_block() -> None:
    found = reason(device=replace(H200, registers_per_sm=16384))
    assert found is not None
    assert found[0] == "registers"
    assert "an SM of H200 has 16384" in found[1]


@pytest.mark.parametrize(
    ("gpu", "hint"), [("T4", "cutlass_cpp will serve sm_75"), ("V100", "no other family")]
)
def test_architectures_refused(gpu: str, hint: str) -> None:
    found = reason(device=lookup(gpu))
    assert found is not None
    assert found[0] == "architecture"
    assert found[2] is UnsupportedArchitectureError
    assert hint in found[1]
    assert "sm_80, sm_86" in found[1]


def test_copy_width() -> None:
    widths = {align: vector_elements(Access("bf16", "k", align)) for align in (2, 4, 8, 16)}
    assert widths == {2: 1, 4: 2, 8: 4, 16: 8}
    assert vector_elements(Access("bf16", "strided", 2)) == 1


@pytest.mark.parametrize(
    ("stages", "smem_per_sm", "blocks"),
    # 4 warps of about 240 registers: two blocks by registers; a stage is 16 KiB, and 1 KiB is reserved for
    # each block.
    [(4, 228, 2), (4, 131, 2), (4, 130, 1), (3, 99, 2), (3, 98, 1)],
)
def test_occupancy(stages: int, smem_per_sm: int, blocks: int) -> None:
    device = replace(H200, smem_per_sm=smem_per_sm * 1024)
    wide = Access("bf16", "k", 16)
    assert blocks_per_sm(replace(CONFIG, stages=stages), device, wide, wide) == blocks
