"""Launching a hand-written kernel: a cubin loaded by the driver, its arguments as one struct, any stream."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CuteGemmError
from cutegemm.hand_kernels import glue
from cutegemm.hand_kernels.build import level_of
from cutegemm.kernels import abi

if TYPE_CHECKING:
    from cutegemm.compiler import Spec
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
        self._m, self._n = names.index("m"), names.index("n")
        self._struct, sources = arguments_struct(spec.signature)
        self._sources = [None if source is None else names.index(source) for source in sources]
        # A kernel of a library is nobody's context's: the driver loads it into each that launches it.
        self._code = ObjectCode.from_cubin(cubin)
        self._function = int(self._code.get_kernel(symbol).handle)
        self._prepared: set[int] = set()

    def __call__(self, *values: Any) -> None:
        level, stream = self._level, values[-1]
        packed = self._struct(*(1 if i is None else values[i] for i in self._sources))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(packed))
        if level.dynamic_bytes > 0:
            self._allow_dynamic()
        (error,) = self._driver.cuLaunchKernel(
            self._function,
            *(level.blocks(values[self._m], values[self._n]), 1, 1),
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


def arguments_struct(signature: Signature) -> tuple[type[ctypes.Structure], list[str | None]]:
    """`Arguments` as the C++ compiler lays it out, and where each of its fields comes from (see `glue.Field`)."""
    fields = (*glue.arguments(signature), *glue.epilogue_arguments(signature))
    layout = {"_fields_": [(f"f{i}_{field.name}", _CTYPES[field.format]) for i, field in enumerate(fields)]}
    return type("Arguments", (ctypes.Structure,), layout), [field.source for field in fields]


def _check(error: Any, doing: str) -> None:
    if int(error) != 0:
        raise CuteGemmError(f"{doing} failed: {error.name}")
