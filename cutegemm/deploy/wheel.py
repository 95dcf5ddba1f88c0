"""A bundle as a wheel: installed, it serves every process of its environment (entry-point group `cutegemm.bundles`)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from pathlib import Path

from cutegemm.compiler import bundle
from cutegemm.compiler.serving import GROUP
from cutegemm.errors import ArgumentError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip file can hold: the same bundle makes the same wheel

_MODULE = '''"""Kernels for cutegemm on {archs}; BUNDLE is where they lie."""

from pathlib import Path

BUNDLE = Path(__file__).parent / "bundle"
'''


def identify(named: str, folder: Path) -> tuple[str, str | None]:
    """The name and version in "NAME" or "NAME==VERSION"; where `named` is empty, the name follows from the folder's.

    Raises `ArgumentError` for what no distribution may be called.
    """
    name, equals, version = named.partition("==")
    if not named:
        name = "cutegemm-bundle-" + re.sub(r"[^A-Za-z0-9]+", "-", folder.absolute().name).strip("-").lower()
    if not _NAME.fullmatch(name) or (equals and not _VERSION.fullmatch(version)):
        form = "expected a distribution's NAME or NAME==VERSION, such as llm==1.2"
        raise ArgumentError(f"wheel={named or name!r}: {form}")
    return name, version or None


def write(folder: Path, name: str, version: str | None, into: Path) -> Path:
    """The bundle at `folder` as a wheel in the folder `into`; returns its path.

    It needs the very cutegemm that built it. Its own version is by default cutegemm's, with the manifest's checksum.
    """
    built = bundle.read(folder)
    manifest = json.loads((built.path / bundle.MANIFEST).read_bytes())
    version = version or f"{built.version}+{manifest['sha256'][:12]}"
    module = re.sub(r"[-_.]+", "_", name).lower()
    info = f"{module}-{version}.dist-info"
    tag = f"py3-none-linux_{built.build['machine'].partition('-')[0]}"
    files = {
        f"{module}/__init__.py": _MODULE.format(archs=", ".join(built.archs)).encode(),
        f"{module}/bundle/{bundle.MANIFEST}": (built.path / bundle.MANIFEST).read_bytes(),
        **{f"{module}/bundle/{k.path.relative_to(built.path)}": k.path.read_bytes() for k in built.kernels},
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: Kernels for cutegemm on "
            f"{', '.join(built.archs)}\nRequires-Dist: cutegemm=={built.version}\n"
        ).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: cutegemm\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{info}/entry_points.txt": f"[{GROUP}]\n{module} = {module}:BUNDLE\n".encode(),
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            entry = zipfile.ZipInfo(file, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
