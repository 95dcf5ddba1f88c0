"""Matrix multiplication on NVIDIA GPUs with any element-wise epilogue fused in: `gemm(a, b, epilogue=...)`.

Names are imported when they are first used, so that planning and the command line load neither torch nor a
compiler, and so that importing the package needs no driver.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from cutegemm import ops as ops
    from cutegemm import reference as reference
    from cutegemm.api import gemm as gemm
    from cutegemm.api import interleave as interleave
    from cutegemm.api import prepare_weight as prepare_weight
    from cutegemm.compiler import Bundle as Bundle
    from cutegemm.compiler import load_bundle as load_bundle
    from cutegemm.device import DeviceSpec as DeviceSpec
    from cutegemm.fusion import Col as Col
    from cutegemm.fusion import Row as Row
    from cutegemm.fusion import Scalar as Scalar
    from cutegemm.fusion import Tile as Tile
    from cutegemm.fusion import epilogue as epilogue
    from cutegemm.planner.plan import Plan as Plan
    from cutegemm.planner.plan import plan as plan

    epilogues: ModuleType

from cutegemm.errors import (
    ArgumentError,
    BundleError,
    CuteGemmError,
    DeviceError,
    DTypeError,
    EpilogueError,
    KernelNotBuiltError,
    NotAvailableError,
    OverlapError,
    ShapeError,
    UnsupportedArchitectureError,
)

__version__ = "0.1.0"

_LAZY = {
    "gemm": "api",
    "interleave": "api",
    "prepare_weight": "api",
    "Bundle": "compiler",
    "load_bundle": "compiler",
    "DeviceSpec": "device",
    "Col": "fusion",
    "Row": "fusion",
    "Scalar": "fusion",
    "Tile": "fusion",
    "epilogue": "fusion",
    "Plan": "planner",
    "plan": "planner",
}
_MODULES = ("epilogues", "ops", "reference")

__all__ = [
    "ArgumentError",
    "Bundle",
    "BundleError",
    "Col",
    "CuteGemmError",
    "DTypeError",
    "DeviceError",
    "DeviceSpec",
    "EpilogueError",
    "KernelNotBuiltError",
    "NotAvailableError",
    "OverlapError",
    "Plan",
    "Row",
    "Scalar",
    "ShapeError",
    "Tile",
    "UnsupportedArchitectureError",
    "__version__",
    "epilogue",
    "epilogues",
    "gemm",
    "interleave",
    "load_bundle",
    "ops",
    "plan",
    "prepare_weight",
    "reference",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"cutegemm.{_LAZY[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"cutegemm.{name}")
    else:
        raise AttributeError(f"module 'cutegemm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
