"""What the epilogues of all kernels share: the arithmetic on a lane's fp32 accumulators, and loads from global memory.

alpha, beta·C and the graph are the same wherever accumulators come from and however results leave: from registers
(`warp_epilogue`) or through shared memory (`staged_epilogue`).
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


@dataclass(frozen=True)
class Place:
    """Where a lane's vector lies: batch coordinates and the column of its first element."""

    l0: Any
    l1: Any
    column: Any

    def right(self, columns: int) -> Place:
        """The place `columns` further on."""
        return Place(self.l0, self.l1, self.column + columns)


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of one signature; `values` are the kernel's arguments by name."""

    signature: Signature
    values: dict[str, Any]

    def tensors(self) -> dict[str, abi.TensorArgument]:
        return {t.name: t for t in abi.tensors(self.signature)}

    def operands(self, kind: str) -> dict[str, abi.TensorArgument]:
        """The epilogue's operands of a kind by name."""
        tensors = self.tensors()
        specs = enumerate(self.signature.epilogue.operands)
        return {f"op{i}": tensors[f"op{i}"] for i, spec in specs if spec.kind == kind}

    def scalars(self) -> dict[str, Any]:
        """alpha, beta and Scalar operands by name, read where they are 0-d device tensors."""
        found = {}
        for name, dtype in abi.scalars(self.signature):
            if dtype is None:
                found[name] = self.values[name]
            else:
                pointer = cute.make_ptr(NUMERIC[dtype], self.values[f"ptr.{name}"], cute.AddressSpace.gmem)
                found[name] = cute.make_tensor(pointer, cute.make_layout(1))[0].to(Float32)
        return found

    def combine(self, acc: Any, scalars: dict[str, Any], operands: dict[str, Any]) -> tuple[Any, ...]:
        """The outputs, in fp32, of a vector of accumulators and vectors of the operands ("c" among them) by name."""
        alpha = scalars["alpha"]
        # A 0-d device tensor may hold 0, and then the product does not count, whatever it is. So for beta and C below.
        scaled = acc * alpha
        acc = scaled if self.signature.alpha == "float" else _select(alpha == 0.0, cute.zeros_like(acc), scaled)
        if self.signature.c is not None:
            beta = scalars["beta"]
            scaled = acc + operands["c"] * beta
            acc = scaled if self.signature.beta == "float" else _select(beta == 0.0, acc, scaled)
        graph = self.signature.epilogue
        found = {**scalars, **operands}
        return lower(graph)(acc, [found[f"op{i}"] for i in range(len(graph.operands))])

    def domain(self, tensor: abi.TensorArgument, place: Place, width: int) -> tuple[int, Any, Place]:
        """A lane's vector in a tensor's own columns: width, number of columns, place."""
        if not tensor.paired:
            return width, self.values["n"], place
        return width // 2, self.values["n"] // 2, Place(place.l0, place.l1, place.column // 2)

    def address(self, tensor: abi.TensorArgument, row: Any, place: Place) -> Any:
        """The address of (row, place.column) of `tensor`, in bytes."""
        strides = {dim: self.values[f"stride.{tensor.name}.{dim}"] for dim in tensor.strides}
        offset = Int64(place.l0) * strides["l0"] + Int64(place.l1) * strides["l1"]
        if "m" in tensor.dims:
            offset += Int64(row) * strides.get("m", 1)
        if "n" in tensor.dims:
            offset += Int64(place.column) * strides.get("n", 1)
        return self.values[f"ptr.{tensor.name}"] + offset * (NUMERIC[tensor.access.dtype].width // 8)

    def load(self, tensor: abi.TensorArgument, row: Any, inside: Any, place: Place, width: int) -> Any:
        """The elements of a lane's `width` accumulator columns as fp32: those outside the matrix are not touched and
        read as 0."""
        width, extent, place = self.domain(tensor, place, width)
        dtype = NUMERIC[tensor.access.dtype]
        fragment = cute.make_rmem_tensor((width,), dtype)
        fragment.fill(0)
        source, adjacent = self.vector(tensor, row, place, width)
        copy_vector(source, fragment, count(inside, extent, place.column), adjacent, width)
        return fragment.load().to(Float32)

    def load_row(self, tensor: abi.TensorArgument, place: Place, width: int) -> Any:
        """A Row's elements of a lane's `width` columns: the same in every row of D."""
        return self.load(tensor, None, Int32(0) < self.values["m"], place, width)

    def load_col(self, tensor: abi.TensorArgument, row: Any, inside: Any, place: Place) -> Any:
        """A Col's element of one row as fp32, 0 where the row lies outside."""
        return _load_one(self.address(tensor, row, place), inside, NUMERIC[tensor.access.dtype]).to(Float32)

    def vector(self, tensor: abi.TensorArgument, row: Any, place: Place, width: int) -> tuple[cute.Tensor, bool]:
        """`width` elements of a row from `place` on, and whether they are adjacent in memory."""
        dtype, stride = NUMERIC[tensor.access.dtype], self.values.get(f"stride.{tensor.name}.n")
        address, size = self.address(tensor, row, place), dtype.width // 8
        align = size if stride is not None else min(tensor.access.align, width * size)
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=align)
        layout = cute.make_layout(width, stride=1 if stride is None else stride)
        return cute.make_tensor(pointer, layout), stride is None


def count(inside: Any, extent: Any, column: Any) -> Any:
    """How many elements from `column` on lie in the matrix (more than the vector holds where it lies inside)."""
    return Int32(cutlass.select_(inside, extent - column, Int32(0)))


@cute.jit
def copy_vector(source: cute.Tensor, target: cute.Tensor, count: Int32, adjacent: cutlass.Constexpr,
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
