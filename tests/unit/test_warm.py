"""Which calls take the short path: what a key can't hold must be left to the full path, on any device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import epilogues, warm

A, B, OUT = torch.ones(4, 8), torch.ones(8, 6), torch.empty(4, 6)


@pytest.fixture(autouse=True)
def posing_as_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors that say they are on GPU 0, and a table of entries of the test's own."""
    monkeypatch.setattr(Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(warm, "_entries", {})


def arguments(**changes: Any) -> tuple[Any, ...]:
    call = {"a": A, "b": B, "epilogue": None, "c": None, "alpha": 1.0, "beta": None, "out": OUT, "out_dtype": None}
    return (*(call | changes).values(), ())


def serve(**changes: Any) -> Any:
    return warm.serve(*arguments(**changes))


class Launches:
    """A launcher that records what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], list[float]]] = []

    def __call__(self, addresses: list[int], floats: list[float]) -> None:
        self.calls.append((list(addresses), list(floats)))


def kept(**changes: Any) -> Launches:
    launches = Launches()
    call = warm.plain(*arguments(**changes))
    assert call is not None and serve(**changes) is None
    warm.keep(call, launches, epilogues.relu.graph, (OUT,))  # type: ignore[arg-type]
    return launches


@pytest.mark.parametrize(
    "changes",
    [
        {"out_dtype": {"out": torch.float32}},
        {"out_dtype": [torch.float32]},
        {"out_dtype": "fp32"},
        {"out": [OUT]},
        {"out": {"out": OUT}},
        {"a": A.numpy()},
        {"a": A.to_sparse()},
        {"a": torch._neg_view(A)},
        {"a": A.clone().requires_grad_()},
        {"alpha": "1"},
        {"alpha": True},
        {"alpha": 10**400},
        {"beta": 0.5},
        {"c": OUT, "beta": 0},
        {"epilogue": epilogues.bias},
        {"epilogue": "relu"},
        {"out": ()},
    ],
    ids=[
        "dtype mapping",
        "dtype list",
        "dtype name",
        "out list",
        "out mapping",
        "numpy",
        "sparse",
        "negated",
        "grad",
        "str alpha",
        "bool alpha",
        "huge alpha",
        "beta without c",
        "zero beta",
        "unbound epilogue",
        "no epilogue",
        "no outputs",
    ],
)
def test_calls_for_the_full_path(changes: dict[str, Any]) -> None:
    assert warm.plain(*arguments(**changes)) is None
    assert serve(**changes) is None


def test_a_tensor_that_requires_grad_is_plain_without_grad_mode() -> None:
    with torch.no_grad():
        assert warm.plain(*arguments(a=A.clone().requires_grad_())) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"a": torch.ones(4, 8).t().contiguous().t()},
        {"a": A.double()},
        {"a": torch.ones(5, 8), "out": torch.empty(5, 6)},
        {"a": torch.ones(40)[1:33].view(4, 8)},
        {"alpha": 0.0},
        {"alpha": torch.tensor(1.0)},
        {"c": torch.ones(4, 6)},
        {"out": None},
        {"out": torch.empty(6, 4).t()},
        {"epilogue": epilogues.relu()},
        {"out_dtype": torch.float32},
    ],
    ids=[
        "a transposed",
        "dtype",
        "shape",
        "address",
        "zero alpha",
        "tensor alpha",
        "c",
        "fresh out",
        "out transposed",
        "epilogue",
        "out_dtype",
    ],
)
def test_calls_that_must_not_share_an_entry(changes: dict[str, Any]) -> None:
    kept()
    assert warm.plain(*arguments(**changes)) is not None
    assert serve(**changes) is None


def test_a_warm_call_launches_with_its_own_addresses_and_floats() -> None:
    launches = kept()
    a, out = torch.zeros(4, 8), torch.empty(4, 6)
    assert serve(a=a, out=out, alpha=3) is out
    assert launches.calls == [([a.data_ptr(), B.data_ptr(), out.data_ptr()], [3.0])]


def test_a_warm_call_allocates_what_is_not_given() -> None:
    launches = kept(out=None)
    result = serve(out=None)
    assert result.shape == OUT.shape and result.dtype == OUT.dtype
    assert launches.calls == [([A.data_ptr(), B.data_ptr(), result.data_ptr()], [1.0])]


def test_overlaps_take_the_full_path() -> None:
    pool = torch.zeros(200)
    a, b, out = pool[:32].view(4, 8), pool[40:88].view(8, 6), pool[96:120].view(4, 6)
    kept(a=a, b=b, out=out)
    for place in (0, 16, 48, 64):
        assert serve(a=a, b=b, out=pool[place : place + 24].view(4, 6)) is None
    assert serve(a=a, b=b, out=pool[160:184].view(4, 6)) is not None


def test_out_may_be_c_and_nothing_else_there() -> None:
    c = torch.ones(4, 6)
    launches = kept(c=c, out=torch.empty(4, 6))
    assert serve(c=c, out=c) is c and len(launches.calls) == 1
    shifted = torch.zeros(48)
    assert serve(c=shifted[:24].view(4, 6), out=shifted[4:28].view(4, 6)) is None


def test_an_epilogue_without_operands_needs_no_call() -> None:
    launches = kept(epilogue=epilogues.relu())
    assert serve(epilogue=epilogues.relu) is OUT and len(launches.calls) == 1


def test_autograd_notices_a_warm_write() -> None:
    kept()
    out = torch.empty(4, 6)
    before = out._version
    assert serve(out=out) is out
    assert out._version == before + 1


def test_forward_mode_takes_the_full_path() -> None:
    kept()
    with torch.autograd.forward_ad.dual_level():
        assert serve() is None
    assert serve() is OUT
