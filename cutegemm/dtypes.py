"""Element types by name, without torch: what signatures, the planner and the kernels say `"bf16"` with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cutegemm.errors import DTypeError

Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: its name in signatures (`"bf16"`), its width in bits, and its kind."""

    name: str
    bits: int
    kind: Kind

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    def __str__(self) -> str:
        return self.name


_ALL = (
    DType("fp16", 16, "float"),
    DType("bf16", 16, "float"),
    DType("fp32", 32, "float"),
    DType("fp64", 64, "float"),
    DType("fp8_e4m3", 8, "float"),
    DType("fp8_e5m2", 8, "float"),
    DType("int8", 8, "int"),
    DType("uint8", 8, "uint"),
    DType("int16", 16, "int"),
    DType("int32", 32, "int"),
    DType("int64", 64, "int"),
    DType("bool", 8, "bool"),
)
_ALIASES = {
    "float16": "fp16",
    "half": "fp16",
    "f16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "f32": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "f64": "fp64",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}
_BY_NAME = {dtype.name: dtype for dtype in _ALL}


def lookup(name: object) -> DType:
    """The `DType` called `name`, in this package's spelling (`"bf16"`) or torch's (`"bfloat16"`, `torch.bfloat16`).

    Raises `DTypeError` for a name that is neither.
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, str) and (found := _BY_NAME.get(name)) is not None:
        return found
    key = str(name).removeprefix("torch.")
    found = _BY_NAME.get(_ALIASES.get(key, key))
    if found is None:
        raise DTypeError(f"unknown dtype {name!r}: expected one of {', '.join(_BY_NAME)} or torch's name for it")
    return found


def names() -> tuple[str, ...]:
    """Every dtype's name in signatures."""
    return tuple(_BY_NAME)
