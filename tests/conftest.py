"""Shared pytest set-up: GPU tests are skipped, saying why, where there is no GPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import settings

# Tracing, compiling and a busy two-core machine make single examples slow; examples are what to bound.
settings.register_profile("cutegemm", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("cutegemm")


def missing_gpu() -> str | None:
    """What stands between this machine and the GPU tests, or None."""
    if torch.version.cuda is None:
        return "this torch is a CPU build"
    if not torch.cuda.is_available():
        return "torch finds no usable CUDA GPU or driver"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing_gpu()
    if reason is None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA GPU: {reason}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason that tests were skipped for."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")
