"""What importing costs. import-linter checks the direction of imports (`make check`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import softshare
from paths import TESTS

ROOT = Path(softshare.__file__).parent
# Only what needs these loads them.
OPTIONAL = ("lightning", "matplotlib", "numba", "optuna", "pytorch_lightning", "scipy", "transformers", "triton")


def loaded(code: str) -> list[str]:
    """The modules that a fresh interpreter has loaded after this code."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.split("\n")[-2].split()


def test_import_is_lean() -> None:
    """`import softshare` loads neither torch nor optional packages."""
    found = loaded("import softshare")
    assert [name for name in found if name.startswith("softshare")] == ["softshare"]
    assert not {"torch", "numpy", "rich", "safetensors", "typer", "cattrs", *OPTIONAL} & set(found)


@pytest.mark.slow
def test_the_public_names_load_no_optional_package_and_no_gpu() -> None:
    found = loaded(
        "import softshare, torch\n"
        "for name in softshare.__all__: getattr(softshare, name)\n"
        "assert not torch.cuda.is_initialized()"
    )
    assert not {"typer", *OPTIONAL} & set(found)


@pytest.mark.slow
def test_inspect_loads_the_codec_and_a_table() -> None:
    """No figure, no rival, no search, no training."""
    file = TESTS / "golden" / "adaptive.sws"
    found = loaded(f"from softshare.cli import main\nassert main(['inspect', {str(file)!r}]) == 0")
    ours = {".".join(name.split(".")[:2]) for name in found if name.startswith("softshare.")}
    others = {f"softshare.{room}" for room in ("report", "paper", "tune", "train", "datafree", "integrations", "route")}
    assert not others & ours
    assert not set(OPTIONAL) - {"numba"} & set(found)


def test_the_help_loads_no_torch() -> None:
    commands: list[list[str]] = [[], ["compress"], ["tune"], ["quantize"], ["config"]]
    calls = "".join(f"assert main({[*command, '--help']!r}) == 0\n" for command in commands)
    assert "torch" not in loaded(f"from softshare.cli import main\n{calls}")


def test_the_root_is_small() -> None:
    assert len([path for path in ROOT.iterdir() if path.is_file()]) <= 12


def test_public_names() -> None:
    assert softshare.__all__ == sorted(softshare.__all__)
    for name in softshare.__all__:
        assert getattr(softshare, name).__module__.startswith("softshare.")
    assert callable(softshare.compress)  # not a module of that name
    assert set(dir(softshare)) >= set(softshare.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        softshare.nothing  # noqa: B018
