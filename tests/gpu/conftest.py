"""What several modules of GPU tests ask for."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def poisoned() -> None:
    """Whatever torch's allocator hands out next held NaN before."""
    held = [torch.full((size,), torch.nan) for size in (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)]
    del held
