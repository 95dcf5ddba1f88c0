"""Tensors of the argument list as TMA sees them: two dimensions of their own, the batch modes l0 and l1, and the pieces
of operands that have some."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cutegemm.kernels import abi
from cutegemm.kernels.cute_types import NUMERIC
from cutegemm.kernels.staging import TMA_ALIGN


def view(tensor: abi.TensorArgument, extents: tuple[Any, Any], v: dict[str, Any]) -> cute.Tensor:
    """`tensor` as its descriptor describes it; a batch mode that is broadcast counts as one entry."""
    dtype = NUMERIC[tensor.access.dtype]
    unit = TMA_ALIGN * 8 // dtype.width
    shape: list[Any] = list(extents)
    strides: list[Any] = []
    for dim, extent in zip(tensor.dims, extents, strict=False):
        stride = v.get(f"stride.{tensor.name}.{dim}")
        if stride is not None:  # that of a single row or column means nothing, and may be anything
            stride = Int64(cutlass.select_(extent == 1, Int64(unit), stride))
        strides.append(1 if stride is None else cute.assume(stride, divby=unit))
    for dim in tensor.dims[2:]:
        stride = v[f"stride.{tensor.name}.{dim}"]
        shape.append(Int32(cutlass.select_(stride == 0, Int32(1), v[dim])))
        strides.append(cute.assume(Int64(cutlass.select_(stride == 0, Int64(unit), stride)), divby=unit))
    pointer = cute.make_ptr(dtype, v[f"ptr.{tensor.name}"], cute.AddressSpace.gmem, assumed_align=TMA_ALIGN)
    return cute.make_tensor(pointer, cute.make_layout(tuple(shape), stride=tuple(strides)))


def batch(tensor: abi.TensorArgument, v: dict[str, Any], l0: Any, l1: Any) -> tuple[Any, Any]:
    """Batch coordinates in `view(tensor)`, in which a broadcast mode has one entry."""
    return tuple(
        Int32(cutlass.select_(v[f"stride.{tensor.name}.{dim}"] == 0, Int32(0), index))
        for dim, index in zip(tensor.dims[2:4], (l0, l1), strict=True)
    )
