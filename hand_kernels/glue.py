"""What stands in front of a level's source: the call's types, its arguments, and the epilogue that is fused into it."""

from __future__ import annotations

from cutegemm.hand_kernels.levels import Level
from cutegemm.kernels import cuda_epilogue
from cutegemm.kernels.cuda_epilogue import Field, align_along, stride_field
from cutegemm.problem import Signature

#: What a launch adds to the arguments of a call: how many blocks share a tile, and the workspace that these need.
LAUNCH = ("splits", "parts", "tickets")


def arguments(signature: Signature) -> tuple[Field, ...]:
    """`Arguments` from the front, as `common.cuh` declares it, `cuda_epilogue.epilogue_arguments` left out."""
    strides = [("lda", signature.a, "a", "m"), ("ldb", signature.b, "b", "k")]
    return (
        Field("a", "const Element*", "Q", "ptr.a"),
        Field("b", "const Element*", "Q", "ptr.b"),
        *(stride_field(name, access, tensor, dim) for name, access, tensor, dim in strides),
        *(Field(size, "int", "i", size) for size in ("m", "n", "k", "splits")),
        Field("parts", "float*", "Q", "parts"),
        Field("tickets", "unsigned*", "Q", "tickets"),
    )


def prefix(level: Level, signature: Signature, symbol: str) -> str:
    """The C++ text before the level's own: macros, `EpilogueArguments` and `Epilogue`."""
    macros = {
        "KERNEL": symbol,
        "A_ALIGN": align_along(signature.a, "k"),
        "B_ALIGN": align_along(signature.b, "n"),
        **level.macros(signature.a.dtype),
    }
    return "\n".join(
        [
            *(f"#define {name} {value}" for name, value in macros.items()),
            '#include "elements.cuh"',
            f"using Element = {signature.a.dtype};",
            cuda_epilogue.source(signature),
        ]
    )
