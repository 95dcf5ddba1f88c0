"""Parts of K added up by the CTAs of a cluster that have them, through each other's shared memory.

A thread holds the same places of its tile in every CTA, as wgmma spreads them. So nothing is turned around: of a tile
each CTA finishes `share_n` adjacent columns, the r-th share where its part of K is the r-th of its cluster. A thread
keeps its accumulators of that share, and sends its others to its namesakes, 16 bytes beside those of the next thread. A
column's parts are added in an order that never changes, from its own CTA's on, around: the same inputs give the same
bits. No namesake waits for anything but its own warp in the other CTAs, and no memory is fenced.

Shared memory: (cluster_k - 1) senders x 16 bytes of a thread's share x consumer threads
               received | free, an mbarrier each for every consumer warp
    received    1 arrival, of the warp itself which announces the bytes, then these
    free        cluster_k - 1 arrivals, one of each CTA's namesake: it has read what this warp sent

Timeline of a consumer warp for each tile
    before the main loop    announce the bytes
    after it                wait for free (of the tile before); send; wait for received; add up; signal the others' free
and at the end it waits for free once more: nobody else signals a CTA that has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8

from cutegemm.kernels.wgmma_config import CONSUMERS, SUM_BYTES, WARPGROUP, WgmmaConfig

_THREADS = CONSUMERS * WARPGROUP
_WARPS = _THREADS // 32
_FLOATS = 4  # that one access moves
_CHUNK_BYTES = _FLOATS * SUM_BYTES


def chunks(config: WgmmaConfig) -> list[list[int]]:
    """By share, which of a thread's accumulators belong to it, the first of every four: band after band of rows, and in
    each of them columns."""
    across, share = config.tile_n // 8, config.share_n // 8  # chunks of a band
    bands = config.accumulators // (_FLOATS * across)
    return [
        [_FLOATS * (band * across + first + i) for band in range(bands) for i in range(share)]
        for first in range(0, across, share)
    ]


def starts(config: WgmmaConfig) -> int:
    """How many shares warps begin to send with: a cluster that splits K in two has nothing to choose from."""
    return config.cluster_k if config.cluster_k > 2 else 1


def slot(rank: Any, share: Any, ranks: int) -> Any:
    """Where the sums of the `rank`-th of `ranks` parts lie in the memory of the CTA that finishes `share`, which is
    another's: in the order in which that one adds them."""
    return (rank - share - 1 + ranks) % ranks


@dataclass(frozen=True)
class Received:
    """What other CTAs of the cluster send: the address of the sums, and the two mbarriers of the first warp."""

    sums: Any
    filled: Any
    free: Any


@dataclass(frozen=True)
class ClusterSum:
    """The sums of a thread of the `warp`-th consumer warp of the CTA that is number `rank` of its cluster: the thread's
    accumulators, unless there is a `cluster_k` and so memory for what is `received`."""

    config: WgmmaConfig
    received: Any
    warp: Any
    lane: Any
    rank: Any

    @staticmethod
    def allocate(config: WgmmaConfig, allocator: Any) -> Received | None:
        """Shared memory for it."""
        if config.cluster_k == 1:
            return None
        sums = allocator.allocate_array(Uint8, config.received_bytes, byte_alignment=128)
        filled, free = (allocator.allocate_array(Int64, _WARPS, byte_alignment=8) for _ in range(2))
        return Received(sums.toint(), filled, free)

    @staticmethod
    def init(config: WgmmaConfig, received: Received | None) -> None:
        """Sets up the mbarriers: for one thread, before a cluster barrier."""
        if received is not None:
            for warp in range(_WARPS):
                cute.arch.mbarrier_init(received.filled + warp, 1)
                cute.arch.mbarrier_init(received.free + warp, config.cluster_k - 1)

    def begin(self) -> None:
        """Announces what a tile's sums will bring: for all of a warp, before the main loop."""
        if self.received is not None:
            own_bytes = 32 * self._held * SUM_BYTES
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(
                    self.received.filled + self.warp, (self.config.cluster_k - 1) * own_bytes
                )

    def of(self, number: Any, accumulators: cute.Tensor) -> cute.Tensor:
        """The whole cluster's sums of this thread's places in its CTA's share of the `number`-th tile, in the order of
        accumulators of a tile of `share_n` columns."""
        if self.received is None:
            return accumulators
        total = cute.make_rmem_tensor((self._held,), Float32)
        cute.arch.mbarrier_wait(self.received.free + self.warp, (number + 1) & 1)
        self._send(cute.make_tensor(accumulators.iterator, cute.make_layout(self.config.accumulators)), total)
        cute.arch.mbarrier_wait(self.received.filled + self.warp, number & 1)
        for sender in range(self.config.cluster_k - 1):
            for place in range(self._held // _FLOATS):
                address = Int32(self._mine + self._offset(sender, place))
                pointer = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=_CHUNK_BYTES)
                values = cute.make_rmem_tensor((_FLOATS,), Float32)
                cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout(_FLOATS)), values)
                for j in range(_FLOATS):
                    total[_FLOATS * place + j] = total[_FLOATS * place + j] + values[j]
        self._release()
        return total

    def leave(self, tiles: Any) -> None:
        """Waits until the others have read the sums of the last of `tiles` tiles."""
        if self.received is not None:
            cute.arch.mbarrier_wait(self.received.free + self.warp, (tiles + 1) & 1)

    @cute.jit
    def _send(self, accumulators: cute.Tensor, total: cute.Tensor) -> None:
        """Keeps the accumulators of this CTA's share in `total`, and sends all others to where they are added up: warps
        begin with different shares, so that no CTA is sent to by all at once."""
        cfg = self.config
        plane = cfg.cluster_m * cfg.cluster_n
        own, beside = self.rank // plane, self.rank % plane
        first = self.warp % starts(cfg)
        for share in cutlass.range_constexpr(cfg.cluster_k):
            if own == share:
                for place in cutlass.range_constexpr(self._held // _FLOATS):
                    for j in cutlass.range_constexpr(_FLOATS):
                        total[_FLOATS * place + j] = accumulators[chunks(cfg)[share][place] + j]
        for turn in cutlass.range_constexpr(cfg.cluster_k + starts(cfg) - 1):
            share = turn % cfg.cluster_k
            if turn >= first and turn < first + cfg.cluster_k and own != share:
                there = beside + share * plane
                target = _mapped(self._mine + self._offset(slot(own, share, cfg.cluster_k), 0), there)
                barrier = _mapped((self.received.filled + self.warp).toint(), there)
                for place in cutlass.range_constexpr(self._held // _FLOATS):
                    at = chunks(cfg)[share][place]
                    _store(target, self._offset(0, place), [accumulators[at + j] for j in range(_FLOATS)], barrier)

    @cute.jit
    def _release(self) -> None:
        cfg = self.config
        cute.arch.sync_warp()  # all of the warp have read
        if self.lane < cfg.cluster_k - 1:
            peer = (self.rank + (self.lane + 1) * (cfg.cluster_m * cfg.cluster_n)) % cfg.cluster_size
            cute.arch.mbarrier_arrive(self.received.free + self.warp, peer)

    @property
    def _held(self) -> int:
        """Accumulators of a thread in one share."""
        return self.config.accumulators // self.config.cluster_k

    @property
    def _mine(self) -> Any:
        """Where this thread's first chunk lies, in bytes."""
        return self.received.sums + (self.warp * 32 + self.lane) * _CHUNK_BYTES

    def _offset(self, sender: Any, place: int) -> Any:
        """How far a chunk lies from the first, in bytes."""
        return (sender * (self._held // _FLOATS) + place) * (_THREADS * _CHUNK_BYTES)


def _mapped(address: Any, rank: Any) -> Int32:
    """`address` of shared memory, in the CTA that is number `rank` of the cluster."""
    mapped: Int32 = cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32], read_only_args=[Int32(address), Int32(rank)],
    )  # fmt: skip
    return mapped


def _store(address: Int32, offset: int, values: list[Any], barrier: Int32) -> None:
    """Four sums to `offset` bytes from `address` in the cluster's shared memory, where `barrier` counts them."""
    cute.arch.inline_ptx(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
        f"[{{$r0}} + {offset}], {{{{$r1}}, {{$r2}}, {{$r3}}, {{$r4}}}}, [{{$r5}}];",
        read_only_args=[address, *values, barrier],
    )  # fmt: skip
