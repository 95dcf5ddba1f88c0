"""Fixtures for what calls do before they are launched, on machines with no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cutegemm.compiler import bundle, jit, serving
from cutegemm.device import DeviceSpec
from tests.bundles import H200, forget, kernels


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has no kernels yet, with an empty cache directory and no bundles."""
    for name in ("CUTEGEMM_BUNDLE", "CUTEGEMM_JIT", "CUTEGEMM_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(serving, "entry_points", lambda group: ())
    forget()
    yield
    forget()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle of `tests.bundles.kernels`."""
    path = tmp_path / "bundle"
    bundle.write(path, kernels())
    return path


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("this was to come from a bundle")

    monkeypatch.setattr(jit, "build", refuse)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> DeviceSpec:
    """Calls are prepared as on an H200, from CPU tensors."""
    monkeypatch.setattr(DeviceSpec, "query", staticmethod(lambda index=0: H200))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return H200
