"""What a torch user writes in place of a fused epilogue: a product, then separate calls."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["EAGER"]


def _swiglu(a: Tensor, b: Tensor) -> Tensor:
    both = torch.mm(a, b)
    return F.silu(both[:, 0::2]) * both[:, 1::2]


#: By epilogue, from A, B and the epilogue's operands; `addmm` is torch's one call for a product and a bias.
EAGER: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b, other: torch.mm(a, b).add_(other),
    "bias": lambda a, b, bias: torch.addmm(bias, a, b),
    "bias_add": lambda a, b, bias, other: torch.addmm(bias, a, b).add_(other),
    "bias_gelu": lambda a, b, bias: F.gelu(torch.addmm(bias, a, b)),
    "bias_gelu_tanh": lambda a, b, bias: F.gelu(torch.addmm(bias, a, b), approximate="tanh"),
    "bias_relu": lambda a, b, bias: torch.addmm(bias, a, b).relu_(),
    "bias_silu": lambda a, b, bias: F.silu(torch.addmm(bias, a, b), inplace=True),
    "gelu": lambda a, b: F.gelu(torch.mm(a, b)),
    "relu": lambda a, b: torch.mm(a, b).relu_(),
    "swiglu": _swiglu,
}
