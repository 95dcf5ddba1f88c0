"""Errors that know no device, and that every public name is there."""

from __future__ import annotations

import pytest
import torch

import cutegemm
from cutegemm import ArgumentError, CuteGemmError, DTypeError, ShapeError, gemm, interleave


def ones(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("gate", "up", "error", "message"),
    [
        (ones(3, 4), ones(3, 5), ShapeError, r"w_gate has shape \(3, 4\) and w_up \(3, 5\)"),
        (ones(4), ones(4), ShapeError, r"expected one shape, \(N, K\)"),
        (
            ones(3, 4),
            ones(3, 4, dtype=torch.float16),
            DTypeError,
            "w_gate is torch.bfloat16 and w_up is torch.float16",
        ),
        ([1], ones(3, 4), ArgumentError, "w_gate is list"),
    ],
)
def test_interleave_refuses_two_that_are_not_alike(gate, up, error, message) -> None:
    with pytest.raises(error, match=message):
        interleave(gate, up)


def test_every_error_is_public_and_derives_from_the_base() -> None:
    names = [name for name in cutegemm.__all__ if name.endswith("Error")]
    assert len(names) == 11
    assert all(issubclass(getattr(cutegemm, name), CuteGemmError) for name in names)


def test_every_public_name_is_there() -> None:
    for name in cutegemm.__all__:
        assert getattr(cutegemm, name) is not None
    assert set(cutegemm.__all__) <= set(dir(cutegemm))
    with pytest.raises(AttributeError, match="no attribute 'gem'"):
        cutegemm.gem  # noqa: B018


@pytest.mark.parametrize("keyword", ["split_k", "padding", "precision", "jit", "deterministic", "kernel"])
def test_an_array_is_no_value_of_a_keyword(keyword: str) -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    with pytest.raises(CuteGemmError, match=keyword):
        gemm(a, b, **{keyword: torch.ones(2).numpy()})  # type: ignore[arg-type]


def test_a_tensor_off_its_elements_alignment() -> None:
    a = torch.frombuffer(bytearray(100), dtype=torch.float32, count=6, offset=1).view(2, 3)
    with pytest.raises(ArgumentError, match="a starts at address"):
        gemm(a, torch.ones(3, 2))


@pytest.mark.parametrize("kernel", ["bogus", "sm80_multistage:tiles=1", "cutlass_cpp:tiles=1"])
def test_a_pin_is_read_without_data_too(kernel: str) -> None:
    a, b = (
        torch.empty(2, 3, device="meta", dtype=torch.bfloat16),
        torch.empty(3, 2, device="meta", dtype=torch.bfloat16),
    )
    with pytest.raises(CuteGemmError, match=kernel.partition(":")[0]):
        gemm(a, b, kernel=kernel)
