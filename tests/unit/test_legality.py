"""The legality predicate: each rule refuses its own mutant, with the reason, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cutegemm.device import DeviceSpec, lookup
from cutegemm.errors import ArgumentError, CuteGemmError, DTypeError, ShapeError, UnsupportedArchitectureError
from cutegemm.fusion.graph import Builder, Graph
from cutegemm.kernels import wgmma_config
from cutegemm.kernels.config import CONFIGS, Config, vector_elements
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.sm80_multistage import blocks_per_sm
from cutegemm.problem import Access, Problem

FAMILY = FAMILIES["sm80_multistage"]
WGMMA = FAMILIES["sm90_wgmma"]
CONFIG = Config(128, 128, 32, stages=4, warps_m=2, warps_n=2)
PINGPONG = WgmmaConfig(128, 128, stages=6, cluster_m=2, pingpong=True)
PROBLEM = contiguous_problem(256, 512, 128)
H200 = lookup("H200")


def reason(
    problem: Problem = PROBLEM, config: Config = CONFIG, device: DeviceSpec = H200
) -> tuple[str, str, type[CuteGemmError]] | None:
    found = refusal(problem, FAMILY, config, device)
    return None if found is None else (found.rule, str(found), found.error)


def wgmma_reason(
    problem: Problem = PROBLEM, config: WgmmaConfig = PINGPONG, device: DeviceSpec = H200
) -> tuple[str, str, type[CuteGemmError]] | None:
    found = refusal(problem, WGMMA, config, device)
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
    problem = PROBLEM if config.bits == 16 else contiguous_problem(256, 512, 128, dtype="fp32", precision="tf32")
    assert reason(problem, config, lookup(gpu)) is None


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("align", [4, 8, 16])
@pytest.mark.parametrize("gpu", ["RTX 3060", "H200", "GB10"])
def test_every_alignment_and_layout_of_fp32_has_a_configuration(layout: str, align: int, gpu: str) -> None:
    problem = contiguous_problem(256, 512, 128, dtype="fp32", precision="tf32", layout=layout, align=align)
    assert any(reason(problem, config, lookup(gpu)) is None for config in CONFIGS)
    strided = replace(problem, signature=replace(problem.signature, a=Access("fp32", "strided", 4)))
    assert any(reason(strided, config, lookup(gpu)) is None for config in CONFIGS)


def test_a_configuration_is_for_one_width_of_operands() -> None:
    found = reason(config=replace(CONFIG, bits=32, stages=2))
    assert found == ("bits", "bits=32: a and b are bf16, of 16 bits", DTypeError)
    found = reason(contiguous_problem(256, 512, 128, dtype="fp32", precision="tf32"))
    assert found == ("bits", "bits=16: a and b are fp32, of 32 bits", DTypeError)
    found = reason(contiguous_problem(256, 512, 128, dtype="fp32"))
    assert found == ("precision", "precision='ieee': sm80_multistage serves tf32", ArgumentError)


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
            signed(a=Access("fp64", "k", 16), b=Access("fp64", "k", 16)),
            "operand dtype",
            "serves fp16, bf16, fp32",
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
        ({"tile_k": 16}, "swizzle", "tile_k=16"),
        ({"tile_n": 64, "warps_m": 8}, "copies", "256 copies .* 512 threads"),
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
    configs = [Config(m, n, k, 4, warps_m, warps_n) for m, n, k, warps_m, warps_n in (*tiles, (64, 64, 32, 2, 2))]
    for config, count in zip(configs, counted, strict=True):
        assert config.registers(wide, wide) == pytest.approx(count, abs=18), config


def test_registers_of_a_block() -> None:
    found = reason(device=replace(H200, registers_per_sm=16384))
    assert found is not None
    assert found[0] == "registers"
    assert "an SM of H200 has 16384" in found[1]


@pytest.mark.parametrize("gpu", ["T4", "V100"])
def test_architectures_refused(gpu: str) -> None:
    found = reason(device=lookup(gpu))
    assert found is not None
    assert found[0] == "architecture"
    assert found[2] is UnsupportedArchitectureError
    assert f"({gpu}), only for sm_80, sm_86" in found[1]


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


# ---------------------------------------------------------------- sm90_wgmma


@pytest.mark.parametrize("config", wgmma_config.CONFIGS, ids=str)
@pytest.mark.parametrize("gpu", ["H100 PCIe", "H200"])
def test_wgmma_configurations_are_legal_for_k_major_operands(config: WgmmaConfig, gpu: str) -> None:
    assert wgmma_reason(contiguous_problem(256, 512, 1024), config, lookup(gpu)) is None


@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_every_layout_has_tiles_of_all_sizes(layout: str) -> None:
    problem = contiguous_problem(256, 512, 1024, layout=layout)
    refusals = {config: wgmma_reason(problem, config) for config in wgmma_config.CONFIGS}
    assert {found[0] for found in refusals.values() if found is not None} == {"swizzle"}
    tiles = {(c.tile_m, c.tile_n, c.pingpong) for c, found in refusals.items() if found is None}
    assert tiles >= {
        *((128, 192, True), (128, 128, True), (128, 256, False), (256, 128, False), (128, 128, False)),
        *((128, 64, False), (64, 128, True), (64, 64, True)),
    }


def test_wgmma_configurations_are_distinct() -> None:
    assert len({str(config) for config in wgmma_config.CONFIGS}) == len(wgmma_config.CONFIGS)


def test_wgmma_configuration_in_numbers() -> None:
    shared, alternating = WgmmaConfig(256, 128, stages=4, cluster_n=2), PINGPONG
    assert str(shared) == "tile=256x128x64,stages=4,cluster=1x2,schedule=cooperative"
    assert str(replace(alternating, raster=16)).endswith("cluster=2x1,schedule=pingpong,raster=16")
    assert (shared.threads, shared.cluster_size, shared.group_m, shared.accumulators) == (384, 2, 128, 128)
    assert (alternating.group_m, alternating.accumulators) == (128, 128)
    assert shared.smem_bytes == 4 * (384 * 64 * 2 + 16) + 16 * (2048 + 8) + 2 * 1024
    swapped = WgmmaConfig(64, 16, stages=8, swap_ab=True)
    assert str(swapped) == "tile=64x16x64,stages=8,cluster=1x1,schedule=cooperative,swap_ab=yes"


@pytest.mark.parametrize(
    ("problem", "rule", "text", "error"),
    [
        (signed(b=Access("fp16", "k", 16)), "operand dtype", "a is bf16 and b is fp16", DTypeError),
        (signed(outputs=(Access("fp64", "n", 16),)), "epilogue dtype", "output 'out' is fp64", DTypeError),
        (signed(a=Access("bf16", "strided", 2)), "TMA", "a is strided", UnsupportedArchitectureError),
        (signed(b=Access("bf16", "strided", 2)), "TMA", "b is strided", UnsupportedArchitectureError),
        (signed(a=Access("bf16", "m", 8)), "TMA", "a is aligned to 8 bytes: .* to 16", UnsupportedArchitectureError),
        (signed(b=Access("bf16", "n", 2)), "TMA", "b is aligned to 2 bytes", UnsupportedArchitectureError),
        (replace(PROBLEM, k=0), "size", "k=0: .* at least 1", ShapeError),
        (replace(PROBLEM, m=0), "size", "m=0, n=512", ShapeError),
        (replace(PROBLEM, m=2**31 - 256), "size", None, None),
        (replace(PROBLEM, m=2**31 - 255), "size", "m=2147483393: rounded up", ShapeError),
        (replace(PROBLEM, n=2**31 - 127), "size", "n=2147483521: rounded up", ShapeError),
        (replace(PROBLEM, k=2**31 - 63), "size", "k=2147483585: rounded up", ShapeError),
        (replace(PROBLEM, m=2**24, n=2**24), "grid", "8589934592 tiles of 256x128", ShapeError),
        (replace(PROBLEM, m=2**20, n=2**20, k=2**25), "grid", "524288 k-tiles each", ShapeError),
        (replace(PROBLEM, n=511, signature=replace(PROBLEM.signature, epilogue=pair_graph())), "size",
         "n=511: .* even n", ShapeError),
    ],
)  # fmt: skip
def test_problems_refused_by_wgmma(
    problem: Problem, rule: str, text: str | None, error: type[CuteGemmError] | None
) -> None:
    found = wgmma_reason(problem)
    if text is None:
        assert found is None
        return
    assert found is not None
    assert (found[0], found[2]) == (rule, error)
    with pytest.raises(found[2], match=text):
        raise found[2](found[1])


@pytest.mark.parametrize(
    ("change", "rule", "text"),
    [
        ({"stages": 1}, "stages", "stages=1"),
        ({"burst": 5}, "stages", "burst=5: of 6 stages two are being multiplied"),
        ({"burst": 0}, "stages", "burst=0"),
        ({"raster": 0}, "tile", "positive"),
        ({"cluster_n": 0}, "tile", "positive"),
        ({"tile_k": 128}, "swizzle", "tile_k=128: must be 32 or 64"),
        ({"pieces": 3}, "pieces", "pieces=3: a and b are bf16, and not split into pieces"),
        ({"tile_m": 96}, "warpgroup tile", "tile_m=96: a multiple of 64 .* ping-pong"),
        ({"tile_m": 192, "pingpong": False}, "warpgroup tile", "tile_m=192: a multiple of 128 .* cooperative"),
        ({"tile_n": 72}, "warpgroup tile", "tile_n=72: must be a multiple of 16"),
        ({"tile_n": 288, "tile_m": 64}, "warpgroup tile", "tile_n=288: .* up to 256"),
        ({"tile_n": 256}, "registers", "256 accumulators a thread: more than 192"),
        ({"cluster_m": 4, "cluster_n": 4}, "cluster", "cluster 4x4: 16 blocks"),
        ({"tile_m": 512, "tile_n": 64, "pingpong": False}, "TMA", "tile_m=512: a TMA box holds 256"),
        ({"stages": 8}, "shared memory", "280832 bytes of shared memory: a block on H200 has 232448"),
    ],
)
def test_wgmma_tiles_refused(change: dict[str, Any], rule: str, text: str) -> None:
    found = wgmma_reason(config=replace(PINGPONG, **change))
    assert found is not None
    assert found[0] == rule
    with pytest.raises(UnsupportedArchitectureError, match=text):
        raise found[2](found[1])


@pytest.mark.parametrize(
    ("config", "refused_as"),
    [
        # The 128-byte swizzle repeats every 8 rows of K-major tiles, and is 64 elements wide along M or N.
        (WgmmaConfig(128, 96, stages=4), {"n": "tile_n=96 of a n-major operand: .* multiple of 64"}),
        (WgmmaConfig(128, 64, stages=4, cluster_m=2), {"n": "tile_n=64 in 2 slices of a n-major operand"}),
        (WgmmaConfig(128, 128, stages=4, cluster_n=4), {"m": "tile_m=128 in 4 slices of a m-major operand"}),
        (WgmmaConfig(128, 32, stages=4, cluster_m=8),
         {"n": "tile_n=32 in 8 slices", "k": "tile_n=32 in 8 slices of a k-major operand: .* multiple of 8"}),
    ],
    ids=str,
)  # fmt: skip
def test_slices_hold_whole_swizzle_atoms(config: WgmmaConfig, refused_as: dict[str, str]) -> None:
    k_major = Access("bf16", "k", 16)
    problems = {
        "m": signed(a=Access("bf16", "m", 16), b=k_major),
        "n": signed(a=k_major, b=Access("bf16", "n", 16)),
        "k": signed(a=k_major, b=k_major),
    }
    if "k" in refused_as:
        refused_as = {**refused_as, "m": refused_as["k"]}
    for major, problem in problems.items():
        found = wgmma_reason(problem, config)
        if major not in refused_as:
            assert found is None
            continue
        assert found is not None
        assert found[0] == "swizzle"
        with pytest.raises(UnsupportedArchitectureError, match=refused_as[major]):
            raise found[2](found[1])


def test_narrow_wgmma_tiles_leave_through_shared_memory() -> None:
    narrow = WgmmaConfig(64, 16, stages=8, pingpong=True)
    assert wgmma_reason(config=narrow) is None
    assert wgmma_reason(signed(outputs=(Access("bf16", "n", 2),)), narrow) is None
    found = wgmma_reason(signed(outputs=(Access("bf16", "strided", 2),)), narrow)
    assert found is not None
    assert found[:2] == ("warpgroup tile", "tile_n=16: must be a multiple of 32 where outputs leave from registers")


def test_swap_ab_is_judged_by_what_it_solves() -> None:
    swapped = WgmmaConfig(128, 32, stages=8, swap_ab=True)
    assert wgmma_reason(signed(b=Access("bf16", "n", 16)), swapped) is None
    found = wgmma_reason(signed(a=Access("bf16", "m", 16)), swapped)
    assert found is not None
    assert found[:2] == ("swizzle", "tile_n=32 of a n-major operand: a slice must be a multiple of 64")
    found = wgmma_reason(signed(epilogue=pair_graph()), swapped)
    assert found is not None
    assert found[:2] == ("swap_ab", "swap_ab makes columns of rows, and the epilogue pairs columns")


def test_wgmma_needs_its_architecture_its_memory_and_its_cluster() -> None:
    for gpu in ("A100", "B200", "RTX 5090"):
        found = wgmma_reason(device=lookup(gpu))
        assert found is not None
        assert found[0] == "architecture"
        assert "only for sm_90a" in found[1]
    needed = PINGPONG.smem_bytes
    assert wgmma_reason(device=replace(H200, smem_per_block=needed)) is None
    found = wgmma_reason(device=replace(H200, smem_per_block=needed - 1))
    assert found is not None
    assert found[0] == "shared memory"
    assert wgmma_reason(device=replace(H200, sm_count=2)) is None
    found = wgmma_reason(device=replace(H200, sm_count=1))
    assert found is not None
    assert found[:2] == ("cluster", "2 blocks in a cluster: H200 has 1 SMs")
