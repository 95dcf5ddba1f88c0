"""Contenders compared with the reference and timed, on the CPU: what is right, what is wrong, what is sampled."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import weakref

import pytest
import torch

from benchmarks.contenders import Contender, Inputs, bind, named
from benchmarks.gate import Gate, Verdict, _spread
from benchmarks.run import Bench
from benchmarks.suites import Case
from cutegemm import epilogues, gemm
from cutegemm.timing import Effort


def wall_clock(replay, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        replay()
    return 1e3 * (time.perf_counter() - start)


def call_in_turn(calls):
    return lambda: [call() for call in calls]


ON_CPU = Bench(
    l2_bytes=1 << 14,
    device="cpu",
    effort=Effort(min_ms=1.0, lead_ms=1.0, rounds=3),
    capture=call_in_turn,
    clock=wall_clock,
)


def contender(name: str, compute, *, loose: bool = False) -> Contender:
    return Contender(name, lambda case, inputs: lambda: compute(inputs), lambda case: name, loose)


@pytest.mark.parametrize("epilogue", ["none", "bias_gelu", "bias_gelu_tanh", "bias_add", "swiglu", "add"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_right_results_are_timed_in_every_layout(epilogue: str, layout: str) -> None:
    case = Case("g", 33, 48, 40, "bf16", layout, epilogue)
    cublas, unfused = named("cublas"), named("unfused")
    gemm_here = dataclasses.replace(named("cutegemm"), kernel=lambda case: "reference")
    rows = {row.contender: row for row in ON_CPU.rows([case], [gemm_here, cublas, unfused])}
    assert set(rows) == ({"cutegemm", "cublas"} if epilogue == "none" else {"cutegemm", "unfused"})
    for row in rows.values():
        assert row.ok and row.us is not None and row.us > 0 and 0 <= row.rel_err < 2**-7
        assert (row.m, row.n, row.k, row.layout, row.epilogue) == (33, 48, 40, layout, epilogue)


def test_an_epilogue_and_its_plain_product_take_turns() -> None:
    order: list[str] = []

    def logged(calls):
        replay = call_in_turn(calls)

        def run() -> None:
            order.append(replay.__name__ + str(id(calls[0])))
            replay()

        return run

    bench = dataclasses.replace(ON_CPU, capture=logged)
    cases = [Case("g", 33, 48, 40, "bf16", "nt", epilogue) for epilogue in ("none", "bias_add")]
    rows = bench.rows(cases, [dataclasses.replace(named("cutegemm"), kernel=lambda case: "reference")])
    assert [(row.epilogue, row.ok) for row in rows] == [("none", True), ("bias_add", True)]
    turns = [name for name, _ in itertools.groupby(order)]
    assert len(set(turns)) == 2 and len(turns) > 3  # neither was through before the other began


def test_what_a_graph_holds_the_addresses_of_lives_until_it_is_timed() -> None:
    results: list[weakref.ref[torch.Tensor]] = []

    def graph(calls):
        results.extend(weakref.ref(call()) for call in calls)
        return lambda: None

    def clock(replay, repeats: int) -> float:
        assert all(result() is not None for result in results)
        return float(repeats)

    bench = dataclasses.replace(ON_CPU, capture=graph, clock=clock)
    cases = [Case("g", 33, 48, 40, "bf16", "nt", epilogue) for epilogue in ("none", "bias_add")]
    bench.rows(cases, [dataclasses.replace(named("cutegemm"), kernel=lambda case: "reference")])
    assert len(results) > 2


def all_but_the_last_row(inputs: Inputs) -> torch.Tensor:
    inputs.out[:-1] = inputs.a[:-1] @ inputs.b
    return inputs.out


def past_the_end(inputs: Inputs) -> torch.Tensor:
    torch.mm(inputs.a, inputs.b, out=inputs.out)
    if inputs.out.storage_offset():
        inputs.out.as_strided((1,), (1,), inputs.out.storage_offset() + inputs.out.numel()).fill_(0)
    return inputs.out


def nothing(inputs: Inputs) -> torch.Tensor:
    return inputs.out


def zeros(inputs: Inputs) -> torch.Tensor:
    return inputs.out.zero_()


@pytest.mark.parametrize("compute", [all_but_the_last_row, past_the_end, nothing, zeros])
@pytest.mark.parametrize("loose", [False, True])
def test_a_wrong_contender_is_recorded_and_not_timed(compute, loose: bool) -> None:
    case = Case("g", 32, 48, 40, "bf16", "nt", "none")
    (row,) = ON_CPU.rows([case], [contender("bad", compute, loose=loose)])
    assert row.ok is False and row.us is None
    json.loads(json.dumps(dataclasses.asdict(row), allow_nan=False))


@pytest.mark.parametrize("name", ["cublas2", "cutegemmm", ""])
def test_an_unknown_contender_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected one of cutegemm, cutegemm:PIN, .*cublas, cublaslt, unfused"):
        named(name)


class StubBlas:
    """torch's setting of a preferred BLAS library, which a CPU build refuses to set to cuBLASLt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.preferred = "default"
        self.asked: list[str] = []
        monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", self)

    def __call__(self, library: str | None = None) -> str:
        if library is not None:
            self.preferred = library
            self.asked.append(library)
        return self.preferred


@pytest.mark.parametrize("epilogue", ["none", "bias", "bias_relu", "bias_gelu_tanh"])
def test_cublaslt_is_preferred_for_its_own_calls_only(epilogue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blas = StubBlas(monkeypatch)
    (row,) = ON_CPU.rows([Case("g", 33, 48, 40, "bf16", "nt", epilogue)], [named("cublaslt")])
    assert row.ok and row.us is not None and row.kernel.endswith("out=)")
    assert blas.preferred == "default" and blas.asked[:2] == ["cublaslt", "default"]


@pytest.mark.parametrize("name", ["cublas", "cublaslt"])
def test_the_preferred_library_is_put_back_after_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blas = StubBlas(monkeypatch)
    a, b, out = torch.ones(4, 3), torch.ones(5, 2), torch.empty(4, 2)
    call = named(name).prepare(Case("g", 4, 2, 3, "fp32", "nn", "none"), Inputs(a, b, (), out))
    assert call is not None and blas.asked == []
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        call()
    assert blas.asked == [name, "default"]


@pytest.mark.parametrize(
    ("name", "epilogue"), [("cublas", "bias"), ("cublaslt", "bias_gelu"), ("cublaslt", "swiglu"), ("unfused", "none")]
)
def test_a_contender_without_a_way_prepares_nothing(name: str, epilogue: str) -> None:
    a, b, out = torch.ones(4, 3), torch.ones(3, 2), torch.empty(4, 2)
    assert named(name).prepare(Case("g", 4, 2, 3, "fp32", "nn", epilogue), Inputs(a, b, (), out)) is None


SAMPLED = Case("g", 300, 520, 16, "bf16", "nt", "none")


def sampled(epilogue: str, case: Case = SAMPLED) -> tuple[Gate, torch.Tensor]:
    """A gate that looks at a sample, and a right result."""
    case = dataclasses.replace(case, epilogue=epilogue)
    inputs = ON_CPU._inputs(case)
    bound = bind(case, inputs.operands)
    gemm(inputs.a, inputs.b, epilogue=bound, out=inputs.out)
    return Gate(inputs.a, inputs.b, bound, whole=case.m * case.n * case.k - 1), inputs.out


@pytest.mark.parametrize("epilogue", ["none", "bias_add", "scale_col", "scale", "swiglu", "bias_swiglu"])
@pytest.mark.parametrize("loose", [False, True])
def test_a_sample_passes_what_is_right_and_catches_one_wrong_element(epilogue: str, loose: bool) -> None:
    gate, right = sampled(epilogue)
    verdict = gate.judge(right, loose=loose)
    assert verdict.ok and 0 < verdict.rel_err < 2**-8, verdict.why
    m, n = right.shape
    for row, column in [(0, 5), (m - 1, 6), (5, 0), (6, n - 1)]:  # in sampled rows, then in sampled columns
        wrong = right.clone()
        wrong[row, column] += right.abs().max()
        verdict = gate.judge(wrong, loose=loose)
        assert not verdict.ok and verdict.why and verdict.rel_err > 0.9


def test_a_sample_takes_one_column_a_pair_of_what_follows_a_gated_unit() -> None:
    a, b = torch.randn(300, 16), torch.randn(16, 520)
    gated = epilogues.swiglu >> epilogues.add(torch.randn(300, 260)) >> epilogues.scale_row(torch.randn(260))
    assert Gate(a, b, gated, whole=0).judge(gemm(a, b, epilogue=gated)).ok


def test_a_sample_has_128_rows_and_columns_and_every_block_of_128() -> None:
    gate, right = sampled("none")
    assert [part.of(right).shape for part in gate._parts] == [(128, 520), (300, 128)]
    for size in (129, 4096, 16300, 16384):
        indices = _spread(size, torch.device("cpu"))
        assert len(indices.unique()) == 128 and indices[0] == 0 and indices[-1] == size - 1
        assert set((indices // 128).tolist()) == set(range((size + 127) // 128))


def test_a_sample_does_not_hide_what_nobody_wrote() -> None:
    gate, right = sampled("none")
    unseen = next(i for i in range(300) if i not in gate._parts[0].indices), 1
    assert unseen[1] not in gate._parts[1].indices
    right[unseen] = float("nan")
    assert gate.judge(right) == Verdict(False, None, "1 elements are NaN")


def test_problems_up_to_the_limit_are_compared_whole() -> None:
    a, b = torch.randn(300, 4), torch.randn(4, 200)
    assert len(Gate(a, b, None, whole=300 * 200 * 4)._parts) == 1
    assert len(Gate(a, b, None, whole=300 * 200 * 4 - 1)._parts) == 2
    right = (a.double() @ b.double()).float()
    wrong = right.clone()
    wrong[1, 1] += 1
    gate = Gate(a, b, None)
    assert gate.judge(right).ok and not gate.judge(wrong).ok
