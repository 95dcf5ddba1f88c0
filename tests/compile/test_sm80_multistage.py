"""The SASS of `sm80_multistage`: tensor cores, ldmatrix and cp.async in the numbers that its loops come to, no spills.

Every configuration is compiled once for every architecture that it is legal on. What a signature can vary is covered
by pairs: any two values of two factors meet in some kernel, and architectures and configurations take turns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cutegemm import Col, Row, Scalar, Tile, device, epilogue, epilogues, ops
from cutegemm.compiler import Spec, build, sass
from cutegemm.fusion import IDENTITY, Graph
from cutegemm.kernels.config import CONFIGS, K_BLOCK_BYTES, Config, plain_loads, vector_elements
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.problem import Access, Problem, Signature

FAMILY = FAMILIES["sm80_multistage"]
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
PLAIN = contiguous_problem(4096, 4096, 4096)


@epilogue
def every_kind(acc, bias: Row, scale: Col, residual: Tile, slope: Scalar):
    x = acc * scale + bias
    return {"out": ops.maximum(x, slope * x) + residual, "pre": x}


EPILOGUES: dict[str, Graph] = {
    "identity": IDENTITY,
    "row": epilogues.bias_gelu.graph,
    "col": epilogues.scale_col.graph,
    "tile": epilogues.add.graph,
    "row and tile": epilogues.bias_add.graph,
    "scalar": epilogues.leaky_relu.graph,
    "pair": epilogues.bias_swiglu.graph,
    "two outputs": epilogues.bias_gelu_aux.graph,
    "pair, two outputs": epilogues.swiglu_aux.graph,
    "every kind": every_kind.graph,
}

#: What a signature can vary. A strided operand has no alignment to choose: it is copied by elements.
FACTORS: dict[str, Sequence[Any]] = {
    "a major": ("k", "m", "strided"),
    "a align": (16, 8, 4, 2),
    "b major": ("k", "n", "strided"),
    "b align": (16, 8, 4, 2),
    "dtype": ("bf16", "fp16"),
    "out dtype": ("bf16", "fp16", "fp32"),
    "out major": ("n", "m", "strided"),
    "out align": (16, 8, 4),
    "epilogue": tuple(EPILOGUES),
    "operands": (("bf16", 16), ("fp32", 16), ("fp16", 2), ("fp32", "m"), ("bf16", "strided")),
    "c": (None, ("fp32", "n", 16), ("bf16", "n", 2), ("fp16", "m", 16), ("bf16", "strided", 2)),
    "alpha": ("float", "fp32", "bf16"),
    "beta": ("float", "fp32", "fp64"),
}


def covering_rows(factors: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Rows in which any two values of two factors meet at least once: each takes the next pair that has not met and
    is filled up with what makes the most new pairs. (AETG's greedy construction, without its dice.)"""
    names = list(factors)
    open_pairs = {
        ((p, x), (q, y)): None for p, q in itertools.combinations(names, 2) for x in factors[p] for y in factors[q]
    }

    def pairs(row: dict[str, Any]) -> list[Any]:
        return list(itertools.combinations([(n, row[n]) for n in names if n in row], 2))

    for count in itertools.count():
        if not open_pairs:
            return
        row = dict(next(iter(open_pairs)))
        for name in names:
            if name not in row:
                # Between equals, values take turns.
                turn = count % len(factors[name])
                values = (*factors[name][turn:], *factors[name][:turn])
                gains = {x: sum(p in open_pairs for p in pairs({**row, name: x})) for x in values}
                row[name] = max(gains, key=gains.__getitem__)
        for pair in pairs(row):
            open_pairs.pop(pair, None)
        yield row


def signature(row: Mapping[str, Any]) -> Signature:
    graph = EPILOGUES[row["epilogue"]]

    def access(dtype: str, major: str, align: int) -> Access:
        itemsize = 4 if dtype == "fp32" else 2
        return Access(dtype, major, itemsize if major == "strided" else max(itemsize, align))

    def operand(kind: str) -> Access:
        dtype, how = row["operands"]
        if kind == "scalar":
            return Access("fp32", "float", 4) if how == 16 else Access(dtype, "tensor", 2)
        if how == "strided":
            return access(dtype, "strided", 2)
        own = {"row": "n", "col": "m", "tile": "m" if how == "m" else "n"}
        return access(dtype, own[kind], 16 if how == "m" else how)

    return Signature(
        a=access(row["dtype"], row["a major"], row["a align"]),
        b=access(row["dtype"], row["b major"], row["b align"]),
        c=None if row["c"] is None else Access(*row["c"]),
        outputs=tuple(access(row["out dtype"], row["out major"], row["out align"]) for _ in graph.outputs),
        epilogue=graph,
        operands=tuple(operand(spec.kind) for spec in graph.operands),
        alpha=row["alpha"],
        beta="float" if row["c"] is None else row["beta"],
    )


def legal(problem: Problem, arch: str) -> list[Config]:
    gpu = device.lookup(arch)
    return [config for config in CONFIGS if refusal(problem, FAMILY, config, gpu) is None]


def every_configuration() -> list[Spec]:
    return [Spec(FAMILY.name, config, PLAIN.signature, arch) for arch in ARCHITECTURES for config in legal(PLAIN, arch)]


def tf32() -> list[Spec]:
    """Architectures, configurations, layouts and alignments of TF32 by turns."""
    specs = []
    turns = itertools.cycle((("nt", 16), ("nn", 16), ("tn", 8), ("tt", 4), ("nt", 4), ("strided", 4)))
    for config, arch, (layout, align) in zip(
        (config for config in CONFIGS if config.bits == 32), itertools.cycle(ARCHITECTURES), turns, strict=False
    ):
        plain = "nn" if layout == "strided" else layout
        made = contiguous_problem(4096, 4096, 4096, dtype="fp32", precision="tf32", layout=plain, align=align)
        s = made.signature
        if layout == "strided":
            s = replace(s, a=Access("fp32", "strided", 4))
        able = [x for x in legal(replace(made, signature=s), arch) if x == config] or legal(
            replace(made, signature=s), arch
        )
        specs.append(Spec(FAMILY.name, able[0], s, arch))
    return specs


def every_pair() -> list[Spec]:
    specs = []
    used: Counter[Config] = Counter()
    for row, arch in zip(covering_rows(FACTORS), itertools.cycle(ARCHITECTURES)):
        problem = replace(PLAIN, signature=signature(row))
        config = min(legal(problem, arch), key=used.__getitem__)
        used[config] += 1
        specs.append(Spec(FAMILY.name, config, problem.signature, arch))
    return specs


def name(spec: Spec) -> str:
    s = spec.signature
    accesses = "-".join(f"{x.major}{x.align}" for x in (s.a, s.b))
    return f"{spec.arch}-{spec.config}-{accesses}"


SPECS = [*every_configuration(), *every_pair(), *tf32()]


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_machine_code(spec: Spec) -> None:
    artifact = build(spec, keep_cubin=True)
    assert artifact.cubin is not None
    code = sass.read(artifact.cubin)
    config, s = spec.config, spec.signature
    assert (code.spills, code.local_bytes) == (0, 0)
    k_blocks = config.tile_k * config.itemsize // K_BLOCK_BYTES
    assert code.opcodes["HMMA"] == (config.warp_m // 16) * (config.warp_n // 8) * k_blocks
    # One k-tile's worth of fragments, and the first k-block's ahead of the loop; none of fp32 along M or N.
    turned = [(s.a.major == "m", config.warp_m), (s.b.major == "n", config.warp_n)]
    rows = sum(warp for along_mn, warp in turned if config.bits == 16 or not along_mn)
    assert code.opcodes.get("LDSM", 0) == rows // 16 * (k_blocks + 1)
    # The prologue's fetches and the loop's one; below 4 bytes cp.async does not exist.
    copies = sum(
        tile * config.tile_k // (vector_elements(access) * config.threads)
        for access, tile in ((s.a, config.tile_m), (s.b, config.tile_n))
        if not plain_loads(access)
    )
    assert code.opcodes.get("LDGSTS", 0) == config.stages * copies
    assert not {"HGMMA", "UTMALDG"} & set(code.opcodes)


def test_pairs_are_covered_by_few_kernels() -> None:
    rows = list(covering_rows(FACTORS))
    for p, q in itertools.combinations(FACTORS, 2):
        assert {(row[p], row[q]) for row in rows} == set(itertools.product(FACTORS[p], FACTORS[q]))
    assert rows == list(covering_rows(FACTORS))
    assert len(SPECS) <= 150


def test_every_configuration_is_compiled_for_every_architecture_that_has_room_for_it() -> None:
    specs = every_configuration()
    assert {spec.arch for spec in specs} == set(ARCHITECTURES)
    for arch in ("sm_80", "sm_90a", "sm_100a"):
        assert [spec.config for spec in specs if spec.arch == arch] == [x for x in CONFIGS if x.bits == 16]
    for spec in specs:
        assert spec.config.smem_bytes <= device.lookup(spec.arch).smem_per_block
    assert len({spec.config for spec in every_pair()}) >= 10
