"""What a consumer warpgroup of `sm90_wgmma` tells others: that it has read a stage, and that it is done with a tile's
wgmmas."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.wgmma_config import WARPGROUP, WgmmaConfig


def release(empty: Any, peer: Any, peers: int) -> None:
    """Signals a stage's empty barrier in the CTA `peer` of the cluster, one of `peers` that multicast into the stage.
    What this arrival orders are reads that are done: it publishes no writes to the peer."""
    if peers == 1:
        cute.arch.mbarrier_arrive(empty)
    else:
        cute.arch.mbarrier_arrive(empty, peer)


def finish(config: WgmmaConfig, consumer: Any) -> None:
    """Gives the tensor cores to the other consumer, where they take turns, and waits for the last wgmma."""
    if config.pingpong:
        cute.arch.barrier_arrive(barrier_id=2 - consumer, number_of_threads=2 * WARPGROUP)
    warpgroup.wait_group(0)
