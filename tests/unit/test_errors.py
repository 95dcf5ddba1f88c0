"""Every error of `gemm`: its class, what its message names, and that nothing was written when it rose."""

from __future__ import annotations

import numpy
import pytest
import torch

import cutegemm
from cutegemm import (
    ArgumentError,
    CuteGemmError,
    DeviceError,
    DTypeError,
    EpilogueError,
    NotAvailableError,
    OverlapError,
    Row,
    Scalar,
    ShapeError,
    Tile,
    epilogue,
    epilogues,
    gemm,
    interleave,
    ops,
)
from tests.helpers import Guarded

BF16 = torch.bfloat16
M, N, K = 6, 10, 8


@epilogue
def bias(acc, bias: Row):
    return acc + bias


@epilogue
def add(acc, residual: Tile):
    return acc + residual


@epilogue
def scaled(acc, slope: Scalar):
    return acc * slope


@epilogue
def gated(acc, bias: Row):
    gate, up = ops.pair(acc)
    return ops.silu(gate) * up + bias


@epilogue
def two(acc):
    return {"out": ops.relu(acc), "pre": acc}


def ones(*shape: int, dtype: torch.dtype = BF16, **keywords) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, **keywords)


def negated(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.complex64).conj().imag


# Changes to a right call gemm(a (6, 8), b (8, 10), out=(6, 10)), all bf16; the error; what its message says.
SHAPES = [
    ({"a": ones(M, 5), "b": ones(7, N)}, r"a \(6, 5\) and b \(7, 10\) differ in their inner size, 5 and 7"),
    ({"a": ones(2, 5), "b": ones(3, N)}, r"a \(2, 5\) and b \(3, 10\)"),
    ({"a": ones(K)}, r"a has shape \(8,\): expected at least 2 dimensions, \(…, M, K\)"),
    ({"b": ones(K)}, r"b has shape \(8,\): expected at least 2 dimensions, \(…, K, N\)"),
    ({"a": torch.tensor(1.0, dtype=BF16)}, r"a has shape \(\): expected at least 2"),
    ({"a": ones(2, M, K), "b": ones(3, K, N)}, r"batches \(2,\) and \(3,\), which don't broadcast"),
    ({"a": ones(0, M, K), "b": ones(3, K, N)}, r"batches \(0,\) and \(3,\), which don't broadcast"),
    ({"out": ones(M, N - 1)}, r"out has shape \(6, 9\): expected \(6, 10\)"),
    ({"out": ones(N, M)}, r"out has shape \(10, 6\): expected \(6, 10\)"),
    ({"out": ones(1, M, N)}, r"out has shape \(1, 6, 10\): expected \(6, 10\)"),
    ({"a": ones(3, M, K), "out": ones(M, N)}, r"out has shape \(6, 10\): expected \(3, 6, 10\)"),
    ({"c": ones(N)}, r"c has shape \(10,\): expected \(6, 10\)"),
    ({"c": ones(1, N)}, r"c has shape \(1, 10\): expected \(6, 10\)"),
    ({"c": ones(M, N + 1), "beta": 0}, r"c has shape \(6, 11\): expected \(6, 10\)"),
    ({"a": ones(3, M, K), "c": ones(M, N)}, r"c has shape \(6, 10\): expected \(3, 6, 10\)"),
    ({"epilogue": bias(ones(M))}, r"epilogue operand 'bias' \(Row\) has shape \(6,\): expected \(10,\)"),
    ({"epilogue": bias(ones(1, N))}, r"'bias' \(Row\) has shape \(1, 10\): expected \(10,\)"),
    ({"epilogue": bias(ones(1))}, r"'bias' \(Row\) has shape \(1,\): expected \(10,\)"),
    ({"a": ones(3, M, K), "epilogue": bias(ones(2, N))}, r"expected \(10,\) or \(3, 10\)"),
    ({"epilogue": epilogues.bias_col(ones(N))}, r"'bias' \(Col\) has shape \(10,\): expected \(6,\)"),
    ({"epilogue": add(ones(N))}, r"'residual' \(Tile\) has shape \(10,\): expected \(6, 10\)"),
    ({"epilogue": add(ones(N, M))}, r"'residual' \(Tile\) has shape \(10, 6\): expected \(6, 10\)"),
    ({"epilogue": gated(ones(N))}, r"'bias' \(Row\) has shape \(10,\): expected \(5,\)"),
    ({"epilogue": gated(ones(4)), "b": ones(K, 9)}, "N is 9.*pairs its columns: expected an even N"),
    ({"epilogue": gated(ones(5))}, r"out has shape \(6, 10\): expected \(6, 5\)"),
    ({"alpha": ones(1)}, r"alpha has shape \(1,\): expected \(\)"),
    ({"beta": ones(1), "c": ones(M, N)}, r"beta has shape \(1,\): expected \(\)"),
]
DTYPES = [
    ({"b": ones(K, N, dtype=torch.float16)}, "a is bf16 and b is fp16: expected one dtype for both"),
    ({"a": ones(M, K, dtype=torch.complex64)}, "a is complex64: on cpu tensors expected one of fp16, bf16"),
    ({"b": ones(K, N, dtype=torch.complex64).conj()}, "b is complex64"),
    ({"a": ones(M, K, dtype=torch.int64), "b": ones(K, N, dtype=torch.int64)}, "a is int64: on cpu"),
    ({"a": ones(M, K, dtype=torch.bool)}, "a is bool: on cpu"),
    ({"a": ones(M, K).to(torch.float8_e4m3fn)}, "a is fp8_e4m3: on cpu"),
    ({"c": ones(M, N, dtype=torch.complex64)}, "c is complex64"),
    ({"epilogue": bias(ones(N, dtype=torch.bool))}, r"'bias' \(Row\) is bool"),
    ({"epilogue": scaled(torch.tensor(True))}, r"'slope' \(Scalar\) is bool"),
    ({"alpha": torch.tensor(1j)}, "alpha is complex64"),
    ({"out": ones(M, N, dtype=torch.int64)}, "out is int64: on cpu tensors expected one of fp16"),
    ({"out_dtype": torch.complex64, "out": None}, "out is complex64"),
    ({"out_dtype": torch.float32}, "out is bf16 and out_dtype asks for fp32"),
    ({"out_dtype": "tf32", "out": None}, "unknown dtype 'tf32'"),
    ({"out_dtype": 32, "out": None}, "out_dtype is int: expected a torch.dtype"),
]
ARGUMENTS = [
    ({"a": numpy.ones((M, K))}, "a is numpy.ndarray: expected a torch.Tensor"),
    ({"b": [[1.0]]}, "b is list: expected a torch.Tensor"),
    ({"b": None}, "b is NoneType: expected a torch.Tensor"),
    ({"c": 1.0}, "c is float: expected a torch.Tensor"),
    ({"a": ones(M, K).to_sparse()}, "a has layout torch.sparse_coo: expected a dense tensor"),
    ({"alpha": "2"}, "alpha is str: expected a real number or a 0-d tensor"),
    ({"alpha": None}, "alpha is NoneType"),
    ({"alpha": 1j}, "alpha is complex"),
    ({"alpha": 10**400}, "alpha is beyond a float's range"),
    ({"beta": 1.0}, "beta=1.0 without c"),
    ({"beta": torch.tensor(0.0)}, "without c: give c, or leave beta out"),
    ({"out": numpy.ones((M, N))}, "out is numpy.ndarray: expected a tensor for each output: out"),
    ({"out": (ones(M, N), ones(M, N))}, "out has 2 entries: expected one for each output: out"),
    ({"out": negated(M, N)}, "out is a lazily negated or conjugated view"),
    ({"epilogue": two()}, "out is one tensor, and the epilogue has outputs out, pre"),
    ({"epilogue": two(), "out": (ones(M, N),)}, "out has 1 entries: expected one for each output: out, pre"),
    ({"epilogue": two(), "out": {"out": ones(M, N)}}, "out has keys out: expected out, pre"),
    (
        {"epilogue": two(), "out": {"out": None, "pre": None, "x": None}},
        "keys out, pre, x: expected out, pre",
    ),
    (
        {"epilogue": two(), "out": (ones(M, N), None)},
        r"out\[1\] \('pre'\) is NoneType: expected a torch.Tensor",
    ),
    ({"epilogue": two(), "out": None, "out_dtype": (BF16,)}, "out_dtype has 1 entries"),
    ({"epilogue": two(), "out": None, "out_dtype": {"x": BF16}}, "out_dtype has keys x: expected out, pre"),
    ({"precision": "ieee"}, "precision='ieee' is for fp32 inputs, and a is bf16"),
    ({"precision": 32}, "precision=32: expected None, 'ieee'"),
    ({"split_k": 0}, "split_k=0: expected 'auto', an int of at least 1, or 'stream'"),
    ({"split_k": True}, "split_k=True"),
    ({"split_k": 2.0}, "split_k=2.0"),
    ({"split_k": "streams"}, "split_k='streams'"),
    ({"padding": "pad"}, "padding='pad': expected one of 'auto', 'predicate', 'copy'"),
    ({"padding": None}, "padding=None"),
    ({"deterministic": 1}, "deterministic=1: expected True or False"),
    ({"batch_invariant": None}, "batch_invariant=None: expected True or False"),
    ({"kernel": 5}, "kernel=5: expected None or a string"),
    ({"kernel": ""}, "kernel='': expected None or a string"),
    ({"kernel": "sm80_multistage"}, "kernel='sm80_multistage' needs CUDA tensors, and a is on cpu"),
    ({"kernel": "hand:level5"}, "kernel='hand:level5' needs CUDA tensors"),
    ({"jit": "allow"}, "jit='allow': expected None or 'forbid'"),
    ({"jit": False}, "jit=False"),
]
NOT_AVAILABLE = [
    ({"split_k": 2}, "split_k=2 is not available yet: 'auto' and 1 are served"),
    ({"split_k": "stream"}, "split_k='stream' is not available yet"),
    ({"padding": "copy"}, "padding='copy' is not available yet: 'auto' and 'predicate' are served"),
    ({"batch_invariant": True}, "batch_invariant=True is not available yet"),
    ({"precision": "tf32"}, "precision='tf32' is not available yet"),
    ({"precision": "bf16x9"}, "precision='bf16x9' is not available yet"),
    ({"a": ones(M, K, requires_grad=True)}, "a requires grad, and autograd is not available yet"),
    ({"b": ones(K, N, requires_grad=True)}, "b requires grad"),
    ({"c": ones(M, N, requires_grad=True)}, "c requires grad"),
    ({"c": ones(M, N, requires_grad=True), "beta": 0}, "c requires grad"),
    ({"alpha": torch.tensor(2.0, requires_grad=True)}, "alpha requires grad"),
    ({"c": ones(M, N), "beta": torch.tensor(2.0, requires_grad=True)}, "beta requires grad"),
    ({"epilogue": bias(ones(N, requires_grad=True))}, r"'bias' \(Row\) requires grad"),
    ({"epilogue": scaled(torch.tensor(1.0, requires_grad=True))}, r"'slope' \(Scalar\) requires grad"),
    ({"out": ones(M, N, requires_grad=True)}, "out requires grad"),
]
EPILOGUES = [
    ({"epilogue": torch.nn.functional.relu}, "is not an epilogue"),
    ({"epilogue": "relu"}, "is not an epilogue"),
    ({"epilogue": bias}, "operand 'bias' is not given"),
]
META = {"device": "meta"}
DEVICES = [
    ({"b": ones(K, N, **META)}, "a is on cpu, b on meta: expected one device for all"),
    ({"a": ones(M, K, **META)}, "a is on meta, b on cpu"),
    ({"c": ones(M, N, **META)}, "a is on cpu, c on meta"),
    ({"epilogue": bias(ones(N, **META))}, r"a is on cpu, epilogue operand 'bias' \(Row\) on meta"),
    ({"alpha": torch.tensor(1.0, **META)}, "a is on cpu, alpha on meta"),
    ({"out": ones(M, N, **META)}, "a is on cpu, out on meta"),
]
CASES = [
    *((changes, ShapeError, ValueError, message) for changes, message in SHAPES),
    *((changes, DTypeError, TypeError, message) for changes, message in DTYPES),
    *((changes, ArgumentError, ValueError, message) for changes, message in ARGUMENTS),
    *((changes, NotAvailableError, NotImplementedError, message) for changes, message in NOT_AVAILABLE),
    *((changes, EpilogueError, TypeError, message) for changes, message in EPILOGUES),
    *((changes, DeviceError, RuntimeError, message) for changes, message in DEVICES),
]


def tensors_of(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for entry in value for tensor in tensors_of(entry)]
    return tensors_of(value.operands) if hasattr(value, "operands") else []


def snapshot(values) -> list[bytes]:
    """The tensors' contents; those without data have none."""
    dense = [t.detach() for t in tensors_of(values) if not t.is_meta and t.layout == torch.strided]
    plain = [t.resolve_conj().resolve_neg().contiguous().flatten() for t in dense]
    return [t.view(torch.uint8).numpy().tobytes() for t in plain]


@pytest.mark.parametrize(("changes", "error", "builtin", "message"), CASES)
def test_an_error_names_its_argument_and_leaves_everything_as_it_was(
    changes, error, builtin, message
) -> None:
    out = Guarded((M, N), BF16)
    keywords = {"a": ones(M, K), "b": ones(K, N), "out": out.tensor} | changes
    before = snapshot(keywords)
    with pytest.raises(error, match=message) as raised:
        gemm(**keywords)
    assert type(raised.value) is error and isinstance(raised.value, builtin)
    assert isinstance(raised.value, CuteGemmError)
    out.assert_untouched()
    assert snapshot(keywords) == before


def test_the_right_call_that_the_errors_start_from() -> None:
    out = Guarded((M, N), BF16)
    gemm(ones(M, K), ones(K, N), out=out.tensor)
    assert torch.equal(out.tensor, torch.full((M, N), 8.0, dtype=BF16))


@pytest.mark.parametrize(
    "keywords",
    [
        {"split_k": 1},
        {"padding": "predicate"},
        {"deterministic": False},
        {"kernel": "reference"},
        {"jit": "forbid"},
        {"out_dtype": BF16},
        {"alpha": numpy.float32(1)},
        {"alpha": True},
        {"beta": 0},
    ],
)
def test_values_beside_the_refused_ones_are_served(keywords) -> None:
    assert torch.equal(gemm(ones(M, K), ones(K, N), **keywords), torch.full((M, N), 8.0, dtype=BF16))


def test_nothing_requires_grad_under_no_grad() -> None:
    a = ones(M, K, requires_grad=True)
    with torch.no_grad():
        result = gemm(a, ones(K, N), out=ones(M, N, requires_grad=True))
    assert torch.equal(result, torch.full((M, N), 8.0, dtype=BF16)) and a.grad is None
    assert not gemm(a.detach(), ones(K, N)).requires_grad


# --- overlap
# --------------------------------------------------------------------------------------------------------


def base() -> torch.Tensor:
    return torch.arange(4 * 16 * 16, dtype=torch.float32).view(4, 16, 16) / 64


def part(x: torch.Tensor, i: int = 0, row: int = 0, column: int = 0) -> torch.Tensor:
    return x[i, row : row + 8, column : column + 8]


OVERLAPS = [
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 1)}, "shares memory with b"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 7, 7)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x).t()}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2).t()}, "memory with c"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2, 1)}, "memory with c"),
    # Not read, and an overlap all the same: that must not depend on a value.
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "beta": 0, "out": part(x, 2, 1)}, "with c"),
    (lambda x: {"a": part(x), "b": part(x, 1), "alpha": 0, "out": part(x)}, "shares memory with a"),
    # The very tensor that is c, but in a's place as well.
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x), "out": part(x)}, "shares memory with a"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": add(part(x, 2)), "out": part(x, 2, 0, 1)}, "Tile"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": bias(x[2, 0, :8]), "out": part(x, 2)}, "Row"),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": scaled(x[2, 3, 3]), "out": part(x, 2)}, "Scalar"),
    (lambda x: {"a": part(x), "b": part(x, 1), "alpha": x[2, 3, 3], "out": part(x, 2)}, "memory with alpha"),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "epilogue": two(), "out": (part(x, 2), part(x, 2))},
        "memory with out",
    ),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "epilogue": two(), "out": (part(x, 2), part(x, 2, 7))},
        "with out",
    ),
    (
        lambda x: {"a": part(x), "b": part(x, 1), "out": x[2, 0, :1].expand(8, 8)},
        "elements of out.*share memory",
    ),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": x[2].as_strided((8, 8), (4, 1))}, "elements of out"),
    # Neighbours, interleaved columns and rows, and other dtypes of other bytes are free.
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 8)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x, 0, 0, 8)}, None),
    (lambda x: {"a": x[0, :8, 0::2], "b": part(x, 1), "out": x[0, :8, 1::2]}, None),
    (lambda x: {"a": x[0, 0::2, :8], "b": part(x, 1), "out": x[0, 1::2, :8]}, None),
    (lambda x: {"a": part(x), "b": part(x), "out": part(x, 1)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x.view(BF16), 1, 0, 16)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "out": part(x.view(BF16), 1, 0, 15)}, "shares memory with b"),
    (lambda x: {"a": part(x), "b": part(x, 1), "c": part(x, 2), "out": part(x, 2)}, None),
    (lambda x: {"a": part(x), "b": part(x, 1), "epilogue": add(part(x, 2)), "out": part(x, 2)}, None),
]


@pytest.mark.parametrize(("make", "message"), OVERLAPS)
def test_overlap_is_an_error_and_only_overlap_is(make, message: str | None) -> None:
    memory = base()
    if message is None:
        expected = gemm(**{name: value for name, value in make(base()).items() if name != "out"})
        result = gemm(**make(memory))
        assert torch.equal(result, expected.to(result.dtype))
        return
    with pytest.raises(OverlapError, match=message) as raised:
        gemm(**make(memory))
    assert isinstance(raised.value, ValueError)
    assert torch.equal(memory, base())


def test_one_tile_for_a_whole_batch_is_not_the_same_elements() -> None:
    x = torch.ones(2, 8, 8)
    with pytest.raises(OverlapError, match="Tile"):
        gemm(torch.ones(2, 8, 8), torch.ones(8, 8), epilogue=add(x[0]), out=x)
    assert torch.equal(x, torch.ones(2, 8, 8))


def test_a_failing_call_leaves_the_next_one_alone() -> None:
    with pytest.raises(DeviceError):
        gemm(ones(M, K), ones(K, N, device="meta"))
    assert torch.equal(gemm(ones(M, K), ones(K, N)), torch.full((M, N), 8.0, dtype=BF16))


@pytest.mark.parametrize(
    ("gate", "up", "error", "message"),
    [
        (ones(3, 4), ones(3, 5), ShapeError, r"w_gate has shape \(3, 4\) and w_up \(3, 5\)"),
        (ones(4), ones(4), ShapeError, r"expected one shape, \(N, K\)"),
        (
            ones(3, 4),
            ones(3, 4, dtype=torch.float16),
            DTypeError,
            "w_gate is torch.bfloat16 and w_up is torch.float16",
        ),
        ([1], ones(3, 4), ArgumentError, "w_gate is list"),
    ],
)
def test_interleave_refuses_two_that_are_not_alike(gate, up, error, message) -> None:
    with pytest.raises(error, match=message):
        interleave(gate, up)


def test_every_error_is_public_and_derives_from_the_base() -> None:
    names = [name for name in cutegemm.__all__ if name.endswith("Error")]
    assert len(names) == 10
    assert all(issubclass(getattr(cutegemm, name), CuteGemmError) for name in names)


def test_every_public_name_is_there() -> None:
    for name in cutegemm.__all__:
        assert getattr(cutegemm, name) is not None
    assert set(cutegemm.__all__) <= set(dir(cutegemm))
    with pytest.raises(AttributeError, match="no attribute 'gem'"):
        cutegemm.gem  # noqa: B018
