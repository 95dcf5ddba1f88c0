"""`cutegemm build`: what a spec file and a recorded run mean, and that building them is reproducible.

Two kernels are compiled, twice: as one bundle by one process, and by two elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import CuteGemmError, cli, device, epilogues, errors, launch, plan, recording
from cutegemm.compiler import bundle, jit
from cutegemm.deploy import builder, spec_file, wheel
from cutegemm.errors import ArgumentError, BundleError, EpilogueError, ShapeError
from cutegemm.fusion.registry import registered
from cutegemm.planner import contiguous_problem
from tests.bundles import H200, bf16, call, softened


def spec(folder: Path, text: str, *, head: str = "schema = 1\n") -> Path:
    path = folder / "deploy.toml"
    path.write_text(head + text)
    return path


def read(folder: Path, text: str) -> list[spec_file.Wanted]:
    return spec_file.read(spec(folder, "[[problem]]\n" + text))


# ---------------------------------------------------------------- the spec file


def test_a_problem_has_plans_defaults(tmp_path: Path) -> None:
    (wanted,) = read(tmp_path, "m = 64\nn = 128\nk = 256\n")
    assert wanted == (contiguous_problem(64, 128, 256), None, "n 128 k 256 bf16 nt none", None)


def test_every_key_reaches_the_problem(tmp_path: Path) -> None:
    pin = "sm80_multistage:stages=3"
    text = f"""m = [3, "8..16 step 4"]\nn = 128\nk = 256\ndtype = "fp16"\nout_dtype = "fp32"\nlayout = "tn"\nbatch = 2
align = 8\nkernel = "{pin}"\nepilogue = ["none", "bias_gelu", "bias >> gelu >> add"]"""
    wanted = read(tmp_path, text)
    composed = epilogues.bias.graph.then(epilogues.gelu.graph).then(epilogues.add.graph)
    expected = [
        contiguous_problem(
            m, 128, 256, dtype="fp16", out_dtype="fp32", layout="tn", batch=2, align=8, epilogue=fused
        )
        for fused in (None, epilogues.bias_gelu, composed)
        for m in (3, 8, 12, 16)
    ]
    assert [item.problem for item in wanted] == expected
    assert {item.kernel for item in wanted} == {pin}
    assert wanted[0].label == f"n 128 k 256 fp16 tn none out_dtype fp32 batch 2 align 8 kernel {pin}"


def test_problems_keep_their_order(tmp_path: Path) -> None:
    text = "[[problem]]\nm = 2\nn = 8\nk = 8\n[[problem]]\nm = 1\nn = 8\nk = 8\n"
    assert [item.problem.m for item in spec_file.read(spec(tmp_path, text))] == [2, 1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (5, [5]),
        ("1..4", [1, 2, 3, 4]),
        ("7..7", [7]),
        (" 2 .. 9 step 3 ", [2, 5, 8]),
        (["16..64 step 16", 1, "1..3"], [1, 2, 3, 16, 32, 48, 64]),
        ("16..64 step 16, 1,1..3", [1, 2, 3, 16, 32, 48, 64]),
        ("1..65536", list(range(1, 65537))),
    ],
)
def test_what_m_means(given: Any, expected: list[int]) -> None:
    assert spec_file.values_of_m(given) == expected


@given(st.sets(st.integers(1, 300), min_size=1, max_size=40))
def test_ranges_are_what_a_spec_file_takes(values: set[int]) -> None:
    assert spec_file.values_of_m(spec_file.ranges(values)) == sorted(values)


@pytest.mark.parametrize(
    ("values", "text"),
    [((1, 2, 3, 4), "1..4"), ((1, 2), "1, 2"), ((16, 32, 48, 50), "16..48 step 16, 50"), ((7, 9, 10, 11), "7, 9..11")],
)
def test_ranges_are_short(values: tuple[int, ...], text: str) -> None:
    assert spec_file.ranges(values) == text


BASE = "m = 64\nn = 128\nk = 256\n"
BAD: list[tuple[str, type[Exception], str]] = [
    ("m = 64\nn = 128\n", ArgumentError, "problem 1: k is missing"),
    (BASE + "epilog = 'bias'", ArgumentError, "unknown key 'epilog': did you mean 'epilogue'"),
    (BASE + "zzz = 1", ArgumentError, "unknown key 'zzz': known are m, n, k, dtype"),
    ("m = 0\nn = 1\nk = 1", ShapeError, "problem 1: m=0: expected an int of at least 1"),
    ("m = '0..3'\nn = 1\nk = 1", ShapeError, "m=0"),
    ("m = -3\nn = 1\nk = 1", ShapeError, "m=-3"),
    ("m = '4..3'\nn = 1\nk = 1", ArgumentError, r"m='4\.\.3': expected lo\.\.hi with lo at most hi"),
    ("m = '1..9 step 0'\nn = 1\nk = 1", ArgumentError, "a step of at least 1"),
    ("m = '1...9'\nn = 1\nk = 1", ArgumentError, r"m='1\.\.\.9': expected an int, 'lo\.\.hi'"),
    ("m = '-1..9'\nn = 1\nk = 1", ArgumentError, r"m='-1\.\.9'"),
    ("m = 1.5\nn = 1\nk = 1", ArgumentError, r"m=1\.5"),
    ("m = true\nn = 1\nk = 1", ArgumentError, "m=True"),
    ("m = []\nn = 1\nk = 1", ArgumentError, r"m=\[\]"),
    ("m = [[1]]\nn = 1\nk = 1", ArgumentError, r"m=\[1\]"),
    ("m = '1..99999999999'\nn = 1\nk = 1", ArgumentError, "at most 65536 values; give a step"),
    ("m = ['1..65536', 70000]\nn = 1\nk = 1", ArgumentError, "m means 65537 values"),
    ("m = 1\nn = '8'\nk = 1", ShapeError, "n='8'"),
    ("m = 1\nn = 8\nk = -1", ShapeError, "k=-1"),
    (BASE + "batch = 0", ShapeError, "batch=0"),
    (BASE + "dtype = 'int3'", errors.DTypeError, "int3"),
    (BASE + "dtype = 3", ArgumentError, "dtype=3: expected text"),
    (BASE + "out_dtype = []", ArgumentError, r"out_dtype=\[\]: expected text"),
    (BASE + "layout = 'xx'", ArgumentError, "layout='xx'"),
    (BASE + "align = 3", ArgumentError, "align=3"),
    (BASE + "epilogue = 'nope'", EpilogueError, "problem 1: no epilogue is called 'nope'"),
    (BASE + "epilogue = 'bias >> nope'", EpilogueError, "no epilogue is called 'nope'"),
    (BASE + "epilogue = 3", ArgumentError, "epilogue=3"),
    (BASE + "epilogue = []", ArgumentError, r"epilogue=\[\]"),
    (BASE + "kernel = 'bogus'", ArgumentError, "problem 1: kernel='bogus': unknown family"),
    (BASE + "kernel = 'cutlass_cpp:tile=1x1x1'", errors.ArgumentError, "no configuration of cutlass_cpp"),
    ("m = 1\nn = 7\nk = 8\nepilogue = 'swiglu'", ShapeError, "n=7: an epilogue with pair"),
]


@pytest.mark.parametrize(("text", "error", "message"), BAD, ids=[text for text, *_ in BAD])
def test_a_bad_problem_is_refused_by_name(tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read(tmp_path, text)
    assert str(tmp_path / "deploy.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("schema = 2\n[[problem]]\n" + BASE, r"deploy\.toml: schema=2: this cutegemm reads schema = 1"),
        ("schema = true\n[[problem]]\n" + BASE, "schema=True"),
        ("[[problem]]\n" + BASE, "schema=None"),
        ("schema = 1\n", r"expected one \[\[problem\]\] table or more"),
        ("schema = 1\nproblem = 3\n", r"expected one \[\[problem\]\]"),
        ("schema = 1\nproblem = []\n", r"expected one \[\[problem\]\]"),
        ("schema = 1\nproblems = []\n", "unknown key 'problems': did you mean 'problem'"),
        ("schema = = 1\n", "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, head: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        spec_file.read(spec(tmp_path, "", head=head))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"nowhere\.toml can't be read: No such file"):
        spec_file.read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ["none", *registered()])
@pytest.mark.parametrize("size", [(1, 64, 32), (64, 2, 32), (33, 48, 40)])
def test_what_an_error_says_to_add_is_the_problem(tmp_path: Path, name: str, size: tuple[int, int, int]) -> None:
    m, n, k = size
    fused = None if name == "none" else registered()[name][0].epilogue
    for options in ({}, {"layout": "tn", "dtype": "fp16"}, {"align": 4, "out_dtype": "fp32", "batch": 3}):
        problem = contiguous_problem(m, n, k, epilogue=fused, **options)  # type: ignore[arg-type]
        text = spec_file.to_build(problem, "sm80_multistage")
        (wanted,) = spec_file.read(spec(tmp_path, text.partition("\n")[2]))
        assert wanted[:2] == (problem, "sm80_multistage")


# ---------------------------------------------------------------- what a call takes


@pytest.mark.usefixtures("fresh_process", "h200")
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("size", [(1, 64, 32), (64, 1, 32), (1, 1, 8), (300, 520, 136), (7, 13, 5)])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("fused", ["none", "bias"])
def test_a_specs_problem_gets_the_kernel_that_its_call_takes(
    layout: str, size: tuple[int, int, int], batch: tuple[int, ...], fused: str
) -> None:
    m, n, k = size
    a = bf16(*batch, k, m).mT if layout[0] == "t" else bf16(*batch, m, k)
    b = bf16(*batch, n, k).mT if layout[1] == "t" else bf16(*batch, k, n)
    registered_one = None if fused == "none" else epilogues.bias
    bound = None if fused == "none" else epilogues.bias(bf16(n))
    problem = contiguous_problem(m, n, k, layout=layout, batch=(*batch, 1)[0], epilogue=registered_one)
    built = builder._plan((spec_file.Wanted(problem, None, ""), H200))
    assert built == launch.choose(call(a, b, epilogue=bound)).spec


def test_hand_written_kernels_are_not_put_into_bundles() -> None:
    problem = contiguous_problem(64, 64, 64, layout="nn")
    with pytest.raises(ArgumentError, match="is pinned to hand:level3.*compiled where it runs"):
        builder._plan((spec_file.Wanted(problem, "hand:level3", "n 64"), H200))


# ---------------------------------------------------------------- building


def recorded(folder: Path) -> Path:
    """The log of calls with an epilogue that is not registered; only one kernel serves them all."""
    path = folder / "calls.jsonl"
    for m in (64, 96, 128):
        problem = contiguous_problem(m, 256, 64, epilogue=softened)
        with path.open("a") as file:
            file.write(json.dumps(recording.to_data(problem, "sm80_multistage:tile=64x64x32")) + "\n")
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A bundle and a wheel of a spec's and a log's kernel, built in a process that knows nothing of this module."""
    folder = tmp_path_factory.mktemp("built")
    return folder / "bundle", command(folder, "bundle", "--wheel", "llm.kernels==1.2", "--c-abi", jobs=2)


def command(folder: Path, name: str, *more: str, jobs: int) -> dict[str, Any]:
    text = '[[problem]]\nm = ["1..512", 1000]\nn = 256\nk = 64\nkernel = "sm80_multistage:tile=64x64x32"\nname = "up"\n'
    arguments = ["--spec", spec(folder, text), "--from-log", recorded(folder), "--out", folder / name]
    scratch = folder / f"scratch-{name}"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "cutegemm", "build", "--arch", "sm_80", *arguments, f"--jobs={jobs}", "--json", *more],
        env={**os.environ, "TMPDIR": str(scratch), "CUTEGEMM_CACHE_DIR": str(scratch / "cache")},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "a progress bar where there is no terminal"
    assert not (scratch / "cache").exists()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_bundle_has_the_kernels_of_the_spec_and_of_the_log(built: tuple[Path, dict[str, Any]]) -> None:
    folder, report = built
    assert (report["out"], report["kernels"], report["problems"]) == (str(folder), {"sm_80": 2}, 516)
    loaded = bundle.read(folder)
    assert report["bytes"] == sum(kernel.bytes for kernel in loaded.kernels) < 300_000 and report["seconds"] > 0
    pin = "sm80_multistage:tile=64x64x32"
    found = {kernel.problems for kernel in loaded.kernels}
    spec_problem = (f"m 1..512, 1000 n 256 k 64 bf16 nt none kernel {pin}",)
    assert spec_problem in found
    ((other,),) = found - {spec_problem}
    assert other.startswith("m 64..128 step 32 n 256 k 64 batch 1 a bf16/k/16 b bf16/k/16 out bf16/n/16 out bf16/n/16")
    assert loaded.epilogues[softened.graph.identity] == softened.graph.describe()
    problem = contiguous_problem(64, 256, 64, epilogue=softened)
    chosen = builder._plan((spec_file.Wanted(problem, pin, ""), device.lookup("A100")))
    kernel = loaded.find(chosen)
    assert kernel is not None and kernel.symbol == chosen.symbol


def test_building_again_elsewhere_gives_the_same_bytes(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = built
    command(tmp_path, "another name", jobs=1)
    again = files(tmp_path / "another name")
    assert again == {name: data for name, data in files(folder).items() if not name.startswith("c/")}


def test_named_problems_become_a_c_library(built: tuple[Path, dict[str, Any]]) -> None:
    folder, report = built
    assert report["c_functions"] == ["up"]
    assert sorted(p.name for p in (folder / "c").iterdir()) == ["cutegemm.h", "libcutegemm.so"]
    header = (folder / "c" / "cutegemm.h").read_text()
    assert "cutegemm_gemm_up(" in header and header.count("int cutegemm_gemm_") == 1


def test_names_that_make_no_c_library(tmp_path: Path) -> None:
    def functions(text: str) -> dict[str, Any]:
        wanted = spec_file.read(spec(tmp_path, text))
        return builder.functions([(item, builder._plan((item, H200))) for item in wanted])

    up = '[[problem]]\nm = [1, 512]\nn = 4096\nk = 4096\nname = "up"\n'
    with pytest.raises(ArgumentError, match=r"'up' takes 2 kernels on sm_90a, .*m 1: small_m:.*; m 512: sm90_wgmma:"):
        functions(up)
    pinned = up + 'kernel = "sm80_multistage:tile=64x64x32"\n'
    assert functions(pinned).keys() == {"up"}
    both = functions(pinned + 'epilogue = ["none", "bias >> gelu"]')
    assert both.keys() == {"up_none", "up_bias_gelu"} and all(len(specs) == 1 for specs in both.values())
    with pytest.raises(ArgumentError, match="'up' is that of two problems, n 4096 .* and n 8 k 8"):
        functions(pinned + '[[problem]]\nm = 1\nn = 8\nk = 8\nname = "up"\n')
    with pytest.raises(ArgumentError, match="'up' is of n=1, computed as its transpose: exchange m and n"):
        functions('[[problem]]\nm = 64\nn = 1\nk = 8\nname = "up"\n')
    with pytest.raises(ArgumentError, match="no problem has a name"):
        functions("[[problem]]\n" + BASE)
    with pytest.raises(ArgumentError, match="name='a b': expected ASCII letters"):
        functions("[[problem]]\n" + BASE + 'name = "a b"')


def test_a_wheel_is_reproducible_and_serves_where_it_is_installed(
    built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, report = built
    made = Path(report["wheel"])
    assert made.parent == folder.parent and made.name == f"llm_kernels-1.2-py3-none-linux_{os.uname().machine}.whl"
    assert wheel.write(folder, "llm.kernels", "1.2", tmp_path).read_bytes() == made.read_bytes()
    derived = wheel.write(folder, *wheel.identify("", folder), tmp_path)
    assert derived.name.startswith("cutegemm_bundle_bundle-0.1.0+")
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        assert b"Requires-Dist: cutegemm==" in archive.read("llm_kernels-1.2.dist-info/METADATA")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", tmp_path / "site"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, made], check=True)
    code = "from cutegemm.compiler import serving; print(*serving.bundles('sm_80', 'A100'))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith(f"<bundle {tmp_path}/site/llm_kernels/bundle: 2 kernels for sm_80,"), done.stderr


@pytest.mark.parametrize("named", ["==1", "a b", "-x", "llm==", "llm==new", "llm==1.2;x"])
def test_a_wheels_name_is_checked(named: str) -> None:
    with pytest.raises(ArgumentError, match="expected a distribution's NAME or NAME==VERSION"):
        wheel.identify(named, Path("x"))


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--arch", "sm_80"], 1, "give --spec, --from-log, or both"),
        (["--arch", "sm_999", "--spec", "SPEC"], 1, "sm_999"),
        (["--arch", "sm_80,,sm_90a", "--spec", "SPEC"], 1, "unknown GPU ''"),
        (["--arch", "T4", "--spec", "SPEC"], 1, "m 64 n 128 k 256 bf16 nt none on T4"),
        (["--arch", "sm_80", "--spec", "nowhere.toml"], 1, "nowhere.toml"),
        (["--arch", "sm_80", "--spec", "SPEC", "--jobs", "0"], 1, "jobs=0: expected at least 1"),
        (["--arch", "sm_80", "--spec", "SPEC", "--wheel", "a b"], 1, "wheel='a b'"),
        (["--arch", "sm_80", "--spec", "SPEC", "--out", "THESIS"], 1, "is no bundle"),
    ],
)
def test_what_can_not_be_built_is_said_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str], code: int, words: str
) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "thesis.tex").write_text("years")
    names = {"SPEC": str(spec(tmp_path, "[[problem]]\n" + BASE)), "THESIS": str(thesis)}
    out = [] if "--out" in argv else ["--out", str(tmp_path / "out")]
    assert cli.main(["build", *(names.get(word, word) for word in argv), *out, "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    assert words in said["message"]
    assert not (tmp_path / "out").exists() and files(thesis) == {"thesis.tex": b"years"}


def test_a_kernel_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan(64, 64, 64, arch="sm_80")
    one = builder._plan((spec_file.Wanted(chosen.problem, None, ""), device.lookup("A100")))

    def broken(_: object) -> None:
        raise MemoryError("ptxas was killed")

    monkeypatch.setattr(jit, "build", broken)
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(CuteGemmError, match=r"64x64x64.* for sm_80 .*can't be compiled: .*ptxas was killed"),
    ):
        builder._compile({one: ()}, pool, lambda *_: None)  # type: ignore[arg-type]


def test_without_the_compiler_building_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builder.loader, "can_compile", lambda: False)
    wanted = [spec_file.Wanted(contiguous_problem(64, 64, 64), None, "")]
    with pytest.raises(CuteGemmError, match="nvidia-cutlass-dsl, which compiles kernels, is not installed"):
        builder.build(wanted, [H200], tmp_path / "out")
    with pytest.raises(BundleError, match="is a file"):
        (tmp_path / "file").write_text("")
        builder.build(wanted, [H200], tmp_path / "file")


def test_progress_is_told_and_every_m_is_planned() -> None:
    wanted = [spec_file.Wanted(contiguous_problem(m, 4096, 4096), None, "x") for m in (1, 64, 128, 4096)]
    told: list[tuple[str, int, int]] = []
    with ThreadPoolExecutor(1) as pool:
        devices = [H200, device.lookup("A100")]
        choices = builder.choose(wanted, devices, pool, lambda *now: told.append(now))  # type: ignore[arg-type]
    chosen = builder.problems(choices)
    assert told == [("planned", i, 8) for i in range(1, 9)]
    assert {spec.arch for spec in chosen} == {"sm_80", "sm_90a"}
    for arch in ("sm_80", "sm_90a"):
        texts = [text for one, problems in chosen.items() if one.arch == arch for text in problems]
        values = [m for text in texts for m in spec_file.values_of_m(text[len("m ") : -len(" x")])]
        assert sorted(values) == [1, 64, 128, 4096]
