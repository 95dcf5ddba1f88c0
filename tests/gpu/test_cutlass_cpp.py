"""CUTLASS C++ kernels on a GPU: every library epilogue against fp64, K split in every way, Turing's kernel as PTX."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutegemm import device, epilogues, gemm, launch, normalize
from cutegemm.compiler import Spec
from cutegemm.cutlass_cpp import build
from cutegemm.cutlass_cpp.run import CutlassKernel
from cutegemm.device import DeviceSpec
from cutegemm.errors import CuteGemmError
from cutegemm.normalize import allocate, parse, prepare
from cutegemm.options import Options
from cutegemm.planner import plan_problem
from tests.gpu import problems
from tests.helpers import Guarded, check

pytestmark = pytest.mark.gpu

MULTISTAGE = (
    "tile=128x256x32,stages=3,warps=2x4,schedule=multistage",
    "tile=256x128x64,stages=3,warps=4x2,schedule=multistage",
    "tile=128x128x32,stages=4,warps=2x2,schedule=multistage",
    "tile=64x64x32,stages=6,warps=2x2,schedule=multistage",
)
HOPPER = (
    "tile=128x256x64,cluster=2x1,schedule=cooperative",
    "tile=128x128x64,cluster=2x1,schedule=cooperative",
    "tile=64x128x64,cluster=2x1,schedule=pingpong",
)
#: How K may be split, and whether Hopper's kernels can.
SPLITS = (("", True), ("split=stream", True), ("split=3", True), ("split=3,reduction=parallel", False))
#: m, n, k of each kernel's problems, multiples of 8 along every dimension: ragged against every tile.
SIZES = ((256, 256, 512), (8, 1000, 264), (712, 136, 1024), (72, 2056, 200))


def kernels() -> list[tuple[str, Any, str, torch.dtype]]:
    """Pins, epilogues, layouts and dtypes: every library epilogue, each in another kind of kernel."""
    hopper = DeviceSpec.query(0).arch == "sm_90a" if torch.cuda.is_available() else False
    listed: list[tuple[str, Any, str, torch.dtype]] = []
    for i, epilogue in enumerate([None, None, *problems.library()]):
        on_hopper = hopper and i % 3 == 0
        # Strides without a common divisor: tiles, splits and layouts meet in many ways.
        tile = HOPPER[i // 3 % len(HOPPER)] if on_hopper else MULTISTAGE[i % len(MULTISTAGE)]
        split, able = SPLITS[i // 3 % len(SPLITS)]
        if on_hopper and (not able or "pingpong" in tile):
            split = ""
        dtype = (torch.bfloat16, torch.float16, torch.float32)[i % 5 % 3]
        layout = ("nt", "nn", "tn", "tt")[i // 5 % 4]
        listed.append((f"cutlass_cpp:{tile}{',' if split else ''}{split}", epilogue, layout, dtype))
    return listed


KERNELS = kernels()


@pytest.fixture(scope="module", autouse=True)
def on_the_gpu() -> Iterator[None]:
    if (reason := build.missing()) is not None:
        pytest.skip(reason)
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def exact(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of `dtype` that TF32 holds as they are."""
    return tensor.to(torch.float16 if dtype == torch.float32 else dtype).to(dtype)


def operands(m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(m * n + k)
    a = exact(torch.randn((m, k) if layout[0] == "n" else (k, m), generator=generator), dtype)
    b = exact(torch.randn((k, n) if layout[1] == "n" else (n, k), generator=generator), dtype)
    return (a if layout[0] == "n" else a.mT), (b if layout[1] == "n" else b.mT)


def precision(dtype: torch.dtype) -> dict[str, str]:
    return {"precision": "tf32"} if dtype == torch.float32 else {}


def bound(epilogue: Any, m: int, n: int, dtype: torch.dtype) -> Any:
    """`epilogue` with contiguous operands."""
    if epilogue is None:
        return None
    values: list[Any] = []
    for spec in epilogue.graph.operands:
        width = n // 2 if spec.paired else n
        shape = {"row": (width,), "col": (m,), "tile": (m, width), "scalar": ()}[spec.kind]
        values.append(torch.randn(shape, dtype=dtype) if shape else 0.5)
    return epilogue(*values)


@pytest.mark.parametrize("number", range(len(KERNELS)), ids=lambda i: f"{i:02d}")
def test_every_epilogue_is_right_in_some_kernel(number: int) -> None:
    kernel, epilogue, layout, dtype = KERNELS[number]
    for m, n, k in SIZES:
        a, b = operands(m, n, k, layout, dtype)
        keywords: dict[str, Any] = {"epilogue": bound(epilogue, m, n, dtype)}
        keywords["alpha"] = 1.0 if m % 3 else -0.5
        if number % 2:
            keywords |= {"c": torch.randn(m, n, dtype=dtype), "beta": 0.25}
        paired = [output.paired for output in epilogue.graph.outputs] if epilogue is not None else [False]
        outs = [Guarded((m, n // 2 if half else n), dtype) for half in paired]
        given = outs[0].tensor if len(outs) == 1 else tuple(out.tensor for out in outs)
        gemm(a, b, out=given, kernel=kernel, **precision(dtype), **keywords)
        check(given if len(outs) == 1 else list(given), a, b, **keywords)
        for out in outs:
            out.assert_intact()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hopper_takes_any_layout_and_alignment_from_copies(dtype: torch.dtype, layout: str) -> None:
    if DeviceSpec.query(0).arch != "sm_90a":
        pytest.skip("TMA and wgmma are Hopper's")
    for m, n, k in ((129, 131, 67), (300, 72, 1001)):
        a, b = operands(m, n, k, layout, dtype)
        out = Guarded((m, n), dtype)
        gemm(a, b, out=out.tensor, kernel="cutlass_cpp:tile=128x128x64,schedule=cooperative", **precision(dtype))
        check(out.tensor, a, b)
        out.assert_intact()


#: Pins that leave alignment and copies to the planner.
PLAIN = ["cutlass_cpp:tile=64x64x32,schedule=multistage", "cutlass_cpp:tile=128x128x64,schedule=cooperative"]


@pytest.mark.parametrize("kernel", PLAIN)
def test_pitches_of_one_row_mean_nothing_and_batches_broadcast(kernel: str) -> None:
    if DeviceSpec.query(0).arch != "sm_90a" and "cooperative" in kernel:
        pytest.skip("TMA and wgmma are Hopper's")
    base = torch.randn(10, 1001, dtype=torch.bfloat16)
    a, b = base[8:9, :1000], torch.randn(264, 1000, dtype=torch.bfloat16).t()
    out = Guarded((1, 264), torch.bfloat16, strides=(271, 1))
    gemm(a, b, out=out.tensor, kernel=kernel)
    check(out.tensor, a, b)
    out.assert_intact()
    batched = torch.randn(3, 40, 512, dtype=torch.bfloat16), torch.randn(512, 72, dtype=torch.bfloat16)
    check(gemm(*batched, kernel=kernel), *batched)
    sliced = torch.empty(40, 136, dtype=torch.bfloat16)[:, :130]
    one = torch.randn(40, 512, dtype=torch.bfloat16), torch.randn(130, 512, dtype=torch.bfloat16).t()
    check(gemm(*one, out=sliced, kernel=kernel), *one)


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("kernel", PLAIN)
def test_tf32_operands_are_rounded_to_the_nearest(kernel: str, layout: str) -> None:
    if DeviceSpec.query(0).arch != "sm_90a" and "cooperative" in kernel:
        pytest.skip("TMA and wgmma are Hopper's")
    above, below = 1 + 2**-11 + 2**-13, 1 + 2**-11 - 2**-13
    a, b = torch.zeros(64, 64), torch.zeros(64, 64)
    a[0, 0], a[1, 0], b[0, 0] = above, below, 1.0
    b[0, 1] = above
    b = b if layout == "nn" else b.t().contiguous().t()
    got = gemm(a, b, kernel=kernel, precision="tf32")
    up = 1 + 2**-10
    assert got[:2, :2].tolist() == [[up, up * up], [1.0, up]]


def test_a_thread_of_its_own_launches() -> None:
    kernel = PLAIN[0]
    a, b = operands(72, 136, 256, "nt", torch.bfloat16)
    out = torch.empty(72, 136, dtype=torch.bfloat16)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            gemm(a, b, out=out, kernel=kernel)
        except BaseException as error:
            failed.append(error)

    torch.cuda.synchronize()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failed
    check(out, a, b)


def test_narrow_rows_strided_outputs_and_device_scalars() -> None:
    kernel = "cutlass_cpp:tile=64x64x32,stages=6,warps=2x2,schedule=multistage"
    for m, n, k, align in ((65, 70, 130, 4), (33, 36, 68, 8)):
        a, b = operands(m, n, k, "nt", torch.bfloat16)
        out = Guarded((m, n), torch.bfloat16, strides=(n + 3, 1), offset=1)
        keywords: dict[str, Any] = {"alpha": torch.tensor(1.5), "c": torch.randn(m, n), "beta": torch.tensor(-0.5)}
        gemm(a, b, out=out.tensor, kernel=f"{kernel},align={align}", **keywords)
        check(out.tensor, a, b, **keywords)
        out.assert_intact()


@pytest.mark.parametrize("split", [split for split, _ in SPLITS[1:]])
def test_parts_are_summed_in_fp32_the_same_way_each_time_in_any_workspace(split: str) -> None:
    kernel = f"cutlass_cpp:{MULTISTAGE[2]},{split}"
    a, b = operands(136, 264, 8200, "nt", torch.float16)
    first = gemm(a, b, kernel=kernel)
    check(first, a, b)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for i in range(100):
        held = torch.full((1 << 20,), torch.nan)
        del held
        with torch.cuda.stream(streams[i % 2]):
            results.append(gemm(a, b, kernel=kernel))
    torch.cuda.synchronize()
    assert all(torch.equal(first, result) for result in results)


@pytest.mark.parametrize("split", ["", ",split=3"])
def test_it_is_captured_in_a_graph_and_batches_are_walked(split: str) -> None:
    kernel = f"cutlass_cpp:{MULTISTAGE[3]}{split}"
    a = torch.randn(2, 3, 40, 512, dtype=torch.bfloat16)
    b = torch.randn(3, 512, 72, dtype=torch.bfloat16)
    out = Guarded((2, 3, 40, 72), torch.bfloat16)
    gemm(a, b, out=out.tensor, kernel=kernel)
    check(out.tensor, a, b)
    out.assert_intact()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=out.tensor, kernel=kernel)
    expected = out.tensor.clone()
    out.tensor.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.tensor, expected)


def test_an_empty_k_and_what_is_refused() -> None:
    a, b = torch.randn(40, 0, dtype=torch.float16), torch.randn(0, 24, dtype=torch.float16)
    c = torch.randn(40, 24, dtype=torch.float16)
    kernel = f"cutlass_cpp:{MULTISTAGE[3]}"
    assert torch.equal(gemm(a, b, c=c, beta=1.0, kernel=kernel), c)
    odd = torch.randn(40, 63, dtype=torch.float16), torch.randn(63, 24, dtype=torch.float16)
    with pytest.raises(CuteGemmError, match="aligned to 2 bytes"):
        gemm(*odd, kernel=kernel)


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_turings_kernel_is_right_as_ptx_that_the_driver_compiles(layout: str, tmp_path: Path) -> None:
    m, n, k = 264, 136, 520
    a, b = operands(m, n, k, layout, torch.float16)
    out = Guarded((m, n), torch.float16)
    keywords: dict[str, Any] = {"epilogue": epilogues.bias_gelu(torch.randn(n, dtype=torch.float16))}
    given = parse(a, b, c=None, alpha=1.0, beta=None, out=out.tensor, out_dtype=None, options=Options(), **keywords)
    request, sizes = normalize.check(given)
    call = prepare(given, request, sizes, allocate(given, sizes))
    turing = device.lookup("T4")
    plan = plan_problem(call.recipe.problem, turing)
    spec = Spec(plan.family, plan.config, call.recipe.problem.signature, turing.arch)
    library, image, _ = build.compile(spec, ptx=True)
    assert b".target sm_75" in image
    path = tmp_path / "kernel.so"
    path.write_bytes(library)
    constants, offsets = launch._constants(call.recipe, DeviceSpec.query(0).sm_count)
    launcher = launch.Launcher(CutlassKernel(spec, path, spec.symbol), 0, constants, None, offsets)
    launcher([t.data_ptr() for t in launch.tensors_of(call)], launch.floats_of(call))
    check(out.tensor, a, b, **keywords)
    out.assert_intact()
