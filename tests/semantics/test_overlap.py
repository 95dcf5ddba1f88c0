"""Outputs that share memory with an input or with each other: overlap is an error, and only overlap is."""

from __future__ import annotations

import pytest
import torch

from cutegemm import OverlapError, Scalar, epilogue, gemm, ops
from tests.semantics.inputs import BF16, FP32, add, bias, ones


@epilogue
def scaled(acc, slope: Scalar):
    return acc * slope


@epilogue
def two(acc):
    return {"out": ops.relu(acc), "pre": acc}


def base() -> torch.Tensor:
    """Four matrices of small integers, whose products are exact whatever the order of their sums."""
    return (torch.arange(4 * 16 * 32) % 13).to(BF16).view(4, 16, 32)


def part(x: torch.Tensor, i: int = 0, row: int = 0, column: int = 0) -> torch.Tensor:
    return x[i, row : row + 8, column : column + 8]


OVERLAPS = [
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 1)}, "shares memory with b"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 7, 7)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x).t()}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2).t()}, "memory with c"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2, 1)}, "memory with c"),
    # Not read, and an overlap all the same: that must not depend on a value.
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "beta": 0, "out": part(x, 2, 1)}, "with c"),
    (lambda x: {"a": part(x), "b": part(x, 1), "alpha": 0, "out": part(x)}, "shares memory with a"),
    # The very tensor that is c, but in a's place as well.
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x), "out": part(x)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": add(part(x, 2)), "out": part(x, 2, 0, 1)}, "Tile"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": bias(x[2, 0, :8]), "out": part(x, 2)}, "Row"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": scaled(x[2, 3, 3]), "out": part(x, 2)}, "Scalar"),
    (lambda x: {"a": part(x), "b": part(x, 1), "alpha": x[2, 3, 3], "out": part(x, 2)}, "memory with alpha"),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "epilogue": two(), "out": (part(x, 2), part(x, 2))},
        "memory with out",
    ),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "epilogue": two(), "out": (part(x, 2), part(x, 2, 7))},
        "with out",
    ),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "out": x[2, 0, :1].expand(8, 8)},
        "elements of out.*share memory",
    ),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": x[2].as_strided((8, 8), (4, 1))}, "elements of out"),
    # Neighbours, interleaved columns and rows, and other dtypes of other bytes are free.
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 8)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 0, 8)}, None),
    (lambda x: {"a": x[0, :8, 0:16:2], "b": part(x, 1), "out": x[0, :8, 1:16:2]}, None),
    (lambda x: {"a": x[0, 0::2, :8], "b": part(x, 1), "out": x[0, 1::2, :8]}, None),
    (lambda x: {"a": part(x), "b": part(x), "out": part(x, 1)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x.view(FP32), 1, 0, 4)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x.view(FP32), 1, 0, 3)}, "shares memory with b"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": add(part(x, 2)), "out": part(x, 2)}, None),
]


@pytest.mark.parametrize(("make", "message"), OVERLAPS)
def test_overlap_is_an_error_and_only_overlap_is(make, message: str | None) -> None:
    memory = base()
    if message is None:
        apart = make(base())
        out_dtype = apart.pop("out").dtype
        expected = gemm(**apart, out_dtype=out_dtype)
        result = gemm(**make(memory))
        assert torch.equal(result, expected) and result.data_ptr() == make(memory)["out"].data_ptr()
        return
    with pytest.raises(OverlapError, match=message) as raised:
        gemm(**make(memory))
    assert isinstance(raised.value, ValueError)
    assert torch.equal(memory, base())


def test_a_call_that_was_right_is_refused_once_it_overlaps() -> None:
    memory = base()
    for _ in range(2):
        gemm(part(memory), part(memory, 1), out=part(memory, 2))
    before = memory.clone()
    for out in (part(memory), part(memory, 1), part(memory, 1, 4), part(memory, 1, 7, 7)):
        with pytest.raises(OverlapError, match="shares memory"):
            gemm(part(memory), part(memory, 1), out=out)
    assert torch.equal(memory, before)


def test_one_tile_for_a_whole_batch_is_not_the_same_elements() -> None:
    x = ones(2, 8, 8)
    with pytest.raises(OverlapError, match="Tile"):
        gemm(ones(2, 8, 8), ones(8, 8), epilogue=add(x[0]), out=x)
    assert torch.equal(x, ones(2, 8, 8))
