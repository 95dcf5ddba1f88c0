"""What a call asks of a kernel, in plain numbers: sizes, majors, alignments, dtypes and the epilogue graph.

Nothing here knows torch: `cutegemm.normalize` makes a `Problem` of tensors, the planner makes one of sizes
alone. A `Signature` holds everything a compiled kernel depends on besides its configuration and architecture,
so two calls with equal signatures can share a kernel; a `Problem` adds the sizes that the planner chooses a
configuration by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cutegemm.dtypes import lookup

if TYPE_CHECKING:
    from cutegemm.fusion.graph import Graph

Role = Literal["a", "b", "c", "out", "tile", "row", "col", "scalar"]

#: How fp32 operands may be multiplied, by the names that `precision=` takes. "ieee": products are made and summed in
#: fp32. "tf32": operands are rounded to TF32 (8 bits of exponent, 10 of mantissa) first, to nearest. "bf16x6" and
#: "bf16x9": operands are split into three bf16 numbers each, of whose nine products six or all are summed in fp32
#: (`kernels.pieces`).
PRECISIONS = ("ieee", "tf32", "bf16x6", "bf16x9")
STRICT, TF32 = "ieee", "tf32"

#: The widest access any kernel makes, in bytes; alignment beyond it is worth nothing.
MAX_ALIGN = 16

_MAJORS: dict[str, tuple[str, ...]] = {  # a role's name for "this dimension is contiguous", by dimension
    "a": ("m", "k"),
    "b": ("k", "n"),
    "c": ("m", "n"),
    "out": ("m", "n"),
    "tile": ("m", "n"),
    "row": ("n",),
    "col": ("m",),
}


@dataclass(frozen=True, slots=True)
class Access:
    """How a kernel may touch one tensor.

    `major` names the contiguous dimension: A: `"k"`, `"m"`; B: `"k"`, `"n"`; C, outputs and Tile: `"n"`,
    `"m"`; Row: `"n"`; Col: `"m"`; or `"strided"` where there is none. A Scalar is `"float"` (passed by value)
    or `"tensor"` (a 0-d device tensor).
    `align` is the alignment in bytes, 1 to 16, that the pointer and every stride but the contiguous one
    share.
    """

    dtype: str
    major: str
    align: int


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything about a call that a compiled kernel depends on, besides its configuration and architecture.

    `c` is None when C is absent or `beta` is the float 0. `operands` follow `epilogue.operands`. `alpha` and
    `beta` are `"float"`, or the dtype of the 0-d tensor that holds them: their values are run-time arguments.
    `precision` is one of `PRECISIONS` where A and B are fp32, or pieces of fp32 numbers, else None.
    """

    a: Access
    b: Access
    c: Access | None
    outputs: tuple[Access, ...]
    epilogue: Graph
    operands: tuple[Access, ...]
    alpha: str
    beta: str
    precision: str | None = None

    def to_data(self) -> dict[str, Any]:
        """All of it but the epilogue as JSON-serialisable data."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "c": None if self.c is None else asdict(self.c),
            "outputs": [asdict(access) for access in self.outputs],
            "operands": [asdict(access) for access in self.operands],
            "alpha": self.alpha,
            "beta": self.beta,
            "precision": self.precision,
        }

    def transposed(self) -> Signature:
        """That of D^T = epilogue^T(alpha * B^T A^T + beta * C^T) on the same memory: A and B trade places, Rows become
        Cols.

        Raises `EpilogueError` where the epilogue pairs columns.
        """
        return Signature(
            a=_turned(self.b),
            b=_turned(self.a),
            c=None if self.c is None else _turned(self.c),
            outputs=tuple(map(_turned, self.outputs)),
            epilogue=self.epilogue.transposed(),
            operands=tuple(map(_turned, self.operands)),
            alpha=self.alpha,
            beta=self.beta,
            precision=self.precision,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """A `Signature` and its sizes: A is (batch, m, k), B (batch, k, n), C and the accumulator (batch, m, n).

    `alpha` given as the float 0 is a problem with `k == 0`: A and B are not read.
    """

    m: int
    n: int
    k: int
    batch: int
    signature: Signature

    @property
    def flops(self) -> int:
        """Floating-point operations of the products: 2·batch·m·n·k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def better_transposed(self) -> bool:
        """Whether every output is contiguous along M: then D^T = B^T A^T stores whole vectors where D can't.

        A paired epilogue needs its columns to stay columns.
        """
        signature = self.signature
        return not signature.epilogue.has_pair and all(out.major == "m" for out in signature.outputs)

    @property
    def computed(self) -> Problem:
        """The problem that kernels are planned for: this one, or the transposed where that is better."""
        return self.transposed() if self.better_transposed else self

    def transposed(self) -> Problem:
        """The problem of `Signature.transposed`."""
        return Problem(self.n, self.m, self.k, self.batch, self.signature.transposed())


def _turned(access: Access) -> Access:
    return replace(access, major={"m": "n", "n": "m"}.get(access.major, access.major))


def precision_of(asked: str, k: int) -> str:
    """How fp32 operands of depth `k` are multiplied: as `asked`, but strictly where there is nothing to split."""
    return asked if k > 0 or asked in (STRICT, TF32) else STRICT


def alignment(numbers: Iterable[int], *, limit: int = MAX_ALIGN) -> int:
    """The largest power of two up to `limit` that divides all of `numbers`: an address, strides in bytes."""
    bits = limit
    for number in numbers:
        bits |= number
    return bits & -bits


def access(role: Role, dtype: str, sizes: Sequence[int], strides: Sequence[int], *, address: int = 0) -> Access:
    """The `Access` of a tensor in `role`, from its metadata.

    `sizes` and `strides` (in elements) end in the role's own dimensions: two, or one for a Row or Col; what
    precedes them is the batch. `address` is the pointer in bytes. A stride of a size-1 dimension means
    nothing, so such a dimension is contiguous where no longer one is. A tensor with no contiguous dimension
    is aligned to its element.
    """
    itemsize = lookup(dtype).itemsize
    if role == "scalar":
        return Access(dtype, "tensor", alignment((address,), limit=itemsize))
    own = len(_MAJORS[role])
    first = len(sizes) - own
    contiguous = _contiguous(sizes[first:], strides[first:])
    if contiguous is None:
        return Access(dtype, "strided", alignment((address,), limit=itemsize))
    pitches = [
        stride * itemsize
        for i, (size, stride) in enumerate(zip(sizes, strides, strict=True))
        if size > 1 and i != first + contiguous
    ]
    row = sizes[first + contiguous]
    others = [(sizes[i], strides[i]) for i in range(first, len(sizes)) if i != first + contiguous]
    if any(size > 1 and stride < row for size, stride in others):
        # Rows that are one or overlap: a copy must not go past the end of one, where nothing may follow, and TMA, which
        # takes 16-byte alignment for granted, wants rows that follow one another.
        pitches += [row * itemsize, MAX_ALIGN // 2]
    return Access(dtype, _MAJORS[role][contiguous], alignment((address, *pitches)))


def _contiguous(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The last dimension of stride 1, else the last of at most one element, else None."""
    dims = range(len(sizes) - 1, -1, -1)
    unit = (i for i in dims if sizes[i] > 1 and strides[i] == 1)
    single = (i for i in dims if sizes[i] <= 1)
    return next(unit, next(single, None))
