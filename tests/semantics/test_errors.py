"""Every error of `gemm`: its class, what its message names, and that nothing was written when it rose."""

from __future__ import annotations

import numpy
import pytest
import torch

from cutegemm import (
    ArgumentError,
    CuteGemmError,
    DeviceError,
    DTypeError,
    EpilogueError,
    NotAvailableError,
    Row,
    Scalar,
    ShapeError,
    epilogue,
    epilogues,
    gemm,
    ops,
)
from tests.helpers import Guarded
from tests.semantics.inputs import BF16, add, bias, ones

M, N, K = 6, 10, 8


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


def negated(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.complex64).conj().imag


# Changes to a right call gemm(a (6, 8), b (8, 10), out=(6, 10)), all bf16; the error; what its message says.
SHAPES = [
    (lambda: {"a": ones(M, 5), "b": ones(7, N)}, r"a \(6, 5\) and b \(7, 10\) differ in their inner size, 5 and 7"),
    (lambda: {"a": ones(2, 5), "b": ones(3, N)}, r"a \(2, 5\) and b \(3, 10\)"),
    (lambda: {"a": ones(K)}, r"a has shape \(8,\): expected at least 2 dimensions, \(…, M, K\)"),
    (lambda: {"b": ones(K)}, r"b has shape \(8,\): expected at least 2 dimensions, \(…, K, N\)"),
    (lambda: {"a": torch.tensor(1.0, dtype=BF16)}, r"a has shape \(\): expected at least 2"),
    (lambda: {"a": ones(2, M, K), "b": ones(3, K, N)}, r"batches \(2,\) and \(3,\), which don't broadcast"),
    (lambda: {"a": ones(0, M, K), "b": ones(3, K, N)}, r"batches \(0,\) and \(3,\), which don't broadcast"),
    (lambda: {"out": ones(M, N - 1)}, r"out has shape \(6, 9\): expected \(6, 10\)"),
    (lambda: {"out": ones(N, M)}, r"out has shape \(10, 6\): expected \(6, 10\)"),
    (lambda: {"out": ones(1, M, N)}, r"out has shape \(1, 6, 10\): expected \(6, 10\)"),
    (lambda: {"a": ones(3, M, K), "out": ones(M, N)}, r"out has shape \(6, 10\): expected \(3, 6, 10\)"),
    (lambda: {"c": ones(N)}, r"c has shape \(10,\): expected \(6, 10\)"),
    (lambda: {"c": ones(1, N)}, r"c has shape \(1, 10\): expected \(6, 10\)"),
    (lambda: {"c": ones(M, N + 1), "beta": 0}, r"c has shape \(6, 11\): expected \(6, 10\)"),
    (lambda: {"a": ones(3, M, K), "c": ones(M, N)}, r"c has shape \(6, 10\): expected \(3, 6, 10\)"),
    (lambda: {"epilogue": bias(ones(M))}, r"epilogue operand 'bias' \(Row\) has shape \(6,\): expected \(10,\)"),
    (lambda: {"epilogue": bias(ones(1, N))}, r"'bias' \(Row\) has shape \(1, 10\): expected \(10,\)"),
    (lambda: {"epilogue": bias(ones(1))}, r"'bias' \(Row\) has shape \(1,\): expected \(10,\)"),
    (lambda: {"a": ones(3, M, K), "epilogue": bias(ones(2, N))}, r"expected \(10,\) or \(3, 10\)"),
    (lambda: {"epilogue": epilogues.bias_col(ones(N))}, r"'bias' \(Col\) has shape \(10,\): expected \(6,\)"),
    (lambda: {"epilogue": add(ones(N))}, r"'residual' \(Tile\) has shape \(10,\): expected \(6, 10\)"),
    (lambda: {"epilogue": add(ones(N, M))}, r"'residual' \(Tile\) has shape \(10, 6\): expected \(6, 10\)"),
    (lambda: {"epilogue": gated(ones(N))}, r"'bias' \(Row\) has shape \(10,\): expected \(5,\)"),
    (lambda: {"epilogue": gated(ones(4)), "b": ones(K, 9)}, "N is 9.*pairs its columns: expected an even N"),
    (lambda: {"epilogue": gated(ones(5))}, r"out has shape \(6, 10\): expected \(6, 5\)"),
    (lambda: {"alpha": ones(1)}, r"alpha has shape \(1,\): expected \(\)"),
    (lambda: {"beta": ones(1), "c": ones(M, N)}, r"beta has shape \(1,\): expected \(\)"),
]
DTYPES = [
    (lambda: {"b": ones(K, N, dtype=torch.float16)}, "a is bf16 and b is fp16: expected one dtype for both"),
    (lambda: {"a": ones(M, K, dtype=torch.complex64)}, "a is complex64: on (cpu|cuda) tensors expected one of fp16"),
    (lambda: {"b": ones(K, N, dtype=torch.complex64).conj()}, "b is complex64"),
    (lambda: {"a": ones(M, K, dtype=torch.int64), "b": ones(K, N, dtype=torch.int64)}, "a is int64: on (cpu|cuda)"),
    (lambda: {"a": ones(M, K, dtype=torch.bool)}, "a is bool: on (cpu|cuda)"),
    (lambda: {"a": ones(M, K).to(torch.float8_e4m3fn)}, "a is fp8_e4m3: on (cpu|cuda)"),
    (lambda: {"c": ones(M, N, dtype=torch.complex64)}, "c is complex64"),
    (lambda: {"epilogue": bias(ones(N, dtype=torch.bool))}, r"'bias' \(Row\) is bool"),
    (lambda: {"epilogue": scaled(torch.tensor(True))}, r"'slope' \(Scalar\) is bool"),
    (lambda: {"alpha": torch.tensor(1j)}, "alpha is complex64"),
    (lambda: {"out": ones(M, N, dtype=torch.int64)}, "out is int64: on (cpu|cuda) tensors expected one of fp16"),
    (lambda: {"out_dtype": torch.complex64, "out": None}, "out is complex64"),
    (lambda: {"out_dtype": torch.float32}, "out is bf16 and out_dtype asks for fp32"),
    (lambda: {"out_dtype": "tf32", "out": None}, "unknown dtype 'tf32'"),
    (lambda: {"out_dtype": 32, "out": None}, "out_dtype is int: expected a torch.dtype"),
]
ARGUMENTS = [
    (lambda: {"a": numpy.ones((M, K))}, "a is numpy.ndarray: expected a torch.Tensor"),
    (lambda: {"b": [[1.0]]}, "b is list: expected a torch.Tensor"),
    (lambda: {"b": None}, "b is NoneType: expected a torch.Tensor"),
    (lambda: {"c": 1.0}, "c is float: expected a torch.Tensor"),
    (lambda: {"a": ones(M, K).to_sparse()}, "a has layout torch.sparse_coo: expected a dense tensor"),
    (lambda: {"alpha": "2"}, "alpha is str: expected a real number or a 0-d tensor"),
    (lambda: {"alpha": None}, "alpha is NoneType"),
    (lambda: {"alpha": 1j}, "alpha is complex"),
    (lambda: {"alpha": 10**400}, "alpha is beyond a float's range"),
    (lambda: {"beta": 1.0}, "beta=1.0 without c"),
    (lambda: {"beta": torch.tensor(0.0)}, "without c: give c, or leave beta out"),
    (lambda: {"out": numpy.ones((M, N))}, "out is numpy.ndarray: expected a tensor for each output: out"),
    (lambda: {"out": (ones(M, N), ones(M, N))}, "out has 2 entries: expected one for each output: out"),
    (lambda: {"out": negated(M, N)}, "out is a lazily negated or conjugated view"),
    (lambda: {"epilogue": two()}, "out is one tensor, and the epilogue has outputs out, pre"),
    (lambda: {"epilogue": two(), "out": (ones(M, N),)}, "out has 1 entries: expected one for each output: out, pre"),
    (lambda: {"epilogue": two(), "out": {"out": ones(M, N)}}, "out has keys out: expected out, pre"),
    (
        lambda: {"epilogue": two(), "out": {"out": None, "pre": None, "x": None}},
        "keys out, pre, x: expected out, pre",
    ),
    (
        lambda: {"epilogue": two(), "out": (ones(M, N), None)},
        r"out\[1\] \('pre'\) is NoneType: expected a torch.Tensor",
    ),
    (lambda: {"epilogue": two(), "out": None, "out_dtype": (BF16,)}, "out_dtype has 1 entries"),
    (lambda: {"epilogue": two(), "out": None, "out_dtype": {"x": BF16}}, "out_dtype has keys x: expected out, pre"),
    (lambda: {"precision": "ieee"}, "precision='ieee' is for fp32 inputs, and a is bf16"),
    (lambda: {"precision": "tf32"}, "precision='tf32' is for fp32 inputs, and a is bf16"),
    (lambda: {"precision": 32}, "precision=32: expected None, 'ieee'"),
    (lambda: {"split_k": 0}, "split_k=0: expected 'auto', an int of at least 1, or 'stream'"),
    (lambda: {"split_k": True}, "split_k=True"),
    (lambda: {"split_k": 2.0}, "split_k=2.0"),
    (lambda: {"split_k": "streams"}, "split_k='streams'"),
    (lambda: {"padding": "pad"}, "padding='pad': expected one of 'auto', 'predicate', 'copy'"),
    (lambda: {"padding": None}, "padding=None"),
    (lambda: {"deterministic": 1}, "deterministic=1: expected True or False"),
    (lambda: {"batch_invariant": None}, "batch_invariant=None: expected True or False"),
    (lambda: {"kernel": 5}, "kernel=5: expected None or a string"),
    (lambda: {"kernel": ""}, "kernel='': expected None or a string"),
    (lambda: {"jit": "allow"}, "jit='allow': expected None or 'forbid'"),
    (lambda: {"jit": False}, "jit=False"),
]
NOT_AVAILABLE = [
    (lambda: {"batch_invariant": True}, "batch_invariant=True is not available yet"),
    (lambda: {"precision": "bf16x3"}, "precision='bf16x3' is not available yet"),
    (lambda: {"a": ones(M, K, requires_grad=True)}, "a requires grad, and autograd is not available yet"),
    (lambda: {"b": ones(K, N, requires_grad=True)}, "b requires grad"),
    (lambda: {"c": ones(M, N, requires_grad=True)}, "c requires grad"),
    (lambda: {"c": ones(M, N, requires_grad=True), "beta": 0}, "c requires grad"),
    (lambda: {"alpha": torch.tensor(2.0, requires_grad=True)}, "alpha requires grad"),
    (lambda: {"c": ones(M, N), "beta": torch.tensor(2.0, requires_grad=True)}, "beta requires grad"),
    (lambda: {"epilogue": bias(ones(N, requires_grad=True))}, r"'bias' \(Row\) requires grad"),
    (lambda: {"epilogue": scaled(torch.tensor(1.0, requires_grad=True))}, r"'slope' \(Scalar\) requires grad"),
    (lambda: {"out": ones(M, N, requires_grad=True)}, "out requires grad"),
]
EPILOGUES = [
    (lambda: {"epilogue": torch.nn.functional.relu}, "is not an epilogue"),
    (lambda: {"epilogue": "relu"}, "is not an epilogue"),
    (lambda: {"epilogue": bias}, "operand 'bias' is not given"),
]
META = {"device": "meta"}
DEVICES = [
    (lambda: {"b": ones(K, N, **META)}, "a is on (cpu|cuda:0), b on meta: expected one device for all"),
    (lambda: {"a": ones(M, K, **META)}, "a is on meta, b on (cpu|cuda:0)"),
    (lambda: {"c": ones(M, N, **META)}, "a is on (cpu|cuda:0), c on meta"),
    (lambda: {"epilogue": bias(ones(N, **META))}, r"a is on .*, epilogue operand 'bias' \(Row\) on meta"),
    (lambda: {"alpha": torch.tensor(1.0, **META)}, "a is on (cpu|cuda:0), alpha on meta"),
    (lambda: {"out": ones(M, N, **META)}, "a is on (cpu|cuda:0), out on meta"),
]
CASES = [
    *((changes, ShapeError, ValueError, message) for changes, message in SHAPES),
    *((changes, DTypeError, TypeError, message) for changes, message in DTYPES),
    *((changes, ArgumentError, ValueError, message) for changes, message in ARGUMENTS),
    *((changes, NotAvailableError, NotImplementedError, message) for changes, message in NOT_AVAILABLE),
    *((changes, EpilogueError, TypeError, message) for changes, message in EPILOGUES),
    *((changes, DeviceError, RuntimeError, message) for changes, message in DEVICES),
]

# What is an error on one device and served, or another error, on the other.
CPU = {"device": "cpu"}
CPU_CASES = [
    (lambda: {"kernel": "sm80_multistage"}, ArgumentError, "'sm80_multistage' needs CUDA tensors, and a is on cpu"),
    (lambda: {"kernel": "hand:level5"}, ArgumentError, "kernel='hand:level5' needs CUDA tensors"),
]
SERVED = "on cuda tensors expected one of fp16, bf16, fp32"
CUDA_CASES = [
    (lambda: {"a": ones(M, K).double(), "b": ones(K, N).double()}, DTypeError, f"a is fp64: {SERVED}; torch.mat"),
    (lambda: {"a": ones(M, K, dtype=torch.complex64)}, DTypeError, f"a is complex64: {SERVED}; torch.matmul multip"),
    (lambda: {"a": ones(M, K).char(), "b": ones(K, N).char()}, DTypeError, f"a is int8: {SERVED}$"),
    (lambda: {"b": ones(K, N, dtype=torch.float32)}, DTypeError, "a is bf16 and b is fp32"),
    (lambda: {"c": ones(M, N, dtype=torch.float64)}, DTypeError, f"c is fp64: {SERVED}$"),
    (lambda: {"c": ones(M, N, dtype=torch.int8)}, DTypeError, f"c is int8: {SERVED}$"),
    (lambda: {"out": ones(M, N, dtype=torch.float64)}, DTypeError, f"out is fp64: {SERVED}$"),
    (lambda: {"out": ones(M, N, dtype=torch.int8)}, DTypeError, f"out is int8: {SERVED}$"),
    (lambda: {"out": None, "out_dtype": torch.int32}, DTypeError, f"out is int32: {SERVED}$"),
    (lambda: {"epilogue": bias(ones(N, dtype=torch.float64))}, DTypeError, r"'bias' \(Row\) is fp64: on cuda tensors"),
    (lambda: {"epilogue": scaled(torch.tensor(2))}, DTypeError, r"'slope' \(Scalar\) is int64: on cuda tensors"),
    (lambda: {"alpha": torch.tensor(2.0, dtype=torch.float64)}, DTypeError, f"alpha is fp64: {SERVED}$"),
    (lambda: {"alpha": torch.tensor(2)}, DTypeError, f"alpha is int64: {SERVED}$"),
    (lambda: {"c": ones(M, N), "beta": torch.tensor(0)}, DTypeError, f"beta is int64: {SERVED}$"),
    (lambda: {"b": ones(K, N, **CPU)}, DeviceError, "a is on cuda:0, b on cpu: expected one device for all"),
    (lambda: {"a": ones(M, K, **CPU)}, DeviceError, "a is on cpu, b on cuda:0"),
    (lambda: {"c": ones(M, N, **CPU)}, DeviceError, "a is on cuda:0, c on cpu"),
    (lambda: {"epilogue": bias(ones(N, **CPU))}, DeviceError, r"a is on cuda:0, .*'bias' \(Row\) on cpu"),
    (lambda: {"alpha": torch.tensor(1.0, **CPU)}, DeviceError, "a is on cuda:0, alpha on cpu"),
    (lambda: {"out": ones(M, N, **CPU)}, DeviceError, "a is on cuda:0, out on cpu"),
    (lambda: {"kernel": "reference"}, ArgumentError, "kernel='reference' runs on CPU tensors, and a is on cuda:0"),
    (lambda: {"kernel": "sm80"}, ArgumentError, "unknown family 'sm80'; available: .*sm80_multistage"),
    (lambda: {"kernel": "sm80_multistage:"}, ArgumentError, "'' is not key=value"),
    (lambda: {"kernel": "sm80_multistage:tile=1x1x1"}, ArgumentError, "no configuration of sm80_multistage has these"),
    (lambda: {"kernel": "sm80_multistage:stages=4,stages=4"}, ArgumentError, "stages is given twice"),
    (lambda: {"kernel": "cutlass_cpp:tile=1x1x1"}, ArgumentError, "no configuration of cutlass_cpp has these"),
    (lambda: {"kernel": "hand:level99"}, ArgumentError, "expected hand: and one of level1, "),
    (lambda: {"kernel": "hand:level1", "b": ones(N, K).t()}, ArgumentError, "b is contiguous along K: .* row-major"),
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
    plain = [t.resolve_conj().resolve_neg().cpu().contiguous().flatten() for t in dense]
    return [t.view(torch.uint8).numpy().tobytes() for t in plain]


def assert_refused(changes, error, message: str) -> CuteGemmError:
    """That the right call with these changes raises, and reads and writes nothing: all tensors are as before."""
    out = Guarded((M, N), BF16)
    keywords = {"a": ones(M, K), "b": ones(K, N), "out": out.tensor} | changes()
    before = snapshot(keywords)
    with pytest.raises(error, match=message) as raised:
        gemm(**keywords)
    assert type(raised.value) is error and isinstance(raised.value, CuteGemmError)
    out.assert_untouched()
    assert snapshot(keywords) == before
    return raised.value


@pytest.mark.parametrize(("changes", "error", "builtin", "message"), CASES)
def test_an_error_names_its_argument_and_leaves_everything_as_it_was(changes, error, builtin, message) -> None:
    assert isinstance(assert_refused(changes, error, message), builtin)


def test_what_only_the_other_device_serves_is_refused(device: str) -> None:
    for changes, error, message in CPU_CASES if device == "cpu" else CUDA_CASES:
        assert_refused(changes, error, message)


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
        {"jit": "forbid"},
        {"out_dtype": BF16},
        {"alpha": numpy.float32(1)},
        {"alpha": True},
        {"beta": 0},
    ],
)
def test_values_beside_the_refused_ones_are_served(keywords) -> None:
    eight = torch.full((M, N), 8.0, dtype=BF16)
    assert torch.equal(gemm(ones(M, K), ones(K, N)), eight)  # builds the kernel that jit="forbid" needs
    assert torch.equal(gemm(ones(M, K), ones(K, N), **keywords), eight)


def test_the_device_s_own_path_may_be_pinned(device: str) -> None:
    kernel = "reference" if device == "cpu" else "sm80_multistage"
    assert torch.equal(gemm(ones(M, K), ones(K, N), kernel=kernel), torch.full((M, N), 8.0, dtype=BF16))


def test_nothing_requires_grad_under_no_grad() -> None:
    a = ones(M, K, requires_grad=True)
    with torch.no_grad():
        result = gemm(a, ones(K, N), out=ones(M, N, requires_grad=True))
    assert torch.equal(result, torch.full((M, N), 8.0, dtype=BF16)) and a.grad is None
    assert not gemm(a.detach(), ones(K, N)).requires_grad


def test_a_failing_call_leaves_the_next_one_alone() -> None:
    with pytest.raises(DeviceError):
        gemm(ones(M, K), ones(K, N, device="meta"))
    assert torch.equal(gemm(ones(M, K), ones(K, N)), torch.full((M, N), 8.0, dtype=BF16))
