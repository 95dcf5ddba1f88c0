"""Launching a hand-written kernel: a cubin loaded by the driver, its arguments as one struct, any stream.

A level that copies by TMA takes tensor maps of A and B as well, which the driver encodes.
A level that splits K needs a workspace for the parts' sums. It is this module's own: torch's allocator gives it for
each launch that splits, on the current stream, which is the one launched on, so that its reuse is ordered behind it.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from cutegemm.device import bound_device
from cutegemm.dtypes import lookup
from cutegemm.errors import CuteGemmError
from cutegemm.hand_kernels import glue
from cutegemm.hand_kernels.build import level_of
from cutegemm.kernels import abi, cuda_epilogue

if TYPE_CHECKING:
    from cutegemm.compiler import Spec
    from cutegemm.hand_kernels.levels import Level
    from cutegemm.problem import Signature

#: Bytes of a tensor map; the driver wants its own copy aligned to as many.
MAP_BYTES = 128


class HandKernel:
    """A loaded kernel. Called with the values of `abi.arguments(spec.signature)` and a stream's handle, it launches on
    that stream, in the current context; any device of the architecture will do.
    """

    def __init__(self, spec: Spec, cubin: bytes, symbol: str) -> None:
        from cuda.bindings import driver
        from cuda.core import ObjectCode

        self._driver = driver
        self._level = level_of(spec)
        names = [argument.name for argument in abi.arguments(spec.signature)]
        self._sizes = [names.index(size) for size in ("m", "n", "k")]
        self._sm_count = names.index("sm_count")
        self._operands = [names.index(f"ptr.{x}") for x in "ab"]
        # A stride that is not passed is that of a matrix one element wide, which no level with maps takes.
        strides = ("stride.a.m", "stride.b.k")
        self._pitches = [names.index(stride) if stride in names else None for stride in strides]
        self._dtype = spec.signature.a.dtype
        self._struct, sources = arguments_struct(spec.signature)
        places = {name: i for i, name in enumerate((*names, "stream", *glue.LAUNCH))}
        self._sources = [None if source is None else places[source] for source in sources]
        # A kernel of a library is nobody's context's: the driver loads it into each that launches it.
        self._code = ObjectCode.from_cubin(cubin)
        self._function = int(self._code.get_kernel(symbol).handle)
        self._prepared: set[int] = set()

    def __call__(self, *values: Any) -> None:
        level, stream = self._level, values[-1]
        m, n, k = (values[i] for i in self._sizes)
        splits = level.splits(m, n, k, self._dtype, values[self._sm_count])
        blocks = level.grid(m, n, splits, values[self._sm_count])
        # It has to live until the kernel is launched, and no longer.
        workspace = Workspace(level, m, n, splits) if splits > 1 else None
        given = (*values, splits, *((0, 0) if workspace is None else workspace.addresses))
        arguments: list[Any] = [self._struct(*(1 if i is None else given[i] for i in self._sources))]
        if level.boxes is not None:
            arguments.append((ctypes.c_char * (2 * MAP_BYTES)).from_buffer_copy(self._maps(level, values, m, n, k)))
        parameters = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        device = bound_device()
        if level.dynamic_bytes > 0:
            self._allow_dynamic(device)
        (error,) = self._driver.cuLaunchKernel(
            self._function,
            *(blocks, 1, 1),
            *(*level.block, 1),
            level.dynamic_bytes,
            stream,
            ctypes.addressof(parameters),
            0,
        )
        _check(error, f"launching {level}")

    def _maps(self, level: Level, values: tuple[Any, ...], m: int, n: int, k: int) -> bytes:
        """The tensor maps of A and B. With no K there is nothing to map, and nothing is read."""
        assert level.boxes is not None
        if k == 0:
            return bytes(2 * MAP_BYTES)
        a, b = (values[i] for i in self._operands)
        lda, ldb = (1 if i is None else values[i] for i in self._pitches)
        box_a, box_b = level.boxes
        return tensor_map(a, self._dtype, m, k, lda, box_a) + tensor_map(b, self._dtype, k, n, ldb, box_b)

    def _allow_dynamic(self, device: int) -> None:
        """More than 48 KB of shared memory takes an attribute, set once on each device."""
        driver = self._driver
        if device not in self._prepared:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (error,) = driver.cuKernelSetAttribute(attribute, self._level.dynamic_bytes, self._function, device)
            _check(error, f"allowing {self._level.dynamic_bytes} bytes of shared memory")
            self._prepared.add(device)


class Workspace:
    """What the blocks that share a tile need: room for each one's sums, and for every tile a ticket counter at 0."""

    def __init__(self, level: Level, m: int, n: int, splits: int, device: str = "cuda") -> None:
        import torch

        self._parts = torch.empty(level.part_bytes(m, n, splits) // 4, dtype=torch.float32, device=device)
        self._tickets = torch.zeros(level.blocks(m, n), dtype=torch.int32, device=device)

    @property
    def addresses(self) -> tuple[int, int]:
        """Those of the sums and of the counters."""
        return self._parts.data_ptr(), self._tickets.data_ptr()


def arguments_struct(signature: Signature) -> tuple[type[ctypes.Structure], list[str | None]]:
    """`Arguments` as the C++ compiler lays it out, and where each of its fields comes from (see
    `cuda_epilogue.Field`)."""
    fields = (*glue.arguments(signature), *cuda_epilogue.epilogue_arguments(signature))
    return cuda_epilogue.structure(fields), [field.source for field in fields]


@lru_cache(maxsize=256)
def tensor_map(address: int, dtype: str, rows: int, columns: int, pitch: int, box: tuple[int, int]) -> bytes:
    """What the driver makes of a row-major matrix, rows `pitch` elements apart, to be copied in boxes of `box` (rows,
    columns) into rows of 128 swizzled bytes; what lies outside of it is read as zeros.

    A map says where the matrix is and not what is in it, so that it holds as long as the metadata does. The driver's
    function is called through its address: the bindings' own wrapper gives it a map that may not be aligned.
    """
    from cuda.bindings import driver

    itemsize = lookup(dtype).itemsize
    # A single row has no pitch, whatever its tensor says.
    pitch_bytes = pitch * itemsize if rows > 1 else -(-columns * itemsize // 16) * 16
    memory = (ctypes.c_char * (2 * MAP_BYTES))()
    made = -(-ctypes.addressof(memory) // MAP_BYTES) * MAP_BYTES
    kind = driver.CUtensorMapDataType
    error = _encode_tiled()(
        made,
        int(kind.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if dtype == "bf16" else kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
        2,
        address,
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(pitch_bytes),
        (ctypes.c_uint32 * 2)(box[1], box[0]),
        (ctypes.c_uint32 * 2)(1, 1),
        int(driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        int(driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
        int(driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
        int(driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    _check(driver.CUresult(error), f"encoding the tensor map of {rows} x {columns}, rows {pitch} elements apart,")
    return ctypes.string_at(made, MAP_BYTES)


@cache
def _encode_tiled() -> Any:
    """The driver's cuTensorMapEncodeTiled, as it has been since CUDA 12."""
    from cuda.bindings import driver

    error, address, _ = driver.cuGetProcAddress(b"cuTensorMapEncodeTiled", 12000, 0)
    _check(error, "looking for cuTensorMapEncodeTiled")
    number, pointer = ctypes.c_int, ctypes.c_void_p
    kinds = (pointer, number, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer, *(number,) * 4)
    return ctypes.CFUNCTYPE(number, *kinds)(int(address))


def _check(error: Any, doing: str) -> None:
    if int(error) != 0:
        raise CuteGemmError(f"{doing} failed: {error.name}")
