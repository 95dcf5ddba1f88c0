"""The sum of parts of K without a GPU: which blocks, threads and turns its own code makes, and how many blocks fit."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from cutlass.base_dsl.enums import Arch

from cutegemm import device
from cutegemm.device import DeviceSpec
from cutegemm.kernels import reduction, target
from cutegemm.kernels.reduction import SumParts
from cutegemm.kernels.warp_epilogue import WIDTH
from cutegemm.kernels.workspace import lanes_of
from cutegemm.planner import contiguous_problem

SIGNATURE = contiguous_problem(8, 8, 8).signature
HOPPER = [gpu for gpu in device.known() if gpu.compute_capability >= (9, 0)]


class Total(list):  # type: ignore[type-arg]
    """A lane's sums."""

    def load(self) -> Total:
        return self


class Grid:
    """What the host and the kernel find, for one thread at a time: what is finished, and how often a thread shuffles
    numbers with others of its warp."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.finished: Counter[tuple[Any, ...]] = Counter()
        self.shuffled: Counter[tuple[int, int]] = Counter()
        self.block = self.tid = self.blocks = self.threads = 0
        arch = SimpleNamespace(
            thread_idx=lambda: (self.tid, 0, 0), block_idx=lambda: (self.block, 0, 0),
            block_dim=lambda: (self.threads, 1, 1), shuffle_sync_bfly=self._shuffle,
        )  # fmt: skip
        cute = SimpleNamespace(arch=arch, ceil_div=lambda x, y: -(-x // y))
        cutlass = SimpleNamespace(range=lambda *bounds, unroll: range(*bounds), const_expr=bool, min=min, max=max)
        epilogue = SimpleNamespace(scalars=dict, operands=lambda _: {}, finish=self._finish)
        fakes = {"cute": cute, "cutlass": cutlass, "Int64": int, "since_hopper": bool}
        for name, fake in (fakes | {"WarpEpilogue": lambda *_: epilogue}).items():
            monkeypatch.setattr(reduction, name, fake)

    def run(self, split: int, v: dict[str, int]) -> None:
        pitch = -(-v["n"] // WIDTH) * WIDTH
        inspect.unwrap(SumParts.launch)(self._sum(split), v, 0, pitch, None)

    def _sum(self, split: int) -> Any:
        kernel = inspect.unwrap(SumParts.kernel)

        def own(start: int, part_bytes: int, lane: int, lanes: int) -> Total:
            assert 0 <= start < part_bytes and start % 32 == 0 and lane < lanes
            return Total([0.0] * WIDTH)

        made = SimpleNamespace(signature=SIGNATURE, split=split, _own=own)

        def launch(arguments: Any, grid: Any, block: Any, max_number_threads: Any, **_: Any) -> None:
            self.blocks, self.threads = grid[0], block[0]
            assert self.threads % 32 == 0 and self.threads <= max_number_threads[0]
            for place in itertools.product(range(self.blocks), range(self.threads)):
                self.block, self.tid = place
                kernel(made, *arguments)

        made.kernel = lambda *arguments: SimpleNamespace(launch=lambda **sizes: launch(arguments, **sizes))
        return made

    def _shuffle(self, value: float, offset: int) -> float:
        self.shuffled[self.block, self.tid] += 1
        return value

    def _finish(self, values: Any, row: int, place: Any, *_: Any) -> None:
        self.finished[row, place.column, place.l0, place.l1] += 1


@pytest.mark.parametrize(
    ("m", "n", "l0", "l1", "split", "sm_count"),
    [(1, 9, 1, 1, 3, 4), (3, 17, 2, 1, 2, 1), (130, 190, 2, 1, 8, 1), (65, 70, 1, 3, 4, 1), (40, 41, 3, 2, 16, 2)],
)
def test_each_vector_is_finished_once_and_warps_stay_together(
    m: int, n: int, l0: int, l1: int, split: int, sm_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(monkeypatch)
    grid.run(split, defaultdict(int, m=m, n=n, l0=l0, l1=l1, sm_count=sm_count))
    assert 1 <= grid.blocks <= 2 * sm_count
    assert grid.finished == Counter(itertools.product(range(m), range(0, n, 8), range(l0), range(l1)))
    for (block, tid), count in grid.shuffled.items():
        assert all(grid.shuffled[block, tid // 32 * 32 + lane] == count for lane in range(32))
    assert bool(grid.shuffled) == (lanes_of(split) > 1)


@pytest.mark.parametrize("gpu", HOPPER, ids=lambda gpu: gpu.name)
def test_as_many_blocks_fit_as_share_its_memory(gpu: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    dsl = SimpleNamespace(get_arch_enum=lambda: Arch[gpu.arch])
    monkeypatch.setattr(target, "BaseDSL", SimpleNamespace(_get_dsl=lambda: dsl))
    for blocks in (1, 2, 3):
        asked = target.share_of_shared_memory(blocks)
        assert asked <= gpu.smem_per_block
        taken = asked + gpu.smem_reserved_per_block
        assert blocks * taken <= gpu.smem_per_sm < (blocks + 1) * taken
