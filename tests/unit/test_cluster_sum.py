"""Sums of a cluster without a GPU: who sends what where, what is planned, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from cutegemm import plan
from cutegemm.device import lookup
from cutegemm.errors import ShapeError, UnsupportedArchitectureError
from cutegemm.kernels import workspace
from cutegemm.kernels.cluster_sum import ClusterSum, Received, chunks, slot, starts
from cutegemm.kernels.wgmma_config import CONFIGS, WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.legality import product
from cutegemm.planner.pin import parse_pin
from cutegemm.problem import Access

FAMILY, H200 = FAMILIES["sm90_wgmma"], lookup("H200")
CLUSTERED = [config for config in CONFIGS if config.cluster_k > 1]
TALL = WgmmaConfig(256, 128, stages=3, cluster_k=2, split=2)
PIN = "sm90_wgmma:tile=128x128x64,stages=5,cluster=1x1x2,schedule=cooperative"


def places(config: WgmmaConfig, columns: int) -> Iterator[tuple[int, int, int, int]]:
    """(thread, its register, row, column) of a tile of so many columns, as wgmma spreads it over the consumers."""
    for thread in range(256):
        warp, lane = thread // 32, thread % 32
        register = 0
        for band in range(config.group_m // 64):
            for group in range(columns // 8):
                for half in range(2):
                    for c in range(2):
                        row = warp // 4 * config.group_m + band * 64 + warp % 4 * 16 + half * 8 + lane // 4
                        yield thread, register, row, group * 8 + lane % 4 * 2 + c
                        register += 1


@pytest.mark.parametrize("config", [*CLUSTERED, TALL], ids=str)
def test_each_block_adds_up_its_columns_of_all_parts(config: WgmmaConfig) -> None:
    ranks, held = config.cluster_k, config.accumulators // config.cluster_k
    random = np.random.default_rng(0)
    tiles = random.integers(-99, 99, (ranks, 2 * config.group_m, config.tile_n))  # one of each consumer, or of both
    registers = np.zeros((ranks, 256, config.accumulators), int)
    for thread, register, row, column in places(config, config.tile_n):
        registers[:, thread, register] = tiles[:, row, column]
    received = np.full((ranks, config.received_bytes // 4), 1 << 40)
    totals = np.zeros((ranks, 256, held), int)
    for rank in range(ranks):
        for thread in range(256):
            sums = ClusterSum(config, Received(0, None, None), thread // 32, thread % 32, rank)
            for share, firsts in enumerate(chunks(config)):
                values = np.concatenate([registers[rank, thread, first : first + 4] for first in firsts])
                if share == rank:
                    totals[rank, thread] = values
                    continue
                for place in range(held // 4):
                    at = (sums._mine + sums._offset(slot(rank, share, ranks), place)) // 4
                    assert (received[share, at : at + 4] == 1 << 40).all()  # nothing is written twice
                    received[share, at : at + 4] = values[4 * place : 4 * place + 4]
    assert (received != 1 << 40).all()
    for rank in range(ranks):
        for thread in range(256):
            sums = ClusterSum(config, Received(0, None, None), thread // 32, thread % 32, rank)
            for sender in range(ranks - 1):
                for place in range(held // 4):
                    at = (sums._mine + sums._offset(sender, place)) // 4
                    totals[rank, thread, 4 * place : 4 * place + 4] += received[rank, at : at + 4]
    whole = tiles.sum(0)
    for thread, register, row, column in places(config, config.share_n):
        assert totals[:, thread, register].tolist() == whole[row, column :: config.share_n].tolist()


@pytest.mark.parametrize("config", CLUSTERED, ids=str)
def test_a_warp_sends_each_share_once_and_all_are_sent_to_at_once(config: WgmmaConfig) -> None:
    turns = range(config.cluster_k + starts(config) - 1)
    orders = []
    for warp in range(8):
        first = warp % starts(config)
        orders.append([t % config.cluster_k for t in turns if first <= t < first + config.cluster_k])
        assert sorted(orders[-1]) == list(range(config.cluster_k))
    assert len({order[0] for order in orders}) == starts(config)


def test_parts_of_a_cluster_need_no_workspace() -> None:
    problem = contiguous_problem(512, 512, 16384)
    for split, parts in ((2, 1), (8, 4)):
        made = plan(512, 512, 16384, arch="H200", kernel=f"{PIN},split={split}")
        assert made.kernel == f"{PIN},split={split}"
        assert made.workspace == (parts * 512 * 512 * 4 if parts > 1 else 0)
        estimate = made.candidates[0].estimate
        assert estimate is not None and estimate.terms["sums of a cluster"] > 0
        assert ("sum of parts" in estimate.terms) == (parts > 1)
        inner = product(problem, FAMILY, made.config)
        assert (inner.batch, inner.k) == (parts, 16384 // parts)
        assert inner.signature == workspace.inner(problem.signature, "no", parts)
    # A part more or less, and K's steps do not come out even: no element is lost or counted twice.
    config = WgmmaConfig(128, 64, stages=7, cluster_k=4, split=12)
    assert product(replace(problem, k=64 * 50), FAMILY, config).k == 64 * 5 * 4


def test_a_pin_says_how_many_parts_a_cluster_adds_up() -> None:
    assert parse_pin(PIN).asked.split == 2
    assert parse_pin(f"{PIN},split=6").asked.split == 6
    assert [config.cluster_k for config in parse_pin("sm90_wgmma:cluster=2x1x4").configs] == [4]
    assert parse_pin("sm90_wgmma:cluster=2x1x4").asked.split is None
    for config in CLUSTERED:
        pin = parse_pin(f"{FAMILY.name}:{config}")
        assert (pin.configs, pin.asked.split) == ((config,), config.split)


def test_a_number_of_parts_is_that_of_all() -> None:
    made = plan(512, 512, 16384, arch="H200", split_k=8)
    found = {c.config.cluster_k for c in made.candidates if c.family == FAMILY.name and c.refusal is None}
    assert found == {1, 2, 4}
    assert {c.config.split for c in made.candidates if c.refusal is None} == {8}
    reasons = {c.refusal.reason for c in plan(512, 512, 16384, arch="H200", split_k=6).candidates if c.refusal}
    assert "split=6: must be a multiple of 4, for cluster 1x1x4 adds up 4 parts at a time" in reasons
    auto = plan(512, 512, 16384, arch="H200")
    splits = {(c.config.cluster_k, c.config.split) for c in auto.candidates if c.family == FAMILY.name}
    assert all(split % cluster_k == 0 for cluster_k, split in splits) and (2, 8) in splits
    assert "cluster=1x1x2" in auto.explain()


def test_what_breaks_a_rule_is_refused_by_name() -> None:
    problem, good = contiguous_problem(512, 512, 16384), CLUSTERED[0]
    assert refusal(problem, FAMILY, good, H200) is None
    broken = {
        "split=3: must be a multiple of 2, for cluster 1x1x2 adds up 2 parts at a time": replace(good, split=3),
        "tile_n=48: cluster 1x1x2 shares out multiples of 16 columns": replace(good, tile_n=48),
        "cluster 2x2x4: 16 blocks, and at most 8 are portable": replace(
            good, cluster_m=2, cluster_n=2, cluster_k=4, split=4
        ),
        f"{replace(good, stages=6).smem_bytes} bytes of shared memory: a block on H200 has 232448": replace(
            good, stages=6
        ),
    }
    for text, config in broken.items():
        reason = refusal(problem, FAMILY, config, H200)
        assert reason is not None and text in reason.reason, reason
    apart = replace(problem, signature=replace(problem.signature, outputs=(Access("bf16", "strided", 2),)))
    four = next(config for config in CLUSTERED if config.cluster_k == 4 and config.tile_n == 64)
    reason = refusal(apart, FAMILY, four, H200)
    assert reason is not None
    assert reason.reason == "tile_n=64 in 4 shares: must be a multiple of 128 where outputs leave from registers"
    with pytest.raises(ShapeError, match="split=3: must be a multiple of 2"):
        plan(512, 512, 4096, arch="H200", kernel=f"{PIN},split=3")
    with pytest.raises(UnsupportedArchitectureError, match="split=2: K has 1 steps of 64"):
        plan(512, 512, 64, arch="H200", kernel=PIN)
    with pytest.raises(UnsupportedArchitectureError, match="sm90_wgmma has no kernels for sm_80"):
        plan(512, 512, 4096, arch="A100", kernel=PIN)
