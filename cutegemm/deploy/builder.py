"""From problems and GPUs to a bundle: planned as a call would be, compiled in parallel, written as one."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from cutegemm.compiler import bundle, c_abi, jit, loader
from cutegemm.compiler.bundle import BuiltKernel
from cutegemm.compiler.spec import Spec
from cutegemm.deploy.spec_file import Wanted, ranges
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, CuteGemmError
from cutegemm.planner import PINNED, keeps_order, plan_problem, said_of

#: Where in a bundle's folder its C library is.
C_FOLDER = "c"

Choices = Sequence[tuple[Wanted, Spec]]
Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What building took and made: `kernels` counts them by architecture, `bytes` is their files' size, `c_functions`
    are the names in the C library, if there is one."""

    problems: int
    kernels: Mapping[str, int]
    bytes: int
    seconds: float
    c_functions: tuple[str, ...] = ()


def build(
    wanted: Sequence[Wanted],
    devices: Sequence[DeviceSpec],
    out: Path,
    *,
    jobs: int | None = None,
    c_library: bool = False,
    advance: Advance = lambda *_: None,
) -> Report:
    """Build the kernels that `wanted` takes on each of `devices` into a bundle at `out`.

    `jobs` processes plan and compile, by default one for each core that this one may use. `advance(what, done, all)` is
    told of progress. With `c_library` the problems that have a name become functions of one in the bundle's folder
    `c` (`compiler.c_abi`). Raises `BundleError` for an `out` that holds something else, the planner's error for a
    problem that nothing serves, and `ArgumentError` for names that make no C library; nothing has been written then.
    """
    started = time.perf_counter()
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    if jobs < 1:
        raise ArgumentError(f"jobs={jobs}: expected at least 1")
    bundle.check_target(out)
    if not loader.can_compile():
        raise CuteGemmError("nvidia-cutlass-dsl, which compiles kernels, is not installed: pip install cutegemm there")
    # Spawned, not forked: the compiler's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        choices = choose(wanted, devices, pool, advance, c_library=c_library)
        named = functions(choices) if c_library else {}
        built = _compile(problems(choices), pool, advance)
    bundle.write(out, built)
    if named:
        c_abi.build_library(named, out / C_FOLDER, jobs=jobs)
    counts = Counter(kernel.spec.arch for kernel in built)
    size = sum(len(kernel.data) for kernel in built)
    seconds = time.perf_counter() - started
    return Report(len(wanted), dict(sorted(counts.items())), size, seconds, tuple(sorted(named)))


def choose(
    wanted: Sequence[Wanted],
    devices: Sequence[DeviceSpec],
    pool: ProcessPoolExecutor,
    advance: Advance,
    *,
    c_library: bool = False,
) -> Choices:
    """Every problem with the kernel that the planner picks for it, on each device; with `c_library` one that a C
    function can launch where the problem has a name."""
    pairs = [(item, device) for device in devices for item in wanted]
    asked = [(item if c_library else item._replace(name=None), device) for item, device in pairs]
    choices = []
    for (item, _), spec in zip(pairs, pool.map(_plan, asked, chunksize=64), strict=True):
        choices.append((item, spec))
        advance("planned", len(choices), len(pairs))
    return choices


def functions(choices: Choices) -> dict[str, tuple[Spec, ...]]:
    """The functions of a C library: by the name of a problem, its kernels, one for each architecture.

    Raises `ArgumentError` where no problem has a name, two have one, or one takes several kernels on an architecture or
    is computed transposed, so that the caller's A would have to be the function's B.
    """
    named: dict[str, dict[str, dict[Spec, list[int]]]] = {}
    labels: dict[str, str] = {}
    for item, spec in choices:
        if item.name is None:
            continue
        if item.problem.better_transposed:
            sizes = f"name={item.name!r} is of n={item.problem.n}"
            raise ArgumentError(f"{sizes}, computed as its transpose: exchange m and n")
        if labels.setdefault(item.name, item.label) != item.label:
            raise ArgumentError(f"name={item.name!r} is that of two problems, {labels[item.name]} and {item.label}")
        named.setdefault(item.name, {}).setdefault(spec.arch, {}).setdefault(spec, []).append(item.problem.m)
    for name, archs in named.items():
        for arch, specs in archs.items():
            if len(specs) > 1:
                parts = [f"m {ranges(set(ms))}: {spec.family}:{spec.config}" for spec, ms in specs.items()]
                raise ArgumentError(
                    f"name={name!r} takes {len(specs)} kernels on {arch}, and a C function has one: give each range "
                    f"of M a problem and a name of its own, or pin a kernel, of {'; '.join(parts)}"
                )
    if not named:
        raise ArgumentError("no problem has a name: a C library's functions are called after those that have one")
    return {name: tuple(spec for specs in archs.values() for spec in specs) for name, archs in named.items()}


def problems(choices: Choices) -> dict[Spec, tuple[str, ...]]:
    """The problems that each kernel serves, as their labels and values of M."""
    sizes: dict[Spec, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for item, spec in choices:
        sizes[spec][item.label].append(item.problem.m)
    return {
        spec: tuple(sorted(f"m {ranges(set(values))} {label}" for label, values in labels.items()))
        for spec, labels in sizes.items()
    }


def _plan(pair: tuple[Wanted, DeviceSpec]) -> Spec:
    (problem, kernel, label, name), device = pair
    try:
        # Who pins such sums has said that their order does not matter.
        ordered = keeps_order(kernel)
        with said_of(problem.better_transposed):
            plan = plan_problem(problem.computed, device, kernel=kernel, workspace=name is None, deterministic=ordered)
    except CuteGemmError as error:
        raise type(error)(f"m {problem.m} {label} on {device.name}: {error}") from None
    if plan.family in PINNED:
        raise ArgumentError(f"{label} is pinned to {plan.kernel}, which is compiled where it runs: no bundle has it")
    return Spec(plan.family, plan.config, plan.problem.signature, device.arch)


def _compile(chosen: Mapping[Spec, tuple[str, ...]], pool: ProcessPoolExecutor, advance: Advance) -> list[BuiltKernel]:
    running = {pool.submit(_compile_one, spec): spec for spec in chosen}
    built: dict[Spec, BuiltKernel] = {}
    for future in as_completed(running):
        spec = running[future]
        try:
            suffix, data = future.result()
        except Exception as error:  # what a compiler raises is its own affair
            pool.shutdown(wait=False, cancel_futures=True)
            raise CuteGemmError(f"{spec} can't be compiled: {error!r}") from error
        built[spec] = BuiltKernel(spec, suffix, data, chosen[spec])
        advance("compiled", len(built), len(running))
    return [built[spec] for spec in chosen]


def _compile_one(spec: Spec) -> tuple[str, bytes]:
    return loader.link(spec, jit.build(spec).elf)
