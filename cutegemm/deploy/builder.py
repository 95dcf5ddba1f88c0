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

from cutegemm.compiler import bundle, jit, loader
from cutegemm.compiler.bundle import BuiltKernel
from cutegemm.compiler.spec import Spec
from cutegemm.deploy.spec_file import Wanted, ranges
from cutegemm.device import DeviceSpec
from cutegemm.errors import ArgumentError, CuteGemmError
from cutegemm.planner import plan_problem
from cutegemm.transpose import better_transposed

#: Problems by the kernel that serves them, each as its label and values of M.
Chosen = Mapping[Spec, tuple[str, ...]]
Advance = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What building took and made: `kernels` counts them by architecture, `bytes` is their files' size."""

    problems: int
    kernels: Mapping[str, int]
    bytes: int
    seconds: float


def build(
    wanted: Sequence[Wanted],
    devices: Sequence[DeviceSpec],
    out: Path,
    *,
    jobs: int | None = None,
    advance: Advance = lambda *_: None,
) -> Report:
    """Build the kernels that `wanted` takes on each of `devices` into a bundle at `out`.

    `jobs` processes plan and compile, by default one for each core that this one may use. `advance(what, done, all)` is
    told of progress. Nothing is written before everything is compiled. Raises `BundleError` for an `out` that holds
    something else, and the planner's error for a problem that nothing serves.
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
        chosen = choose(wanted, devices, pool, advance)
        built = _compile(chosen, pool, advance)
    bundle.write(out, built)
    counts = Counter(kernel.spec.arch for kernel in built)
    size = sum(len(kernel.data) for kernel in built)
    return Report(len(wanted), dict(sorted(counts.items())), size, time.perf_counter() - started)


def choose(
    wanted: Sequence[Wanted], devices: Sequence[DeviceSpec], pool: ProcessPoolExecutor, advance: Advance
) -> Chosen:
    """The kernels that the planner picks, in the order of the problems."""
    pairs = [(item, device) for device in devices for item in wanted]
    sizes: dict[Spec, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    planned = pool.map(_plan, pairs, chunksize=64)
    for done, ((item, _), spec) in enumerate(zip(pairs, planned, strict=True), 1):
        sizes[spec][item.label].append(item.problem.m)
        advance("planned", done, len(pairs))
    return {
        spec: tuple(sorted(f"m {ranges(set(values))} {label}" for label, values in labels.items()))
        for spec, labels in sizes.items()
    }


def _plan(pair: tuple[Wanted, DeviceSpec]) -> Spec:
    (problem, kernel, label), device = pair
    if better_transposed(problem):  # as `launch` does
        problem = problem.transposed()
    try:
        plan = plan_problem(problem, device, kernel=kernel)
    except CuteGemmError as error:
        raise type(error)(f"m {pair[0].problem.m} {label} on {device.name}: {error}") from None
    return Spec(plan.family, plan.config, problem.signature, device.arch)


def _compile(chosen: Chosen, pool: ProcessPoolExecutor, advance: Advance) -> list[BuiltKernel]:
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
    return loader.link(jit.build(spec).elf)
