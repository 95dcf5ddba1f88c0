"""The architecture that is being compiled for, for kernels that serve several."""

from __future__ import annotations

from cutlass.base_dsl import BaseDSL
from cutlass.base_dsl.enums import Arch


def since_hopper() -> bool:
    """Whether it has clusters and programmatic dependent launch. Only while a kernel is traced; the DSL has no public
    name for what its own operations ask so."""
    return bool(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90)


def since_blackwell() -> bool:
    """Whether it is sm_100 or newer, for which ptxas allots registers in another way. Only while a kernel is traced."""
    return bool(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_100)
