"""`cutegemm doctor`: what is installed, what each GPU can run, and what to do about what can't."""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import Literal

from packaging.requirements import Requirement

from cutegemm import device
from cutegemm.cli.output import Subcommands, console, print_json, subcommand
from cutegemm.device import DeviceSpec
from cutegemm.errors import DeviceError
from cutegemm.planner.families import FAMILIES

State = Literal["ok", "note", "broken"]

#: The kernels are assembled for CUDA 13, which came with this driver; older ones refuse its images.
CUDA_NEEDED = (13, 0)
DRIVER_NEEDED = 580


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: in order, worth knowing, or in the way of `gemm`. `fix` says what to do."""

    subject: str
    state: State
    text: str
    fix: str | None = None


def add(subcommands: Subcommands) -> None:
    parser = subcommand(
        subcommands,
        "doctor",
        "what is installed, what each GPU can run, and what to do about what can't",
        "Looks at packages, driver, GPUs and the kernel cache. Exits with 0 where cutegemm is usable (on CPU "
        "tensors alone counts, and is said) and with 1 where something is broken.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    findings = list(examine())
    broken = any(finding.state == "broken" for finding in findings)
    verdict = _verdict(findings, broken)
    if args.json:
        print_json({"usable": not broken, "verdict": verdict, "findings": [asdict(f) for f in findings]})
        return int(broken)
    out = console()
    marks = {"ok": "[green]ok[/]    ", "note": "[yellow]note[/]  ", "broken": "[red]broken[/]"}
    for finding in findings:
        out.print(f"{marks[finding.state]} [bold]{finding.subject}[/]: ", end="")
        out.print(finding.text, markup=False)
        if finding.fix:
            out.print(f"       -> {finding.fix}", markup=False)
    out.print(f"\n{verdict}", markup=False)
    return int(broken)


def examine() -> Iterator[Finding]:
    """Every finding, packages first; nothing here raises for what it finds."""
    yield Finding("python", "ok", sys.version.split()[0])
    yield from packages()
    yield from imports()
    yield nvcc()
    yield from gpus()
    yield cache()


def packages() -> Iterator[Finding]:
    """What the distribution requires, and what of it is installed in a version it accepts."""
    try:
        declared = [Requirement(text) for text in requires("cutegemm") or []]
    except PackageNotFoundError:
        yield Finding(
            "cutegemm",
            "broken",
            "imported from a folder that is not installed, so no epilogue is registered",
            "pip install -e . in that folder",
        )
        return
    yield Finding("cutegemm", "ok", version("cutegemm"))
    for requirement in _of_extra(declared, ""):
        problem = _problem(requirement)
        if problem is None:
            yield Finding(requirement.name, "ok", version(requirement.name))
        else:
            brackets = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            wanted = f"{requirement.name}{brackets}{requirement.specifier}"
            yield Finding(requirement.name, "broken", problem, f"pip install '{wanted}'")
    for extra in metadata("cutegemm").get_all("Provides-Extra") or []:
        own = [r for r in _of_extra(declared, extra) if r.name != "cutegemm"]
        problems = [f"{r.name} {problem}" for r in own if (problem := _problem(r)) is not None]
        subject = f"extra {extra}"
        if problems:
            yield Finding(subject, "note", "; ".join(problems), f"pip install 'cutegemm[{extra}]'")
        else:
            yield Finding(subject, "ok", ", ".join(f"{r.name} {version(r.name)}" for r in own))


def _of_extra(declared: list[Requirement], extra: str) -> list[Requirement]:
    """The requirements that `extra` adds, or with "" those that always hold."""

    def holds(requirement: Requirement, extra: str) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    return [r for r in declared if holds(r, extra) and not (extra and holds(r, ""))]


def _problem(requirement: Requirement) -> str | None:
    """What is wrong with the installed package, or None."""
    have = _version(requirement.name)
    if have is None:
        return "is not installed"
    if not requirement.specifier.contains(have, prereleases=True):
        return f"{have} is not {requirement.specifier}"
    missing = _missing_parts(requirement)
    return f"{have} lacks {', '.join(missing)}" if missing else None


def _missing_parts(requirement: Requirement) -> list[str]:
    """What an installed requirement's extras ask for and is not there, such as the DSL's CUDA 13 part."""
    missing = []
    for text in requires(requirement.name) or []:
        part = Requirement(text)
        wanted = part.marker and any(part.marker.evaluate({"extra": extra}) for extra in requirement.extras)
        if wanted and _version(part.name) is None:
            missing.append(part.name)
    return missing


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def nvcc() -> Finding:
    """What compiles `cutlass_cpp`."""
    from cutegemm.cutlass_cpp import build

    missing = build.missing()
    if missing is None:
        return Finding("nvcc", "ok", build.nvcc())
    text, _, fix = missing.partition(": ")
    return Finding("nvcc", "note", f"{text}: cutlass_cpp runs only kernels that are built", fix or None)


def imports() -> Iterator[Finding]:
    """Whether what is installed can be imported: a wheel for another platform fails only here."""
    modules = {"torch": "torch", "nvidia-cutlass-dsl": "cutlass.cute", "apache-tvm-ffi": "tvm_ffi"}
    for package, module in modules.items():
        if _version(package) is not None and (error := _import_error(module)):
            yield Finding(package, "broken", f"import {module} fails: {error}", f"reinstall {package}")


def _import_error(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken binary raises whatever its loader raises
        return f"{type(error).__name__}: {error}"
    return None


def gpus() -> Iterator[Finding]:
    """The driver, each GPU with what can run on it, and whether torch can use them."""
    try:
        cuda = device.driver_version()
        specs = device.gpus()
    except DeviceError as error:
        yield Finding("driver", "note", str(error))
        return
    release = device.driver_release() or "of an unknown release"
    if cuda >= CUDA_NEEDED:
        yield Finding("driver", "ok", f"{release}, for CUDA {cuda[0]}.{cuda[1]}")
    else:
        yield Finding(
            "driver",
            "broken" if specs else "note",
            f"{release}, for CUDA {cuda[0]}.{cuda[1]}, refuses kernels of CUDA 13 "
            '("no kernel image", "unsupported toolchain")',
            f"install driver {DRIVER_NEEDED} or newer",
        )
    if not specs:
        yield Finding("GPU", "note", "the driver shows none; CUDA_VISIBLE_DEVICES may hide them")
        return
    for index, spec in enumerate(specs):
        yield _gpu(index, spec)
    yield from _torch(specs)


def _gpu(index: int, spec: DeviceSpec) -> Finding:
    subject = f"GPU {index}"
    facts = f"{spec.name}, {spec.arch}, {spec.sm_count} SMs"
    able = [family.name for family in FAMILIES.values() if spec.arch in family.architectures]
    if able:
        return Finding(subject, "ok", f"{facts}; runs {', '.join(able)}")
    served = sorted({arch for family in FAMILIES.values() for arch in family.architectures}, key=_number)
    return Finding(
        subject,
        "note",
        f"{facts}; no kernel family is made for {spec.arch}, so gemm on its tensors raises "
        'UnsupportedArchitectureError (elsewhere this shows as "no kernel image")',
        f"use a GPU of {', '.join(served)}",
    )


def _number(arch: str) -> int:
    return int("".join(c for c in arch if c.isdigit()))


def _torch(specs: tuple[DeviceSpec, ...]) -> Iterator[Finding]:
    """Whether torch can make tensors on the GPUs that the driver shows."""
    subject = "torch and CUDA"
    try:
        import torch
    except ImportError:
        return  # reported as missing already
    if torch.version.cuda is None:
        text = f"torch {torch.__version__} is a CPU build beside a GPU: it has no CUDA tensors"
        yield Finding(subject, "broken", text, "install a CUDA 13 build of torch")
        return
    if torch.cuda.device_count() != len(specs):
        text = f"torch shows {torch.cuda.device_count()} of the driver's {len(specs)} GPUs"
        yield Finding(subject, "broken", text, "install a build of torch that this driver supports")
        return
    built = torch.cuda.get_arch_list()
    for index, spec in enumerate(specs):
        if not any(_serves(arch, spec.compute_capability) for arch in built):
            text = f"torch has no kernel image for GPU {index} ({spec.arch}), only for {', '.join(built)}"
            yield Finding(subject, "broken", text, "install a build of torch that lists it")
            return
    yield Finding(subject, "ok", f"CUDA {torch.version.cuda}, {len(specs)} GPU{'s' * (len(specs) > 1)}")


def _serves(built: str, capability: tuple[int, int]) -> bool:
    """Whether code built for `built` runs there: SASS within a major version, PTX on anything newer."""
    kind, _, target = built.partition("_")
    major, minor = divmod(_number(target), 10)
    if not target.isdigit():  # "90a": that one alone
        return (major, minor) == capability
    if kind == "compute":
        return (major, minor) <= capability
    return major == capability[0] and minor <= capability[1]


def cache() -> Finding:
    """Where built kernels are kept, and how many there are."""
    from cutegemm.compiler import cache_directory

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        directory = cache_directory()
    if caught:
        return Finding("kernel cache", "note", str(caught[0].message))
    kernels = len(list(directory.glob("*.json")))
    size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    text = f"{directory}, {kernels} kernels, {size / 1e6:.1f} MB"
    return Finding("kernel cache", "ok", text)


def _verdict(findings: list[Finding], broken: bool) -> str:
    if broken:
        return "Not usable as it stands: mend what is marked broken, from the top."
    able = [f.subject for f in findings if f.subject.startswith("GPU ") and f.state == "ok"]
    cpu = "CPU tensors (through the reference), for planning and for compiling"
    if able:
        return f"Usable on {', '.join(able)}; on {cpu}."
    return f"Usable on {cpu}. No GPU here runs a kernel."
