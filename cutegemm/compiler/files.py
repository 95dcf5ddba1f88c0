"""Files that kernels are kept in: written whole or not at all, and read only from where nobody else can write."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a file that others see whole or not at all; one of its name is replaced, and stays what it was for whoever
    has it open or mapped. `mode` is its permissions, by default the process's own for new files."""
    partial = path.with_name(f".write-{uuid.uuid4().hex}")
    try:
        partial.write_bytes(data)
        if mode is not None:
            partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def trusted(path: Path) -> bool:
    """Whether only this user and root can have written there: kernels are code, and run as whoever loads them."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not status.st_mode & 0o002
