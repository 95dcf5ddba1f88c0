"""Launching a CUTLASS C++ kernel: the library's host part makes the kernel's parameters, the driver launches it.

Parts of K and stream-K need a workspace: torch's allocator gives it for each launch, on the current stream, which is
the one launched on, so that its reuse is ordered behind it. A batch is one launch an entry.
"""

from __future__ import annotations

import ctypes
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from cutegemm.cutlass_cpp import emit
from cutegemm.cutlass_cpp.build import IMAGE
from cutegemm.cutlass_cpp.config import CutlassConfig, Raster
from cutegemm.device import bound_device
from cutegemm.dtypes import lookup
from cutegemm.errors import CuteGemmError
from cutegemm.kernels import abi, cuda_epilogue
from cutegemm.kernels.cuda_epilogue import Field

if TYPE_CHECKING:
    from cutegemm.compiler import Spec

_RASTERS = get_args(Raster)
_SUM_THREADS = 256
_ONE_COPY = 8  # elements that a copy moves at most
_PACK_TILE = 64  # rows, and elements of K, that a block copies
_ALIGN = 16  # of a copy's rows, in bytes
#: What a launch adds to the values of a call and its stream.
_EXTRA = ("memory", "blocks_per_sm", "swizzle", "raster", "lda", "ldb", "parts", "padding")
_REMEMBERED = 256  # sizes whose workspace is known
#: What the kernel that adds parts up is given (parts.cuh), its epilogue's fields left out.
_PARTS = (
    Field("sums", "const float*", "Q", "memory"),
    *(Field(name, "int", "i", name) for name in ("m", "n", "parts", "padding")),
)


class _Packing(ctypes.Structure):
    """`Packing` of pack.cuh."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("source", "target")),
        *((name, ctypes.c_int64) for name in ("row_stride", "k_stride", "pitch")),
        *((name, ctypes.c_int32) for name in ("rows", "k")),
    ]


class _Facts(ctypes.Structure):
    """`Facts` of call.cuh."""

    _fields_ = [(name, ctypes.c_int64) for name in ("parameter_bytes", "parameter_align", "threads", "shared_bytes")]


class _Tensor(NamedTuple):
    """Places of a tensor's address and batch strides among the values of a call, and its elements' bytes."""

    address: int
    strides: tuple[int, int]
    itemsize: int


class _Operand(NamedTuple):
    """Places of A's or B's strides across K and along it (None: 1) and of its rows, and whether it is copied first."""

    across: int | None
    along: int | None
    rows: int
    packed: bool


class _Struct:
    """A struct's type, and the values of a call that fill it."""

    def __init__(self, fields: tuple[Field, ...], places: dict[str, int]) -> None:
        self._type = cuda_epilogue.structure(fields)
        self._places = [None if field.source is None else places[field.source] for field in fields]

    def __call__(self, values: list[Any]) -> ctypes.Structure:
        return self._type(*(1 if i is None else values[i] for i in self._places))


class _Image:
    """The device's part of a kernel, in the driver's hands. It is no context's: the driver loads it into each that
    launches it."""

    def __init__(self, image: bytes, symbol: str, config: CutlassConfig) -> None:
        from cuda.core import ObjectCode

        self._code = (ObjectCode.from_cubin if image.startswith(b"\x7fELF") else ObjectCode.from_ptx)(image)
        self.kernel = self._code.get_kernel(symbol)
        self.function = int(self.kernel.handle)
        self.packer = self._handle(f"{symbol}_pack") if config.pack != "no" else None
        self.sum = self._handle(f"{symbol}_sum") if config.reduction == "parallel" else None

    def _handle(self, name: str) -> int:
        return int(self._code.get_kernel(name).handle)


@cache
def driver() -> ModuleType:
    """The driver's functions."""
    from cuda.bindings import driver

    module: ModuleType = driver
    return module


class CutlassKernel:
    """A loaded kernel. Called with the values of `abi.arguments(spec.signature)` and a stream's handle, it launches on
    that stream, in the current context; any device that its image is for will do.
    """

    def __init__(self, spec: Spec, path: Path, symbol: str) -> None:
        self._config = emit.config_of(spec)
        self._library = library = ctypes.CDLL(str(path.absolute()))
        self._facts = _Facts.in_dll(library, f"{symbol}_facts")
        self._prepare = getattr(library, f"{symbol}_prepare")
        self._workspace = getattr(library, f"{symbol}_workspace")
        self._workspace.restype = ctypes.c_int64

        names = [argument.name for argument in abi.arguments(spec.signature)]
        self._sizes = [names.index(size) for size in ("m", "n", "k", "sm_count")]
        self._batch = [names.index(size) for size in ("l0", "l1")]
        self._tensors = [
            _Tensor(
                names.index(f"ptr.{t.name}"),
                (names.index(f"stride.{t.name}.l0"), names.index(f"stride.{t.name}.l1")),
                lookup(t.access.dtype).itemsize,
            )
            for t in abi.tensors(spec.signature)
        ]
        places = {name: i for i, name in enumerate((*names, "stream", *_EXTRA))}
        self._lda = places["lda"]
        signature = spec.signature
        self._operands = []
        for letter, access in (("a", signature.a), ("b", signature.b)):
            across, along = (places.get(name or "") for name in emit.strides(letter, access))
            rows = places["m" if letter == "a" else "n"]
            self._operands.append(_Operand(across, along, rows, packed=letter in self._config.pack))
        self._itemsize = lookup(signature.a.dtype).itemsize
        self._call = _Struct(emit.call_fields(spec.signature), places)
        self._parts = _Struct((*_PARTS, *cuda_epilogue.epilogue_arguments(spec.signature)), places)
        self._symbol = symbol
        self._prepared: dict[int, int] = {}
        self._needs: dict[tuple[int, ...], int] = {}

    def __call__(self, *values: Any) -> None:
        config, stream = self._config, values[-1]
        pitches = [self._pitch(values, operand) for operand in self._operands]
        raster = _RASTERS.index(config.raster)
        given = [
            *values,
            0,
            self._blocks_per_sm(),
            config.swizzle,
            raster,
            *pitches,
            config.split,
            0,
        ]  # as _EXTRA has them
        nothing = self._zeros(given)
        own = self._workspace_bytes(given)
        size = _aligned(own) + sum(_aligned(self._packed_bytes(given, operand)) for operand in self._operands)
        # It has to live until the kernels are launched, and no longer.
        memory = _allocate(size) if size > 0 else None
        if memory is not None:
            given[len(values)] = memory.data_ptr()
        first, second = (values[i] for i in self._batch)
        for j in range(second):
            for i in range(first):
                moved = self._moved(given, i, j)
                if config.pack != "no":
                    self._pack(moved, moved[len(values)] + _aligned(own), stream)
                self._launch(moved, stream)
        del memory, nothing

    def _pitch(self, values: tuple[Any, ...], operand: _Operand) -> int:
        """The leading dimension of an operand: that of its copy, where it has one."""
        if operand.packed:
            return int(-(-values[self._sizes[2]] * self._itemsize // _ALIGN) * _ALIGN // self._itemsize)
        place = operand.along if operand.across is None else operand.across
        lines = values[self._sizes[2] if operand.across is None else operand.rows]
        # The stride of a dimension of one element means nothing, and may not suit CUTLASS.
        return 0 if place is None or lines == 1 else int(values[place])

    def _packed_bytes(self, values: list[Any], operand: _Operand) -> int:
        place = self._lda + self._operands.index(operand)
        return int(values[operand.rows] * values[place] * self._itemsize) if operand.packed else 0

    def _pack(self, values: list[Any], address: int, stream: int) -> None:
        """Copy the operands that `pack` names to `address` and on, and have `values` speak of the copies."""
        k, image = values[self._sizes[2]], self._image
        for place, operand in enumerate(self._operands):
            if not operand.packed:
                continue
            tensor, rows, pitch = self._tensors[place], values[operand.rows], values[self._lda + place]
            across, along = (1 if x is None else values[x] for x in (operand.across, operand.along))
            packing = _Packing(values[tensor.address], address, across, along, pitch, rows, k)
            blocks = -(-rows // _PACK_TILE) * -(-k // _PACK_TILE)
            assert image.packer is not None
            self._start(image.packer, (blocks, 1, 1), _SUM_THREADS, 0, ctypes.addressof(packing), stream)
            values[tensor.address] = address
            address += _aligned(self._packed_bytes(values, operand))

    def _zeros(self, values: list[Any]) -> Any:
        """Where K is empty, memory to multiply instead: a column and a row of zeros, which every k reads."""
        m, n, k, _ = (values[i] for i in self._sizes)
        if k > 0:
            return None
        import torch

        zeros = torch.zeros(max(m, n, _ONE_COPY), dtype=torch.float32, device="cuda")
        values[self._sizes[2]] = _ONE_COPY
        for place, tensor in enumerate(self._tensors[:2]):
            values[tensor.address] = zeros.data_ptr()
            for stride in (*tensor.strides, self._lda + place):
                values[stride] = 0
        return zeros

    @cached_property
    def _image(self) -> _Image:
        """The device's part, loaded by the first launch: a kernel is built, and kept, where there is no driver."""
        start, end = (ctypes.addressof(ctypes.c_char.in_dll(self._library, name)) for name in IMAGE)
        return _Image(ctypes.string_at(start, end - start), self._symbol, self._config)

    def _moved(self, values: list[Any], i: int, j: int) -> list[Any]:
        """The values of a call for its batch's entry (i, j)."""
        moved = list(values)
        for tensor in self._tensors:
            inner, outer = (values[stride] for stride in tensor.strides)
            moved[tensor.address] += (i * inner + j * outer) * tensor.itemsize
        return moved

    def _launch(self, values: list[Any], stream: int) -> None:
        facts, image = self._facts, self._image
        call = self._call(values)
        memory = ctypes.create_string_buffer(facts.parameter_bytes + facts.parameter_align)
        address = -(-ctypes.addressof(memory) // facts.parameter_align) * facts.parameter_align
        grid = (ctypes.c_uint32 * 3)()
        status = self._prepare(ctypes.byref(call), ctypes.c_void_p(address), grid)
        if status != 0:
            raise CuteGemmError(f"{self._config}: CUTLASS refused the call with status {status}")
        self._start(image.function, tuple(grid), facts.threads, facts.shared_bytes, address, stream)
        if image.sum is not None:
            m, n, _, sm_count = (values[i] for i in self._sizes)
            values[-2] = grid[2]  # parts that have a share of K
            parts = self._parts(values)
            columns = -(-n // 4)
            blocks = min(-(-m * columns // _SUM_THREADS), 16 * sm_count)
            self._start(image.sum, (blocks, 1, 1), _SUM_THREADS, 0, ctypes.addressof(parts), stream)

    def _start(
        self, function: int, grid: tuple[int, ...], threads: int, shared: int, parameter: int, stream: int
    ) -> None:
        parameters = (ctypes.c_void_p * 1)(parameter)
        block = (threads, 1, 1)
        address = ctypes.addressof(parameters)
        (error,) = driver().cuLaunchKernel(function, *grid, *block, shared, stream, address, 0)
        self._check(error, f"launching {self._config}")

    def _blocks_per_sm(self) -> int:
        """How many blocks an SM of the current device holds. More than 48 KB of shared memory takes an attribute, set
        once on each device."""
        device = bound_device()
        found = self._prepared.get(device)
        if found is None:
            image, threads, shared = self._image, self._facts.threads, self._facts.shared_bytes
            attribute = driver().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (error,) = driver().cuKernelSetAttribute(attribute, shared, image.function, device)
            self._check(error, f"allowing {shared} bytes of shared memory")
            blocks = image.kernel.occupancy.max_active_blocks_per_multiprocessor(threads, shared)
            self._prepared[device] = found = max(1, int(blocks))
        return found

    def _workspace_bytes(self, values: list[Any]) -> int:
        """What the blocks that share tiles need, by the host's part: it depends on sizes alone."""
        sizes = tuple(values[i] for i in self._sizes)
        found = self._needs.get(sizes)
        if found is None:
            if len(self._needs) >= _REMEMBERED:
                self._needs.clear()
            found = self._needs[sizes] = int(self._workspace(ctypes.byref(self._call(values))))
        return found

    def _check(self, error: Any, doing: str) -> None:
        if int(error) != 0:
            raise CuteGemmError(f"{doing} failed: {error.name}")


def _aligned(size: int) -> int:
    """`size` in whole kilobytes: what lies behind it is aligned to whatever a kernel wants."""
    return -(-size // 1024) * 1024


def _allocate(size: int) -> Any:
    import torch

    return torch.empty(size, dtype=torch.uint8, device="cuda")
