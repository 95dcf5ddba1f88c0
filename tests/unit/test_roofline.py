"""The public models against numbers worked by hand, and occupancy against NVIDIA's own calculator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from cutegemm.device import lookup
from cutegemm.errors import ArgumentError
from cutegemm.roofline import (
    Verdict,
    attainable,
    compulsory_bytes,
    gemm_flops,
    gemm_intensity,
    intensity,
    occupancy,
    ridge_point,
    roofline_time,
    traffic_bytes,
    verdict,
)

PEAK, BANDWIDTH = 66.9e12, 3.35e12  # an H100 in fp32
N = 4096


# ---------------------------------------------------------------- work and traffic


def test_naive_traffic_is_both_elements_of_every_product() -> None:
    assert traffic_bytes(N, N, N, 4) == 2 * N**3 * 4
    assert traffic_bytes(N, N, N, 4) / 1e9 == pytest.approx(549.8, abs=0.1)
    assert intensity(gemm_flops(N, N, N), traffic_bytes(N, N, N, 4)) == 0.25


def test_tiling_by_b_divides_the_traffic_by_b() -> None:
    assert traffic_bytes(N, N, N, 4, 32) / 1e9 == pytest.approx(17.2, abs=0.05)
    for b in (2, 16, 32, 128):
        assert traffic_bytes(N, N, N, 4, b) == 2 * N**3 // b * 4
        assert intensity(gemm_flops(N, N, N), traffic_bytes(N, N, N, 4, b)) == b / 4


def test_a_ragged_tile_reads_whole_rows_and_columns() -> None:
    # 3 x 2 tiles of 4 x 8 cover 9 x 10: A (9 x 5) is read twice, B (5 x 10) three times.
    assert traffic_bytes(9, 10, 5, 2, tile_m=4, tile_n=8) == 2 * (2 * 9 * 5 + 3 * 5 * 10)
    # One tile over all of D leaves what can't be avoided but the output.
    assert traffic_bytes(9, 10, 5, 2, 16) == compulsory_bytes(9, 10, 5, 2) - 2 * 9 * 10


def test_compulsory_bytes_count_each_matrix_once_in_its_own_type() -> None:
    assert compulsory_bytes(3, 5, 7, 2) == 2 * (21 + 35 + 15)
    assert compulsory_bytes(3, 5, 7, 2, 4) == 2 * (21 + 35) + 4 * 15
    assert gemm_flops(3, 5, 7) == 210
    assert gemm_intensity(3, 5, 7, 2, 4) == 210 / 172
    assert gemm_intensity(N, N, N, 4) == pytest.approx(2 * N / 12)


def test_a_vector_addition_has_a_twelfth_of_a_flop_per_byte() -> None:
    assert intensity(1, 12) == pytest.approx(0.083, abs=5e-4)


# ---------------------------------------------------------------- the roofline


def test_the_ridge_of_an_h100() -> None:
    assert ridge_point(PEAK, BANDWIDTH) == pytest.approx(20, abs=0.05)
    h100 = lookup("H100")
    assert ridge_point(h100.fp32_flops, h100.hbm_bytes_per_s) == pytest.approx(20, rel=0.15)


def test_the_slope_binds_before_the_ridge_and_the_roof_after() -> None:
    ridge = ridge_point(PEAK, BANDWIDTH)
    assert attainable(8, PEAK, BANDWIDTH) == 8 * BANDWIDTH < PEAK
    assert attainable(ridge / 2, PEAK, BANDWIDTH) == pytest.approx(PEAK / 2)
    assert attainable(2 * ridge, PEAK, BANDWIDTH) == PEAK


def test_the_roofline_time_is_work_over_what_is_attainable() -> None:
    flops = gemm_flops(N, N, N)
    for moved, bound in ((traffic_bytes(N, N, N, 4, 32), "memory"), (compulsory_bytes(N, N, N, 4), "arithmetic")):
        seconds = roofline_time(flops, moved, PEAK, BANDWIDTH)
        assert seconds == pytest.approx(flops / attainable(intensity(flops, moved), PEAK, BANDWIDTH))
        assert seconds == (moved / BANDWIDTH if bound == "memory" else flops / PEAK)
    assert roofline_time(flops, 17.18e9, PEAK, BANDWIDTH) * 1e3 == pytest.approx(5.13, abs=0.01)


@pytest.mark.parametrize(
    ("achieved", "at", "expected"),
    [
        (0.95 * 8 * BANDWIDTH, 8, Verdict.SLOPE),
        (1.05 * 8 * BANDWIDTH, 8, Verdict.SLOPE),  # caches may beat the slope
        (0.79 * 8 * BANDWIDTH, 8, Verdict.UNDER),
        (0.95 * PEAK, 100, Verdict.ROOF),
        (0.81 * PEAK, 100, Verdict.ROOF),
        (0.40 * PEAK, 100, Verdict.UNDER),
    ],
)
def test_verdicts(achieved: float, at: float, expected: Verdict) -> None:
    assert verdict(achieved, at, PEAK, BANDWIDTH) is expected


def test_where_near_begins_is_the_callers_to_move() -> None:
    assert verdict(0.5 * PEAK, 100, PEAK, BANDWIDTH, near=0.4) is Verdict.ROOF
    assert verdict(0.5 * PEAK, 100, PEAK, BANDWIDTH, near=0.6) is Verdict.UNDER


def test_a_verdict_says_what_to_do() -> None:
    assert [str(v) for v in Verdict] == [
        "under the slope: mend the access",
        "on the slope: raise intensity",
        "on the roof: stop",
    ]


# ---------------------------------------------------------------- occupancy


@pytest.mark.parametrize(
    # Blocks as cuda_occupancy.h (CUDA 13.0) gives them for the largest shared-memory carve-out.
    ("gpu", "threads", "registers", "smem", "blocks", "limited_by"),
    [
        ("A100", 128, 64, 0, 8, ("registers",)),
        ("A100", 128, 32, 0, 16, ("registers", "threads")),
        ("A100", 256, 255, 0, 1, ("registers",)),
        ("A100", 1024, 64, 0, 1, ("registers",)),
        ("A100", 128, 168, 0, 3, ("registers",)),
        ("A100", 128, 32, 100 * 1024, 1, ("shared memory",)),
        ("A100", 256, 128, 48 * 1024, 2, ("registers",)),
        ("A100", 32, 16, 0, 32, ("blocks",)),
        ("H100", 128, 64, 0, 8, ("registers",)),
        ("H100", 256, 255, 0, 1, ("registers",)),
        ("H100", 128, 32, 100 * 1024, 2, ("shared memory",)),
        ("H100", 128, 32, 113 * 1024, 2, ("shared memory",)),
        ("H100", 128, 32, 113 * 1024 + 1, 1, ("shared memory",)),
        ("H100", 1024, 65, 0, 0, ("registers",)),
        ("V100", 256, 32, 24 * 1024, 4, ("shared memory",)),
        ("L4", 512, 40, 0, 3, ("registers", "threads")),
    ],
)
def test_occupancy(gpu: str, threads: int, registers: int, smem: int, blocks: int, limited_by: tuple[str, ...]) -> None:
    found = occupancy(lookup(gpu), threads=threads, registers=registers, smem=smem)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * math.ceil(threads / 32)


def test_the_share_is_of_the_warps_that_an_sm_holds() -> None:
    assert occupancy(lookup("A100"), threads=128, registers=64).share == 0.5
    assert occupancy(lookup("A10"), threads=128, registers=64).share == 8 * 4 / 48


def test_registers_come_from_a_quarter_of_the_file() -> None:
    # 136 registers take 4352 of a quarter's 16384 for a warp: three warps, so twelve on the SM; the file as a whole
    # would hold fifteen, and so three blocks of five warps.
    assert occupancy(lookup("A100"), threads=160, registers=136).limits["registers"] == 2


def test_registers_are_allotted_in_units_of_eight_a_thread() -> None:
    blocks = [occupancy(lookup("A100"), threads=256, registers=r).blocks for r in (73, 80, 81)]
    assert blocks == [3, 3, 2]


def test_every_block_takes_the_reserved_kib_too() -> None:
    h100 = lookup("H100")
    half = h100.smem_per_sm // 2
    free = replace(h100, smem_reserved_per_block=0)
    assert [occupancy(gpu, threads=128, registers=32, smem=half).blocks for gpu in (h100, free)] == [1, 2]


def test_the_largest_block_fits_and_one_more_byte_does_not() -> None:
    h100 = lookup("H100")
    most = h100.smem_per_block
    assert [occupancy(h100, threads=128, registers=32, smem=s).blocks for s in (most, most + 1)] == [1, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gemm_flops(0, 4, 4), "m=0"),
        (lambda: traffic_bytes(4, 4, 4, 4, 2.5), "tile_m=2.5"),  # type: ignore[arg-type]
        (lambda: compulsory_bytes(4, 4, 4, 2, 0), "out_itemsize=0"),
        (lambda: intensity(1, 0), "moved_bytes=0"),
        (lambda: ridge_point(math.inf, 1), "peak=inf"),
        (lambda: attainable(math.nan, 1, 1), "intensity=nan"),
        (lambda: roofline_time(-1, 1, 1, 1), "flops=-1"),
        (lambda: verdict(0, 1, 1, 1), "achieved=0"),
        (lambda: verdict(1, 1, 1, 1, near=0), "near=0"),
        (lambda: occupancy(lookup("A100"), threads=1025, registers=32), "threads=1025: at most 1024"),
        (lambda: occupancy(lookup("A100"), threads=0, registers=32), "threads=0"),
        (lambda: occupancy(lookup("A100"), threads=32, registers=256), "registers=256: at most 255"),
        (lambda: occupancy(lookup("A100"), threads=32, registers=32, smem=-1), "smem=-1"),
    ],
)
def test_nonsense_is_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()
