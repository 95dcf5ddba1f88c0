"""Reading SASS: the tools are found, their listings are counted, and what is missing or unreadable is named."""

from __future__ import annotations

import importlib.metadata
import stat
from pathlib import Path

import pytest

from cutegemm import CuteGemmError
from cutegemm.compiler import sass

LISTING = """
Resource usage:
 Common:
  GLOBAL:0
 Function kernel_of_something:
  REG:254 STACK:16 SHARED:1024 LOCAL:8 CONSTANT[0]:652 TEXTURE:0 SURFACE:0 SAMPLER:0

\tcode for sm_90a
\t\tFunction : kernel_of_something
\t.headerflags\t@"EF_CUDA_ACCELERATORS EF_CUDA_SM90 EF_CUDA_VIRTUAL_SM(EF_CUDA_SM90)"
        /*0000*/                   LDC R1, c[0x0][0x28] ;             /* 0x00000a00ff017b82 */
                                                                      /* 0x000ff00000000800 */
        /*0010*/              @!P1 LDGSTS.E.BYPASS.LTC128B.128 [R3], desc[UR8][R4.64] ; /* 0x0a00ff017b82 */
        /*0020*/              @UP0 UIADD3 UR4, UR4, 0x1, URZ ;        /* 0x00000a00ff017b82 */
        /*0030*/                   LDL.LU R152, [R1] ;                /* 0x00000a00ff017b82 */
        /*0040*/                   STL.64 [R1+0x8], R8 ;              /* 0x00000a00ff017b82 */
        /*0050*/                   STL [R1+0x4], R9 ;                 /* 0x00000a00ff017b82 */
       /*10060*/         {         HMMA.16816.F32.BF16 R4, R8, R12, R4 ; /* 0x00000a00ff017b82 */
        /*0070*/                   EXIT ;                             /* 0x00000a00ff017b82 */
"""


@pytest.fixture
def only_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Tools come from this folder, which is PATH, and from no package."""

    def missing(package: str) -> None:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(sass, "_tool", sass._tool.__wrapped__)
    return tmp_path


def install(folder: Path, script: str = "", name: str = "cuobjdump") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def printing(folder: Path, text: str) -> str:
    (folder / "listing").write_text(text)
    return f"cat {folder / 'listing'}"


def test_what_a_listing_says(only_on_path: Path) -> None:
    install(only_on_path, printing(only_on_path, LISTING))
    install(only_on_path, name="nvdisasm")
    code = sass.read(b"a cubin")
    assert code.opcodes == {"LDC": 1, "LDGSTS": 1, "UIADD3": 1, "LDL": 1, "STL": 2, "HMMA": 1, "EXIT": 1}
    assert (code.registers, code.local_bytes, code.static_shared_bytes, code.spills) == (254, 24, 1024, 3)


def test_the_tool_gets_the_cubin_and_finds_the_disassembler(only_on_path: Path) -> None:
    other = only_on_path / "other"
    other.mkdir()
    check = 'for file; do :; done; [ "$(cat "$file")" = "a cubin" ] && nvdisasm'
    install(only_on_path, check)
    install(only_on_path, printing(only_on_path, LISTING), name="nvdisasm")
    assert sass.read(b"a cubin").registers == 254
    with pytest.raises(CuteGemmError, match="can't read this cubin"):
        sass.read(b"another")


@pytest.mark.parametrize("present", [(), ("nvdisasm",), ("cuobjdump",)])
def test_missing_tools_are_named_with_their_packages(
    only_on_path: Path, monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", str(only_on_path))
    for name in present:
        install(only_on_path, name=name)
    absent = "nvdisasm" if present == ("cuobjdump",) else "cuobjdump"
    expected = f"{absent}.*missing: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    with pytest.raises(CuteGemmError, match=expected):
        sass.read(b"a cubin")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'no kernel image' >&2; exit 1", "no kernel image"),
        ("exit 0", "it said nothing"),
        ("echo 'REG:1 STACK:0 SHARED:0 LOCAL:0'", "REG:1"),
    ],
)
def test_what_the_tool_can_not_read_is_an_error(only_on_path: Path, script: str, said: str) -> None:
    install(only_on_path, script)
    install(only_on_path, name="nvdisasm")
    with pytest.raises(CuteGemmError, match=said):
        sass.read(b"not a cubin")


def test_instructions_of_a_cubins_kernels_are_added_up_and_of_the_rest_the_largest_counts(only_on_path: Path) -> None:
    small = LISTING.replace("REG:254 STACK:16 SHARED:1024 LOCAL:8", "REG:32 STACK:0 SHARED:2048 LOCAL:0")
    install(only_on_path, printing(only_on_path, LISTING + small))
    install(only_on_path, name="nvdisasm")
    code = sass.read(b"a cubin")
    assert code.opcodes == {"LDC": 2, "LDGSTS": 2, "UIADD3": 2, "LDL": 2, "STL": 4, "HMMA": 2, "EXIT": 2}
    assert (code.registers, code.local_bytes, code.static_shared_bytes, code.spills) == (254, 24, 2048, 6)


def test_the_installed_tools_refuse_what_is_no_cubin() -> None:
    with pytest.raises(CuteGemmError, match="can't read"):
        sass.read(b"hello")
