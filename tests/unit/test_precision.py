"""How fp32 is multiplied: what a call comes to by its keyword and torch's settings, and what carries it further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cutegemm import ArgumentError, NotAvailableError, gemm, plan, recording, warm
from cutegemm.compiler import Spec
from cutegemm.deploy import spec_file
from cutegemm.device import lookup
from cutegemm.kernels import workspace
from cutegemm.normalize import fp32_precision, parse
from cutegemm.options import Options
from cutegemm.planner import FAMILIES, PINNED, contiguous_problem, refusal
from cutegemm.problem import PRECISIONS

FP32 = contiguous_problem(256, 256, 256, dtype="fp32")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """torch's settings as they are by default."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]


def new(value: str) -> Callable[[], None]:
    return lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", value)


def everywhere(value: str) -> Callable[[], None]:
    return lambda: setattr(torch.backends, "fp32_precision", value)


def old(value: str) -> Callable[[], None]:
    return lambda: torch.set_float32_matmul_precision(value)


def flag(value: bool) -> Callable[[], None]:
    return lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", value)


SETTINGS: list[tuple[tuple[Callable[[], None], ...], str]] = [
    ((), "ieee"),
    ((new("tf32"),), "tf32"),
    ((new("ieee"),), "ieee"),
    ((everywhere("tf32"),), "tf32"),
    ((everywhere("tf32"), new("ieee")), "ieee"),
    ((old("highest"),), "ieee"),
    ((old("high"),), "tf32"),
    ((old("medium"),), "tf32"),
    ((flag(True),), "tf32"),
    ((old("high"), new("ieee")), "ieee"),
    ((new("tf32"), old("highest")), "ieee"),
    ((new("tf32"), flag(True)), "tf32"),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS)
def test_a_call_follows_torch_in_whichever_way_it_is_set(settings: Any, expected: str) -> None:
    for setting in settings:
        setting()
    assert fp32_precision() == expected
    assert requested("cuda") == expected
    assert requested("cuda", precision="ieee") == "ieee" and requested("cuda", precision="tf32") == "tf32"
    assert requested("cpu") == "ieee"  # torch's setting for CUDA is not one for the CPU
    assert requested("cuda", dtype=torch.bfloat16) is None


def requested(device: str, dtype: torch.dtype = torch.float32, precision: str | None = None) -> str | None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        a, b = torch.empty(4, 8, device=device, dtype=dtype), torch.empty(8, 6, device=device, dtype=dtype)
        keywords: dict[str, Any] = dict.fromkeys(("epilogue", "c", "beta", "out", "out_dtype"))
        return parse(a, b, alpha=1.0, options=Options(precision), **keywords).request().precision


def test_a_call_made_before_is_not_served_under_another_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)

    def key(dtype: torch.dtype) -> Any:
        made = warm.plain(torch.ones(4, 8, dtype=dtype), torch.ones(8, 6, dtype=dtype), None, None, 1.0, None, None,
                          None, ())  # fmt: skip
        assert made is not None
        return [part for part in made.key if not isinstance(part, (int, tuple))]

    before = key(torch.float32), key(torch.bfloat16)
    new("tf32")()
    after = key(torch.float32), key(torch.bfloat16)
    assert before[0] != after[0] and before[1] == after[1]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_cpu_is_strict_whatever_is_asked_for(precision: str) -> None:
    assert gemm(torch.tensor([[1024.5]]), torch.ones(1, 1), precision=precision).item() == 1024.5


def test_a_family_serves_the_precisions_that_it_says() -> None:
    gpu = lookup("H200")
    for family in (*FAMILIES.values(), *PINNED.values()):
        assert ("fp32" in family.operand_dtypes) == bool(family.precisions) and set(family.precisions) <= {*PRECISIONS}
        for precision in PRECISIONS:
            problem = contiguous_problem(256, 256, 256, dtype="fp32", layout="nn", precision=precision)
            found = refusal(problem, family, family.configs[0], gpu)
            served = precision in family.precisions
            assert served or (found is not None and found.rule in ("operand dtype", "precision"))
            assert not served or found is None or found.rule not in ("operand dtype", "precision")


def test_a_precision_that_is_not_served_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="precision='tf32': hand serves ieee"):
        plan(64, 64, 64, dtype="fp32", layout="nn", kernel="hand:level5", precision="tf32", arch="H200")
    with pytest.raises(ArgumentError, match="precision='ieee' is for fp32 inputs, and dtype is 'bf16'"):
        plan(64, 64, 64, precision="ieee", arch="H200")
    with pytest.raises(NotAvailableError, match="precision='tf33' is not available yet: 'ieee', 'tf32', 'bf16x6'"):
        plan(64, 64, 64, dtype="fp32", precision="tf33", arch="H200")


def test_a_plan_says_which_precision_it_is_for() -> None:
    made = plan(64, 64, 64, dtype="fp32", layout="nn", kernel="hand:level5", arch="H200")
    assert "\nprecision  ieee\n" in made.explain() and made.to_dict()["problem"]["precision"] == "ieee"
    assert "precision" not in plan(64, 64, 64, arch="H200").explain()


def test_precision_tells_kernels_apart() -> None:
    strict = FP32.signature
    rounded = replace(strict, precision="tf32")
    family = PINNED["hand"]
    keys = {Spec(family.name, family.configs[0], s, "sm_90a").key for s in (strict, rounded)}
    assert len(keys) == 2 and strict != rounded
    assert str(Spec(family.name, family.configs[0], rounded, "sm_90a")).endswith("precision tf32)")
    assert rounded.transposed().precision == workspace.inner(rounded, "ab", 2).precision == "tf32"


@pytest.mark.parametrize("precision", [*PRECISIONS, None])
def test_logs_and_spec_files_keep_it(precision: str | None, tmp_path: Path) -> None:
    dtype = "bf16" if precision is None else "fp32"
    problem = contiguous_problem(64, 256, 128, dtype=dtype, precision=precision)
    assert recording.from_data(recording.to_data(problem)).problem == problem
    path = tmp_path / "spec.toml"
    _, *lines = spec_file.to_build(problem, None).splitlines()
    path.write_text("\n".join(("schema = 1", *lines)))
    (wanted,) = spec_file.read(path)
    assert wanted.problem == problem and wanted.label == spec_file.label(problem, None)
    assert (f"precision {precision}" in wanted.label) == (precision is not None)
