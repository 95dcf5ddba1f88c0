"""The figures of fp32's precisions, how docs/precision.md shows them, and kernels that were measured for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import precision
from benchmarks.contenders import Contender, named
from benchmarks.results import Results, Row
from cutegemm import epilogues, plan
from cutegemm.compiler import Spec
from cutegemm.device import lookup
from cutegemm.planner import tables
from tools import precision_tables

FILE = Results("NVIDIA H200", "580.1", {"torch": "2"}, "abc", "2026-01-01", "precision")
EXACT = Contender("exact", lambda case, x: lambda: x.a.double() @ x.b.double(), lambda case: "")
NOTHING = Contender("nothing", lambda case, x: lambda: x.out, lambda case: "")


def off(by: float) -> Contender:
    """Everything too large by `by` of itself."""
    return Contender("off", lambda case, x: lambda: (1 + by) * (x.a.double() @ x.b.double()), lambda case: "")


def figures(*contenders: Contender, depths: tuple[int, ...] = (64,)) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in precision.measure(contenders, size=48, depths=depths, on="cpu"):
        found |= part
    return found


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    """What measuring gives on the CPU, where every contender is strict."""
    return figures(*map(named, precision.CONTENDERS), depths=(64, 256))


def test_every_contender_is_measured_on_every_kind_of_inputs(measured: dict[str, float]) -> None:
    found = precision.read(measured)
    assert list(found) == [(kind, f"48x48x{k}") for kind in precision.KINDS for k in (64, 256)]
    for each in found.values():
        assert list(each) == [(name, x) for name in precision.CONTENDERS for x in precision.MEASURES]
        assert all(0 < each[name, "rms"] < each[name, "max"] < 1e-5 for name in precision.CONTENDERS)
        assert all(each["cutegemm", x] < 2 * each["cublas", x] for x in precision.MEASURES)


def test_figures_are_relative_to_the_natural_scale_and_to_the_largest_result() -> None:
    a, b = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.eye(2)
    wrong = torch.tensor([[3.0, 4.5], [0.0, 2.0]])
    a[1, 0] = 1.0
    wrong[1, 0] = 1.0
    found = precision.errors(a, b, {"exact": lambda: a, "wrong": lambda: wrong})
    assert found["exact"] == (0.0, 0.0, 0.0)
    assert found["wrong"] == pytest.approx((0.125 / 2, 0.125, 0.125))


def test_exact_results_have_no_error_and_what_is_not_written_has_no_figure() -> None:
    found = figures(EXACT, NOTHING)
    assert all(math.isnan(value) == (" nothing " in name) and not value > 0 for name, value in found.items())


def test_inputs_are_what_their_names_say() -> None:
    draw = torch.Generator().manual_seed(0)
    pairs = {kind: make(64, 128, draw) for kind, make in precision.KINDS.items()}
    for a, b in pairs.values():
        assert a.shape == (64, 128) and b.shape == (128, 64) and a.dtype == b.dtype == torch.float32
    assert all(bool((x >= 0).all()) for x in pairs["positive"])
    lost = {kind: float((a @ b).abs().max() / (a.abs() @ b.abs()).max()) for kind, (a, b) in pairs.items()}
    assert lost["ill-conditioned"] < 1e-4 < 1e-2 < lost["normal"]
    for kind in ("badly scaled", "scaled rows"):
        a, b = pairs[kind]
        assert float(a.abs().max() / a.abs().min()) > 1e8 < float(b.abs().max() / b.abs().min())
    spread = pairs["scaled rows"][0].abs().amax(1)
    assert float(spread.max() / spread.min()) > 1e6


def test_cancelling_shows_relative_to_the_result() -> None:
    found = figures(named("cublas"))
    plain, lost = (found[f"{kind} 48x48x64 cublas of largest"] for kind in ("normal", "ill-conditioned"))
    assert lost > 100 * plain


def test_a_figure_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="'normal 1x1x1 cublas worst'.*of largest"):
        precision.read({"normal 1x1x1 cublas worst": 1.0})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_measuring_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert precision.main(["--commit", "c"]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err


def test_a_gpu_is_measured_in_the_precisions_that_it_has_kernels_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Spec] = []
    monkeypatch.setattr(precision, "build", built.extend)
    assert tuple(x.name for x in precision.served(lookup("H200"))) == precision.CONTENDERS
    assert {spec.signature.precision for spec in built} == {"ieee", "tf32", "bf16x6", "bf16x9"}
    able = [x.name for x in precision.served(lookup("A100"))]
    assert able == ["cutegemm", "cutegemm@tf32", "cublas", "cublas@tf32"]


def rows(us: Mapping[str, float | None], kernel: str = "simt_f32", **changes: Any) -> tuple[Row, ...]:
    row = Row("g", 4096, 4096, 4096, 1, "fp32", "nn", "none", "", kernel, None, True, 1e-6)
    made = (replace(row, contender=name, us=each, ok=each is not None, **changes) for name, each in us.items())
    return tuple(made)


def test_the_page_shows_every_figure(measured: dict[str, float]) -> None:
    text = precision_tables.render([("h200/precision.json", replace(FILE, scalars=measured))])
    assert "[h200/precision.json](../benchmarks/results/h200/precision.json)" in text and "commit abc" in text
    lines = text.splitlines()
    for kind, size in precision.read(measured):
        at = f"| {kind} | {size.replace('x', '×')} |"
        shown = [line.removeprefix(at).strip(" |").split(" | ") for line in lines if line.startswith(at)]
        expected = [
            [f"{measured[precision.name(kind, size, name, x)]:.1e}" for name in precision.CONTENDERS]
            for x in precision.MEASURES
        ]
        assert shown == expected
    assert "Times" not in text


def test_errors_are_compared_with_cublas_in_the_same_precision() -> None:
    rms = {"cutegemm": (2.0, 3.0), "cutegemm@tf32": (8.0, 16.0), "cublas": (2.0, 4.0), "cublas@tf32": (16.0, 16.0)}
    scalars = {
        precision.name(kind, "1x1x1", name, measure): value
        for name, values in rms.items()
        for kind, value in zip(("normal", "positive"), values, strict=True)
        for measure in precision.MEASURES
    }
    text = precision_tables.render([("p", replace(FILE, scalars=scalars))])
    assert '| `"ieee"` | cuBLAS | 0.75 | 1.00 | 0.75 | 1.00 |' in text
    assert '| `"tf32"` | cuBLAS, TF32 | 0.50 | 1.00 | 0.50 | 1.00 |' in text
    assert "bf16x6" not in text.partition("Root mean")[2]


def test_times_come_with_the_memory_that_they_cost() -> None:
    pieces = plan(4096, 4096, 4096, dtype="fp32", layout="nn", precision="bf16x6", arch="H200")
    both = rows({"cutegemm": 2000.0, "cublas": 3000.0, "cutegemm:simt_f32": 1.0}) + rows(
        {"cutegemm@bf16x6": 1000.0, "cutegemm@bf16x9": None}, pieces.kernel
    )
    text = precision_tables.render([("h200/fp32.json", replace(FILE, suite="fp32", rows=both))])
    assert [line for line in text.splitlines() if line.startswith("| 4096")] == [
        '| 4096×4096×4096 | nn | `"ieee"` | 2000.0 | 69 | 3000.0 | 1.50 | 64 |',
        f'| 4096×4096×4096 | nn | `"bf16x6"` | 1000.0 | 137 | 3000.0 | 3.00 | {pieces.workspace / 2**20:.0f} |',
    ]
    assert pieces.workspace >= 6 * 2 * 4096**2
    gone = rows({"cutegemm": 2000.0}, "simt_f32:tile=7x7x7")
    text = precision_tables.render([("h200/fp32.json", replace(FILE, suite="fp32", rows=gone))])
    assert "| 2000.0 | 69 |  |  |  |" in text


def test_without_results_the_page_has_no_measured_part() -> None:
    assert precision_tables.render([]) == ""
    assert precision_tables.render([("p", replace(FILE, suite="hopper"))]) == ""


def test_the_page_is_what_the_results_give() -> None:
    assert precision_tables.main(["--check"]) == 0


KERNELS = {
    "ieee": "simt_f32:tile=64x64x16",
    "tf32": "sm80_multistage:tile=64x64x32",
    "bf16x6": "sm90_wgmma:tile=128x128x32",
}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A table that has, of a problem in three precisions, the kernel that the model ranks last among those pinned."""
    worst = {}
    for mode, pin in KERNELS.items():
        made = plan(4096, 4096, 4096, dtype="fp32", layout="nn", precision=mode, arch="H200", kernel=pin)
        legal = [x for x in made.candidates if x.estimate is not None]
        worst[mode] = max(legal, key=lambda x: x.estimate.us if x.estimate else 0.0).kernel
    entries = tuple(tables.Measured(4096, 4096, 4096, "nn", {k: 1.0}, mode) for mode, k in worst.items())
    monkeypatch.setattr(tables, "measured", lambda gpu: entries)
    return worst


def choose(**changes: Any) -> Any:
    asked: dict[str, Any] = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp32", "layout": "nn", "arch": "H200"}
    return plan(**asked | changes)


def test_a_measured_fp32_kernel_is_chosen_in_its_own_precision(table: dict[str, str]) -> None:
    for mode, kernel in table.items():
        made = choose(precision=mode)
        assert (made.kernel, made.measured) == (kernel, 1)
    assert choose().kernel == table["ieee"]


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "bf16x9"},
        {"align": 4},
        {"layout": "nt"},
        {"out_dtype": "bf16"},
        {"dtype": "bf16"},
        {"dtype": "bf16", "out_dtype": "fp32"},
        {"batch": 2},
        {"k": 4092},
        {"epilogue": epilogues.relu},
    ],
    ids=str,
)
def test_it_is_measured_for_nothing_else(table: dict[str, str], change: dict[str, Any]) -> None:
    assert choose(**change).measured == 0


def test_generated_kernels_are_chosen_only_where_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = choose(precision="tf32", kernel="cutlass_cpp").kernel
    assert choose(precision="tf32").family == "sm90_wgmma"
    other = choose(precision="tf32").kernel
    for us, family in (({kernel: 1.0, other: 2.0}, "cutlass_cpp"), ({kernel: 2.0, other: 1.0}, "sm90_wgmma")):
        entry = tables.Measured(4096, 4096, 4096, "nn", us, "tf32")
        monkeypatch.setattr(tables, "measured", lambda gpu, entry=entry: (entry,))
        made = choose(precision="tf32")
        assert (made.family, made.measured) == (family, 2)
        # With a split nothing was measured, and the model chooses, but not among what comes last.
        assert choose(precision="tf32", split_k=4).family == "sm90_wgmma"
        assert choose(precision="ieee").family == "simt_f32"
