"""Launching a hand-written kernel: a cubin loaded by the driver, its arguments as one struct, any stream.

A level that splits K needs a workspace for the parts' sums. It is this module's own: torch's allocator gives it for
each launch that splits, on the current stream, which is the one launched on, so that its reuse is ordered behind it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CuteGemmError
from cutegemm.hand_kernels import glue
from cutegemm.hand_kernels.build import level_of
from cutegemm.kernels import abi

if TYPE_CHECKING:
    from cutegemm.compiler import Spec
    from cutegemm.hand_kernels.levels import Level
    from cutegemm.problem import Signature

_CTYPES: dict[str, Any] = {"Q": ctypes.c_uint64, "q": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}


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
        blocks = level.blocks(m, n)
        # It has to live until the kernel is launched, and no longer.
        workspace = Workspace(level, m, n, splits) if splits > 1 else None
        given = (*values, splits, *((0, 0) if workspace is None else workspace.addresses))
        packed = self._struct(*(1 if i is None else given[i] for i in self._sources))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        if level.dynamic_bytes > 0:
            self._allow_dynamic()
        (error,) = self._driver.cuLaunchKernel(
            self._function,
            *(blocks * splits, 1, 1),
            *(*level.block, 1),
            level.dynamic_bytes,
            stream,
            ctypes.addressof(parameters),
            0,
        )
        _check(error, f"launching {level}")

    def _allow_dynamic(self) -> None:
        """More than 48 KB of shared memory takes an attribute, set once on each device."""
        driver = self._driver
        error, device = driver.cuCtxGetDevice()
        _check(error, "asking for the current device")
        if int(device) not in self._prepared:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (error,) = driver.cuKernelSetAttribute(attribute, self._level.dynamic_bytes, self._function, device)
            _check(error, f"allowing {self._level.dynamic_bytes} bytes of shared memory")
            self._prepared.add(int(device))


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
    """`Arguments` as the C++ compiler lays it out, and where each of its fields comes from (see `glue.Field`)."""
    fields = (*glue.arguments(signature), *glue.epilogue_arguments(signature))
    layout = {"_fields_": [(f"f{i}_{field.name}", _CTYPES[field.format]) for i, field in enumerate(fields)]}
    return type("Arguments", (ctypes.Structure,), layout), [field.source for field in fields]


def _check(error: Any, doing: str) -> None:
    if int(error) != 0:
        raise CuteGemmError(f"{doing} failed: {error.name}")
