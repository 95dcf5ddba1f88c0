"""The CUDA path: from a `Call` to a planned, built kernel and its arguments, launched on the caller's stream.

A `Launcher` is what remains of all that once the metadata is fixed: a function and constant arguments, to which every
launch adds addresses, run-time floats and the stream. `cutegemm.warm` keeps launchers by a call's metadata.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutegemm import compiler, recording
from cutegemm.compiler import serving
from cutegemm.compiler.bundle import Bundle
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import CuteGemmError, KernelNotBuiltError
from cutegemm.kernels import abi, workspace
from cutegemm.normalize import Call
from cutegemm.planner import FAMILIES, Plan, parse_pin, plan_problem, said_of
from cutegemm.problem import Problem
from cutegemm.request import Recipe
from cutegemm.transpose import transposed


@dataclass(frozen=True, slots=True, eq=False)
class Launcher:
    """A built kernel with everything that a call's metadata decides.

    `constants` are the sizes and strides. `order` lists the positions of the kernel's addresses among the call's
    tensors, where it differs. `offsets` has, for each launch, the bytes to add to each address, where the batch has
    more modes than a kernel walks and takes several launches. `workspace` is how many bytes the kernel needs beside the
    call's tensors: torch's allocator gives them for each call, on the stream that is launched on, which orders their
    reuse behind it; nothing in them has to be cleared, and in a captured graph they are the graph's.
    """

    function: Any
    device: int
    constants: tuple[int, ...]
    order: tuple[int, ...] | None
    offsets: tuple[tuple[int, ...], ...] | None
    workspace: int = 0

    def __call__(self, addresses: Sequence[int], floats: Sequence[float]) -> None:
        """Launch on the current stream of the operands' device.

        `addresses` are those of `tensors_of(call)`, `floats` are `floats_of(call)`.
        """
        # torch's own accessors check on every call that CUDA is initialised; a tensor's being there says so.
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                self._launch(addresses, floats, stream)
        elif self.order is None and self.offsets is None and not self.workspace:
            self.function(*addresses, 0, *self.constants, *floats, stream)
        else:
            self._launch(addresses, floats, stream)

    def _launch(self, addresses: Sequence[int], floats: Sequence[float], stream: int) -> None:
        if self.order is not None:
            addresses = [addresses[i] for i in self.order]
        place = 0
        if self.workspace:  # it has to live until the kernel is launched, and no longer
            memory = torch.empty(self.workspace, dtype=torch.uint8, device=f"cuda:{self.device}")
            place = memory.data_ptr()
        if self.offsets is None:
            self.function(*addresses, place, *self.constants, *floats, stream)
            return
        for offsets in self.offsets:
            moved = [address + offset for address, offset in zip(addresses, offsets, strict=True)]
            self.function(*moved, place, *self.constants, *floats, stream)


def run(call: Call) -> Launcher:
    """Plan, build if need be, and launch `call`; the launcher serves calls of the same metadata again."""
    launcher = prepare(call)
    torch._C._increment_version(call.results)  # autograd has to notice what it saved being overwritten
    launcher(tuple(t.data_ptr() for t in tensors_of(call)), floats_of(call))
    return launcher


def prepare(call: Call) -> Launcher:
    """The launcher of `call`. Raises what planning and building raise; nothing has been launched then."""
    choice = choose(call)
    pin = call.options.kernel
    asked = call.options.split_k, call.options.padding, call.options.deterministic
    if asked != ("auto", "auto", True):
        pin = choice.plan.kernel
    recording.record(call.recipe.problem, pin)
    try:
        kernel = compiler.get(choice.spec, jit=call.options.jit)
    except KernelNotBuiltError as error:
        from cutegemm.deploy.spec_file import to_build

        raise KernelNotBuiltError(f"{error}\n{to_build(call.recipe.problem, pin)}") from None
    constants, offsets = _constants(choice.recipe, choice.plan.device.sm_count)
    workspace = _workspace(choice.spec, constants)
    return Launcher(kernel.function, choice.device, constants, choice.order, offsets, workspace)


class Choice(NamedTuple):
    """What will serve a call: the plan, the kernel (the plan's, or the best of its candidates that a bundle has), and
    the call's recipe as that kernel takes it.

    `order` lists the positions of the kernel's addresses in `tensors_of(call)`, where it differs; `device` is the CUDA
    device's index.
    """

    plan: Plan
    spec: compiler.Spec
    recipe: Recipe
    order: tuple[int, ...] | None
    device: int


def choose(call: Call) -> Choice:
    """Plan `call` for its device, without building anything."""
    index = call.device.index if call.device.index is not None else torch.cuda.current_device()
    device = DeviceSpec.query(index)
    recipe, order = call.recipe, None
    pinned = None if call.options.kernel is None else parse_pin(call.options.kernel).family
    turns = (pinned is None or pinned.turns) and recipe.problem.better_transposed
    if turns:
        recipe, order = transposed(recipe), (1, 0, *range(2, len(tensors_of(call))))
    asked = call.options
    with said_of(turns):
        plan = _plan(recipe.problem, device, asked.kernel, asked.split_k, asked.padding, asked.deterministic)
    spec = compiler.Spec(plan.family, plan.config, recipe.problem.signature, device.arch)
    bundles = serving.bundles(device.arch, device.name)
    if bundles and asked.kernel is None:
        wanted = asked.split_k, asked.padding, asked.deterministic
        spec = _bundled(recipe.problem, device, *wanted, bundles) or spec
    if asked.kernel is None and plan.measured and FAMILIES[spec.family].last and not compiler.obtainable(spec):
        # The fastest by measurement, and nothing here can compile it: the best of the usual families, then.
        wanted = asked.split_k, asked.padding, asked.deterministic
        plan = _plan(recipe.problem, device, None, *wanted, without=(spec.family,))
        spec = compiler.Spec(plan.family, plan.config, recipe.problem.signature, device.arch)
    return Choice(plan, spec, recipe, order, index)


@functools.lru_cache(maxsize=1024)
def _plan(
    problem: Problem, device: DeviceSpec, kernel: str | None, split_k: Any, padding: Any, deterministic: bool,
    without: tuple[str, ...] = (),
) -> Plan:  # fmt: skip
    """Planning takes some milliseconds, and not every call that repeats a problem is one that `warm` can hold."""
    asked: dict[str, Any] = {"split_k": split_k, "padding": padding, "deterministic": deterministic}
    return plan_problem(problem, device, kernel=kernel, without=without, **asked)


@functools.lru_cache(maxsize=1024)
def _bundled(
    problem: Problem, device: DeviceSpec, split_k: Any, padding: Any, deterministic: bool, bundles: tuple[Bundle, ...]
) -> compiler.Spec | None:
    """The best kernel for `problem` of those that bundles have; None where they have none.

    A plan tries the splits that suit its problem; those of bundled kernels suited theirs, and serve this one too.
    """
    plan = _plan(problem, device, None, split_k, padding, deterministic)
    legal = [c for c in plan.candidates if c.estimate is not None]
    if split_k == "auto":
        configs = (k.description["config"] for bundle in bundles for k in bundle.kernels if k.arch == device.arch)
        splits = {"stream" if config.get("stream") else config.get("split", 1) for config in configs}
        for split in sorted(splits, key=str):
            with suppress(CuteGemmError):  # that nothing serves
                other = _plan(problem, device, None, split, padding, deterministic)
                legal += [c for c in other.candidates if c.estimate is not None]
    first, *others = legal
    ranked = [first, *sorted(others, key=lambda c: 0.0 if c.estimate is None else c.estimate.us)]
    specs = (compiler.Spec(c.family, c.config, problem.signature, device.arch) for c in ranked)
    return next((spec for spec in specs if any(bundle.find(spec) for bundle in bundles)), None)


def tensors_of(call: Call) -> list[Tensor]:
    """The tensors whose addresses a launch takes, in the order of `abi`: matrices, operands, then device scalars."""
    matrices = [call.a, call.b, *(() if call.c is None else (call.c,)), *call.outs]
    kinds = [spec.kind for spec in call.graph.operands]
    operands = [o for kind, o in zip(kinds, call.operands, strict=True) if kind != "scalar"]
    return [t for t in (*matrices, *operands, *_scalars(call)) if isinstance(t, Tensor)]


def floats_of(call: Call) -> tuple[float, ...]:
    """The scalars that are passed by value, in the order of `abi`."""
    return tuple(s for s in _scalars(call) if not isinstance(s, Tensor))


def _scalars(call: Call) -> list[Tensor | float]:
    kinds = [spec.kind for spec in call.graph.operands]
    operands = [o for kind, o in zip(kinds, call.operands, strict=True) if kind == "scalar"]
    return [call.alpha, *(() if call.c is None else (call.beta,)), *operands]


def _workspace(spec: compiler.Spec, constants: tuple[int, ...]) -> int:
    """Bytes that a kernel needs beside the tensors of a call with these sizes and strides."""
    family = FAMILIES.get(spec.family)
    if family is None or not family.surrounds:
        return 0
    names = (a.name for a in abi.arguments(spec.signature) if a.kind in ("size", "stride"))
    v = dict(zip(names, constants, strict=True))
    return int(workspace.size(spec.signature, spec.config, v, workspace.pick))


def _constants(recipe: Recipe, sm_count: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...] | None]:
    """Sizes and strides as `abi.arguments` lists them, and each launch's byte offsets per address."""
    problem, modes = recipe.problem, recipe.modes
    inner = modes[-abi.BATCH_MODES :]
    outer = modes[: len(modes) - len(inner)]
    l0, l1 = (*reversed(inner), 1, 1)[:2]
    names = {"m": problem.m, "n": problem.n, "k": problem.k, "l0": l0, "l1": l1, "sm_count": sm_count}
    layouts = [recipe.a, recipe.b, *(() if recipe.c is None else (recipe.c,)), *recipe.outs]
    layouts += [layout for layout in recipe.operands if layout is not None]
    outer_strides = []
    for tensor, layout in zip(abi.tensors(problem.signature), layouts, strict=True):
        batch, own = layout.strides[: len(modes)], layout.strides[len(modes) :]
        dims = ("k", "n") if tensor.name == "b" else tensor.dims[: len(own)]
        names |= {f"stride.{tensor.name}.{dim}": stride for dim, stride in zip(dims, own, strict=True)}
        walked = (*reversed(batch[len(outer) :]), 0, 0)[:2]
        names |= {f"stride.{tensor.name}.l{i}": stride for i, stride in enumerate(walked)}
        itemsize = lookup(tensor.access.dtype).itemsize
        outer_strides.append([stride * itemsize for stride in batch[: len(outer)]])
    arguments = abi.arguments(problem.signature)
    constants = tuple(names[a.name] for a in arguments if a.kind in ("size", "stride"))
    if not outer:
        return constants, None
    scalars = [0] * (sum(a.kind == "address" for a in arguments) - len(outer_strides) - 1)
    offsets = tuple(
        (*(sum(i * s for i, s in zip(place, strides, strict=True)) for strides in outer_strides), *scalars)
        for place in itertools.product(*map(range, outer))
    )
    return constants, offsets
