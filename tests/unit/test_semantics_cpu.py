"""What `gemm` means beyond what every device serves: dtypes that only the CPU has, and meta tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import gemm
from tests.helpers import Guarded, check
from tests.semantics.inputs import BF16, FP16, FP32, add, bias_relu, everything, full, randn

FP64 = torch.float64


@given(st.data())
def test_any_problem(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 20)) for _ in range(3))
    batch = data.draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    dtype = data.draw(st.sampled_from([FP16, BF16, FP32, FP64]))

    def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
        own = batch[data.draw(st.integers(0, len(batch))) :]
        base = randn(*own, 2 * rows + 1, 2 * columns + 1, dtype=dtype, seed=seed)
        step = data.draw(st.sampled_from([1, 2]))
        view = base[..., 1 :: data.draw(st.sampled_from([1, 2])), 1::step][..., :rows, :columns]
        return view if data.draw(st.booleans()) else view.mT.contiguous().mT

    a, b = matrix(m, k, 0), matrix(k, n, 1)
    full_batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    keywords = {"alpha": data.draw(st.sampled_from([1.0, 0.0, -2.5]))}
    if data.draw(st.booleans()):
        keywords |= {
            "c": randn(*full_batch, m, n, dtype=dtype, seed=2),
            "beta": data.draw(st.sampled_from([0, 1, 0.5])),
        }
    if data.draw(st.booleans()):
        keywords["epilogue"] = bias_relu(randn(n, seed=3)) >> add(randn(m, n, seed=4))
    out = Guarded(
        (*full_batch, m, n),
        data.draw(st.sampled_from([FP16, BF16, FP32])),
        offset=data.draw(st.integers(0, 3)),
    )
    gemm(a, b, out=out.tensor, **keywords)
    check(out.tensor, a, b, **keywords)
    out.assert_intact()


@pytest.mark.parametrize("dtype", [FP64, torch.int32, torch.int64])
def test_scalars_may_be_tensors_of_any_number(dtype: torch.dtype) -> None:
    two, zero = torch.tensor(2, dtype=dtype), torch.tensor(0, dtype=dtype)
    a, b, c = full(1, 2, 4), full(1, 4, 3), full(5, 2, 3)
    assert torch.equal(gemm(a, b, c=c, alpha=two, beta=two), full(18, 2, 3))
    assert torch.equal(gemm(a, b, c=full(torch.nan, 2, 3), beta=zero), full(4, 2, 3))
    bound = everything(full(0, 3), full(0, 2), full(0, 2, 3), two)
    assert torch.equal(gemm(a, b, epilogue=bound).pre, full(8, 2, 3))


def test_fp32_sums_in_fp32() -> None:
    a = torch.zeros(1, 1024)
    a[0, 0], a[0, 1], a[0, -1] = 256, 1, -256
    assert gemm(a, torch.ones(1024, 1), precision="ieee").item() == 1.0


def test_the_same_inputs_give_the_same_bits_in_fp32() -> None:
    a, b = randn(65, 1000, dtype=FP32), randn(1000, 33, dtype=FP32, seed=1)
    first = gemm(a, b)
    for deterministic in (True, False):
        assert torch.equal(gemm(a, b, deterministic=deterministic), first)


def test_outputs_may_be_fp64() -> None:
    assert gemm(full(1, 2, 4), full(1, 4, 3), out_dtype=FP64).dtype == FP64


@pytest.mark.parametrize("precision", [None, "ieee"])
def test_fp32_is_not_tf32(precision) -> None:
    assert gemm(torch.tensor([[1024.5]]), torch.ones(1, 1), precision=precision).item() == 1024.5


def test_fp64_computes_in_fp64() -> None:
    a, b = randn(5, 7, dtype=FP64), randn(7, 3, dtype=FP64, seed=1)
    bound = everything(torch.zeros(3), torch.zeros(5), torch.zeros(5, 3, dtype=FP64), 0.1)
    result = gemm(a, b, alpha=0.1, epilogue=bound)
    assert result.pre.dtype == FP64
    assert torch.allclose(result.pre, a @ b * 0.1 * 0.1, rtol=1e-14, atol=0)


def test_int8_sums_in_int32_and_then_converts() -> None:
    # 127 * 127 * 1041 is odd and just above 2**24: its even neighbours are all that fp32 has.
    a, b = torch.full((1, 1041), 127, dtype=torch.int8), torch.full((1041, 1), 127, dtype=torch.int8)
    exact = 127 * 127 * 1041
    result = gemm(a, b)
    assert result.dtype == FP32 and result.item() == float(torch.tensor(exact).float()) != exact
    a = torch.randint(-128, 128, (6, 300), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    b = torch.randint(-128, 128, (300, 5), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(gemm(a, b, out_dtype=torch.int32), a.int() @ b.int())
    check(gemm(a, b, epilogue=bias_relu(randn(5))), a, b, epilogue=bias_relu(randn(5)))


def test_integer_outputs_round_to_even_and_saturate() -> None:
    a = torch.tensor([[0.5], [1.5], [-2.5], [127.4], [300.0], [-300.0], [torch.nan], [torch.inf]])
    result = gemm(a, torch.ones(1, 1), out_dtype=torch.int8)
    assert result.flatten().tolist() == [0, 2, -2, 127, 127, -128, 0, 127]
    wide = gemm(torch.tensor([[3e9], [-3e9], [2.0**30]]), torch.ones(1, 1), out_dtype=torch.int32)
    assert wide.flatten().tolist() == [2**31 - 1, -(2**31), 2**30]


def test_a_huge_meta_result_has_64_bit_strides() -> None:
    a = torch.empty(2, 49152, 64, dtype=BF16, device="meta")
    b = torch.empty(2, 64, 65536, dtype=BF16, device="meta")
    result = gemm(a, b)
    assert result.is_meta and result.shape == (2, 49152, 65536) and result.stride() == (3_221_225_472, 65536, 1)
    huge = torch.empty(2, 49152, 65536, dtype=BF16, device="meta")
    assert gemm(huge, huge.mT).stride() == (49152 * 49152, 49152, 1)


def test_meta_outputs_are_checked_for_overlap_within_their_storage() -> None:
    base = torch.empty(8, 16, dtype=BF16, device="meta")
    square = torch.empty(8, 8, dtype=BF16, device="meta")
    assert gemm(base[:, 1::2], square, out=base[:, ::2]).stride() == (16, 2)
    with pytest.raises(ValueError, match="shares memory with a"):
        gemm(base[:, :8], square, out=base[:, 4:12])
