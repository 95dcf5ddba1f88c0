"""What levels say of themselves: how K is split, what their tiles take, and what their tensor maps say."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from cutegemm.device import lookup
from cutegemm.errors import ArgumentError
from cutegemm.hand_kernels import LEVELS, Level, find, run
from cutegemm.hand_kernels.levels import MAX_SPLITS, SPLIT_STEPS, STATIC_SHARED_LIMIT
from cutegemm.planner import PINNED, contiguous_problem, refusal

SMS = 132


@pytest.mark.parametrize("level", [level for level in LEVELS if not level.split_k], ids=str)
def test_one_block_has_a_tile_where_k_is_not_split(level: Level) -> None:
    assert level.splits(1, 1, 65536, level.dtypes[0], SMS) == 1


@pytest.mark.parametrize(
    ("m", "n", "k", "splits"),
    [
        (4096, 4096, 4096, 1),  # 512 tiles
        (1024, 1024, 4096, 4),  # 32 tiles: four for each keep 128 of 132 SMs busy
        (1024, 1024, 512, 2),  # eight steps
        (1024, 1024, 64, 1),
        (128, 128, 65536, MAX_SPLITS),
        (256 * 12, 128 * 6, 4096, 1),  # 72 tiles: two for each are more than there are SMs
    ],
)
def test_k_is_split_where_tiles_are_few_and_k_is_long(m: int, n: int, k: int, splits: int) -> None:
    level = find("level9")
    assert level.splits(m, n, k, "bf16", SMS) == splits
    assert level.part_bytes(m, n, splits) == 4 * splits * level.blocks(m, n) * 256 * 128


def test_every_part_has_steps_and_all_of_k_is_in_one() -> None:
    level = find("level9")
    for k in range(1, 5000, 7):
        splits, steps = level.splits(64, 64, k, "bf16", SMS), -(-k // 64)
        ends = [steps * s // splits for s in range(splits + 1)]  # as the kernel computes them
        assert ends[0] == 0 and ends[-1] == steps
        assert splits == 1 or min(b - a for a, b in zip(ends, ends[1:], strict=False)) >= SPLIT_STEPS


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_static_shared_memory_fits_a_block_that_asks_for_no_more(level: Level) -> None:
    assert level.dynamic or level.smem_bytes <= STATIC_SHARED_LIMIT
    assert level.threads <= 1024 and level.threads % 32 == 0


def test_clusters_are_whole_and_stay_on_their_sms() -> None:
    level = find("level10")
    assert level.blocks(1, 1) == level.grid(1, 1, 1, SMS) == 2
    assert level.blocks(257, 513) == level.grid(257, 513, 1, SMS) == 2 * 2 * 3
    assert level.blocks(8192, 8192) == 2048 and level.grid(8192, 8192, 1, SMS) == SMS
    assert level.grid(8192, 8192, 1, 133) == 132 and level.grid(8192, 8192, 1, 1) == 2
    assert find("level9").grid(256, 128, 4, SMS) == 4 and find("level8").grid(8192, 8192, 1, SMS) == 2048


@pytest.mark.parametrize(
    ("m", "n", "k", "align", "name"), [(64, 64, 60, 16, "a"), (64, 68, 64, 16, "b"), (8, 8, 8, 8, "a")]
)
def test_rows_that_tma_cannot_copy_are_refused_by_name(m: int, n: int, k: int, align: int, name: str) -> None:
    gpu = lookup("H200")
    problem = contiguous_problem(m, n, k, layout="nn", align=align)
    found = refusal(problem, PINNED["hand"], find("level10"), gpu)
    assert found is not None and found.error is ArgumentError
    assert str(found) == f"{name}'s address and rows are aligned to 8 bytes: level10's TMA needs 16"
    assert refusal(problem, PINNED["hand"], find("level9"), gpu) is None
    assert refusal(contiguous_problem(m, n, 0, layout="nn"), PINNED["hand"], find("level10"), gpu) is None


@pytest.mark.parametrize(
    ("rows", "pitch", "bytes_between_rows"),
    [(300, 136, 272), (1, 99, 272)],  # a single row has no pitch: that of 129 elements, rounded up to 16 bytes
)
def test_a_tensor_map_lists_columns_first(
    monkeypatch: pytest.MonkeyPatch, rows: int, pitch: int, bytes_between_rows: int
) -> None:
    given: list[Any] = []

    def encode(made: int, *arguments: Any) -> int:
        given[:] = [made, *(list(x) if isinstance(x, ctypes.Array) else x for x in arguments)]
        ctypes.memset(made, 7, run.MAP_BYTES)
        return 0

    monkeypatch.setattr(run, "_encode_tiled", lambda: encode)
    run.tensor_map.cache_clear()
    assert run.tensor_map(4096, "bf16", rows, 129, pitch, (128, 64)) == bytes([7]) * run.MAP_BYTES
    run.tensor_map.cache_clear()
    # 9 is bfloat16; 2 dimensions; no interleaving, 128 bytes swizzled, 256 bytes into L2, zeros outside.
    assert given[0] % run.MAP_BYTES == 0
    assert given[1:] == [9, 2, 4096, [129, rows], [bytes_between_rows], [64, 128], [1, 1], 0, 3, 3, 0]
