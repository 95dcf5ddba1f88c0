"""The kernel families that the planner can choose from, as data: adding one is adding an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cutegemm.cutlass_cpp.config import CONFIGS as CUTLASS_CONFIGS
from cutegemm.cutlass_cpp.config import CutlassConfig, Split
from cutegemm.device import DeviceSpec
from cutegemm.hand_kernels.levels import LEVELS
from cutegemm.kernels import config, simt_f32_config, small_m_config, wgmma_config
from cutegemm.kernels.pieces import PAIRS
from cutegemm.planner import cutlass_cpp, hand, simt_f32, sm80_multistage, sm90_wgmma, small_m
from cutegemm.planner.legality import Refusal
from cutegemm.planner.model import Model
from cutegemm.problem import STRICT, TF32, Problem

C = TypeVar("C", bound=config.KernelConfig)


@dataclass(frozen=True, slots=True)
class Family(Generic[C]):
    """One way of building kernels: what it can serve, in which configurations, and how long they should take.

    `epilogue_dtypes` are those of C, the outputs and tensor operands, `scalar_dtypes` those of 0-d device
    tensors. `refuse` has the rules of the family's own; `legality.refusal` is the whole predicate. `surrounds` says
    that its configurations can split K and copy operands first (`kernels.surroundings`), `streams` that their clusters
    can share k-tiles out instead (`kernels.stream_k`), `unaligned` that they can read operands that are not aligned to
    16 bytes as they are, `turns` that a D which is contiguous along M may be computed as D^T = B^T A^T. `precisions`
    are those of `problem.PRECISIONS` that it multiplies fp32 operands in. `splits` makes configurations that split K of
    one that does not, where the family splits K by itself. A family that comes `last` is chosen where no other serves,
    or where it was measured to be the fastest. `workspace` says what a configuration takes beside the tensors, where
    the family has no surroundings to tell by.
    """

    name: str
    summary: str
    architectures: tuple[str, ...]
    configs: tuple[C, ...]
    refuse: Callable[[Problem, C, DeviceSpec], Refusal | None]
    model: Callable[[Problem, DeviceSpec], Model[C]]
    operand_dtypes: tuple[str, ...] = ("fp16", "bf16")
    epilogue_dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32")
    scalar_dtypes: tuple[str, ...] = ("fp16", "bf16", "fp32", "fp64")
    surrounds: bool = False
    streams: bool = False
    unaligned: bool = True
    turns: bool = True
    precisions: tuple[str, ...] = ()
    splits: Callable[[C, Split], Iterator[C]] | None = None
    last: bool = False
    workspace: Callable[[Problem, C, DeviceSpec], int] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that a `kernel=` string can name a configuration by."""
        return tuple(self.configs[0].options())


_SM80_AND_NEWER = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a")

_PLANNED: tuple[Family[Any], ...] = (
    Family(
        name="sm90_wgmma",
        summary="TMA into an mbarrier pipeline, wgmma, persistent warp-specialised blocks in clusters",
        architectures=("sm_90a",),
        configs=(*wgmma_config.CONFIGS, *wgmma_config.OF_PIECES, *wgmma_config.OF_TF32),
        refuse=sm90_wgmma.refuse,
        model=sm90_wgmma.PersistentModel,
        operand_dtypes=("fp16", "bf16", "fp32"),
        precisions=(TF32, *PAIRS),
        surrounds=True,
        streams=True,
        unaligned=False,
    ),
    Family(
        name="sm80_multistage",
        summary="cp.async multistage pipeline, ldmatrix, mma.sync",
        architectures=_SM80_AND_NEWER,
        configs=config.CONFIGS,
        refuse=sm80_multistage.refuse,
        model=sm80_multistage.TileModel,
        operand_dtypes=("fp16", "bf16", "fp32"),
        surrounds=True,
        precisions=(TF32,),
    ),
    Family(
        name="simt_f32",
        summary="strict fp32 on the CUDA cores: cp.async multistage pipeline, register tiles",
        architectures=_SM80_AND_NEWER,
        operand_dtypes=("fp32",),
        configs=simt_f32_config.CONFIGS,
        refuse=simt_f32.refuse,
        model=simt_f32.IssueModel,
        surrounds=True,
        precisions=(STRICT,),
    ),
    Family(
        name="small_m",
        summary="at most 64 rows: weights streamed once through cp.async rings, K split over warps and clusters",
        architectures=_SM80_AND_NEWER,
        configs=small_m_config.CONFIGS,
        refuse=small_m.refuse,
        model=small_m.StreamModel,
    ),
    Family(
        name="cutlass_cpp",
        summary="CUTLASS C++ from nvidia-cutlass's generator, compiled by nvcc: the one family for Turing",
        architectures=cutlass_cpp.ARCHITECTURES,
        operand_dtypes=("fp16", "bf16", "fp32"),
        scalar_dtypes=("fp16", "bf16", "fp32"),
        precisions=(TF32,),
        configs=CUTLASS_CONFIGS,
        refuse=cutlass_cpp.refuse,
        model=cutlass_cpp.CutlassModel,
        splits=CutlassConfig.splits,
        last=True,
        workspace=cutlass_cpp.workspace_bytes,
    ),
)

#: Families that can be planned for, by name.
FAMILIES: dict[str, Family[Any]] = {family.name: family for family in _PLANNED}

_HAND: Family[Any] = Family(
    name="hand",
    summary="the hand-written ladder, a level at a time",
    architectures=hand.ARCHITECTURES,
    operand_dtypes=("fp16", "bf16", "fp32"),
    epilogue_dtypes=("fp16", "bf16", "fp32"),
    scalar_dtypes=("fp16", "bf16", "fp32"),
    configs=LEVELS,
    refuse=hand.refuse,
    model=hand.LevelModel,
    turns=False,
    precisions=(STRICT,),
)

#: Families that serve what pins them and are never chosen, by name.
PINNED: dict[str, Family[Any]] = {_HAND.name: _HAND}
