"""What a family's host function launches around its product: copies or pieces of operands and zeros for sums to be
added to before it, the sum of parts behind it.

Both are kernels of their own on the same stream, overlapping by programmatic dependent launch where the GPU has it:
each waits for the one before to end before it touches memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
from cutlass import Int32, Int64

from cutegemm.kernels import abi, pieces, workspace
from cutegemm.kernels.padding import PadRows, SplitRows
from cutegemm.kernels.reduction import SumParts
from cutegemm.kernels.turning import TurnRows
from cutegemm.kernels.zeros import Zeros

if TYPE_CHECKING:
    from cutegemm.problem import Signature


def before(signature: Signature, config: Any, v: dict[str, Any], stream: Any) -> dict[str, Any]:
    """Launches the copies that `config` or the precision asks for. Returns the inner signature's arguments by name:
    `l1` is that of the operands, and the output has as many places of it for each part of K."""
    parts = workspace.parts(config)
    wide = {name: Int64(x) for name, x in v.items() if name in abi.SIZES or name.startswith("stride.")}
    regions, size = workspace.layout(signature, config.pad, parts, wide, _select, workspace.sums(config))
    made = dict(v)
    if workspace.streamed(config):  # what is exchanged lies behind the copies
        made["ptr.workspace"] = v["ptr.workspace"] + size
    for name, region in regions.items():
        made[f"ptr.{name}"] = v["ptr.workspace"] + region.offset
        for dim in ("m", "n", "k"):
            made.pop(f"stride.{name}.{dim}", None)
        made |= {f"stride.{name}.{dim}": Int64(stride) for dim, stride in region.strides.items()}
        if name != "out0":
            _copy(name, signature, v, made, stream)
        elif workspace.atomic(config):
            Zeros().launch(made["ptr.out0"], region.strides["l1"] * wide["l1"], v["sm_count"], stream)
    if parts > 1:
        made["alpha"] = cutlass.Float32(1.0)
    return {a.name: made[a.name] for a in abi.arguments(workspace.inner(signature, config.pad, parts))}


def after(signature: Signature, config: Any, v: dict[str, Any], inner: dict[str, Any], stream: Any) -> None:
    """Launches the sum of the parts that the product of the `inner` arguments leaves, if K is split."""
    parts = workspace.parts(config)
    if parts > 1:
        SumParts(signature, workspace.sums(config)).launch(v, inner["ptr.out0"], inner["stride.out0.m"], stream)


def _copy(name: str, signature: Signature, v: Any, made: Any, stream: Any) -> None:
    access = getattr(signature, name)
    across, along = workspace.rows(name, access, signature.precision)
    strides = [v.get(f"stride.{name}.{dim}", Int64(1)) for dim in (across, along)]
    modes = {mode: v[f"stride.{name}.{mode}"] for mode in ("l0", "l1")}
    counts = tuple(Int32(cutlass.select_(stride == 0, Int32(1), v[mode])) for mode, stride in modes.items())
    copy = SplitRows(access) if pieces.emulated(signature) else PadRows(access)
    if along != workspace.rows(name, access)[1]:
        copy = TurnRows(access)
    copy.launch(
        v[f"ptr.{name}"], (*strides, *modes.values()), made[f"ptr.{name}"],
        tuple(made.get(f"stride.{name}.{dim}", Int64(0)) for dim in (across, "l0", "l1", "piece")),
        v[across], v[along], counts, v["sm_count"], stream,
    )  # fmt: skip


def _select(condition: Any, x: Any, y: Any) -> Any:
    return Int64(cutlass.select_(condition, Int64(x), Int64(y)))
