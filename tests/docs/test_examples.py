"""Each example runs with its own command from examples/README.md, on little data and in few steps."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

import softshare as ss
from paths import ROOT
from random_kills import WRITTEN
from softshare.cli import main
from softshare.network.checkpoint import load_checkpoint
from softshare.network.weights import WeightView
from softshare.result import Result

EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text()
LINES = {
    match[1]: match[0]
    for match in re.finditer(r"^softshare compress examples/(\w+)\.py:make_task.*", README, re.MULTILINE)
}
SHORT = """

_make_task = make_task


def make_task() -> ss.Task:
    return _make_task(n=400, epochs=4)
"""


def test_the_readme_has_one_line_for_every_example() -> None:
    assert set(LINES) == {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(re.findall("softshare compress examples/", README)) == len(LINES)


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_an_example_goes_through_the_whole_route(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("softshare.report.write.to_png", lambda figure: b"")  # half of a report's time
    (tmp_path / "examples").mkdir()
    copied = shutil.copy(EXAMPLES / f"{name}.py", "examples")
    with Path(copied).open("a") as file:
        file.write(SHORT)
    compress, report = (shlex.split(part, comments=True) for part in LINES[name].split("&&"))
    assert compress.pop(0) == report.pop(0) == "softshare"
    assert main([*compress, "--steps", "30", "--no-limit"]) in WRITTEN  # so few steps may break it
    assert main(report) == 0

    folder = tmp_path / report[-1]
    assert (folder / "report" / "index.html").exists()
    result = Result.load(folder / "result.json")
    assert result.experiment == f"examples/{name}.py:make_task"
    assert result.file_bytes == (folder / "model.sws").stat().st_size
    assert result.config["retrain"]["steps"] == 30
    assert result.n_nonzero < result.n_weights
    decoded = ss.load(folder / "model.sws")
    assert {n: t.shape for n, t in decoded.items()} == {
        n: t.shape for n, t in load_checkpoint(folder / "pretrained.safetensors").items()
    }
    assert main(["evaluate", str(folder), "--trust"]) == 0  # on the data of the example
    command = ["export", str(folder / "model.sws"), "--onnx", "model.onnx", "--task", result.experiment]
    assert main(command) == 0


@pytest.mark.slow
def test_the_rule_for_gpt2_shares_its_projections() -> None:
    """They are of a class of transformers, which is not shared by default."""
    from transformers import GPT2Config, GPT2LMHeadModel

    (pattern,) = re.findall(r"--rule 'share:([^']+)'", README)
    config = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    view = WeightView.of(GPT2LMHeadModel(config), [ss.Rule(pattern, share=True)])
    assert all(".ln_" in name for name in view.rest)  # nothing but layer norm is kept
    assert view.tied == {"lm_head.weight": "transformer.wte.weight"}
