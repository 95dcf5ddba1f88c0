"""An epilogue through shared memory: TMA brings C and Tile operands and takes the outputs away (see `staging`).

Each warp works alone on its 16-row bands, unit by unit, in fragments as wgmma leaves them: a lane has two adjacent
columns of two rows in every group of eight, so a gated unit's columns meet in one lane, 16-bit tensors pass by
ldmatrix and stmatrix, and no shuffle and no barrier between warps is needed. Edges are TMA's: it brings zeros from
outside a matrix and writes nothing there, but for the 16 bytes that a line may end inside of (see `_store`).

What TMA can't take away, for rows that are not aligned to 16 bytes, the warp's lanes copy from the slot to global
memory, line by line and side by side in words of 4 bytes (see `lines`). What TMA can't bring the lanes load to
registers, element by element.

Timeline of a warp for one tile, u counting its units, S = 2 slots
    before the main loop   fetch units 0 … S-1; load Row and Col operands of unit 0 into registers
    unit u                 load Row and Col operands of unit u+1; wait for its fetch, read it; load what is not fetched;
                           compute
                           wait until TMA has read slot u-1, fetch u+S-1 into it (no fetches: until it has read what
                           was stored from slot u % S before; no TMA at all: until every lane has)
                           write the outputs, fence, store: TMA reads on its own, lanes copy at once
A slot's mbarrier takes one arrival, the warp's own that announces a unit's bytes.

Where nothing is fetched into slots, unit u-1 is still in its own while the lanes copy u: so a word that the two share
is written whole, and single elements are left only at the ends of a tile's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint16
from cutlass.cute.nvgpu import cpasync, warp

from cutegemm.kernels import abi, tma
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.epilogue import Epilogue, Place
from cutegemm.kernels.lines import Copy, Lines
from cutegemm.kernels.staging import BAND, SLOTS, TMA_ALIGN, Box, Staging

#: Nodes of a tile's units, up to which they are compiled one by one: but with the addresses of all units' operands held
#: at once, registers are too few.
_UNROLLED = 32
_AT_ONCE = 8  # words that a lane copies at a time: so many loads from shared memory are in flight
GROUP = 8  # columns of one 8x8 matrix of a fragment


@dataclass(frozen=True)
class View:
    """A tensor that TMA copies boxes of: its copy atom, and its boxes in the slots and in global memory."""

    atom: cute.CopyAtom
    slots: cute.Tensor
    boxes: cute.Tensor


@dataclass(frozen=True)
class Tile:
    """A warp's part of a tile of D: how many it has finished before, its first band's number, the tile column's number
    and batch coordinates; and its Row and Col operands' elements in the unit that comes next, by name."""

    number: Any
    band: Any
    column: Any
    l0: Any
    l1: Any
    vectors: dict[str, cute.Tensor]


def descriptor(box: Box, store: bool, v: dict[str, Any], adds: bool = False) -> tuple[cute.CopyAtom, cute.Tensor]:
    """The TMA descriptor that copies boxes of `box.tensor`, or adds them to it."""
    extents = (v["m"], v["n"] // 2 if box.tensor.paired else v["n"])
    stores = cpasync.CopyReduceBulkTensorTileS2GOp if adds else cpasync.CopyBulkTensorTileS2GOp
    op = stores() if store else cpasync.CopyBulkTensorTileG2SOp()
    layout = cute.make_composed_layout(_swizzle(box), 0, cute.make_layout((BAND, box.columns), stride=_strides(box)))
    atom, tensor = cpasync.make_tiled_tma_atom(op, tma.view(box.tensor, extents, v), layout, (BAND, box.columns))
    return atom, tensor


def view(box: Box, atom: cute.CopyAtom, tensor: cute.Tensor, base: cute.Pointer, slots: int, slot_bytes: int) -> View:
    """`box.tensor` with its boxes in `slots` slots from `base` on."""
    stride = slot_bytes // box.itemsize
    layout = cute.make_layout((BAND, box.columns, slots), stride=(*_strides(box), stride))
    pointer = cute.recast_ptr(base + box.offset, _swizzle(box), NUMERIC[box.tensor.access.dtype])
    tiles = cute.local_tile(tensor, (BAND, box.columns), (None, None, None, None))
    staged, boxes = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(cute.make_tensor(pointer, layout), 0, 2),
        cute.group_modes(tiles, 0, 2),
    )  # fmt: skip
    return View(atom, staged, boxes)


def _swizzle(box: Box) -> Any:
    return cute.make_swizzle(box.swizzle_bits, 4, 3)


def _strides(box: Box) -> tuple[int, int]:
    return (box.columns, 1) if box.n_major else (1, BAND)


@dataclass(frozen=True)
class StagedEpilogue(Epilogue):
    """The epilogue of one warp, which finishes `bands` bands of tiles of `columns` columns, `band_step` bands apart.

    `slot` is the number of its first slot, which lies at the address `base`; `barriers` points to the slots' mbarriers.
    """

    staging: Staging
    views: dict[str, View]
    bands: int
    band_step: int
    columns: int
    lane: Any
    slot: Any
    base: Any
    barriers: Any

    @property
    def _units(self) -> int:
        return self.bands * self._across

    @property
    def _across(self) -> int:
        """Units side by side in a tile."""
        return self.columns // self.staging.columns

    @property
    def _groups(self) -> int:
        """Groups of eight columns in a unit."""
        return self.staging.columns // GROUP

    def begin(self, number: Any, band: Any, column: Any, l0: Any, l1: Any) -> Tile:
        """Starts on a tile before its main loop: fetches, and loads that would be waited for after it."""
        sizes = {name: self._groups * (1 if row.paired else 2) for name, row in self.operands("row").items()}
        sizes |= dict.fromkeys(self.operands("col"), 2)
        vectors = {name: cute.make_rmem_tensor((size,), Float32) for name, size in sizes.items()}
        tile = Tile(number, band, column, l0, l1, vectors)
        self._load_vectors(tile, Int32(0))
        if self.staging.loads:
            self._wait_until_read(0)
            for unit in range(min(SLOTS, self._units)):
                self._fetch(tile, Int32(unit))
        return tile

    @cute.jit
    def finish(self, tile: cutlass.Constexpr, accumulators: cute.Tensor) -> None:
        """Finishes a tile. `accumulators` are a thread's of wgmma: of each band, each group of 8 columns, each half of
        the rows, two columns; so each unit's follow those of the unit before."""
        scalars = self.scalars()
        few = self._units * len(self.signature.epilogue.nodes) <= _UNROLLED and not self._unreachable
        unroll = self._units if few else 1
        for unit in cutlass.range(self._units, unroll=unroll):
            groups = range(self._groups)
            acc = [accumulators[4 * g + 2 * half + c] for half in range(2) for g in groups for c in range(2)]
            operands = self._vectors_of(tile)
            self._load_vectors(tile, cutlass.min(unit + 1, self._units - 1))
            self._finish_unit(tile, unit, _vector(acc), scalars, operands)
            _move_up(accumulators, 4 * self._groups)

    def drain(self) -> None:
        """Waits until TMA has read all slots: a block's shared memory goes with its last warp."""
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def _finish_unit(self, tile: cutlass.Constexpr, unit: Int32, acc: Any, scalars: cutlass.Constexpr,
                     operands: cutlass.Constexpr) -> None:  # fmt: skip
        slot = unit % SLOTS
        if cutlass.const_expr(self.staging.loads):
            uses = (self._units - slot + SLOTS - 1) // SLOTS
            cute.arch.mbarrier_wait(self.barriers + slot, (tile.number * uses + unit // SLOTS) & 1)
        fetched = {box.tensor.name: self._read(box, slot) for box in self.staging.loads}
        loaded = {name: self._load(tile, tensor, unit) for name, tensor in self._unreachable.items()}
        outputs = self.combine(acc, scalars, {**operands, **fetched, **loaded})
        if cutlass.const_expr(self.staging.loads):
            cute.arch.sync_warp()  # every lane has read the slot
            if unit > 0 and unit <= self._units - SLOTS:
                self._wait_until_read(0)
                self._fetch(tile, unit + SLOTS - 1)
        elif cutlass.const_expr(not self.views):
            cute.arch.sync_warp()  # every lane has copied from the slot
        elif cutlass.const_expr(self._units % SLOTS == 0):
            self._wait_until_read(SLOTS - 1)
        else:  # the tile before has ended in the slot that this one begins with
            if unit == 0:
                self._wait_until_read(0)
            else:
                self._wait_until_read(SLOTS - 1)
        for box in self.staging.stores:
            self._write(box, slot, outputs[int(box.tensor.name.removeprefix("out"))])
        if cutlass.const_expr(self.views):
            cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        for box in self.staging.stores:
            self._store(tile, box, unit)
        if cutlass.const_expr(any(box.by_tma for box in self.staging.stores)):
            cute.arch.cp_async_bulk_commit_group()

    def _wait_until_read(self, pending: int) -> None:
        """Waits until TMA has read the slots of all stores but the last `pending`."""
        cute.arch.cp_async_bulk_wait_group(pending, read=True)
        cute.arch.sync_warp()

    def _fetch(self, tile: Tile, unit: Any) -> None:
        barrier = self.barriers + unit % SLOTS
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.staging.load_bytes)
        for box in self.staging.loads:
            view = self.views[box.tensor.name]
            target = view.slots[None, self.slot + unit % SLOTS]
            cute.copy(view.atom, self._box(tile, box, unit), target, tma_bar_ptr=barrier)

    @cute.jit
    def _store(self, tile: cutlass.Constexpr, box: cutlass.Constexpr, unit: Int32) -> None:
        """Writes a unit's box to global memory. TMA writes whole chunks of 16 bytes: the lanes copy lines that end
        inside of one, and those that TMA can't take."""
        if cutlass.const_expr(box.by_tma):
            lines = self._lines(tile, box, unit, following=False)
            if lines.end == box.line or lines.end % (TMA_ALIGN // box.itemsize) == 0:
                view = self.views[box.tensor.name]
                cute.copy(view.atom, view.slots[None, self.slot + unit % SLOTS], self._box(tile, box, unit))
            else:
                self._copy_lines(lines, unit, 1)
        else:
            # A slot that TMA fills does not keep the unit before.
            lines = self._lines(tile, box, unit, following=box.n_major and not self.staging.loads)
            self._copy_lines(lines, unit, _AT_ONCE)

    def _lines(self, tile: Tile, box: Box, unit: Any, following: bool) -> Lines:
        """The lines of a unit's box, which do or do not continue those of the unit before, where that is their left
        neighbour."""
        tensor = box.tensor
        band, column = self._coordinates(tile, unit)
        row, place = band * BAND, Place(tile.l0, tile.l1, column * box.columns)
        extent = self.values["n"] // 2 if tensor.paired else self.values["n"]
        count, end = self.values["m"] - row, extent - place.column
        if not box.n_major:
            count, end = end, count
        across = unit % self._across
        begins, ends = Int32(1), Int32(1)
        if following:
            begins, ends = Int32(across == 0), Int32(across == self._across - 1) | Int32(end <= box.line)
        start = self.address(tensor, row, place)
        pitch = self.values[f"stride.{tensor.name}.{tensor.strides[0]}"] * box.itemsize
        odd, alternating = (Int32(x >> 1) & 1 for x in (start, pitch))
        return Lines(box, start, pitch, odd, alternating, count, cutlass.min(end, box.line), begins, ends)

    @cute.jit
    def _copy_lines(self, lines: cutlass.Constexpr, unit: Int32, words: cutlass.Constexpr) -> None:
        """Has the lanes copy `lines` of a unit, `words` each at a time."""
        turn = min(words * lines.at_once, lines.box.lines)
        for first in cutlass.range(0, lines.box.lines, turn, unroll=1):
            copies = list(lines.words(self.lane, first, turn))
            held = [self._word(lines, unit, copy) for copy in copies]
            for copy, word in zip(copies, held, strict=True):
                _store_if(copy.inside, copy.address, word)
        if lines.ragged:
            for copy in lines.singles(self.lane):
                held = self._bits(lines.box, unit % SLOTS, copy.line, copy.at & (lines.box.line - 1), Uint16)
                _store_if(copy.inside, copy.address, held)

    def _word(self, lines: Lines, unit: Any, copy: Copy) -> Any:
        """The bits of a lane's word. Element -1 is the last of the unit before."""
        box, slot = lines.box, unit % SLOTS
        if not lines.may_be_odd:
            return self._bits(box, slot, copy.line, copy.at, Int32)
        before = (unit + (SLOTS - 1) * Int32(copy.at < 0)) % SLOTS
        low = self._bits(box, before, copy.line, copy.at & (box.line - 1), Uint16)
        high = self._bits(box, slot, copy.line, copy.at + 1, Uint16)
        return Int32(low) & 0xFFFF | Int32(high) << 16  # what is loaded as unsigned is extended by its sign

    def _bits(self, box: Box, slot: Any, line: Any, at: Any, kind: Any) -> Any:
        """What lies from element `at` of a line on in a slot, as a number of a `kind`."""
        address = self.base + slot * self.staging.slot_bytes + box.line_offset(line, at)
        pointer = cute.make_ptr(kind, Int32(address), cute.AddressSpace.smem)
        return cute.make_tensor(pointer, cute.make_layout(1))[0]

    def _coordinates(self, tile: Tile, unit: Any) -> tuple[Any, Any]:
        """A unit's band, and its place among units of its width in a row."""
        return tile.band + unit // self._across * self.band_step, tile.column * self._across + unit % self._across

    def _box(self, tile: Tile, box: Box, unit: Any) -> cute.Tensor:
        """Where a unit's box lies in global memory."""
        band, column = self._coordinates(tile, unit)
        l0, l1 = tma.batch(box.tensor, self.values, tile.l0, tile.l1)
        boxes: cute.Tensor = self.views[box.tensor.name].boxes[None, band, column, l0, l1]
        return boxes

    def _load_vectors(self, tile: Tile, unit: Any) -> None:
        """Loads a lane's elements of the Row and Col operands in a unit."""
        band, column = self._coordinates(tile, unit)
        place = Place(tile.l0, tile.l1, column * self.staging.columns + self.lane % 4 * 2)
        for name, tensor in self.operands("row").items():
            self._load_row(tile.vectors[name], tensor, place)
        for name, tensor in self.operands("col").items():
            for half in range(2):
                row = band * BAND + half * 8 + self.lane // 4
                tile.vectors[name][half] = self.load_col(tensor, row, row < self.values["m"], place)

    @cute.jit
    def _load_row(self, target: cute.Tensor, tensor: cutlass.Constexpr, place: cutlass.Constexpr) -> None:
        """A Row's elements of a lane's columns: two, or one where paired, of every group of eight."""
        width, extent, place = self.domain(tensor, place, 2)
        step = GROUP // 2 if cutlass.const_expr(tensor.paired) else GROUP
        span = (self._groups - 1) * step + width
        row, adjacent = self.vector(tensor, None, place, span)
        dtype = NUMERIC[tensor.access.dtype]
        if cutlass.const_expr(adjacent) and place.column + span <= extent:
            for g in cutlass.range_constexpr(self._groups):
                part = cute.make_rmem_tensor((width,), dtype)
                align = min(tensor.access.align, width * dtype.width // 8)
                address = row.iterator.toint() + g * step * (dtype.width // 8)
                pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)
                cute.autovec_copy(cute.make_tensor(pointer, cute.make_layout((width,))), part)
                for c in cutlass.range_constexpr(width):
                    target[g * width + c] = part[c].to(Float32)
        else:
            target.fill(0.0)
            for g in cutlass.range_constexpr(self._groups):
                for c in cutlass.range_constexpr(width):
                    if place.column + g * step + c < extent:
                        target[g * width + c] = row[g * step + c].to(Float32)

    @property
    def _unreachable(self) -> dict[str, abi.TensorArgument]:
        """C and Tile operands that TMA can't bring, by name."""
        tensors = self.operands("tile")
        if self.signature.c is not None:
            tensors["c"] = self.tensors()["c"]
        brought = {box.tensor.name for box in self.staging.loads}
        return {name: tensor for name, tensor in tensors.items() if name not in brought}

    def _load(self, tile: Tile, tensor: abi.TensorArgument, unit: Any) -> Any:
        """A lane's elements of a unit from global memory, in the order of the accumulators. All are loaded at once, and
        none in a branch, which would wait for it: outside of the matrix those at its edge, for what is not stored."""
        band, column = self._coordinates(tile, unit)
        place = Place(tile.l0, tile.l1, column * self.staging.columns + self.lane % 4 * 2)
        width, extent, place = self.domain(tensor, place, 2)
        step = width * GROUP // 2
        elements = []
        for half in range(2):
            row = cutlass.min(band * BAND + half * 8 + self.lane // 4, self.values["m"] - 1)
            for group in range(self._groups):
                for c in range(width):
                    at = cutlass.min(place.column + group * step + c, extent - 1)
                    vector, _ = self.vector(tensor, row, Place(tile.l0, tile.l1, at), 1)
                    elements.append(vector[0].to(Float32))
        return _vector(elements)

    def _vectors_of(self, tile: Tile) -> dict[str, Any]:
        """The Row and Col operands' elements in the order of the accumulators."""
        found = {}
        for name in self.operands("row"):
            elements = list(tile.vectors[name].load().to_elements())
            found[name] = _vector(2 * elements)
        for name in self.operands("col"):
            found[name] = _vector([tile.vectors[name][half] for half in range(2) for _ in range(2 * self._groups)])
        return found

    def _read(self, box: Box, slot: Any) -> Any:
        """A lane's elements of a fetched unit, in the order of the accumulators."""
        dtype = NUMERIC[box.tensor.access.dtype]
        elements: list[Any] = []
        if not _by_matrix(box):
            for half in range(2):
                for group in range(self._groups):
                    for part in self._places(box, slot, half, group):
                        fragment = cute.make_rmem_tensor(part.layout.shape, dtype)
                        cute.autovec_copy(part, fragment)
                        elements += fragment.load().to(Float32).to_elements()
            return _vector(elements)
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(not box.n_major, 4), dtype)
        halves: list[list[Any]] = [[], []]
        for group in range(0, self._groups, 2):
            fragment = cute.make_rmem_tensor((8,), dtype)
            cute.copy(atom, self._line(box, slot, group), fragment)
            values = fragment.load().to(Float32).to_elements()
            for half in range(2):
                halves[half] += [*values[2 * half : 2 * half + 2], *values[2 * half + 4 : 2 * half + 6]]
        return _vector([*halves[0], *halves[1]])

    def _write(self, box: Box, slot: Any, value: Any) -> None:
        """Puts a lane's elements of an output, in the order of the accumulators, into a slot."""
        dtype = NUMERIC[box.tensor.access.dtype]
        elements = value.to(dtype).to_elements()
        per_group = len(elements) // (2 * self._groups)

        def of(half: int, group: int) -> list[Any]:
            first = (half * self._groups + group) * per_group
            return list(elements[first : first + per_group])

        if not _by_matrix(box):
            for half in range(2):
                for group in range(self._groups):
                    given = of(half, group)
                    for part in self._places(box, slot, half, group):
                        size = cute.size(part)
                        cute.autovec_copy(_fragment(given[:size], dtype), part)
                        given = given[size:]
            return
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(not box.n_major, 4), dtype)
        for group in range(0, self._groups, 2):
            given = [x for g in (group, group + 1) for half in range(2) for x in of(half, g)]
            cute.copy(atom, _fragment(given, dtype), self._line(box, slot, group))

    def _line(self, box: Box, slot: Any, group: int) -> cute.Tensor:
        """What this lane addresses for ldmatrix or stmatrix of four matrices: the row halves of two groups."""
        half, line, second = self.lane // 8 % 2, self.lane % 8, self.lane // 16
        if box.n_major:
            return self._at(box, slot, half * 8 + line, (group + second) * GROUP, 8)
        return self._at(box, slot, half * 8, (group + second) * GROUP + line, 8)

    def _places(self, box: Box, slot: Any, half: int, group: int) -> list[cute.Tensor]:
        """Where a lane's elements of a group lie: two adjacent ones, or one by one."""
        row = half * 8 + self.lane // 4
        if box.tensor.paired:
            return [self._at(box, slot, row, group * GROUP // 2 + self.lane % 4, 1)]
        column = group * GROUP + self.lane % 4 * 2
        if box.n_major:
            return [self._at(box, slot, row, column, 2)]
        return [self._at(box, slot, row, column + c, 1) for c in range(2)]

    def _at(self, box: Box, slot: Any, row: Any, column: Any, size: int) -> cute.Tensor:
        address = self.base + slot * self.staging.slot_bytes + box.byte_offset(row, column)
        dtype = NUMERIC[box.tensor.access.dtype]
        pointer = cute.make_ptr(dtype, Int32(address), cute.AddressSpace.smem, assumed_align=size * box.itemsize)
        return cute.make_tensor(pointer, cute.make_layout((size,)))


def _store_if(condition: Any, address: Any, bits: Any) -> None:
    """Stores a number of 16 or 32 bits to global memory. As a branch, each would be waited for on its own."""
    cute.arch.inline_ptx(
        f"st.global.b{bits.width} [{{$r0}}], {{$r1}};", read_only_args=[Int64(address), bits],
        predicate=cutlass.Boolean(condition),
    )  # fmt: skip


def _move_up(registers: cute.Tensor, count: int) -> None:
    """Drops the first `count`. Registers can't be indexed by a loop's variable: each turn finds its own in front."""
    for i in range(cute.size(registers) - count):
        registers[i] = registers[i + count]


def _by_matrix(box: Box) -> bool:
    """Whether a box passes by ldmatrix and stmatrix: 16-bit elements, two adjacent ones a lane."""
    return box.itemsize == 2 and not box.tensor.paired


def _fragment(elements: list[Any], dtype: Any) -> cute.Tensor:
    fragment = cute.make_rmem_tensor((len(elements),), dtype)
    for i, element in enumerate(elements):
        fragment[i] = element
    return fragment


def _vector(elements: list[Any]) -> Any:
    return _fragment(elements, Float32).load()
