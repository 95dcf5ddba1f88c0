"""From a warp's fp32 accumulators to global memory: alpha, beta·C, the epilogue graph, the final cast, the stores.

An mma fragment (mma.sync and wgmma alike) scatters eight adjacent columns of a row over four lanes, two each. Four such
groups of eight are transposed among the four lanes by shuffles, after which every lane has `WIDTH` adjacent columns.
There every operand and output is one contiguous vector, loaded and stored with the widest access its alignment allows,
and a gated unit's even and odd columns meet in one lane. No shared memory and no barrier is needed.

Edges are predicated per row and per vector; a vector that straddles N falls back to single elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from cutegemm.fusion.to_cute import lower
from cutegemm.kernels import abi
from cutegemm.kernels.cute_types import NUMERIC

if TYPE_CHECKING:
    from cutegemm.problem import Signature

WIDTH = 8  # columns per lane: one 16-byte store of a 16-bit output
BAND = 16  # rows of one mma instruction
CHUNK = 4 * WIDTH  # columns of a row that four lanes share out


@dataclass(frozen=True)
class Place:
    """Where a lane's vector lies: batch coordinates and the column of its first element."""

    l0: Any
    l1: Any
    column: Any


@dataclass(frozen=True)
class WarpEpilogue:
    """The epilogue of one warp tile of `warp_m` x `warp_n`; `values` are the kernel's arguments by name."""

    signature: Signature
    warp_m: int
    warp_n: int
    values: dict[str, Any]
    band_step: int = BAND  # rows from one band to the next

    def tensors(self) -> dict[str, abi.TensorArgument]:
        return {t.name: t for t in abi.tensors(self.signature)}

    @cute.jit
    def run(self, accumulators: cute.Tensor, lane: Int32, row0: Int32, l0: Int32, l1: Int32, column0: Int32) -> None:
        """Finish the warp tile whose first element is (row0, column0) of batch entry (l0, l1).

        `accumulators` are ((2 columns, 2 row halves), bands, groups of 8 columns).
        """
        scalars = self._scalars()
        for chunk in cutlass.range_constexpr(self.warp_n // CHUNK):
            place = Place(l0, l1, column0 + chunk * CHUNK + (lane % 4) * WIDTH)
            vectors = self._row_operands(place)
            for band in cutlass.range_constexpr(self.warp_m // BAND):
                for half in cutlass.range_constexpr(2):
                    groups = [[accumulators[(c, half), band, 4 * chunk + j] for c in range(2)] for j in range(4)]
                    fragment = cute.make_rmem_tensor((WIDTH,), Float32)
                    for i, value in enumerate(_transpose(groups, lane)):
                        fragment[i] = value
                    row = row0 + band * self.band_step + half * 8 + lane // 4
                    self._finish(fragment.load(), row, place, scalars, vectors)

    def _finish(self, acc: Any, row: Any, place: Place, scalars: dict[str, Any], vectors: dict[str, Any]) -> None:
        """Epilogue and stores of one lane's `WIDTH` columns of one row."""
        graph = self.signature.epilogue
        inside = row < self.values["m"]
        alpha = scalars["alpha"]
        # A 0-d device tensor may hold 0, and then the product does not count, whatever it is. So for beta and C below.
        scaled = acc * alpha
        acc = scaled if self.signature.alpha == "float" else _select(alpha == 0.0, cute.zeros_like(acc), scaled)
        tensors = self.tensors()
        if self.signature.c is not None:
            beta = scalars["beta"]
            c = self._load(tensors["c"], row, inside, place, WIDTH, self.values["n"])
            scaled = acc + c * beta
            acc = scaled if self.signature.beta == "float" else _select(beta == 0.0, acc, scaled)
        operands = []
        for i, spec in enumerate(graph.operands):
            name = f"op{i}"
            if spec.kind == "scalar":
                operands.append(scalars[name])
            elif spec.kind == "row":
                operands.append(vectors[name])
            elif spec.kind == "col":
                operands.append(self._load_col(tensors[name], row, inside, place))
            else:
                width, extent, at = self._domain(spec.paired, place)
                operands.append(self._load(tensors[name], row, inside, at, width, extent))
        for i, (output, value) in enumerate(zip(graph.outputs, lower(graph)(acc, operands), strict=True)):
            width, extent, at = self._domain(output.paired, place)
            self._store(tensors[f"out{i}"], value, row, inside, at, width, extent)

    def _domain(self, paired: bool, place: Place) -> tuple[int, Any, Place]:
        """A lane's vector in an operand's or output's own columns: width, number of columns, place."""
        if not paired:
            return WIDTH, self.values["n"], place
        return WIDTH // 2, self.values["n"] // 2, Place(place.l0, place.l1, place.column // 2)

    def _scalars(self) -> dict[str, Any]:
        found = {}
        for name, dtype in abi.scalars(self.signature):
            if dtype is None:
                found[name] = self.values[name]
            else:
                pointer = cute.make_ptr(NUMERIC[dtype], self.values[f"ptr.{name}"], cute.AddressSpace.gmem)
                found[name] = cute.make_tensor(pointer, cute.make_layout(1))[0].to(Float32)
        return found

    def _row_operands(self, place: Place) -> dict[str, Any]:
        """Row operands do not change along M: each lane loads its columns once."""
        tensors = self.tensors()
        found = {}
        for i, spec in enumerate(self.signature.epilogue.operands):
            if spec.kind == "row":
                width, extent, at = self._domain(spec.paired, place)
                always = Int32(0) < self.values["m"]
                found[f"op{i}"] = self._load(tensors[f"op{i}"], None, always, at, width, extent)
        return found

    def _address(self, tensor: abi.TensorArgument, row: Any, place: Place) -> Any:
        """The address of (row, place.column) of `tensor`, in bytes."""
        strides = {dim: self.values[f"stride.{tensor.name}.{dim}"] for dim in tensor.strides}
        offset = Int64(place.l0) * strides["l0"] + Int64(place.l1) * strides["l1"]
        if "m" in tensor.dims:
            offset += Int64(row) * strides.get("m", 1)
        if "n" in tensor.dims:
            offset += Int64(place.column) * strides.get("n", 1)
        return self.values[f"ptr.{tensor.name}"] + offset * (NUMERIC[tensor.access.dtype].width // 8)

    def _load_col(self, tensor: abi.TensorArgument, row: Any, inside: Any, place: Place) -> Any:
        """A row's number for every column; `lower` takes half of them where columns are paired."""
        value = _load_one(self._address(tensor, row, place), inside, NUMERIC[tensor.access.dtype])
        return cute.full((WIDTH,), value.to(Float32), Float32)

    def _load(self, tensor: abi.TensorArgument, row: Any, inside: Any, place: Place, width: int, extent: Any) -> Any:
        """`width` adjacent columns as fp32; elements outside the matrix are not touched and read as 0."""
        dtype = NUMERIC[tensor.access.dtype]
        fragment = cute.make_rmem_tensor((width,), dtype)
        fragment.fill(0)
        count = _count(inside, extent, place.column)
        stride = self.values.get(f"stride.{tensor.name}.n")
        source = _vector_view(self._address(tensor, row, place), dtype, stride, tensor.access.align, width)
        _copy_vector(source, fragment, count, stride is None, width)
        return fragment.load().to(Float32)

    def _store(self, tensor: abi.TensorArgument, value: Any, row: Any, inside: Any, place: Place, width: int,
               extent: Any) -> None:  # fmt: skip
        dtype = NUMERIC[tensor.access.dtype]
        fragment = cute.make_rmem_tensor((width,), dtype)
        fragment.store(value.to(dtype))
        count = _count(inside, extent, place.column)
        stride = self.values.get(f"stride.{tensor.name}.n")
        target = _vector_view(self._address(tensor, row, place), dtype, stride, tensor.access.align, width)
        _copy_vector(fragment, target, count, stride is None, width)


def _transpose(groups: list[list[Any]], lane: Any) -> list[Any]:
    """Column pairs of four groups, as mma spreads them over four lanes -> the eight columns of group `lane % 4`.

    A 4x4 transpose in two exchanges: with the neighbour in bit 0, then in bit 1, of the lane's number.
    """
    for bit in (1, 2):
        upper = (lane & bit) != 0
        for j in range(4):
            if j & bit:
                continue
            for c in range(2):
                low, high = groups[j][c], groups[j | bit][c]
                sent = Float32(cutlass.select_(upper, low, high))
                kept = Float32(cutlass.select_(upper, high, low))
                received = cute.arch.shuffle_sync_bfly(sent, offset=bit)
                groups[j][c] = Float32(cutlass.select_(upper, received, kept))
                groups[j | bit][c] = Float32(cutlass.select_(upper, kept, received))
    return [column for group in groups for column in group]


def _count(inside: Any, extent: Any, column: Any) -> Any:
    """How many elements from `column` on lie in the matrix (more than the vector holds where it lies inside)."""
    return Int32(cutlass.select_(inside, extent - column, Int32(0)))


@cute.jit
def _select(condition: cutlass.Boolean, chosen: Any, other: Any) -> Any:
    result = other
    if condition:
        result = chosen
    return result


@cute.jit
def _load_one(address: Int64, inside: cutlass.Boolean, dtype: cutlass.Constexpr) -> Any:
    value = dtype(0)
    if inside:
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem)
        value = cute.make_tensor(pointer, cute.make_layout(1))[0]
    return value


def _vector_view(address: Any, dtype: Any, stride: Any, align: int, width: int) -> Any:
    """`width` elements at `address`, `stride` elements apart, or adjacent where `stride` is None."""
    size = dtype.width // 8
    if stride is not None:
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=size)
        return cute.make_tensor(pointer, cute.make_layout(width, stride=stride))
    pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=min(align, width * size))
    return cute.make_tensor(pointer, cute.make_layout(width))


@cute.jit
def _copy_vector(source: cute.Tensor, target: cute.Tensor, count: Int32, adjacent: cutlass.Constexpr,
                 width: cutlass.Constexpr) -> None:  # fmt: skip
    """The first `count` of `width` elements: all at once where they are `adjacent` and all there, else one by one."""
    if cutlass.const_expr(adjacent):
        if count >= width:
            cute.autovec_copy(source, target)
        else:
            for j in cutlass.range_constexpr(width - 1):
                if j < count:
                    target[j] = source[j]
    else:
        for j in cutlass.range_constexpr(width):
            if j < count:
                target[j] = source[j]
