"""What the epilogue stages in shared memory: boxes in their slots, swizzled as TMA does it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm import Row, Tile, device, epilogue, epilogues
from cutegemm.kernels import abi, wgmma_config
from cutegemm.kernels.staging import BAND, SLOT_BYTES, SLOTS, Box, Staging, staging
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import contiguous_problem
from cutegemm.problem import Access, Signature


def signature(name: str | None = None, **changes: object) -> Signature:
    fused = None if name is None else getattr(epilogues, name)
    return replace(contiguous_problem(512, 512, 512, epilogue=fused).signature, **changes)


def made(of: Signature, tile_n: int = 256, accumulators: int = 128) -> Staging:
    found = staging(of, tile_n, accumulators)
    assert found is not None
    return found


def box(dtype: str, major: str, columns: int, *, offset: int = 0) -> Box:
    return Box(abi.TensorArgument("out0", Access(dtype, major, 16), ("m", "n", "l0", "l1")), columns, offset)


BOXES = [
    box("bf16", "n", 64), box("bf16", "n", 32), box("fp16", "n", 16, offset=512), box("fp32", "n", 32),
    box("fp32", "n", 16, offset=1024), box("bf16", "m", 64), box("bf16", "m", 16), box("fp32", "m", 32),
]  # fmt: skip


@pytest.mark.parametrize("box", BOXES, ids=str)
def test_a_box_holds_every_element_once(box: Box) -> None:
    places = {box.byte_offset(row, column) for row in range(BAND) for column in range(box.columns)}
    assert places == set(range(box.offset, box.offset + box.bytes, box.itemsize))
    assert box.offset + box.bytes <= SLOT_BYTES


@pytest.mark.parametrize("box", BOXES, ids=str)
def test_a_box_is_swizzled_as_tma_does_it(box: Box) -> None:
    """CUDA's swizzle of 32, 64 and 128 bytes: chunk c of 16 bytes in the i-th 128 bytes lies at c XOR i, in as many of
    c's bits as number the chunks of a line."""
    chunks = box.line_bytes // 16
    for row in range(BAND):
        for column in range(box.columns):
            line, along = (row, column) if box.n_major else (column, row)
            plain = line * box.line_bytes + along * box.itemsize
            moved = ((plain // 16) ^ (plain // 128 % chunks)) * 16 + plain % 16
            assert box.byte_offset(row, column) == box.offset + moved


@pytest.mark.parametrize("box", [b for b in BOXES if b.itemsize == 2], ids=str)
def test_a_phase_of_stmatrix_meets_no_bank_twice(box: Box) -> None:
    lines = BAND if box.n_major else box.columns
    for start in range(0, lines, 8):
        for first in range(0, box.line_bytes // 2, 8):
            eight = range(start, start + 8)
            places = [box.byte_offset(i, first) if box.n_major else box.byte_offset(first, i) for i in eight]
            # Lines of 32 bytes share 128 by fours, of 64 by twos: XORing what distinguishes them leaves no more.
            assert len({place % 128 // 16 for place in places}) == 8


@epilogue
def three_tiles(acc, bias: Row, x: Tile, y: Tile, z: Tile):
    return acc + bias + x + y + z


@pytest.mark.parametrize(
    ("of", "columns", "loads", "stores"),
    [
        (signature(), 64, [], [("out0", 64, 0)]),
        (signature(outputs=(Access("fp32", "n", 16),)), 32, [], [("out0", 32, 0)]),
        (signature(outputs=(Access("bf16", "m", 16),)), 64, [], [("out0", 64, 0)]),
        (signature("bias_add"), 64, [("op1", 64, 0)], [("out0", 64, 0)]),
        (signature("swiglu"), 64, [], [("out0", 32, 0)]),
        (signature("bias_gelu_aux"), 32, [], [("out0", 32, 0), ("out1", 32, 1024)]),
        (signature(c=Access("fp32", "n", 16)), 32, [("c", 32, 0)], [("out0", 32, 0)]),
        (
            signature("bias_gelu_aux", outputs=(Access("bf16", "n", 16), Access("fp32", "n", 16))), 16, [],
            [("out1", 16, 0), ("out0", 16, 1024)],
        ),
    ],
)  # fmt: skip
def test_units_are_as_wide_as_slots_allow(
    of: Signature, columns: int, loads: list[object], stores: list[object]
) -> None:
    found = made(of)
    assert found.columns == columns
    assert [(b.tensor.name, b.columns, b.offset) for b in found.loads] == loads
    assert [(b.tensor.name, b.columns, b.offset) for b in found.stores] == stores
    for boxes in (found.loads, found.stores):
        assert sum(b.bytes for b in boxes) <= SLOT_BYTES
        assert all(b.offset % (8 * b.line_bytes) == 0 for b in boxes)
    assert found.load_bytes == sum(b.bytes for b in found.loads)


def test_units_are_narrower_where_slots_are_halved() -> None:
    half = SLOT_BYTES // 2
    plain, fp32 = staging(signature(), 256, 128, half), staging(signature(c=Access("fp32", "n", 16)), 256, 128, half)
    assert plain is not None and (plain.columns, plain.slot_bytes) == (32, half)
    assert fp32 is not None and fp32.columns == 16
    both = signature("bias_gelu_aux", outputs=(Access("fp32", "n", 16), Access("fp32", "n", 16)))
    assert made(both).columns == 16
    assert staging(both, 256, 128, half) is None


@pytest.mark.parametrize("config", wgmma_config.CONFIGS, ids=str)
def test_slots_are_halved_where_stages_leave_no_room(config: WgmmaConfig) -> None:
    whole = config.smem_bytes + 8 * SLOTS * (SLOT_BYTES - config.slot_bytes)
    assert config.slot_bytes == (SLOT_BYTES if whole <= wgmma_config.SMEM_BYTES else SLOT_BYTES // 2)
    assert config.smem_bytes <= wgmma_config.SMEM_BYTES


def test_slots_are_halved_for_as_much_as_the_gpus_have() -> None:
    assert {gpu.smem_per_block for gpu in device.known() if gpu.arch == "sm_90a"} == {wgmma_config.SMEM_BYTES}


def test_units_are_narrower_where_registers_are_few() -> None:
    assert made(signature("bias_add"), 192, 192).columns == 32
    assert made(signature("bias_gelu"), 192, 192).columns == 32
    assert made(signature(), 192, 192).columns == 64
    assert made(signature("bias_add", c=Access("bf16", "n", 16)), 192, 192).columns == 16
    assert made(signature("add"), 192, 192).columns == 32
    loaded = signature("bias_add", operands=(Access("bf16", "n", 16), Access("bf16", "n", 2)))
    assert made(loaded, 192, 192).columns == 16


def test_units_divide_the_tile() -> None:
    assert [made(signature(), tile_n, 64).columns for tile_n in (224, 96, 48, 16)] == [32, 32, 16, 16]


@pytest.mark.parametrize(
    ("of", "loads", "stores"),
    [
        (signature(outputs=(Access("bf16", "n", 8),)), [], []),
        (signature(outputs=(Access("fp32", "m", 4),)), [], []),
        (signature(c=Access("bf16", "n", 2)), [], ["out0"]),
        (signature("add", operands=(Access("bf16", "strided", 2),)), [], ["out0"]),
        (signature("bias_add", c=Access("bf16", "m", 4), outputs=(Access("bf16", "n", 4),)), ["op1"], []),
        (signature("bias_gelu_aux", outputs=(Access("bf16", "n", 2), Access("fp32", "n", 16))), [], ["out1"]),
    ],
    ids=["narrow output", "narrow M-major output", "narrow C", "strided Tile", "narrow C and output", "one of two"],
)  # fmt: skip
def test_what_tma_does_not_copy(of: Signature, loads: list[str], stores: list[str]) -> None:
    """Lanes copy such an output from where it is staged, and load such an operand to registers."""
    found = made(of)
    assert [b.tensor.name for b in found.loads] == loads
    assert all(b.by_tma for b in found.loads)
    assert [b.tensor.name for b in found.stores if b.by_tma] == stores
    assert {b.tensor.name for b in found.stores} == {f"out{i}" for i in range(len(of.outputs))}
    assert [b.tensor.name for b in found.by_tma] == [*loads, *stores]


@pytest.mark.parametrize(
    "of",
    [
        signature(outputs=(Access("bf16", "strided", 2),)),
        replace(contiguous_problem(512, 512, 512, epilogue=three_tiles, dtype="fp16").signature, operands=(
            Access("fp16", "n", 16), *3 * (Access("fp32", "n", 16),)
        )),
    ],
    ids=["strided output", "more than a slot holds"],
)  # fmt: skip
def test_what_is_not_staged(of: Signature) -> None:
    assert staging(of, 256, 128) is None
