"""A plan in words and as data: what `Plan.explain()` and `Plan.to_dict()` return."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cutegemm.problem import Access

if TYPE_CHECKING:
    from cutegemm.planner.plan import Candidate, Plan

SCHEMA = 1
_TOP_TERMS = 4
#: Terms that are shown however small they are: what splitting K and copying operands cost.
_PRICES = ("copies", "pieces", "zeros", "sum of parts", "sums of a cluster", "fix-up")
_KIB, _MIB = 2**10, 2**20


def text(plan: Plan) -> str:
    """The plan as fixed-width text."""
    return "\n".join(
        line.rstrip() for part in (_problem, _device, _choice, _candidates, _refusals) for line in part(plan)
    )


def data(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-serialisable data."""
    problem, signature = plan.problem, plan.problem.signature
    return {
        "schema": SCHEMA,
        "problem": {
            "m": problem.m,
            "n": problem.n,
            "k": problem.k,
            "batch": problem.batch,
            "precision": signature.precision,
            "a": asdict(signature.a),
            "b": asdict(signature.b),
            "c": None if signature.c is None else asdict(signature.c),
            "outputs": {
                spec.name: asdict(access)
                for spec, access in zip(signature.epilogue.outputs, signature.outputs, strict=True)
            },
            "operands": {
                spec.name: {"kind": spec.kind, **asdict(access)}
                for spec, access in zip(signature.epilogue.operands, signature.operands, strict=True)
            },
            "epilogue": {
                "identity": signature.epilogue.identity,
                "listing": str(signature.epilogue).splitlines(),
            },
        },
        "device": asdict(plan.device),
        "assumed": plan.assumed,
        "transposed": plan.transposed,
        "measured": plan.measured,
        "pin": plan.pin,
        "kernel": plan.kernel,
        "us": plan.us,
        "tflops": plan.tflops,
        "workspace": plan.workspace,
        "candidates": [_candidate_data(candidate) for candidate in plan.candidates],
    }


def _candidate_data(candidate: Candidate) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kernel": candidate.kernel,
        "family": candidate.family,
        "config": asdict(candidate.config),
    }
    if candidate.estimate is not None:
        entry["estimate"] = {**asdict(candidate.estimate), "bound": candidate.estimate.bound}
    if candidate.refusal is not None:
        entry["refused"] = {"rule": candidate.refusal.rule, "reason": candidate.refusal.reason}
    return entry


def _problem(plan: Plan) -> list[str]:
    problem, signature = plan.problem, plan.problem.signature
    batch = f", batch {problem.batch}" if problem.batch > 1 else ""
    tensors = [f"A {_access(signature.a)}", f"B {_access(signature.b)}"]
    if signature.c is not None:
        tensors.append(f"C {_access(signature.c)}")
    graph = signature.epilogue
    tensors += [f"{spec.name} {_access(access)}" for spec, access in zip(graph.outputs, signature.outputs, strict=True)]
    operands = [
        f"{spec.name}: {spec.kind.capitalize()} {_access(access)}"
        for spec, access in zip(graph.operands, signature.operands, strict=True)
    ]
    lines = [f"m n k      {problem.m} {problem.n} {problem.k}{batch}"]
    if plan.transposed:
        lines.append("           D^T = B^T A^T instead of D, which is contiguous along M")
    lines.append(f"tensors    {' | '.join(tensors)}")
    if signature.precision is not None:
        lines.append(f"precision  {signature.precision}")
    if operands:
        lines.append(f"operands   {' | '.join(operands)}")
    first, *rest = graph.describe()
    lines.append(f"epilogue   {first}")
    return lines + [f"           {line}" for line in rest]


def _access(access: Access) -> str:
    if access.major == "float":
        return "float"
    if access.major == "tensor":
        return f"{access.dtype} on the device"
    major = access.major if access.major == "strided" else f"{access.major}-major"
    return f"{access.dtype} {major} {access.align} B"


def _device(plan: Plan) -> list[str]:
    device = plan.device
    smem, l2 = device.smem_per_block // _KIB, device.l2_bytes / _MIB
    memory, mma, peak = (x / 1e12 for x in (device.hbm_bytes_per_s, device.mma_flops, device.peak_flops))
    lines = [
        f"gpu        {device.name} ({device.arch}), {device.sm_count} SMs, {smem} KiB shared memory a block, "
        f"{l2:.3g} MiB L2",
        f"           {memory:.3g} TB/s memory, mma.sync {mma:.0f} TFLOP/s (peak {peak:.0f}): {device.source}",
    ]
    if plan.assumed is not None:
        lines.append(f"           {plan.assumed}")
    return lines


def _choice(plan: Plan) -> list[str]:
    best = plan.candidates[0].estimate
    assert best is not None
    pinned = f" (pinned by {plan.pin!r})" if plan.pin is not None else ""
    lines = [
        "",
        f"kernel     {plan.kernel}{pinned}",
        f"           {best.us:.1f} us modelled, {plan.tflops:.0f} TFLOP/s, bound by {best.bound}",
        f"why        {best.tiles} tiles, {best.blocks_per_sm} at once on each of {plan.device.sm_count} SMs: "
        f"{best.waves:.2f} waves, {best.efficiency:.0%} full",
    ]
    if plan.workspace:
        lines.append(f"workspace  {plan.workspace / _MIB:.1f} MiB beside the tensors")
    if plan.measured:
        lines.append(f"           the fastest of {plan.measured} measured for this problem on this GPU")
    terms = sorted(best.terms.items(), key=lambda term: -term[1])
    shown = [term for i, term in enumerate(terms) if i < _TOP_TERMS or term[0] in _PRICES]
    return lines + [f"           {us:10.1f} us  {name}" for name, us in shown]


def _candidates(plan: Plan) -> list[str]:
    legal = [(c, c.estimate) for c in plan.candidates if c.estimate is not None]
    width = max(len(candidate.kernel) for candidate, _ in legal)
    heads = f"{'us':>10} {'x best':>6} {'waves':>8} {'full':>5} {'at once':>7}  bound by"
    lines = ["", f"{'candidates':<{width}}  {heads}"]
    for candidate, e in legal:
        times = f"{e.us:>10.1f} {e.us / plan.us:>6.2f} {e.waves:>8.2f} {e.efficiency:>5.0%} {e.blocks_per_sm:>7}"
        lines.append(f"{candidate.kernel:<{width}}  {times}  {e.bound}")
    return lines


def _refusals(plan: Plan) -> list[str]:
    members = Counter(candidate.family for candidate in plan.candidates)
    by_rule: dict[str, dict[str, list[Candidate]]] = {}
    for candidate in plan.candidates:
        if candidate.refusal is not None:
            rule, reason = candidate.refusal.rule, candidate.refusal.reason
            by_rule.setdefault(rule, {}).setdefault(reason, []).append(candidate)
    lines: list[str] = [""] if by_rule else []
    for rule, by_reason in by_rule.items():
        lines.append(f"refused by {rule} ({sum(map(len, by_reason.values()))})")
        for reason, candidates in by_reason.items():
            lines.append(f"  {reason}")
            families = Counter(candidate.family for candidate in candidates)
            whole = [family for family, count in families.items() if 1 < count == members[family]]
            lines += [f"    {family} in every configuration" for family in whole]
            lines += [f"    {candidate.kernel}" for candidate in candidates if candidate.family not in whole]
    return lines
