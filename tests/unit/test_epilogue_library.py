"""The ready-made epilogues against torch's own functions, and how the registry finds them and anyone
else's."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cutegemm import epilogues
from cutegemm.errors import EpilogueError
from cutegemm.fusion import Epilogue, registry
from cutegemm.fusion.to_torch import evaluate

THIRD_PARTY = Path(__file__).parents[1] / "thirdparty_epilogue"
M, N = 5, 8
SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e30, -2.7]


def inputs(dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    acc = torch.randn(M, N, generator=generator, dtype=torch.float64) * 4
    acc[0] = torch.tensor(SPECIAL)
    row = torch.randn(N, generator=generator, dtype=torch.float64)
    column = torch.randn(M, generator=generator, dtype=torch.float64)
    tile = torch.randn(M, N, generator=generator, dtype=torch.float64)
    # Operands are given as fp32 numbers, so that both dtypes compute the same thing.
    return {
        "x": acc.float().to(dtype),
        "r": row.float().to(dtype),
        "c": column.float().to(dtype),
        "t": tile.float().to(dtype),
    }


def gate(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def gated(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    even, odd = gate(x)
    return activation(even) * odd


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


EXPECTED: dict[str, tuple[str, Callable[..., Tensor | tuple[Tensor, Tensor]]]] = {
    "relu": ("", lambda x: torch.relu(x)),
    "leaky_relu": ("", lambda x: F.leaky_relu(x, float(torch.tensor(0.01)))),
    "gelu": ("", lambda x: F.gelu(x)),
    "gelu_tanh": ("", gelu_tanh),
    "silu": ("", lambda x: F.silu(x)),
    "sigmoid": ("", torch.sigmoid),
    "tanh": ("", torch.tanh),
    "clamp": ("-1.5,2.0", lambda x: torch.clamp(x, -1.5, 2.0)),
    "bias": ("r", lambda x, r: x + r),
    "bias_col": ("c", lambda x, c: x + c[:, None]),
    "bias_relu": ("r", lambda x, r: torch.relu(x + r)),
    "bias_gelu": ("r", lambda x, r: F.gelu(x + r)),
    "bias_gelu_tanh": ("r", lambda x, r: gelu_tanh(x + r)),
    "bias_silu": ("r", lambda x, r: F.silu(x + r)),
    "bias_relu_aux": ("r", lambda x, r: (torch.relu(x + r), x + r)),
    "bias_gelu_aux": ("r", lambda x, r: (F.gelu(x + r), x + r)),
    "bias_silu_aux": ("r", lambda x, r: (F.silu(x + r), x + r)),
    "swiglu": ("", lambda x: gated(F.silu, x)),
    "geglu": ("", lambda x: gated(F.gelu, x)),
    "geglu_tanh": ("", lambda x: gated(gelu_tanh, x)),
    "reglu": ("", lambda x: gated(torch.relu, x)),
    "glu": ("", lambda x: F.glu(torch.cat(gate(x)[::-1], -1), -1)),
    "bias_swiglu": ("r", lambda x, r: gated(F.silu, x + r)),
    "swiglu_aux": ("", lambda x: (gated(F.silu, x), x)),
    "add": ("t", lambda x, t: x + t),
    "mul": ("t", lambda x, t: x * t),
    "bias_add": ("r,t", lambda x, r, t: x + r + t),
    "scale": ("0.5", lambda x: x * 0.5),
    "scale_row": ("r", lambda x, r: x * r),
    "scale_col": ("c", lambda x, c: x * c[:, None]),
}


def test_the_whole_library_is_listed_here() -> None:
    first_party = {name for name, entries in registry.registered().items() if entries[0].distribution == "cutegemm"}
    assert first_party == set(EXPECTED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXPECTED)
def test_values_are_torchs(name: str, dtype: torch.dtype) -> None:
    given, function = EXPECTED[name]
    tensors = inputs(dtype)
    operands = [tensors[key] if key in tensors else float(key) for key in given.split(",") if key]
    bound = getattr(epilogues, name)(*operands)
    got = evaluate(bound.graph, tensors["x"], bound.operands, dtype)
    expected = function(tensors["x"], *(operand for operand in operands if isinstance(operand, Tensor)))
    expected = expected if isinstance(expected, tuple) else (expected,)
    # torch's own fp32 GELUs cancel below 0, by up to |x| ulp of 1; in fp64 both agree to the last digits.
    tolerance = {"rtol": 2e-6, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-7, "atol": 1e-7}
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, **tolerance)


@pytest.mark.parametrize(("name", "expected"), [("gelu", -0.00936), ("gelu_tanh", -0.00889)])
def test_the_two_gelus_are_told_apart(name: str, expected: float) -> None:
    (out,) = evaluate(getattr(epilogues, name).graph, torch.tensor([[-2.7]]), [])
    assert round(out.item(), 5) == expected


def test_every_epilogue_is_documented() -> None:
    for name in dir(epilogues):
        found = getattr(epilogues, name)
        assert isinstance(found, Epilogue) and found.name == name and found.__doc__, name


def test_modules_do_not_hide_epilogues() -> None:
    module = importlib.import_module("cutegemm.epilogues.bias")
    assert isinstance(epilogues.bias, Epilogue) and module.bias is epilogues.bias

    from cutegemm.epilogues import activations
    from cutegemm.epilogues.bias import bias_gelu

    assert activations.relu is epilogues.relu and bias_gelu is epilogues.bias_gelu


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match=r"no epilogue is called 'geluu'; registered: .*gelu"):
        _ = epilogues.geluu
    with pytest.raises(EpilogueError, match="no epilogue is called 'geluu'"):
        registry.lookup("geluu")
    assert not hasattr(epilogues, "_private")


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    registry.registered.cache_clear()
    yield
    registry.registered.cache_clear()


def install(package: Path, target: Path) -> None:
    """Build and install `package` into the folder `target`, without touching the network or the
    environment."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--target", str(target), str(package)], check=True, capture_output=True, text=True)


@pytest.fixture(scope="session")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the third-party package is installed into."""
    source = tmp_path_factory.mktemp("source") / "package"
    target = tmp_path_factory.mktemp("site")
    source.mkdir()
    for file in ("pyproject.toml", "squared.py"):
        (source / file).write_bytes((THIRD_PARTY / file).read_bytes())
    install(source, target)
    return target


def distribution(folder: Path, name: str, entry_points: str, modules: dict[str, str]) -> None:
    """The files of an installed distribution that `importlib.metadata` reads, and its modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[cutegemm.epilogues]\n{entry_points}\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)


@pytest.mark.usefixtures("fresh_registry")
class TestThirdParty:
    def test_is_found_by_its_entry_points(self, third_party: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(third_party)
        assert {"squared_relu", "shrink"} <= set(dir(epilogues))
        acc = torch.tensor([[-2.0, 3.0]])
        bound = epilogues.squared_relu() >> epilogues.shrink(0.5) >> epilogues.scale(2.0)
        (out,) = evaluate(bound.graph, acc, bound.operands)
        assert out.tolist() == [[0.0, 17.0]]
        (entry,) = registry.registered()["squared_relu"]
        assert (entry.distribution, entry.source) == ("squared-epilogues", "squared")
        assert "relu" in dir(epilogues) and registry.registered()["relu"][0].distribution == "cutegemm"

    def test_is_gone_when_it_is_not_installed(self) -> None:
        assert "squared_relu" not in dir(epilogues)

    def test_a_name_of_two_distributions_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "from cutegemm import epilogue\n@epilogue\ndef {0}(acc):\n    return acc * 7\n"
        distribution(tmp_path, "rival", "rival = rival_epilogues", {"rival_epilogues": code.format("gelu")})
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(EpilogueError, match=r"'gelu' is provided by (?=.*cutegemm \()(?=.*rival \()"):
            _ = epilogues.gelu
        assert "gelu" in dir(epilogues) and isinstance(epilogues.relu, Epilogue)

    def test_an_entry_point_may_name_one_epilogue(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        code = "from cutegemm import epilogue\n_hidden = epilogue(lambda acc: acc * 3)\n"
        distribution(tmp_path, "single", "tripled = single_epilogue:_hidden", {"single_epilogue": code})
        monkeypatch.syspath_prepend(tmp_path)
        (out,) = evaluate(epilogues.tripled.graph, torch.ones(1, 1), [])
        assert out.item() == 3.0

    def test_a_module_registers_what_it_defines(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        code = (
            "from cutegemm import epilogue\nfrom cutegemm.epilogues.activations import relu\n_secret = epilogue(abs)\n"
        )
        distribution(tmp_path, "reuser", "reuser = reusing", {"reusing": code})
        monkeypatch.syspath_prepend(tmp_path)
        assert isinstance(epilogues.relu, Epilogue) and "_secret" not in dir(epilogues)

    def test_a_broken_provider_is_skipped_aloud(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        distribution(
            tmp_path,
            "broken",
            "broken = no_such_module\nodd = odd_module:value",
            {"odd_module": "value = 3\n"},
        )
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.warns(RuntimeWarning) as caught:
            assert isinstance(epilogues.relu, Epilogue)
        messages = " ".join(str(warning.message) for warning in caught)
        assert "no_such_module" in messages and "'odd_module:value' is a int" in messages
