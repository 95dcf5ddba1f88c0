"""Planning: a legal plan or a named error for every problem on every known GPU, pins, the model's trends, the
report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cutegemm import device
from cutegemm.device import known, lookup
from cutegemm.errors import (
    ArgumentError,
    CuteGemmError,
    DTypeError,
    ShapeError,
    UnsupportedArchitectureError,
)
from cutegemm.fusion.graph import Builder, Graph
from cutegemm.kernels import wgmma_config
from cutegemm.kernels.config import CONFIGS, Config, KernelConfig
from cutegemm.kernels.wgmma_config import WgmmaConfig
from cutegemm.planner import FAMILIES, contiguous_problem, parse_pin, plan, plan_problem, refusal
from cutegemm.planner.sm80_multistage import TileModel
from cutegemm.problem import Access, Problem, Signature

H200 = lookup("H200")
#: Every configuration of `sm90_wgmma`, in its order.
WGMMA = (*wgmma_config.CONFIGS, *wgmma_config.OF_PIECES, *wgmma_config.OF_TF32)
SERVED = ("sm_75", *FAMILIES["sm80_multistage"].architectures)


def graph_with_operands() -> Graph:
    builder = Builder()
    acc = builder.add("acc")
    kinds = ("row", "col", "tile", "scalar")
    value = acc
    for i in range(len(kinds)):
        value = builder.add("add", (value, builder.add("operand", attr=str(i))))
    return builder.finish([(f"x{i}", kind) for i, kind in enumerate(kinds)], [("out", value), ("pre", acc)])  # type: ignore[list-item]


def gated_graph() -> Graph:
    builder = Builder()
    acc = builder.add("acc")
    gate = builder.add("sigmoid", (builder.add("even", (acc,)),))
    return builder.finish([], [("out", builder.add("mul", (gate, builder.add("odd", (acc,)))))])


sizes = st.one_of(st.integers(1, 700), st.integers(4000, 9000), st.integers(1, 2**31), st.just(65536))


@st.composite
def accesses(draw: st.DrawFn, majors: tuple[str, ...], dtypes: tuple[str, ...]) -> Access:
    dtype, major = draw(st.sampled_from(dtypes)), draw(st.sampled_from((*majors, "strided")))
    itemsize = 4 if dtype == "fp32" else 2
    aligns = [itemsize] if major == "strided" else [a for a in (2, 4, 8, 16) if a >= itemsize]
    return Access(dtype, major, draw(st.sampled_from(aligns)))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dtype = draw(st.sampled_from(("fp16", "bf16")))
    outs = ("fp16", "bf16", "fp32")
    signature = Signature(
        a=draw(accesses(("m", "k"), (dtype,))),
        b=draw(accesses(("n", "k"), (dtype,))),
        c=draw(st.none() | accesses(("m", "n"), outs)),
        outputs=(draw(accesses(("m", "n"), outs)), draw(accesses(("m", "n"), outs))),
        epilogue=graph_with_operands(),
        operands=(
            draw(accesses(("n",), outs)),
            draw(accesses(("m",), outs)),
            draw(accesses(("m", "n"), outs)),
            Access("fp32", "float", 4),
        ),
        alpha="float",
        beta="float",
    )
    return Problem(draw(sizes), draw(sizes), draw(st.just(0) | sizes), draw(st.integers(1, 70000)), signature)


@given(problem=problems(), gpu=st.sampled_from(known()))
def test_a_legal_plan_or_a_named_error(problem: Problem, gpu: device.DeviceSpec) -> None:
    try:
        made = plan_problem(problem, gpu)
    except UnsupportedArchitectureError as error:
        assert gpu.arch not in SERVED or gpu.arch == "sm_75"
        assert gpu.arch in str(error)
        return
    except (DTypeError, ArgumentError):  # what no kernel for Turing takes
        assert gpu.arch == "sm_75"
        return
    except ShapeError as error:
        assert max(problem.m, problem.n, problem.k) > 2**31 - 256 or "tiles" in str(error)
        return
    assert gpu.arch in SERVED
    assert refusal(problem, FAMILIES[made.family], made.config, gpu) is None
    assert {(c.family, registered(c.config)) for c in made.candidates} == {
        (family.name, config)
        for family in FAMILIES.values()
        for config in family.configs
        if not family.last or FAMILIES[made.family].last
    }
    legal = [c.estimate.us for c in made.candidates if c.estimate is not None]
    assert legal == sorted(legal)
    assert 0 < made.us == legal[0] < float("inf")
    for candidate in made.candidates:
        assert (candidate.estimate is None) != (candidate.refusal is None)
    assert made.kernel in made.explain()
    assert json.loads(json.dumps(made.to_dict()))["kernel"] == made.kernel


def registered(config: KernelConfig) -> KernelConfig:
    """A configuration without its splits and copies, which are the problem's."""
    plain = replace(config, stream=False) if getattr(config, "stream", False) else config
    return replace(plain, split=getattr(plain, "cluster_k", 1), pad="no") if hasattr(plain, "pad") else plain


@given(
    m=st.integers(1, 9000),
    n=st.integers(1, 9000),
    k=st.integers(0, 9000),
    batch=st.integers(1, 40),
    layout=st.sampled_from(("nn", "nt", "tn", "tt")),
    arch=st.sampled_from(SERVED),
)
def test_every_served_architecture_plans_every_ordinary_problem(
    m: int, n: int, k: int, batch: int, layout: str, arch: str
) -> None:
    made = plan(m, n, k, batch=batch, layout=layout, arch=arch, dtype="fp16")
    assert made.device.arch == arch
    assert made.config.smem_bytes <= made.device.smem_per_block


# ---------------------------------------------------------------- problems from sizes


def test_contiguous_layouts() -> None:
    def majors(layout: str) -> tuple[str, str]:
        signature = contiguous_problem(64, 128, 256, layout=layout).signature
        return signature.a.major, signature.b.major

    assert {layout: majors(layout) for layout in ("nn", "nt", "tn", "tt")} == {
        "nn": ("k", "n"),
        "nt": ("k", "k"),
        "tn": ("m", "n"),
        "tt": ("m", "k"),
    }


def test_a_row_pitch_lowers_the_alignment() -> None:
    ragged = contiguous_problem(4095, 4097, 4093).signature
    assert (ragged.a.align, ragged.b.align, ragged.outputs[0].align) == (2, 2, 2)
    assert contiguous_problem(64, 64, 4).signature.a.align == 8
    assert contiguous_problem(64, 64, 64, align=4).signature.a.align == 4
    assert contiguous_problem(1, 64, 33).signature.a.align == 16  # one row has no pitch
    assert contiguous_problem(1, 64, 33, batch=2).signature.a.align == 2


def test_operands_and_outputs_of_an_epilogue() -> None:
    signature = contiguous_problem(32, 48, 64, epilogue=graph_with_operands(), out_dtype="fp32").signature
    assert [access.major for access in signature.operands] == ["n", "m", "n", "float"]
    assert [access.dtype for access in signature.outputs] == ["fp32", "fp32"]
    gated = contiguous_problem(32, 12, 64, epilogue=gated_graph()).signature
    assert gated.outputs[0].align == 4  # its rows hold 6 elements


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"m": 0}, ShapeError, "m=0: expected an int of at least 1"),
        ({"k": -1}, ShapeError, "k=-1: expected an int of at least 0"),
        ({"n": 2.0}, ShapeError, "n=2.0"),
        ({"batch": True}, ShapeError, "batch=True"),
        ({"layout": "row"}, ArgumentError, "layout='row': expected 'nn'"),
        ({"align": 3}, ArgumentError, "align=3: expected 1, 2, 4, 8 or 16"),
        ({"align": 1}, ArgumentError, "align=1: below the 2 bytes of dtype='bf16'"),
        ({"dtype": "bf15"}, DTypeError, "unknown dtype 'bf15'"),
        ({"dtype": "fp64"}, DTypeError, "sm80_multistage serves fp16, bf16"),
        ({"out_dtype": "int8"}, DTypeError, "output 'out' is int8"),
        ({"epilogue": "gelu"}, ArgumentError, "epilogue='gelu': expected one of cutegemm.epilogues"),
        ({"arch": "sm_75"}, DTypeError, "a is bf16: sm_75 multiplies fp16"),
        ({"arch": "sm_42"}, UnsupportedArchitectureError, "unknown architecture 'sm_42'"),
        ({"arch": "Voodoo2"}, ArgumentError, "unknown GPU 'Voodoo2'"),
        ({"m": 2**31 - 1}, ShapeError, "m=2147483647: rounded up to tiles"),
        ({"n": 63, "epilogue": gated_graph()}, ShapeError, "n=63: .*even n"),
    ],
)
def test_arguments_refused(arguments: dict[str, object], error: type[CuteGemmError], text: str) -> None:
    given_ = {"m": 64, "n": 64, "k": 64, "arch": "H200", **arguments}
    with pytest.raises(error, match=text):
        plan(**given_)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the GPU that is meant


def test_without_a_gpu_the_default_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> device.DeviceSpec:
        raise device.DeviceError("no NVIDIA driver (libcuda) was found. Install it")

    monkeypatch.setattr(device, "current", absent)
    made = plan(512, 512, 512)
    assert made.device == H200
    assert made.assumed is not None
    assert "no NVIDIA driver (libcuda) was found" in made.assumed
    assert made.assumed in made.explain()
    assert plan(512, 512, 512, arch="H200").assumed is None


def test_with_a_gpu_it_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "current", lambda: lookup("RTX 4090"))
    made = plan(512, 512, 512)
    assert (made.device.name, made.assumed) == ("RTX 4090", None)


def test_planning_imports_neither_torch_nor_the_dsl() -> None:
    code = (
        "import sys, cutegemm.planner as p; p.plan(64, 64, 64, arch='sm_80').explain();"
        "print([name for name in ('torch', 'cutlass', 'tvm_ffi', 'cuda.bindings') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ---------------------------------------------------------------- pins


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ("sm80_multistage", CONFIGS),
        (
            "sm80_multistage:tile=128x128x32",
            tuple(c for c in CONFIGS if str(c).startswith("tile=128x128x32,")),
        ),
        (
            "sm80_multistage:stages=4,tile=128x128x32,warps=2x2",
            (Config(128, 128, 32, stages=4, warps_m=2, warps_n=2),),
        ),
        ("sm80_multistage:raster=16", tuple(c for c in CONFIGS if c.raster == 16)),
        ("sm90_wgmma", WGMMA),
        ("sm90_wgmma:schedule=pingpong", tuple(c for c in WGMMA if c.pingpong)),
        ("sm90_wgmma:cluster=2x1,raster=16", (
            WgmmaConfig(128, 128, 6, cluster_m=2, pingpong=True, raster=16),
            WgmmaConfig(128, 256, 4, cluster_m=2, raster=16),
            WgmmaConfig(128, 256, 4, cluster_m=2, raster=16, tile_k=32, bits=32),
            WgmmaConfig(128, 256, 4, cluster_m=2, raster=16, tile_k=32, swap_ab=True, bits=32),
        )),
        ("sm90_wgmma:swap_ab=yes", tuple(c for c in WGMMA if c.swap_ab)),
        ("sm90_wgmma:tile=256x128x64,walk=n", (WgmmaConfig(256, 128, 4, cluster_n=2, raster=16, walk="n"),)),
    ],
)
def test_pins(pin: str, expected: tuple[KernelConfig, ...]) -> None:
    assert parse_pin(pin).configs == expected
    made = plan(1024, 1024, 1024, arch="H200", kernel=pin)
    assert registered(made.config) in expected
    assert made.pin == pin
    assert repr(pin) in made.explain()


@pytest.mark.parametrize(
    ("family", "config"), [(name, config) for name, family in FAMILIES.items() for config in family.configs]
)
def test_every_configuration_is_pinned_by_its_own_text(family: str, config: KernelConfig) -> None:
    assert parse_pin(f"{family}:{config}").configs == (config,)


@pytest.mark.parametrize(
    ("pin", "error", "text"),
    [
        ("sm80", ArgumentError, "unknown family 'sm80'; available: sm90_wgmma, sm80_multistage"),
        ("", ArgumentError, "unknown family ''"),
        ("sm80_multistage:", ArgumentError, "'' is not key=value"),
        (
            "sm80_multistage:colour=red",
            ArgumentError,
            "'colour=red' is not key=value with a key of tile, stages",
        ),
        ("sm80_multistage:stages", ArgumentError, "'stages' is not key=value"),
        ("sm80_multistage:stages=4,stages=3", ArgumentError, "stages is given twice"),
        ("sm80_multistage:stages=99", ArgumentError, "no configuration .* has these values; it has tile="),
        ("sm80_multistage:tile=128x128", ArgumentError, "no configuration"),
        ("sm90_wgmma:warps=2x2", ArgumentError, "with a key of tile, stages, cluster, schedule, raster, swap_ab, walk"),
        ("sm80_multistage:cluster=2x1", ArgumentError, "with a key of tile, stages, warps, raster"),
        ("sm90_wgmma:schedule=persistent", ArgumentError, "no configuration of sm90_wgmma .*schedule=cooperative"),
        ("small_m:cluster=2x1", ArgumentError, "with a key of tile, stages, warps, split"),
        ("cutlass_cpp:tile=1x1x1", ArgumentError, "no configuration of cutlass_cpp"),
        ("hand", ArgumentError, "expected hand: and one of level1, level1-uncoalesced, level2"),
        ("hand:level0", ArgumentError, "kernel='hand:level0': expected hand: and one of level1"),
        (7, ArgumentError, "kernel=7: expected a string"),
    ],
)
def test_pins_refused(pin: str, error: type[CuteGemmError], text: str) -> None:
    with pytest.raises(error, match=text):
        plan(64, 64, 64, arch="H200", kernel=pin)


def test_a_pin_that_cannot_serve_is_refused_with_the_reason() -> None:
    pin = "sm80_multistage:tile=256x128x32,bits=16"
    assert plan(4096, 4096, 4096, arch="H200", kernel=pin).config.tile_m == 256
    with pytest.raises(
        UnsupportedArchitectureError,
        match="can't serve this problem: about .* registers a thread to copy a by 2 bytes",
    ):
        plan(4096, 4096, 4093, arch="H200", kernel=pin, padding="predicate")
    with pytest.raises(UnsupportedArchitectureError, match=r"kernel='sm80_multistage'.*sm_75"):
        plan(4096, 4096, 4096, arch="T4", kernel="sm80_multistage")


# ---------------------------------------------------------------- the model's trends


def modelled(problem: Problem, config: Config = CONFIGS[0], gpu: device.DeviceSpec = H200) -> float:
    return TileModel(problem, gpu).estimate(config).us


def test_large_problems_take_the_large_tile_and_small_ones_the_small() -> None:
    large = plan(8192, 8192, 8192, arch="H200", kernel="sm80_multistage").config
    small = plan(256, 256, 4096, arch="H200", kernel="sm80_multistage").config
    assert large.tile_m * large.tile_n == 256 * 128
    assert small.tile_m * small.tile_n == 64 * 64


def test_modelled_times_respect_the_floors() -> None:
    for kernel, rate in (("sm80_multistage", H200.mma_flops), ("sm90_wgmma", H200.peak_flops)):
        assert plan(8192, 8192, 8192, arch="H200", kernel=kernel).us > 2 * 8192**3 / rate * 1e6
    decode = plan(16, 28672, 4096, arch="H200")
    assert decode.us > 2 * 28672 * 4096 / H200.hbm_bytes_per_s * 1e6


def test_a_wave_more_costs_a_step() -> None:
    config = Config(128, 128, 32, stages=4, warps_m=2, warps_n=2)  # two blocks on an SM: 264 in a wave
    full, spilled = contiguous_problem(128 * 264, 128, 4096), contiguous_problem(128 * 265, 128, 4096)
    assert TileModel(full, H200).estimate(config).efficiency == 1.0
    assert modelled(spilled, config) > 1.2 * modelled(full, config)


def test_narrow_copies_cost_more() -> None:
    config = Config(64, 64, 32, stages=4, warps_m=2, warps_n=2)
    times = [modelled(contiguous_problem(4096, 4096, 4096, align=align), config) for align in (16, 8, 4, 2)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]


@given(m=st.integers(1, 8192), n=st.integers(1, 8192), k=st.integers(0, 8192), config=st.sampled_from(CONFIGS))
def test_more_of_k_never_takes_less_time(m: int, n: int, k: int, config: Config) -> None:
    problem = contiguous_problem(m, n, k, layout="tn", align=16)
    assume(refusal(problem, FAMILIES["sm80_multistage"], config, H200) is None)
    assert modelled(replace(problem, k=k + 64), config) >= modelled(problem, config)


def test_epilogues_cost_their_traffic_and_arithmetic() -> None:
    plain = contiguous_problem(4096, 4096, 1024)
    fused = contiguous_problem(4096, 4096, 1024, epilogue=graph_with_operands())
    wide = contiguous_problem(4096, 4096, 1024, out_dtype="fp32")
    assert modelled(plain) < modelled(wide)
    assert modelled(plain) < modelled(fused)


def test_an_error_lists_a_few_reasons_and_first_what_the_caller_can_change() -> None:
    with pytest.raises(ShapeError, match="^m=2147483647: rounded up to tiles it must be at most 2147483647; ") as found:
        plan(2**31 - 1, 8, 8, arch="H200")
    *reasons, more = str(found.value).split("; ")
    assert len(reasons) == len(set(reasons)) == 6 and more.endswith("more, of other configurations")


def test_an_error_of_the_transposed_problem_says_whose_names_it_has() -> None:
    wanted = "D lies along M, so that .* m and n change places: n=2147483647: rounded up to tiles"
    with pytest.raises(ShapeError, match=wanted):
        plan(2**31 - 1, 1, 1, arch="H200")


def test_planning_estimates_few_configurations() -> None:
    """It sits on the path of a first call, and takes as long as there are estimates to make: some 0.1 ms each."""
    for sizes, most in (((4096, 4096, 4096), 100), ((512, 512, 16384), 300), ((33, 4099, 4096), 300)):
        candidates = plan_problem(contiguous_problem(*sizes), H200).candidates
        assert 0 < sum(c.estimate is not None for c in candidates) <= most


# ---------------------------------------------------------------- families


@pytest.mark.parametrize(
    ("arguments", "family"),
    [
        ({"m": 1024, "n": 1024, "k": 1024}, "sm90_wgmma"),
        ({"m": 8, "n": 4096, "k": 4096}, "small_m"),
        ({"m": 8, "n": 4096, "k": 4096, "arch": "A100"}, "small_m"),
        ({"m": 4096, "n": 4096, "k": 4096, "layout": "tn", "dtype": "fp16"}, "sm90_wgmma"),
        ({"m": 64, "n": 64, "k": 64}, "sm80_multistage"),  # it starts sooner
        ({"m": 4096, "n": 4096, "k": 4093}, "sm90_wgmma"),
        ({"m": 4096, "n": 4096, "k": 4093, "padding": "predicate"}, "sm80_multistage"),
        ({"m": 4096, "n": 4096, "k": 4096, "align": 8, "padding": "predicate"}, "sm80_multistage"),
        ({"m": 4096, "n": 4096, "k": 0}, "sm80_multistage"),
        ({"m": 4096, "n": 4096, "k": 4096, "arch": "A100"}, "sm80_multistage"),
        ({"m": 4096, "n": 4096, "k": 4096, "arch": "B200"}, "sm80_multistage"),
    ],
)
def test_each_family_where_it_should_be(arguments: dict[str, Any], family: str) -> None:
    assert plan(**{"arch": "H200", **arguments}).family == family


def test_a_pin_on_wgmma_says_what_it_lacks() -> None:
    for arguments, text in (
        ((4096, 4096, 4093), "can't serve this problem: a is aligned to 2 bytes"),
        ((4096, 4096, 0), "can't serve this problem: k=0: TMA reads no empty tensor"),
    ):
        with pytest.raises(CuteGemmError, match=text):
            plan(*arguments, arch="H200", kernel="sm90_wgmma", padding="predicate")
    with pytest.raises(UnsupportedArchitectureError, match="sm_80 .A100.*for sm_90a; use sm80_mul.*, cutlass_cpp$"):
        plan(4096, 4096, 4096, arch="A100", kernel="sm90_wgmma")
    with pytest.raises(UnsupportedArchitectureError, match="sm_70 .V100.*no other family serves it$"):
        plan(4096, 4096, 4096, arch="V100")


def test_a_single_column_is_planned_as_it_is_computed() -> None:
    made = plan(4096, 1, 512, arch="H200")
    assert made.transposed
    assert (made.problem.m, made.problem.n) == (1, 4096)
    assert "D^T = B^T A^T instead of D" in made.explain()
    assert made.to_dict()["transposed"]
    assert not plan(4096, 2, 512, arch="H200").transposed


# ---------------------------------------------------------------- the report


def test_explain_names_everything() -> None:
    text = plan(4096, 4096, 4093, arch="H200", epilogue=graph_with_operands(), padding="predicate").explain()
    for part in (
        "4096 4096 4093",
        "A bf16 k-major 2 B",
        "x1: Col",
        "H200 (sm_90a)",
        "132 SMs",
        "waves",
        "candidates",
    ):
        assert part in text
    assert "refused by registers" in text
    assert f"refused by TMA ({len(WGMMA)})" in text
    assert "sm90_wgmma in every configuration" in text
    assert max(map(len, text.splitlines())) < 180


def test_to_dict_is_json_with_a_schema() -> None:
    data = json.loads(json.dumps(plan(512, 512, 512, batch=3, arch="sm_86", out_dtype="fp32").to_dict()))
    assert data["schema"] == 1
    assert (data["problem"]["m"], data["problem"]["batch"]) == (512, 3)
    assert data["problem"]["outputs"]["out"]["dtype"] == "fp32"
    assert data["device"]["arch"] == "sm_86"
    first = data["candidates"][0]
    assert data["kernel"] == first["kernel"]
    assert data["us"] == first["estimate"]["us"]
    refused = [c["refused"]["rule"] for c in data["candidates"] if "refused" in c]
    assert set(refused) <= {"shared memory", "registers", "architecture", "rows", "operand dtype", "bits"}
    assert "shared memory" in refused  # sm_86 has 99 KiB for a block


def test_names_that_are_no_strings() -> None:
    import torch

    assert plan(64, 64, 64, dtype=torch.bfloat16, arch="H200").problem.signature.a.dtype == "bf16"  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="None"):
        plan(64, 64, 64, dtype=None, arch="H200")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="arch=90"):
        plan(64, 64, 64, arch=90)  # type: ignore[arg-type]
