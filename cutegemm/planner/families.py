"""The kernel families that the planner can choose from, as data: adding one is adding an entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cutegemm.device import DeviceSpec
from cutegemm.kernels.config import CONFIGS, Config
from cutegemm.planner.model import Estimate, TileModel
from cutegemm.problem import Problem


class Model(Protocol):
    """How long a family's kernels take on one problem and GPU."""

    def estimate(self, config: Config) -> Estimate:
        """The modelled time of a configuration that is legal there."""


@dataclass(frozen=True, slots=True)
class Family:
    """One way of building kernels: what it can serve, in which configurations, and how long they should take.

    `epilogue_dtypes` are those of C, the outputs and tensor operands, `scalar_dtypes` those of 0-d device
    tensors.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]
    operand_dtypes: tuple[str, ...]
    epilogue_dtypes: tuple[str, ...]
    scalar_dtypes: tuple[str, ...]
    configs: tuple[Config, ...]
    model: Callable[[Problem, DeviceSpec], Model]


#: Families that can be planned for, by name.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="sm80_multistage",
            summary="cp.async multistage pipeline, ldmatrix, mma.sync",
            architectures=(
                "sm_80",
                "sm_86",
                "sm_87",
                "sm_89",
                "sm_90a",
                "sm_100a",
                "sm_103a",
                "sm_120a",
                "sm_121a",
            ),
            operand_dtypes=("fp16", "bf16"),
            epilogue_dtypes=("fp16", "bf16", "fp32"),
            scalar_dtypes=("fp16", "bf16", "fp32", "fp64"),
            configs=CONFIGS,
            model=TileModel,
        ),
    )
}

#: Families that this version does not have yet, with the architectures they are for; a pin on one is refused
#: by name.
UPCOMING: dict[str, str] = {
    "sm90_wgmma": "sm_90a",
    "small_m": "sm_80 and newer",
    "simt_f32": "sm_80 and newer",
    "cutlass_cpp": "sm_75 and newer",
    "hand": "the architectures that each level names",
}
