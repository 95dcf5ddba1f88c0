"""fp32 by bf16 (`precision="bf16x6"`, `"bf16x9"`): which pieces of A and B are multiplied; free of torch and the DSL.

An fp32 number is the sum of three bf16 numbers, a = a1 + a2 + a3: each the 8 leading bits of what the ones before it
leave, so that it is less than 2**-7 of the one before and has a's sign. Nothing is lost, since 3 x 8 bits hold the 24
of fp32, as long as a3 is not below bf16's smallest number, 2**-133: that is where |a| >= 2**-110; a smaller number
loses up to 2**-132 of itself. A product of two pieces is exact in fp32, and A B is the sum of nine of them. "bf16x6"
leaves out the three that come to less than 2**-21 of |a b|, 2**-24 on average.

A stage of the pipeline holds all pieces of its part of K. Its products are added up from the smallest, into a sum that
starts at 0, and that sum is added to those of other stages in fp32 by itself: wgmma cuts off what falls below its sum
instead of rounding it, 16 products at a time, and what it cuts off a long sum of one sign would grow with K.

Infinities and NaN come out as in fp32: the pieces of an infinity are infinite, those of NaN are NaN, and no piece of a
number other than 0 is 0: one that would be is bf16's smallest number, by which no sum changes. So where a b is infinite
all products of pieces are infinite or have its sign, and they add up to no NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutegemm.problem import Signature

#: Pieces of a number.
PIECES = 3
#: Dtype of a piece, and its bytes.
DTYPE, PIECE_BYTES = "bf16", 2

#: The pieces of A and B that are multiplied, counted from the largest, by the precision: the smallest products first.
PAIRS: dict[str, tuple[tuple[int, int], ...]] = {
    "bf16x6": ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
    "bf16x9": ((2, 2), (2, 1), (1, 2), (2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
}


def emulated(signature: Signature) -> bool:
    """Whether `signature` asks for products of pieces: its operands are split up, or are pieces already."""
    return signature.precision in PAIRS


def count(signature: Signature) -> int:
    """The pieces that each operand of `signature` consists of: a dimension of its tensors where there are several."""
    return PIECES if emulated(signature) and signature.a.dtype == DTYPE else 1


def pairs(signature: Signature) -> tuple[tuple[int, int], ...]:
    """The pieces of A and B that are multiplied for `signature`: one pair where there are no pieces."""
    return PAIRS.get(signature.precision or "", ((0, 0),))
