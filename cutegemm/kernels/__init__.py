"""The kernel families. The configurations (`config`, `small_m_config`, `wgmma_config`) and `abi` are plain data; the
kernels themselves import the CuTe DSL, so they are imported by `kernel_class` when one has to be compiled, and not
before. Nothing here knows torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_CLASSES = {
    "sm80_multistage": ("cutegemm.kernels.sm80_multistage", "MultistageGemm"),
    "small_m": ("cutegemm.kernels.small_m", "SmallMGemm"),
    "simt_f32": ("cutegemm.kernels.simt_f32", "SimtGemm"),
    "sm90_wgmma": ("cutegemm.kernels.sm90_wgmma", "WgmmaGemm"),
}


def kernel_class(family: str) -> Any:
    """The class of a family's kernels: `kernel_class(family)(signature, config)` is what the DSL compiles."""
    module, name = _CLASSES[family]
    return getattr(import_module(module), name)
