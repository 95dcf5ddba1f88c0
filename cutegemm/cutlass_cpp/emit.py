"""The source of a kernel: what CUTLASS's own generator writes for its type, and around it the epilogue and the entry.

CUTLASS 2's emitter describes every problem as the transposed one: column-major operands, A and B in each other's
places, mean row-major matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cutegemm.cutlass_cpp.config import CutlassConfig
from cutegemm.dtypes import lookup
from cutegemm.errors import CuteGemmError
from cutegemm.fusion.graph import IDENTITY
from cutegemm.kernels import cuda_epilogue
from cutegemm.kernels.cuda_epilogue import Field

if TYPE_CHECKING:
    from cutegemm.compiler import Spec
    from cutegemm.problem import Access, Signature

#: What is said where the generator is not installed.
NO_LIBRARY = "nvidia-cutlass, whose generator writes these kernels, is missing: pip install 'cutegemm[cutlass-cpp]'"
#: What stands in front of the epilogue's fields in `Call` (call.cuh), and where a launch finds it.
CALL = (
    Field("a", "const void*", "Q", "ptr.a"),
    Field("b", "const void*", "Q", "ptr.b"),
    Field("workspace", "void*", "Q", "memory"),
    Field("stream", "void*", "Q", "stream"),
    Field("lda", "long long", "q", "lda"),
    Field("ldb", "long long", "q", "ldb"),
    *(Field(name, "int", "i", name) for name in ("m", "n", "k", "sm_count", "blocks_per_sm")),
    *(Field(name, "int", "i", name) for name in ("parts", "swizzle", "raster")),
)
_HEADERS_2 = ("cutlass/gemm/kernel/default_gemm_universal.h", "cutlass/gemm/threadblock/threadblock_swizzle_streamk.h")
_HEADERS_3 = (
    "cutlass/gemm/kernel/gemm_universal.hpp",
    "cutlass/gemm/collective/collective_builder.hpp",
    "cutlass/epilogue/collective/collective_builder.hpp",
)


@dataclass(frozen=True, slots=True)
class Form:
    """What a kernel's epilogue is: CUTLASS's own linear combination, or the graph's visitor.

    `kept`: the collective stores the first output itself, by TMA.
    """

    visited: bool
    kept: bool


def form_of(signature: Signature, config: CutlassConfig) -> Form:
    """How `signature`'s epilogue is built into a kernel of `config`.

    CUTLASS's own takes D = alpha A B + beta C with numbers given by value, C in D's dtype, both stored in whole
    accesses: its vectors are as long as `config.align` lets rows of D be taken.
    """
    out, c = signature.outputs[0], signature.c
    linear = signature.epilogue == IDENTITY and signature.alpha == "float" and signature.beta == "float"
    matching = c is None or (c.dtype == out.dtype and c.major == "n")
    whole = config.align == 16 and out.align == 16 and (c is None or c.align == 16)
    plain = linear and matching and whole and out.major == "n" and config.reduction != "parallel"
    if not config.hopper:
        return Form(not plain, plain)
    paired = signature.epilogue.outputs[0].paired
    return Form(not plain, plain or (not paired and out.align == 16 and out.major == "n"))


def source(spec: Spec) -> str:
    """The whole CUDA C++ text of `spec`'s kernel, named `spec.symbol`; with `HOST_PART` defined, of its host's part."""
    config = config_of(spec)
    form = form_of(spec.signature, config)
    beta, c, pitch = ("0.0f", "nullptr", "0")
    if spec.signature.c is not None:
        beta, c, pitch = ("epilogue.beta", "epilogue.c", "epilogue.c_stride")
    macros = {
        "KERNEL": spec.symbol,
        "VISITED": int(form.visited and config.reduction != "parallel"),
        "KEEP_FIRST": int(form.kept),
        "SHARED_TILES": int(config.shares_tiles),
        "PACKED": int(config.pack != "no"),
        "PARALLEL_PARTS": int(config.reduction == "parallel"),
        "BETA": beta,
        "SOURCE": c,
        "SOURCE_STRIDE": pitch,
    }
    emitted, name = _hopper(spec.signature, config, form) if config.hopper else _universal(spec.signature, config)
    entry = "collective.cuh" if config.hopper else "universal.cuh"
    visitor = ['#include "visitor_hopper.cuh"'] if config.hopper and form.visited else []
    kernel = f"{name}_base" if config.hopper else name
    return "\n".join(
        [
            *(f"#define {key} {value}" for key, value in macros.items()),
            *(f'#include "{header}"' for header in (_HEADERS_3 if config.hopper else _HEADERS_2)),
            '#include "elements.cuh"',
            f"using Element = {spec.signature.a.dtype};",
            cuda_epilogue.source(spec.signature, keep_first=config.hopper and form.visited and form.kept),
            *visitor,
            emitted.strip(),
            f"using Emitted = {kernel};",
            f'#include "{entry}"',
            "",
        ]
    )


def config_of(spec: Spec) -> CutlassConfig:
    """The configuration of a spec of the family `cutlass_cpp`."""
    if not isinstance(spec.config, CutlassConfig):
        raise TypeError(f"{spec} is not a CUTLASS C++ kernel")
    return spec.config


def alignment(access: Access, config: CutlassConfig) -> int:
    """Elements of an operand that one copy moves."""
    return min(access.align, config.align) // lookup(access.dtype).itemsize


def library() -> ModuleType:
    """CUTLASS's generator. Raises `CuteGemmError` where it is not installed."""
    try:
        import cutlass_library
    except ImportError as error:
        raise CuteGemmError(NO_LIBRARY) from error
    module: ModuleType = cutlass_library
    return module


def _universal(signature: Signature, config: CutlassConfig) -> tuple[str, str]:
    """The emitted text of a CUTLASS 2 kernel, and its type's name."""
    lib = library()
    from cutlass_library.gemm_operation import EmitGemmUniversalInstance, GemmOperation

    dtype = signature.a.dtype
    tensor_core = _element("tf32" if dtype == "fp32" else dtype)
    shape = [16, 8, 8] if dtype == "fp32" or config.schedule == "twostage" else [16, 8, 16]
    since = config.since
    # One instruction's operands; `multiply_add` on fp32 rounds them to TF32, to the nearest, in registers.
    instruction = lib.MathInstruction(
        shape, tensor_core, tensor_core, lib.DataType.f32, lib.OpcodeClass.TensorOp, lib.MathOperation.multiply_add
    )
    depth = config.depth(dtype)
    warps = [config.warps_m, config.warps_n, 1]
    tile = lib.TileDescription([config.tile_m, config.tile_n, depth], config.stages, warps, instruction, since, 1024)
    column, row = lib.LayoutType.ColumnMajor, lib.LayoutType.RowMajor
    out = "fp32" if config.reduction == "parallel" else signature.outputs[0].dtype
    operation = GemmOperation(
        lib.GemmKind.Universal,
        since,
        tile,
        # In each other's places: see the module's text.
        lib.TensorDescription(
            _element(dtype), column if signature.b.major == "n" else row, alignment(signature.b, config)
        ),
        lib.TensorDescription(
            _element(dtype), column if signature.a.major == "k" else row, alignment(signature.a, config)
        ),
        lib.TensorDescription(_element(out), column, 16 // lookup(out).itemsize),
        lib.DataType.f32,
        lib.EpilogueFunctor.LinearCombination,
        lib.SwizzlingFunctor.StreamK if config.shares_tiles else lib.SwizzlingFunctor.Identity8,
    )
    return EmitGemmUniversalInstance().emit(operation), operation.procedural_name()


def _hopper(signature: Signature, config: CutlassConfig, form: Form) -> tuple[str, str]:
    """The emitted text of a CUTLASS 3 kernel, and its type's name."""
    lib = library()
    from cutlass_library.gemm_operation import EmitGemmUniversal3xInstance, GemmOperation

    dtype = signature.a.dtype
    element = _element(dtype)
    instruction = lib.MathInstruction(
        [64, config.tile_n, 32 // lookup(dtype).itemsize],
        element,
        element,
        lib.DataType.f32,
        lib.OpcodeClass.TensorOp,
        lib.MathOperation.multiply_add,
    )
    depth = config.depth(dtype)
    cluster = [config.cluster_m, config.cluster_n, 1]
    tile = lib.TileDescription(
        [config.tile_m, config.tile_n, depth], config.stages, [4, 1, 1], instruction, 90, 90, cluster_shape=cluster
    )
    row, column = lib.LayoutType.RowMajor, lib.LayoutType.ColumnMajor
    per = 16 // lookup(dtype).itemsize
    out = signature.outputs[0].dtype
    nothing = lib.TensorDescription(lib.DataType.void, row, 1)
    stored = lib.TensorDescription(_element(out), row, 16 // lookup(out).itemsize)
    schedules = {
        "cooperative": lib.KernelScheduleType.TmaWarpSpecializedCooperative,
        "pingpong": lib.KernelScheduleType.TmaWarpSpecializedPingpong,
    }
    epilogues = {
        "cooperative": lib.EpilogueScheduleType.TmaWarpSpecializedCooperative,
        "pingpong": lib.EpilogueScheduleType.TmaWarpSpecialized,
    }
    operation = GemmOperation(
        lib.GemmKind.Universal3x,
        90,
        tile,
        lib.TensorDescription(element, row if signature.a.major == "k" or "a" in config.pack else column, per),
        lib.TensorDescription(element, column if signature.b.major == "k" or "b" in config.pack else row, per),
        stored if signature.c is not None and not form.visited else nothing,
        lib.DataType.f32,
        "GraphVisitor" if form.visited else lib.EpilogueFunctor.LinearCombination,
        lib.SwizzlingFunctor.Identity1,
        D=stored if form.kept else nothing,
        kernel_schedule=schedules[config.schedule],
        epilogue_schedule=epilogues[config.schedule],
        tile_scheduler=lib.TileSchedulerType.StreamK if config.shares_tiles else lib.TileSchedulerType.Persistent,
    )
    emitter: Any = EmitGemmUniversal3xInstance()
    if form.visited:
        # What the emitter asks of a functor that is not one of its own.
        emitter.epilogue_functor = _Declared("GraphVisitor")
    return emitter.emit(operation), operation.procedural_name()


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str

    def emit_declaration(self) -> str:
        return self.name


def _element(dtype: str) -> Any:
    lib = library()
    return {"fp16": lib.DataType.f16, "bf16": lib.DataType.bf16, "fp32": lib.DataType.f32, "tf32": lib.DataType.tf32}[
        dtype
    ]


def call_fields(signature: Signature) -> tuple[Field, ...]:
    """`Call` from the front: what is listed above, then the epilogue's."""
    return (*CALL, *cuda_epilogue.epilogue_arguments(signature))


def strides(name: str, access: Access) -> tuple[str | None, str | None]:
    """The arguments of `abi.arguments` that are the strides of A or B across K and along it, None of what is 1."""
    across = "m" if name == "a" else "n"
    names = (f"stride.{name}.{across}", f"stride.{name}.k")
    return (None if access.major == across else names[0], None if access.major == "k" else names[1])
