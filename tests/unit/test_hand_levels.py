"""What levels say of themselves: how K is split, and what shared memory and threads their tiles take."""

from __future__ import annotations

import pytest

from cutegemm.hand_kernels import LEVELS, Level, find
from cutegemm.hand_kernels.levels import MAX_SPLITS, SPLIT_STEPS, STATIC_SHARED_LIMIT

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
