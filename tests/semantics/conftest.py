"""Every test here runs with torch's default device set to each device in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import ahead


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of this run, "cpu" or "cuda": where `torch.ones(...)` and its like make tensors meanwhile."""
    if request.param == "cuda":
        request.getfixturevalue("kernels_built_ahead")
    torch.set_default_device(request.param)
    try:
        yield request.param
    finally:
        torch.set_default_device(None)


@pytest.fixture(scope="session")
def kernels_built_ahead(request: pytest.FixtureRequest) -> None:
    """Most kernels that the selected tests need, built in parallel: those of the calls that they make on the CPU.

    What a rehearsal on the CPU does not reach is built when it is called for.
    """
    if ahead.in_worker():
        return
    folder = Path(__file__).parent
    rehearsed = [
        item
        for item in request.session.items
        if folder in item.path.parents and item.callspec.params["device"] == "cuda"  # type: ignore[attr-defined]
    ]
    with ahead.recorded() as specs:
        for item in rehearsed:
            ahead.rehearse(item)
    ahead.build(specs)
