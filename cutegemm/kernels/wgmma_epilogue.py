"""The epilogue of a consumer warp of `sm90_wgmma`: through shared memory, or from registers where an output has no
contiguous dimension. Either begins a tile before its main loop and finishes it after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute

from cutegemm.kernels import staged_epilogue
from cutegemm.kernels.staged_epilogue import StagedEpilogue
from cutegemm.kernels.staging import BAND, SLOTS, Staging
from cutegemm.kernels.warp_epilogue import WarpEpilogue
from cutegemm.kernels.wgmma_config import CONSUMERS, INSTRUCTION_M

if TYPE_CHECKING:
    from cutegemm.problem import Signature

WARPS = 4 * CONSUMERS


def descriptors(plan: Staging | None, v: dict[str, Any]) -> tuple[Any, ...]:
    """A TMA copy atom and a tensor for each box of `plan` that TMA copies."""
    if plan is None:
        return ()
    return tuple(
        part for box in plan.by_tma for part in staged_epilogue.descriptor(box, box in plan.stores, v, plan.adds)
    )


def of_warp(signature: Signature, v: dict[str, Any], plan: Staging | None, staged: tuple[Any, ...], rows: int,
            columns: int, warp: Any, lane: Any, slots: Any, fetched: Any) -> Any:  # fmt: skip
    """The epilogue of the `warp`-th of `WARPS`, whose warpgroup multiplies `rows` x `columns` tiles.

    `staged` is what `descriptors` made; `slots` and `fetched` point to the slots and their mbarriers in shared memory.
    """
    bands = rows // INSTRUCTION_M
    if plan is None:
        return FromRegisters(WarpEpilogue(signature, v, bands * BAND, columns, INSTRUCTION_M), lane)
    views = {
        box.tensor.name: staged_epilogue.view(box, atom, tensor, slots, WARPS * SLOTS, plan.slot_bytes)
        for box, atom, tensor in zip(plan.by_tma, staged[::2], staged[1::2], strict=True)
    }
    return StagedEpilogue(
        signature, v, plan, views, bands, INSTRUCTION_M // BAND, columns, lane, warp * SLOTS,
        slots.toint() + warp * (SLOTS * plan.slot_bytes), fetched + warp * SLOTS,
    )  # fmt: skip


@dataclass(frozen=True)
class FromRegisters:
    """A `WarpEpilogue` called as a `StagedEpilogue` is."""

    epilogue: WarpEpilogue
    lane: Any

    def begin(self, number: Any, band: Any, column: Any, l0: Any, l1: Any) -> tuple[Any, ...]:
        """Nothing is done before the main loop; gives the tile's place."""
        return band * BAND, l0, l1, column * self.epilogue.warp_n

    def finish(self, tile: tuple[Any, ...], accumulators: cute.Tensor) -> None:
        """Finishes a tile; `accumulators` are a thread's of wgmma."""
        bands, columns = self.epilogue.warp_m // BAND, self.epilogue.warp_n
        layout = cute.make_layout(((2, 2), bands, columns // 8), stride=((1, 2), columns // 2, 4))
        self.epilogue.run(cute.make_tensor(accumulators.iterator, layout), self.lane, *tile)

    def drain(self) -> None:
        """Nothing is pending."""
