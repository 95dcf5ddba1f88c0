"""`StagedEpilogue` copies units to memory of the CPU: the code that a warp runs, lane by lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Int32, Int64

from cutegemm.kernels import staged_epilogue
from cutegemm.kernels.staged_epilogue import StagedEpilogue, Tile
from cutegemm.kernels.staging import BAND, SLOT_BYTES, SLOTS, Box, staging
from cutegemm.planner import contiguous_problem
from cutegemm.problem import Access

COLUMNS = 192  # of a tile
PATTERN = -0x5A5A  # of bytes that nothing may be written to


class OnHost(StagedEpilogue):
    """Its slots are at a 64-bit address."""

    def _bits(self, box: Box, slot: Any, line: Any, at: Any, kind: Any) -> Any:
        address = self.base + slot * SLOT_BYTES + box.line_offset(line, at)
        pointer = cute.make_ptr(kind, Int64(address), cute.AddressSpace.generic)
        return cute.make_tensor(pointer, cute.make_layout(1))[0]


@cute.jit
def _store_if(condition: cutlass.Boolean, address: Int64, bits: Any) -> None:
    if condition:
        pointer = cute.make_ptr(type(bits), address, cute.AddressSpace.generic)
        cute.make_tensor(pointer, cute.make_layout(1))[0] = bits


@cute.jit
def _copy(
    signature: cutlass.Constexpr, slots: Int64, out: Int64, m: Int32, n: Int32, pitch: Int64, unit: Int32
) -> None:
    plan = staging(signature, COLUMNS, COLUMNS)
    across = "n" if signature.outputs[0].major == "m" else "m"
    values = {"m": m, "n": n, "ptr.out0": out, f"stride.out0.{across}": pitch}
    values |= {"stride.out0.l0": Int64(0), "stride.out0.l1": Int64(0)}
    for lane in cutlass.range(32, unroll=1):
        warp = OnHost(signature, values, plan, {}, 2, 4, COLUMNS, lane, 0, slots, None)
        warp._store(Tile(0, Int32(1), Int32(1), Int32(0), Int32(0), {}), plan.stores[0], unit)


@pytest.mark.parametrize(
    ("dtype", "major", "align"),
    [("bf16", "n", 2), ("bf16", "n", 4), ("bf16", "m", 2), ("fp32", "n", 4)],
    ids=str,
)
def test_a_tile_is_copied(dtype: str, major: str, align: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bands of the tile at row 16, column 192; the matrix ends before, within and after it."""
    monkeypatch.setattr(staged_epilogue, "_store_if", _store_if)
    signature = replace(contiguous_problem(512, 512, 512).signature, outputs=(Access(dtype, major, align),))
    plan = staging(signature, COLUMNS, COLUMNS)
    assert plan is not None
    box = plan.stores[0]
    kind = {2: torch.int16, 4: torch.int32}[box.itemsize]
    units = COLUMNS // plan.columns
    copy = cute.compile(_copy, signature, Int64(0), Int64(0), Int32(1), Int32(1), Int64(1), Int32(0))
    for m, n, odd in ((96, 384, 0), (90, 383, 1), (25, 321, 1), (17, 193, 0), (200, 256, 1), (10, 100, 0)):
        length, rows = (n, m) if major == "n" else (m, n)
        pitch = -(-length * box.itemsize // 16) * 16 // box.itemsize + align // box.itemsize
        memory = torch.full((rows * pitch + 64,), PATTERN, dtype=kind)
        start = -memory.data_ptr() % 16 // box.itemsize + 8 + odd * align // box.itemsize
        strides = (pitch, 1) if major == "n" else (1, pitch)
        expected = memory.clone()
        view = expected.as_strided((m, n), strides, start)
        # Random bits, the upper half of the range among them, where signs could spread.
        tile = torch.randint(-(2**15), 2**15, (m, n), dtype=torch.int32).to(kind)
        slots = torch.full((SLOTS * SLOT_BYTES // box.itemsize + 8,), PATTERN, dtype=kind)
        base = -slots.data_ptr() % 16 // box.itemsize
        for unit in range(2 * units):
            row, column = (1 + unit // units * 4) * BAND, COLUMNS + unit % units * box.columns
            for i in range(BAND):
                for j in range(box.columns):
                    if row + i < m and column + j < n:
                        at = unit % SLOTS * SLOT_BYTES + box.byte_offset(i, j)
                        slots[base + at // box.itemsize] = tile[row + i, column + j]
            places = slice(row, row + BAND), slice(column, column + box.columns)
            view[places] = tile[places]
            addresses = slots.data_ptr() + base * box.itemsize, memory.data_ptr() + start * box.itemsize
            copy(*map(Int64, addresses), Int32(m), Int32(n), Int64(pitch), Int32(unit))
        assert torch.equal(memory, expected)
