"""The architecture that is being compiled for, for kernels that serve several."""

from __future__ import annotations

from cutlass.base_dsl import BaseDSL
from cutlass.base_dsl.enums import Arch

#: Shared memory of an SM in KiB, since Hopper: of sm_90 to sm_110, and of sm_120 and its kind.
_KIB, _CONSUMER_KIB = 228, 100


def since_hopper() -> bool:
    """Whether it has clusters and programmatic dependent launch. Only while a kernel is traced; the DSL has no public
    name for what its own operations ask so."""
    return bool(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_90)


def since_blackwell() -> bool:
    """Whether it is sm_100 or newer, for which ptxas allots registers in another way. Only while a kernel is traced."""
    return bool(BaseDSL._get_dsl().get_arch_enum() >= Arch.sm_100)


def share_of_shared_memory(blocks: int) -> int:
    """Bytes of shared memory of which so many blocks can have that number on one SM, and no more; since Hopper. Only
    while a kernel is traced."""
    arch = BaseDSL._get_dsl().get_arch_enum()
    per_sm = _CONSUMER_KIB if arch >= Arch.sm_120 else _KIB
    return per_sm * 1024 // (blocks + 1)
