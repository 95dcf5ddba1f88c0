"""For tests that count instructions with their modifiers, of one kernel or of several in a cubin."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

#: Arithmetic on fp32, comparisons and selects included.
ARITHMETIC = ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSEL", "MUFU", "LOP3", "F2F", "I2F", "FSET", "FCHK")

_MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def disassemble(cubin: Path) -> str:
    """What nvdisasm prints of a cubin; skips the test where it is not installed."""
    return subprocess.run([_nvdisasm(), cubin], capture_output=True, text=True, check=True).stdout


def mnemonics(listing: str) -> Counter[str]:
    """Counts of instructions, modifiers included, such as "MUFU.EX2"."""
    return Counter(_MNEMONIC.findall(listing))


def count(found: Counter[str], *prefixes: str) -> int:
    """How many of the instructions begin with one of `prefixes`."""
    return sum(n for name, n in found.items() if name.startswith(prefixes))


def _nvdisasm() -> str:
    import nvidia

    for folder in nvidia.__path__:
        for binary in Path(folder).glob("cu*/bin/nvdisasm"):
            return str(binary)
    pytest.skip("nvidia-cuda-nvdisasm is not installed")
