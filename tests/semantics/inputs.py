"""Inputs and epilogues that these tests share. Tensors are made on torch's default device, which is the tested one."""

from __future__ import annotations

import torch
from torch import Tensor

from cutegemm import Col, Row, Scalar, Tile, epilogue, ops

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@epilogue
def bias(acc, bias: Row):
    return acc + bias


@epilogue
def bias_relu(acc, bias: Row):
    return ops.relu(acc + bias)


@epilogue
def relu(acc):
    return ops.relu(acc)


@epilogue
def add(acc, residual: Tile):
    return acc + residual


@epilogue
def everything(acc, row: Row, col: Col, tile: Tile, scalar: Scalar = 0.5):
    x = (acc + row) * scalar
    return {"out": ops.gelu(x + col) + tile, "pre": x}


@epilogue
def swiglu_aux(acc):
    gate, up = ops.pair(acc)
    return {"out": ops.silu(gate) * up, "pre": acc}


def randn(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same ones on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cpu").to(dtype).to(torch.get_default_device())


def full(value: float, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def ones(*shape: int, dtype: torch.dtype = BF16, **keywords) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, **keywords)


def in_nan(rows: torch.Tensor, align: int = 16) -> torch.Tensor:
    """The matrix again, in memory that is NaN elsewhere, its rows aligned to `align` bytes (at most 16) and no more."""
    m, n = rows.shape
    unit = align // rows.itemsize
    chunk = 16 // rows.itemsize
    pitch = (n // chunk + 2) * chunk + unit % chunk
    memory = torch.full(((m + 2) * pitch,), torch.nan, dtype=rows.dtype)
    view = memory.as_strided((m, n), (pitch, 1), pitch - pitch % chunk + unit % chunk)
    return view.copy_(rows)


#: Batches of a and b that broadcast.
BATCHES = [
    ((), ()),
    ((3,), ()),
    ((), (3,)),
    ((2, 3), (3,)),
    ((2, 1), (1, 3)),
    ((2, 1, 4), (5, 1)),
    ((1,), (1,)),
    ((1,), (4,)),
]


def fp32_operands(
    m: int, n: int, k: int, layout: str, align: int = 16, batch: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """A and B; matrices in memory that is NaN elsewhere, their rows aligned to `align` bytes and no more."""
    a = randn(*batch, *((m, k) if layout[0] == "n" else (k, m)), dtype=FP32, seed=k)
    b = randn(*batch, *((k, n) if layout[1] == "n" else (n, k)), dtype=FP32, seed=k + 1)
    if not batch:
        a, b = in_nan(a, align), in_nan(b, align)
    return (a if layout[0] == "n" else a.mT), (b if layout[1] == "n" else b.mT)
