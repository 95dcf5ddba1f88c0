"""From a problem and a GPU to the kernel that should serve it, with every alternative and the reason it was
not taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from cutegemm import device as devices
from cutegemm import options
from cutegemm.device import DeviceSpec
from cutegemm.dtypes import lookup
from cutegemm.errors import ArgumentError, CuteGemmError, DeviceError, ShapeError, UnsupportedArchitectureError
from cutegemm.fusion.graph import IDENTITY, Graph
from cutegemm.kernels import workspace
from cutegemm.kernels.config import KernelConfig
from cutegemm.planner import report, surroundings, tables
from cutegemm.planner.families import FAMILIES, Family
from cutegemm.planner.legality import Refusal, Wish, needed_copies, product, surroundings_refusal, turned, unservable
from cutegemm.planner.model import Estimate, Model
from cutegemm.planner.pin import Pin, parse_pin
from cutegemm.problem import STRICT, Access, Problem, Role, Signature, access, precision_of

#: The GPU that `plan` describes where none is named and none is present.
DEFAULT_GPU = "H200"
_MOST_REASONS = 6  # that an error lists


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration of one family: its modelled time if it is legal, the reason if it is not."""

    family: str
    config: KernelConfig
    estimate: Estimate | None
    refusal: Refusal | None

    @property
    def kernel(self) -> str:
        """The `kernel=` string that pins it."""
        return f"{self.family}:{self.config}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen kernel, and what it was chosen from.

    `candidates` holds the legal ones, the chosen one first and the others by modelled time, then the refused ones.
    `measured` is among how many measured configurations the chosen one was the fastest: 0 where the model chose. `pin`
    is the `kernel=` string that narrowed them, if any; `assumed` says why the GPU is not one that was asked for, if so.
    `transposed` says that `problem` is the transposed one: D, contiguous along M, is computed as D^T = B^T A^T.
    """

    problem: Problem
    device: DeviceSpec
    family: str
    config: KernelConfig
    us: float
    candidates: tuple[Candidate, ...]
    measured: int = 0
    pin: str | None = None
    assumed: str | None = None
    transposed: bool = False

    @property
    def kernel(self) -> str:
        """The `kernel=` string that pins this choice: with `deterministic=False`, where it says `reduction=atomic`."""
        return f"{self.family}:{self.config}"

    @property
    def tflops(self) -> float:
        """The rate of the products at the modelled time, in TFLOP/s."""
        return self.problem.flops / self.us * 1e-6

    @property
    def workspace(self) -> int:
        """Bytes of memory that the kernel takes beside the tensors of a call, while it runs: less where an operand is
        broadcast over the batch."""
        family = FAMILIES.get(self.family)
        if family is not None and family.workspace is not None:
            return family.workspace(self.problem, self.config, self.device)
        return surroundings.workspace_bytes(self.problem, family, self.config, self.device)

    def explain(self) -> str:
        """The decision as fixed-width text: problem, GPU, choice and its cost, candidates, rejections by
        reason.
        """
        return report.text(self)

    def to_dict(self) -> dict[str, Any]:
        """The decision as JSON-serialisable data; `schema` grows when a field goes or changes meaning."""
        return report.data(self)


def plan(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "bf16",
    arch: str | None = None,
    batch: int = 1,
    layout: str = "nt",
    out_dtype: str | None = None,
    epilogue: object = None,
    align: int = 16,
    kernel: str | None = None,
    split_k: int | Literal["auto", "stream"] = "auto",
    padding: Literal["auto", "predicate", "copy"] = "auto",
    precision: str | None = None,
    deterministic: bool = True,
) -> Plan:
    """Plan D (batch, m, n) = epilogue(A (batch, m, k) @ B (batch, k, n)) for contiguous tensors. Needs no
    GPU.

    `dtype` is that of A, B and the epilogue's operands, `out_dtype` (default: `dtype`) that of the outputs. `layout`
    says for A, then B, whether the tensor is contiguous as written (`"n"`) or the transposed view of a contiguous one
    (`"t"`): `"nt"` is `x @ weight.t()`. `align` is what the pointers are aligned to, in bytes; a row pitch that is less
    aligned lowers it. `epilogue` is one of `cutegemm.epilogues`, bound or not. `arch` names an architecture
    (`"sm_90a"`, `"sm_90"`) or a GPU (`"H200"`). Without it the current GPU is meant, and an H200 on a machine with no
    GPU or driver: `Plan.assumed` and `explain()` then say so. `split_k`, `padding` and `deterministic` are as in
    `gemm`; `precision` too, but for its default, which for fp32 is "ieee" here: a plan is the same whatever torch is
    set to.

    Raises `ShapeError`, `DTypeError` or `ArgumentError` for an argument out of range,
    `UnsupportedArchitectureError` where no family serves the GPU, and `ArgumentError` for an unknown family.
    """
    problem = contiguous_problem(
        m,
        n,
        k,
        dtype=dtype,
        batch=batch,
        layout=layout,
        out_dtype=out_dtype,
        epilogue=epilogue,
        align=align,
        precision=precision,
    )
    device, assumed = _resolve(arch)
    options.check(split_k=split_k, padding=padding, deterministic=deterministic)
    asked: dict[str, Any] = {"split_k": split_k, "padding": padding, "deterministic": deterministic}
    with said_of(problem.better_transposed):
        made = plan_problem(problem.computed, device, kernel=kernel, assumed=assumed, **asked)
    return replace(made, transposed=problem.better_transposed)


@contextmanager
def said_of(transposed: bool) -> Iterator[None]:
    """Where what is planned is a problem's transpose, errors of planning it say so: their names are its own."""
    try:
        yield
    except CuteGemmError as error:
        if not transposed:
            raise
        turned = "D lies along M, so that D^T = B^T A^T is computed and a and b, m and n change places"
        raise type(error)(f"{turned}: {error}") from None


def plan_problem(
    problem: Problem,
    device: DeviceSpec,
    *,
    kernel: str | None = None,
    split_k: int | Literal["auto", "stream"] = "auto",
    padding: Literal["auto", "predicate", "copy"] = "auto",
    deterministic: bool = True,
    workspace: bool = True,
    without: Collection[str] = (),
    assumed: str | None = None,
) -> Plan:
    """The best legal kernel for `problem` on `device`, out of all families or those that `kernel` pins, with the splits
    and copies that `split_k` and `padding` allow: the fastest of those that were measured on it (`tables`), or else the
    fastest by the model. Unless `deterministic`, parts of K may be added up in any order. `workspace` False leaves out
    kernels that need memory beside the call's tensors, and `without` names families that are not to be chosen for
    having been measured.

    Raises the error of the rule that nothing got past: `UnsupportedArchitectureError`, `DTypeError` or
    `ShapeError`, with the reason; and what `parse_pin` raises for `kernel`.
    """
    pin = None if kernel is None else parse_pin(kernel)
    asked = replace(_asked(split_k, padding, pin, problem), workspace=workspace, deterministic=deterministic)
    times = tables.times(problem, device)
    if pin is not None:
        legal, refused = _tried(problem, [(pin.family, pin.configs)], device, asked)
    else:
        usual = [(x, x.configs) for x in FAMILIES.values() if not x.last]
        usual += [(x.family, x.configs) for x in _measured_last(times) if x.family.name not in without]
        legal, refused = _tried(problem, usual, device, asked)
        # With the split that is asked for, say, it is another configuration, which was not measured.
        legal = [pair for pair in legal if not FAMILIES[pair[1].family].last or pair[1].kernel in times]
        if not legal:
            rest = [(x, x.configs) for x in FAMILIES.values() if x.last]
            legal, more = _tried(problem, rest, device, asked)
            refused += more
    if not legal:
        raise _nothing_serves(refused, device, kernel)
    legal.sort(key=lambda pair: pair[0])  # stable: the family's order decides between equals
    known = [pair for pair in legal if pair[1].kernel in times] if times else []
    if known:
        fastest = min(known, key=lambda pair: times[pair[1].kernel])
        legal.remove(fastest)
        legal.insert(0, fastest)
    us, best = legal[0]
    candidates = (*(candidate for _, candidate in legal), *refused)
    return Plan(problem, device, best.family, best.config, us, candidates, len(known), kernel, assumed)


def _measured_last(times: Mapping[str, float]) -> list[Pin]:
    """What a table has measured of families that come last: of these no other configuration is tried beside others."""
    last = [family.name for family in FAMILIES.values() if family.last]
    return [parse_pin(name) for name in times if name.partition(":")[0] in last]


def _tried(
    problem: Problem, choices: list[tuple[Family[Any], tuple[Any, ...]]], device: DeviceSpec, asked: Wish
) -> tuple[list[tuple[float, Candidate]], list[Candidate]]:
    """The configurations that can serve `problem`, with their modelled times, and those that can't."""
    legal: list[tuple[float, Candidate]] = []
    refused: list[Candidate] = []
    for family, configs in choices:
        if (reason := unservable(problem, family, device)) is not None:
            refused += [Candidate(family.name, config, None, reason) for config in configs]
            continue
        models: dict[Any, tuple[Problem, Model[Any]]] = {}
        for config in surroundings.variants(problem, family, configs, device, asked):
            reason = surroundings_refusal(problem, family, config, asked)
            if reason is None:
                # What is multiplied depends on these alone.
                key = (config.pad, config.split, workspace.parts(config), config.tile_k) if family.surrounds else ()
                if key not in models:
                    inner = product(problem, family, config)
                    models[key] = inner, family.model(inner, device)
                inner, model = models[key]
                reason = family.refuse(inner, config, device)
            if reason is not None:
                refused.append(Candidate(family.name, config, None, reason))
                continue
            estimate = model.estimate(config)
            if family.surrounds:
                estimate = surroundings.surrounded(problem, config, device, estimate)
            legal.append((estimate.us, Candidate(family.name, config, estimate, None)))
    return legal, refused


def _asked(split_k: int | str, padding: str, pin: Pin | None, problem: Problem) -> Wish:
    """What the keywords and the pin ask together. Raises `ArgumentError` where they contradict each other."""
    asked = surroundings.wish(split_k, padding)
    if pin is None:
        return asked
    pinned = pin.asked
    if None not in (asked.split, pinned.split) and asked.split != pinned.split:
        raise ArgumentError(f"split_k={split_k!r} and kernel={pin.text!r}, which has split={pinned.split}")
    pads = {needed_copies(problem, turned(config)) for config in pin.configs} if asked.pad == "copy" else {asked.pad}
    if asked.pad is not None and pinned.pad is not None and pinned.pad not in pads:
        needs = f"which has pad={pinned.pad}: expected pad={' or '.join(sorted(map(str, pads)))}"
        raise ArgumentError(f"padding={padding!r} and kernel={pin.text!r}, {needs}")
    return Wish(pinned.split or asked.split, pinned.pad or asked.pad, reduction=pinned.reduction)


def _nothing_serves(refused: list[Candidate], device: DeviceSpec, kernel: str | None) -> CuteGemmError:
    refusals = [c.refusal for c in refused if c.refusal is not None]
    # What a family of another architecture would have said is of no use, unless there is no other.
    own = [x for x in refusals if x.rule != "architecture"] or refusals
    # Rules are tried in turn: where the size or dtype rules out a tile, that is what the caller can change. It comes
    # first, and of the rest what is said of the most configurations.
    error = next((x.error for x in own if x.error is not UnsupportedArchitectureError), own[0].error)
    said = Counter(x.reason for x in own)
    blamed = {x.reason for x in own if x.error is error}
    reasons = sorted(said, key=lambda reason: (reason not in blamed, -said[reason]))
    if len(reasons) > _MOST_REASONS:
        reasons[_MOST_REASONS:] = [f"and {len(reasons) - _MOST_REASONS} more, of other configurations"]
    if own[0].rule == "architecture":
        reasons.append(_elsewhere(device))
    prefix = "" if kernel is None else f"kernel={kernel!r} can't serve this problem: "
    return error(prefix + "; ".join(reasons))


def _elsewhere(device: DeviceSpec) -> str:
    """What could serve a GPU that the families in question have no kernels for."""
    able = [family.name for family in FAMILIES.values() if device.arch in family.architectures]
    if able:
        return f"use {', '.join(able)}"
    return "no other family serves it"


def contiguous_problem(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str = "bf16",
    batch: int = 1,
    layout: str = "nt",
    out_dtype: str | None = None,
    epilogue: object = None,
    align: int = 16,
    precision: str | None = None,
) -> Problem:
    """The `Problem` of a call on contiguous tensors; arguments and errors as in `plan`."""
    for name, size, least in (("m", m, 1), ("n", n, 1), ("k", k, 0), ("batch", batch, 1)):
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise ShapeError(f"{name}={size!r}: expected an int of at least {least}")
    if layout not in ("nn", "nt", "tn", "tt"):
        raise ArgumentError(f"layout={layout!r}: expected 'nn', 'nt', 'tn' or 'tt' (A, then B; t: transposed)")
    if align not in (1, 2, 4, 8, 16):
        raise ArgumentError(f"align={align!r}: expected 1, 2, 4, 8 or 16 bytes")
    item, out_item = lookup(dtype), lookup(out_dtype or dtype)
    for name, kind in (("dtype", item), ("out_dtype", out_item)):
        if align < kind.itemsize:
            raise ArgumentError(f"align={align}: below the {kind.itemsize} bytes of {name}={kind.name!r}")
    options.check(precision=precision)
    if precision is not None and item.name != "fp32":
        raise ArgumentError(f"precision={precision!r} is for fp32 inputs, and dtype is {item.name!r}: leave it out")
    graph = _graph(epilogue)
    if n % 2 and graph.has_pair:
        raise ShapeError(f"n={n}: an epilogue with pair() needs an even n")

    def tensor(role: Role, name: str, rows: int, columns: int, transposed: bool = False) -> Access:
        strides = (1, rows) if transposed else (columns, 1)
        return access(role, name, (batch, rows, columns), (rows * columns, *strides), address=align)

    def operand(kind: str, paired: bool) -> Access:
        columns = n // 2 if paired else n
        if kind == "scalar":
            return Access("fp32", "float", 4)
        if kind == "tile":
            return tensor("tile", item.name, m, columns)
        own: tuple[Role, int] = ("row", columns) if kind == "row" else ("col", m)
        return access(own[0], item.name, (own[1],), (1,), address=align)

    signature = Signature(
        a=tensor("a", item.name, m, k, layout[0] == "t"),
        b=tensor("b", item.name, k, n, layout[1] == "t"),
        c=None,
        outputs=tuple(tensor("out", out_item.name, m, n // 2 if spec.paired else n) for spec in graph.outputs),
        epilogue=graph,
        operands=tuple(operand(spec.kind, spec.paired) for spec in graph.operands),
        alpha="float",
        beta="float",
        precision=precision_of(precision or STRICT, k) if item.name == "fp32" else None,
    )
    return Problem(m, n, k, batch, signature)


def _graph(epilogue: object) -> Graph:
    if epilogue is None:
        return IDENTITY
    graph = getattr(epilogue, "graph", epilogue)
    if not isinstance(graph, Graph):
        expected = "expected one of cutegemm.epilogues or a function under @cutegemm.epilogue"
        raise ArgumentError(f"epilogue={epilogue!r}: {expected}")
    return graph


def _resolve(arch: str | None) -> tuple[DeviceSpec, str | None]:
    """The GPU that `arch` means, and the reason where it had to be assumed."""
    if arch is not None:
        return devices.lookup(arch), None
    try:
        return devices.current(), None
    except DeviceError as error:
        reason = str(error).split(".")[0]
        return devices.lookup(DEFAULT_GPU), f"assumed, with no arch given and no GPU here ({reason})"
