"""`simt_f32` on plain integers: the floats that copies and reads of a block meet, and what the planner makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from cutegemm import ArgumentError, DTypeError, plan
from cutegemm.device import lookup
from cutegemm.kernels import float_loader
from cutegemm.kernels.float_loader import FloatLoader, FloatTile
from cutegemm.kernels.simt_f32 import place_of
from cutegemm.kernels.simt_f32_config import CONFIGS, FLOAT_BYTES, LANES_M, LANES_N, VECTOR, SimtConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal

FAMILY = FAMILIES["simt_f32"]
BASE, STAGE = 1 << 20, 1 << 16
#: How an operand of `rows` x `depth` lies: floats from row to row and along K, and how many are copied at a time.
LAYOUTS = {
    "along k": lambda rows, depth: (depth, 1, 1),
    "along mn": lambda rows, depth: (1, rows + -rows % 4 + 4, 4),
    "along mn by 2": lambda rows, depth: (1, rows + rows % 2 + 2, 2),
    "along mn by 1": lambda rows, depth: (1, rows, 1),
    "strided": lambda rows, depth: (2 * depth + 1, 2, 1),
}


class Copies:
    """What `cp_async_if` would do: shared memory by float, and every source that was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: dict[int, float | None] = {}
        self.read: list[int] = []
        monkeypatch.setattr(float_loader, "cp_async_if", self)
        monkeypatch.setattr(float_loader, "Int64", int)  # the DSL's own are slow

    def __call__(self, target: Any, source: Any, size: int, condition: Any) -> None:
        there, first = bool(condition), int(source)
        assert int(target) % size == 0 and (not there or first % size == 0)
        for offset in range(0, size, FLOAT_BYTES):
            assert int(target) + offset not in self.shared
            self.shared[int(target) + offset] = (first + offset - BASE) // FLOAT_BYTES if there else None
            self.read += [(first + offset - BASE) // FLOAT_BYTES] if there else []


def tile(config: SimtConfig, mn: str) -> FloatTile:
    return FloatTile(config.tile_m if mn == "m" else config.tile_n, config.tile_k)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_tile_arrives_whole_and_nothing_beyond_is_read(
    config: SimtConfig, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tiles of an operand that ends in the middle of both."""
    for mn in ("m", "n"):
        shared = tile(config, mn)
        origin, rows, depth = shared.tile_mn, shared.tile_mn + 13, config.tile_k + 5
        step_mn, step_k, vector = LAYOUTS[layout](rows, depth)
        loader = FloatLoader(shared, config.threads, vector, layout in ("along k", "strided"))
        copies = Copies(monkeypatch)
        for tid in range(config.threads):
            mine = loader.prepare(tid, BASE, {"mn": step_mn, "k": step_k}, rows, origin, 0)
            mine.fetch_last(mine.source + config.tile_k * mine.step_k, 5)
            mine.fetch(mine.source, STAGE, mine.rows_left)
        places = {(row, k): row * step_mn + k * step_k for row in range(rows) for k in range(depth)}
        assert len(copies.shared) == 2 * shared.tile_mn * config.tile_k
        for row in range(shared.tile_mn):
            for k in range(config.tile_k):
                at = (k * shared.pitch + row) * FLOAT_BYTES
                inside = origin + row < rows
                if inside:
                    assert copies.shared[STAGE + at] == places[origin + row, k]
                assert copies.shared[at] == (places[origin + row, config.tile_k + k] if inside and k < 5 else None)
        # What lies between the lines is the operand's memory; nothing lies behind its last float.
        assert max(copies.read) <= max(places.values())


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_warp_that_turns_a_tile_meets_every_bank_once(config: SimtConfig) -> None:
    loader = FloatLoader(tile(config, "m"), config.threads, 1, True)
    for first in range(0, config.threads, 32):
        targets, sources = [], []
        for tid in range(first, first + 32):
            rows, places = loader.places(tid)
            targets.append((places[0] * loader.shared.pitch + rows[0]) % 32)
            sources.append((rows[0], places[0]))
        assert len(set(targets)) == 32
        assert {row: sum(r == row for r, _ in sources) for row, _ in sources} == dict.fromkeys(
            {row for row, _ in sources}, 8
        )


def test_lanes_share_what_half_a_warp_reads() -> None:
    places = [place_of(lane) for lane in range(32)]
    assert sorted(places) == [(row, column) for row in range(LANES_M) for column in range(LANES_N)]
    for lane, (row, column) in enumerate(places):
        assert places[lane ^ 1][0] == row and places[lane ^ 2][1] == column
    for half in (places[:16], places[16:]):  # four banks for each vector, and 32 there are
        assert len({row for row, _ in half}) * VECTOR <= 32 and len({column for _, column in half}) * VECTOR <= 32


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_threads_own_the_tile_between_them(config: SimtConfig) -> None:
    owned = []
    for tid in range(config.threads):
        row, column = place_of(tid % 32)
        warp = tid // 32
        first_m = warp // config.warps_n * config.warp_m + row * VECTOR
        first_n = warp % config.warps_n * config.warp_n + column * VECTOR
        rows = [first_m + i // VECTOR * (VECTOR * LANES_M) + i % VECTOR for i in range(config.thread_m)]
        columns = [first_n + j // VECTOR * (VECTOR * LANES_N) + j % VECTOR for j in range(config.thread_n)]
        owned += [(m, n) for m in rows for n in columns]
    assert sorted(owned) == [(m, n) for m in range(config.tile_m) for n in range(config.tile_n)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 1}, "a pipeline needs at least 2"),
        ({"thread_m": 6}, "thread=6x16: must be multiples of 4"),
        ({"tile_n": 192}, "must be a multiple of a warp's 32x128"),
        ({"tile_k": 12}, "tile_k=12: must be a multiple of 8"),
        ({"tile_m": 1024, "tile_n": 1024}, "8192 threads: a block holds 1024"),
        ({"tile_m": 64, "tile_n": 512, "tile_k": 8, "thread_m": 4}, "copies do not divide among 512 threads"),
        ({"thread_m": 16}, "about 352 registers a thread"),
        ({"stages": 12}, "bytes of shared memory"),
        ({"raster": 0}, "every size must be positive"),
    ],
)
def test_rules(changes: dict[str, int], message: str) -> None:
    values = {"tile_m": 128, "tile_n": 256, "tile_k": 16, "stages": 4, "thread_m": 8, "thread_n": 16} | changes
    found = refusal(contiguous_problem(512, 512, 512, dtype="fp32"), FAMILY, SimtConfig(**values), lookup("H200"))
    assert found is not None and message in str(found)


@pytest.mark.parametrize("gpu", ["A100", "L40S", "H200", "RTX 5090"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_every_gpu_is_served(gpu: str, layout: str) -> None:
    for size in ((4096, 4096, 4096), (7, 30, 5), (1, 1, 0), (300, 200, 10000)):
        made = plan(*size, dtype="fp32", layout=layout, arch=gpu, align=4)
        assert made.family == "simt_f32" and made.problem.signature.precision == "ieee"


def test_large_problems_get_large_tiles_and_small_ones_fill_the_gpu() -> None:
    large, small = (plan(n, n, 4096, dtype="fp32", arch="H200").config for n in (8192, 256))
    assert isinstance(large, SimtConfig) and (large.thread_m, large.thread_n) == (8, 16) and large.split == 1
    assert isinstance(small, SimtConfig) and small.split > 1


def test_what_it_does_not_serve() -> None:
    with pytest.raises(DTypeError, match="a and b are bf16: simt_f32 serves fp32"):
        plan(64, 64, 64, kernel="simt_f32", arch="H200")
    with pytest.raises(ArgumentError, match="precision='tf32': simt_f32 serves ieee"):
        plan(64, 64, 64, dtype="fp32", precision="tf32", kernel="simt_f32", arch="H200")
