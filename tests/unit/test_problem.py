"""Metadata alone: accesses, overlaps, batch collapse, and what a request lowers to."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import Col, DTypeError, Row, Scalar, ShapeError, Tile, dtypes, epilogue, layout, ops
from cutegemm.fusion import IDENTITY
from cutegemm.layout import View, collapse, overlaps, self_overlaps
from cutegemm.normalize import Call, allocate, check, parse, prepare
from cutegemm.options import Options
from cutegemm.problem import Access, access, alignment
from cutegemm.request import Layout, Meta, Request, lower, validate
from tests.semantics.inputs import BATCHES

# --- dtypes
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["bf16", "bfloat16", "torch.bfloat16", dtypes.lookup("bf16")])
def test_a_dtype_goes_by_this_packages_name_or_torchs(spelling) -> None:
    found = dtypes.lookup(spelling)
    assert (found.name, found.bits, found.itemsize, found.kind) == ("bf16", 16, 2, "float")


def test_an_unknown_dtype_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(DTypeError, match=r"unknown dtype 'tf32'.*fp16, bf16"):
        dtypes.lookup("tf32")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int64]
)
def test_widths_are_torchs(dtype: torch.dtype) -> None:
    assert dtypes.lookup(str(dtype)).itemsize == dtype.itemsize


# --- access
# ---------------------------------------------------------------------------------------------------------

ACCESSES = [
    # role, sizes, strides, address -> major, alignment of bf16
    ("a", (64, 64), (64, 1), 0, "k", 16),
    ("a", (64, 64), (1, 64), 0, "m", 16),
    ("b", (64, 64), (64, 1), 0, "n", 16),
    ("b", (64, 64), (1, 64), 0, "k", 16),
    ("c", (64, 64), (64, 1), 0, "n", 16),
    ("out", (64, 64), (1, 64), 0, "m", 16),
    ("tile", (64, 64), (64, 1), 0, "n", 16),
    ("a", (64, 64), (65, 1), 0, "k", 2),  # an odd row pitch
    ("a", (64, 64), (66, 1), 0, "k", 4),
    ("a", (64, 64), (68, 1), 0, "k", 8),
    ("a", (64, 64), (72, 1), 0, "k", 16),
    ("a", (64, 64), (64, 1), 2, "k", 2),  # an odd address
    ("a", (64, 64), (64, 1), 8, "k", 8),
    ("a", (3, 64, 64), (4100, 64, 1), 0, "k", 8),  # the batch counts
    ("a", (3, 64, 64), (0, 64, 1), 0, "k", 16),
    ("a", (1, 64, 64), (3, 64, 1), 0, "k", 16),  # unless there is one
    ("a", (128, 64), (0, 1), 0, "k", 8),  # one row for all
    ("a", (64, 128), (1, 0), 0, "m", 8),
    ("a", (64, 64), (128, 2), 0, "strided", 2),
    ("a", (64, 64), (0, 0), 0, "strided", 2),
    ("a", (1, 64), (7, 1), 0, "k", 16),  # the stride of a single row means nothing
    ("a", (64, 1), (1, 7), 0, "m", 16),
    ("a", (64, 1), (5, 7), 0, "k", 2),  # a single column is contiguous, with a pitch of 5
    ("a", (1, 1), (9, 9), 0, "k", 16),
    ("b", (1, 64), (7, 1), 0, "n", 16),
    ("b", (64, 1), (1, 7), 0, "k", 16),
    ("a", (5, 0), (0, 1), 0, "k", 16),
    ("row", (64,), (1,), 4, "n", 4),
    ("row", (64,), (2,), 0, "strided", 2),
    ("row", (64,), (0,), 0, "strided", 2),
    ("row", (1,), (9,), 0, "n", 16),
    ("row", (3, 64), (65, 1), 0, "n", 2),
    ("col", (64,), (1,), 0, "m", 16),
    ("scalar", (), (), 2, "tensor", 2),
]


@pytest.mark.parametrize(("role", "sizes", "strides", "address", "major", "align"), ACCESSES)
def test_access(role, sizes, strides, address, major, align) -> None:
    assert access(role, "bf16", sizes, strides, address=address) == Access("bf16", major, align)


def test_alignment_counts_bytes_not_elements() -> None:
    assert access("a", "fp32", (64, 64), (66, 1)).align == 8
    assert access("a", "int8", (64, 64), (66, 1)).align == 2
    assert access("a", "fp64", (64, 64), (65, 1)).align == 8


@given(st.lists(st.integers(0, 2**40), max_size=5))
def test_alignment_divides_all(numbers: list[int]) -> None:
    found = alignment(numbers)
    assert all(n % found == 0 for n in numbers)
    assert found == 16 or any(n % (2 * found) for n in numbers)


# --- overlap
# --------------------------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> View:
    rank = draw(st.integers(0, 3))
    shape = tuple(draw(st.integers(0, 4)) for _ in range(rank))
    strides = tuple(draw(st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8, 12, 16])) for _ in range(rank))
    return View(draw(st.integers(0, 60)), draw(st.sampled_from([1, 2, 4])), shape, strides)


def places(view: View) -> list[int]:
    indices = itertools.product(*map(range, view.shape))
    return [sum(i * s for i, s in zip(index, view.strides, strict=True)) for index in indices]


def bytes_of(view: View) -> set[int]:
    starts = [view.address + place * view.itemsize for place in places(view)]
    return {start + byte for start in starts for byte in range(view.itemsize)}


@given(views(), views())
def test_overlap_is_shared_bytes(x: View, y: View) -> None:
    assert overlaps(x, y) == overlaps(y, x) == bool(bytes_of(x) & bytes_of(y))


@given(views())
def test_self_overlap_is_a_place_used_twice(view: View) -> None:
    assert self_overlaps(view.shape, view.strides) == (len(set(places(view))) < len(places(view)))


def test_interleaved_views_do_not_overlap() -> None:
    even = View(0, 2, (4096, 2048), (4096, 2))
    assert not overlaps(even, View(2, 2, (4096, 2048), (4096, 2)))
    assert overlaps(even, View(4, 2, (4096, 2048), (4096, 2)))
    left, right = View(0, 2, (4096, 2048), (4096, 1)), View(4096, 2, (4096, 2048), (4096, 1))
    assert not overlaps(left, right)
    assert overlaps(left, View(4094, 2, (4096, 2048), (4096, 1)))


def test_a_search_that_is_too_long_counts_as_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    # Differences of 6, 10 and 15, each once at most, give no 2: only a search can tell.
    x, y = (View(address, 1, (2, 2, 2), (6, 10, 15)) for address in (0, 2))
    assert not overlaps(x, y)
    layout._solvable.cache_clear()
    monkeypatch.setattr(layout, "SEARCH_LIMIT", 0)
    assert overlaps(x, y)
    layout._solvable.cache_clear()


# --- collapse
# -------------------------------------------------------------------------------------------------------

COLLAPSES = [
    ((2, 3, 4), [(12, 4, 1), (24, 8, 2)], ((24,), [(1,), (2,)])),
    ((2, 3, 4), [(12, 4, 1), (0, 0, 0)], ((24,), [(1,), (0,)])),  # one weight for the whole batch
    ((2, 3), [(3, 1), (0, 1)], ((2, 3), [(3, 1), (0, 1)])),  # broadcast over the outer dimension alone
    ((2, 3), [(3, 1), (1, 2)], ((2, 3), [(3, 1), (1, 2)])),
    ((2, 3), [(1, 2), (10, 20)], ((6,), [(1,), (10,)])),  # transposed alike everywhere
    ((2, 1, 3), [(3, 77, 1), (3, 5, 1)], ((6,), [(1,), (1,)])),
    ((1, 1), [(5, 6)], ((), [()])),
    ((), [(), ()], ((), [(), ()])),
]


@pytest.mark.parametrize(("sizes", "strides", "expected"), COLLAPSES)
def test_collapse(sizes, strides, expected) -> None:
    assert collapse(sizes, strides) == expected


@given(st.data())
def test_collapse_keeps_what_every_index_reaches(data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    row = st.tuples(*(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12]) for _ in sizes))
    strides = data.draw(st.lists(row, min_size=1, max_size=3))
    merged, merged_strides = collapse(sizes, strides)

    def reached(sizes, strides):
        indices = itertools.product(*map(range, sizes))
        return sorted(tuple(sum(i * s for i, s in zip(index, t, strict=True)) for t in strides) for index in indices)

    assert reached(merged, merged_strides) == reached(sizes, strides)
    assert len(merged) <= len(sizes) and 1 not in merged


# --- requests
# -------------------------------------------------------------------------------------------------------


@epilogue
def everything(acc, row: Row, col: Col, tile: Tile, scalar: Scalar):
    x = (acc + row) * scalar
    return {"out": ops.relu(x + col) + tile, "pre": x}


@epilogue
def swiglu(acc, bias: Row):
    gate, up = ops.pair(acc)
    return {"out": ops.silu(gate) * up + bias, "pre": acc}


def contiguous(dtype: str, *shape: int, phase: int = 0) -> Meta:
    return Meta(dtype, shape, torch.empty(shape, device="meta").stride(), phase)


def request(**changes) -> Request:
    plain = Request(
        device="cuda",
        a=contiguous("bf16", 5, 32, 64),
        b=contiguous("bf16", 64, 48),
        c=None,
        graph=IDENTITY,
        operands=(),
        outs=(None,),
        alpha="float",
        beta="zero",
    )
    return plain._replace(**changes)


def test_a_request_lowers_to_its_problem() -> None:
    asked = request(c=contiguous("fp32", 5, 32, 48, phase=8), beta="float", alpha=contiguous("fp16"), outs=("fp32",))
    recipe = lower(asked, validate(asked))
    problem = recipe.problem
    assert (problem.m, problem.n, problem.k, problem.batch, problem.flops) == (
        32,
        48,
        64,
        5,
        2 * 5 * 32 * 48 * 64,
    )
    signature = problem.signature
    assert signature.a == Access("bf16", "k", 16) and signature.b == Access("bf16", "n", 16)
    assert signature.c == Access("fp32", "n", 8) and signature.outputs == (Access("fp32", "n", 16),)
    assert (signature.alpha, signature.beta, signature.operands) == ("fp16", "float", ())
    assert recipe.modes == (5,)
    assert recipe.a == Layout((5, 32, 64), (2048, 64, 1)) and recipe.b == Layout((5, 64, 48), (0, 48, 1))


def test_equal_requests_have_equal_problems_and_only_what_matters_differs() -> None:
    def signature(**changes):
        asked = request(**changes)
        return lower(asked, validate(asked)).problem.signature

    assert signature() == signature() and hash(signature()) == hash(signature())
    same = [{"c": contiguous("fp32", 5, 32, 48)}, {"outs": ("bf16",)}, {"a": contiguous("bf16", 7, 32, 64)}]
    different = [
        {"a": contiguous("bf16", 5, 32, 64, phase=2)},
        {"b": Meta("bf16", (64, 48), (1, 64))},
        {"outs": ("fp32",)},
        {"alpha": contiguous("fp32")},
        {"c": contiguous("fp32", 5, 32, 48), "beta": "float"},
        {"a": contiguous("fp16", 5, 32, 64), "b": contiguous("fp16", 64, 48)},
        {"graph": swiglu.graph, "operands": (contiguous("fp32", 24),), "outs": (None, None)},
    ]
    assert all(signature(**changes) == signature() for changes in same)
    assert len({signature(), *(signature(**changes) for changes in different)}) == len(different) + 1


def test_zero_alpha_is_an_empty_k_and_zero_beta_drops_c() -> None:
    asked = request(alpha="zero", c=contiguous("bf16", 5, 32, 48))
    recipe = lower(asked, validate(asked))
    assert recipe.problem.k == 0 and recipe.problem.signature.c is None and recipe.c is None
    assert recipe.a.shape == (5, 32, 0) and recipe.b.shape == (5, 0, 48)
    by_tensor = request(alpha=contiguous("fp32"), beta=contiguous("fp32"), c=contiguous("bf16", 5, 32, 48))
    recipe = lower(by_tensor, validate(by_tensor))
    assert recipe.problem.k == 64 and recipe.c is not None
    assert (recipe.problem.signature.alpha, recipe.problem.signature.beta) == ("fp32", "fp32")


def test_operands_have_their_own_access_and_layout() -> None:
    asked = request(
        graph=everything.graph,
        operands=(
            contiguous("fp32", 48),
            contiguous("bf16", 5, 32),
            Meta("fp16", (32, 48), (1, 32)),
            "float",
        ),
        outs=("fp32", None),
    )
    sizes = validate(asked)
    assert sizes.outputs == (((5, 32, 48), "fp32"), ((5, 32, 48), "bf16"))
    recipe = lower(asked, sizes)
    assert recipe.problem.signature.operands == (
        Access("fp32", "n", 16),
        Access("bf16", "m", 16),
        Access("fp16", "m", 16),
        Access("fp32", "float", 4),
    )
    assert recipe.operands == (
        Layout((5, 48), (0, 1)),
        Layout((5, 32), (32, 1)),
        Layout((5, 32, 48), (0, 1, 32)),
        None,
    )


def test_paired_extents_are_half_of_n() -> None:
    asked = request(graph=swiglu.graph, operands=(contiguous("fp32", 24),), outs=(None, None))
    assert validate(asked).outputs == (((5, 32, 24), "bf16"), ((5, 32, 48), "bf16"))
    with pytest.raises(ShapeError, match=r"'bias' \(Row\) has shape \(48,\): expected \(24,\) or \(5, 24\)"):
        validate(asked._replace(operands=(contiguous("fp32", 48),)))
    with pytest.raises(ShapeError, match="N is 47.*even N"):
        validate(asked._replace(b=contiguous("bf16", 64, 47)))


def test_sizes_beyond_32_bits() -> None:
    asked = request(a=contiguous("bf16", 2, 49152, 64), b=contiguous("bf16", 2, 64, 65536))
    recipe = lower(asked, validate(asked))
    assert recipe.outs[0].strides == (3_221_225_472, 65536, 1)
    assert recipe.problem.flops == 2 * 2 * 49152 * 65536 * 64


@pytest.mark.parametrize("dtype", ["fp64", "int8", "fp8_e4m3", "complex64"])
def test_cuda_names_the_inputs_that_it_serves(dtype: str) -> None:
    tensor = Meta(dtype, (8, 8), (8, 1))
    hint = "; torch.matmul multiplies it as it is" if dtype in ("fp64", "complex64") else ""
    with pytest.raises(DTypeError, match=f"a is {dtype}: on cuda tensors expected one of fp16, bf16, fp32{hint}$"):
        validate(request(a=tensor, b=tensor))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outs": ("fp64",)}, "out is fp64: on cuda tensors expected one of fp16, bf16, fp32"),
        ({"outs": (contiguous("int32", 5, 32, 48),)}, "out is int32: on cuda"),
        ({"c": contiguous("fp64", 5, 32, 48)}, "c is fp64: on cuda"),
        ({"alpha": contiguous("int64")}, "alpha is int64: on cuda"),
        ({"b": contiguous("fp16", 64, 48)}, "a is bf16 and b is fp16: expected one dtype for both"),
    ],
)
def test_cuda_names_what_else_it_serves(changes, message: str) -> None:
    with pytest.raises(DTypeError, match=message):
        validate(request(**changes))


# --- calls
# ----------------------------------------------------------------------------------------------------------


def call(a, b, **keywords) -> Call:
    named = {
        "epilogue": None,
        "c": None,
        "alpha": 1.0,
        "beta": None,
        "out": None,
        "out_dtype": None,
    } | keywords
    arguments = parse(a, b, **named, options=Options())
    asked, sizes = check(arguments)
    return prepare(arguments, asked, sizes, allocate(arguments, sizes))


@pytest.mark.parametrize(("left", "right"), BATCHES)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_call_holds_the_broadcast_batch_in_collapsed_views(left, right, transposed: bool) -> None:
    batch = torch.broadcast_shapes(left, right)
    a, b = torch.randn(*left, 4, 5), torch.randn(*right, 5, 6)
    if transposed:
        a, b = a.mT.contiguous().mT, b.mT.contiguous().mT
    c, row, col, tile = (torch.randn(*batch, *own) for own in ((4, 6), (6,), (4,), (4, 6)))
    made = call(a, b, c=c, epilogue=everything(row, col, tile, 2.0))
    modes = made.recipe.modes
    full = torch.Size(batch).numel()

    def flat(tensor, own):
        return tensor.expand(*batch, *own).reshape(full, *own)

    # With no batch size repeated, the modes walk the batch in order, so flattening both sides has to agree.
    pairs = [(made.a, a, (4, 5)), (made.b, b, (5, 6)), (made.c, c, (4, 6))]
    pairs += zip(made.operands[:3], (row, col, tile), ((6,), (4,), (4, 6)), strict=True)
    for view, tensor, own in pairs:
        assert view.shape == (*modes, *own) and view.data_ptr() == tensor.data_ptr()
        assert torch.equal(view.reshape(full, *own), flat(tensor, own))
    assert len(modes) <= len(batch) and made.recipe.problem.batch == full
    for view, result in zip(made.outs, made.results, strict=True):
        assert result.shape == (*batch, 4, 6) and view.data_ptr() == result.data_ptr()
    assert (made.alpha, made.beta, made.operands[3]) == (1.0, 1.0, 2.0)


def test_a_shared_weight_leaves_one_batch_mode() -> None:
    made = call(torch.randn(2, 3, 4, 5, 6), torch.randn(6, 7))
    assert made.recipe.modes == (24,) and made.b.stride() == (0, 7, 1)


def test_a_call_knows_what_is_not_read() -> None:
    a, b, c = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6)
    made = call(a, b, c=c, alpha=0, beta=0.0)
    assert made.c is None and made.a.shape == (4, 0) and made.b.shape == (0, 6)
    made = call(a, b, c=c, alpha=torch.tensor(0.0), beta=torch.tensor(0.0))
    assert made.c is not None and made.a.shape == (4, 5)


def test_a_call_aligns_by_the_pointer() -> None:
    base = torch.zeros(64 * 64 + 1, dtype=torch.bfloat16)
    made = call(base[1:].view(64, 64), base[:-1].view(64, 64))
    assert (made.recipe.problem.signature.a.align, made.recipe.problem.signature.b.align) == (2, 16)
