"""fp32 by bf16 without a GPU: how numbers are split, what is multiplied, how far the sums stray, what is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass import Int32
from cutlass.cute.runtime import from_dlpack
from torch import Tensor

from cutegemm import plan
from cutegemm.device import lookup
from cutegemm.errors import UnsupportedArchitectureError
from cutegemm.kernels import abi, pieces, workspace
from cutegemm.kernels.padding import pieces_of
from cutegemm.kernels.wgmma_config import OF_PIECES
from cutegemm.planner import FAMILIES, contiguous_problem, refusal
from cutegemm.planner.plan import plan_problem

FAMILY, H200 = FAMILIES["sm90_wgmma"], lookup("H200")
SMALLEST = 2.0**-133


@cute.jit
def _split_all(source: cute.Tensor, target: cute.Tensor, count: Int32) -> None:
    for i in cutlass.range(count):
        for j, bits in enumerate(pieces_of(source[i])):
            target[pieces.PIECES * i + j] = bits


def split(x: Tensor) -> Tensor:
    """The pieces of a vector as the kernels make them: (numbers, pieces), bf16."""
    bits = torch.zeros(len(x) * pieces.PIECES, dtype=torch.uint16)
    _split_all(from_dlpack(x), from_dlpack(bits), len(x))
    return bits.view(torch.bfloat16).view(-1, pieces.PIECES)


def leading(x: Tensor) -> Tensor:
    """The 8 leading bits of fp32 numbers."""
    return (x.view(torch.int32) & -(1 << 16)).view(torch.float32)


def any_numbers(count: int) -> Tensor:
    """fp32 numbers of every exponent, NaN and infinity among them."""
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64)
    return bits.to(torch.int32).view(torch.float32)


def test_a_number_is_the_sum_of_its_pieces() -> None:
    x = any_numbers(20000)
    x = x[x.isfinite()]
    made = split(x)
    parts, left = [], x
    for _ in range(pieces.PIECES):
        parts.append(leading(left))
        left = left - parts[-1]
    assert (left == 0).logical_or(x.abs() < 2.0**-110).all()
    expected = torch.stack(parts, 1)
    absent = expected == 0
    assert torch.equal(made.float()[~absent], expected[~absent])
    assert (made.float().abs()[absent & (x != 0)[:, None]] == SMALLEST).all()
    large = x.abs() >= 2.0**-100
    assert torch.equal(made.double().sum(1)[large].float(), x[large])
    assert ((made.double().sum(1) - x.double()).abs() <= 4 * SMALLEST).all()


def test_pieces_have_the_sign_of_the_number_and_are_no_less_special() -> None:
    known = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4028234e38, 1e-45])
    other_nan = torch.tensor([0x7F800001, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    x = torch.cat((any_numbers(20000), known, other_nan))
    made = split(x).float()
    assert torch.equal(made.isnan().all(1), x.isnan()) and torch.equal(made.isnan().any(1), x.isnan())
    assert torch.equal(made.isinf().all(1), x.isinf()) and torch.equal(made.isinf().any(1), x.isinf())
    numbers = ~x.isnan()
    assert torch.equal(made.sign()[numbers], x.sign()[numbers, None].expand(-1, pieces.PIECES))


def test_infinities_and_nan_multiply_as_in_fp32() -> None:
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1.0, -1.5, 3.4e38, -1.1754944e-38])
    a, b = special.repeat_interleave(len(special)), special.repeat(len(special))
    exact = a.double() * b.double()
    for pairs in pieces.PAIRS.values():
        products = torch.stack([split(a).double()[:, i] * split(b).double()[:, j] for i, j in pairs])
        total = products.sum(0)
        unbounded = ~(a.isfinite() & b.isfinite())
        assert torch.equal(total[unbounded].nan_to_num(7.0), exact[unbounded].nan_to_num(7.0))
        assert total[~unbounded].isfinite().all()


def test_the_products_that_count_are_made_smallest_first() -> None:
    every = {(i, j) for i in range(pieces.PIECES) for j in range(pieces.PIECES)}
    assert set(pieces.PAIRS["bf16x9"]) == every
    assert set(pieces.PAIRS["bf16x6"]) == {(i, j) for i, j in every if i + j < pieces.PIECES}
    for name, pairs in pieces.PAIRS.items():
        assert len(set(pairs)) == len(pairs) == int(name.removeprefix("bf16x"))
        assert [i + j for i, j in pairs] == sorted((i + j for i, j in pairs), reverse=True)
        # Operands may trade places.
        assert {(j, i) for i, j in pairs} == set(pairs)


def wgmma(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`total` + a · b along rows of 16, as tensor cores add: aligned to the largest, two bits more than fp32 kept of
    each, what is below cut off, and of the sum what is below fp32."""
    terms = torch.cat((total[:, None], a.double() * b.double()), 1)
    unit = 2.0 ** (terms.abs().amax(1).frexp()[1] - 26).double()[:, None]
    added = ((terms / unit).trunc() * unit).sum(1)
    unit = 2.0 ** (added.abs().frexp()[1] - 24).double()
    return (added / unit).trunc() * unit


def emulated(a: Tensor, b: Tensor, precision: str, tile_k: int) -> Tensor:
    """Dot products of rows as the kernel adds them up."""
    split_a, split_b = (split(x.flatten()).view(*x.shape, pieces.PIECES) for x in (a, b))
    sums = torch.zeros(len(a))
    for start in range(0, a.shape[1], tile_k):
        part = torch.zeros(len(a), dtype=torch.float64)
        for i, j in pieces.PAIRS[precision]:
            for k in range(start, start + tile_k, 16):
                part = wgmma(part, split_a[:, k : k + 16, i], split_b[:, k : k + 16, j])
        sums += part.float()
    return sums


def in_fp32(a: Tensor, b: Tensor) -> Tensor:
    """Dot products of rows, one fused multiply-add behind the other in fp32."""
    total = torch.zeros(len(a))
    for k in range(a.shape[1]):
        total = (total.double() + a[:, k].double() * b[:, k].double()).float()
    return total


@pytest.mark.parametrize(
    ("precision", "kind"), [("bf16x6", "normal"), ("bf16x6", "positive"), ("bf16x6", "scaled"), ("bf16x9", "scaled")]
)
def test_sums_stray_no_further_than_those_of_fp32(precision: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(100, 512, generator=generator) for _ in range(2))
    if kind == "positive":
        a, b = a.abs(), b.abs()
    if kind == "scaled":
        a, b = (x * 10.0 ** (12 * torch.rand(x.shape, generator=generator) - 6) for x in (a, b))
    exact = (a.double() * b.double()).sum(1)
    scale = (a.double() * b.double()).square().sum(1).sqrt()
    errors = [((x.double() - exact) / scale).square().mean().sqrt() for x in (
        emulated(a, b, precision, OF_PIECES[0].tile_k), in_fp32(a, b)
    )]  # fmt: skip
    assert errors[0] < errors[1]


def problem(precision: str = "bf16x6", **keywords: Any) -> Any:
    return contiguous_problem(1000, 520, 3001, dtype="fp32", precision=precision, align=4, **keywords)


def test_what_is_multiplied_has_a_dimension_of_pieces() -> None:
    asked = problem("bf16x9").signature
    made = workspace.inner(asked, "no", 1)
    assert pieces.emulated(asked) and pieces.emulated(made)
    assert (pieces.count(asked), pieces.count(made), len(pieces.pairs(made))) == (1, 3, 9)
    assert made.a.dtype == made.b.dtype == "bf16" and made.a.align == made.b.align == 16
    a, b = (t for t in abi.tensors(made) if t.name in "ab")
    assert a.dims[-1] == b.dims[-1] == "piece" and "stride.a.piece" in {x.name for x in abi.arguments(made)}
    assert "piece" not in next(iter(abi.tensors(asked))).dims
    assert pieces.count(made.transposed()) == 3
    strict = contiguous_problem(64, 64, 64, dtype="fp32", precision="ieee").signature
    assert not pieces.emulated(strict) and pieces.pairs(strict) == ((0, 0),)


@pytest.mark.parametrize("split_k", [1, 3])
@pytest.mark.parametrize("broadcast", [False, True])
def test_pieces_lie_apart(split_k: int, broadcast: bool) -> None:
    asked = problem("bf16x6", batch=6)
    v = {"m": asked.m, "n": asked.n, "k": asked.k, "l0": 2, "l1": 3}
    v |= {f"stride.{name}.{mode}": 1 for name in "ab" for mode in ("l0", "l1")}
    v["stride.a.l1"] = int(not broadcast)
    regions, size = workspace.layout(asked.signature, "no", split_k, v, lambda c, x, y: x if c else y)
    end = 0
    for name in "ab":
        region = regions[name]
        across, _ = workspace.rows(name, getattr(asked.signature, name))
        matrices = 2 * (1 if broadcast and name == "a" else 3)
        assert region.offset >= end and region.offset % 256 == 0
        assert region.strides[across] % 8 == 0 and region.strides["l1"] in (0, 2 * region.strides["l0"])
        assert region.strides["piece"] == matrices * region.lines * region.strides[across]
        end = region.offset + pieces.PIECES * region.strides["piece"] * pieces.PIECE_BYTES
    assert ("out0" in regions) == (split_k > 1) and size >= end


def test_a_plan_says_what_pieces_take() -> None:
    asked: dict[str, Any] = {"dtype": "fp32", "precision": "bf16x6", "arch": "H200"}
    made = plan(4096, 4096, 4096, **asked)
    assert (made.family, made.config.options()["pieces"]) == ("sm90_wgmma", "3")
    assert made.workspace == made.to_dict()["workspace"] == 2 * 4096 * 4096 * 6
    text = made.explain()
    assert "precision  bf16x6" in text and "workspace  192.0 MiB beside the tensors" in text
    estimate = made.candidates[0].estimate
    assert estimate is not None and 0 < estimate.terms["pieces"] < made.us / 4
    assert plan(4096, 4096, 4096, arch="H200").workspace == 0
    more = plan(4096, 4096, 4096, **asked | {"precision": "bf16x9"})
    assert 1.3 < more.us / made.us < 1.6
    assert plan(4096, 4096, 4096, **asked, kernel=made.kernel).kernel == made.kernel


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_any_operand_is_split(layout: str) -> None:
    for config in OF_PIECES:
        assert config.smem_bytes <= H200.smem_per_block
        found = refusal(problem(layout=layout), FAMILY, config, H200)
        assert found is None or found.rule in ("swizzle", "warpgroup tile")  # of which others serve the layout
    for keywords in ({"padding": "copy"}, {"padding": "predicate"}, {"split_k": 4}):
        made = plan(1000, 520, 3001, dtype="fp32", precision="bf16x6", arch="H200", layout=layout, align=4, **keywords)
        assert made.config.options()["pad"] == "no"
        assert made.config.options()["split"] == str(keywords.get("split_k", made.config.options()["split"]))
    strided = replace(problem().signature, a=replace(problem().signature.a, major="strided"))
    assert plan_problem(replace(problem(), signature=strided), H200).family == "sm90_wgmma"


def test_what_pieces_refuse() -> None:
    asked = problem()
    found = refusal(asked, FAMILY, replace(OF_PIECES[0], pad="ab"), H200)
    assert found is not None and found.reason == "pad=ab: the pieces of a and b are aligned copies as they are"
    with pytest.raises(UnsupportedArchitectureError, match="'bf16x6': a function of a C library has no workspace"):
        plan_problem(asked, H200, kernel="sm90_wgmma", workspace=False)
    for change, rule in (
        ({"pieces": 1}, "pieces"),
        ({"pingpong": True, "tile_n": 128}, "schedule"),
        ({"tile_n": 256}, "registers"),
    ):
        found = refusal(asked, FAMILY, replace(OF_PIECES[2], **change), H200)
        assert found is not None and found.rule == rule
    sixteen = refusal(contiguous_problem(64, 64, 64), FAMILY, OF_PIECES[0], H200)
    assert sixteen is not None and sixteen.rule == "pieces"


def test_nothing_to_multiply_is_strict() -> None:
    assert contiguous_problem(64, 64, 0, dtype="fp32", precision="bf16x6").signature.precision == "ieee"
