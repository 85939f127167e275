"""`softshare init`: the template runs unchanged, and no file of the user's is overwritten."""

from __future__ import annotations

import ast
import os
import shlex
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import softshare as ss
from softshare.cli import main, template
from softshare.result import Result


def test_the_parts_of_the_template_fit_together() -> None:
    model, data = template.make_model(), template.make_data()
    batches = DataLoader(data, batch_size=100)
    task = ss.Task.from_loaders(model, batches, batches, template.LOSS, template.METRIC)
    x, y = data.tensors
    with torch.no_grad():
        assert task.judge(model) == pytest.approx(100 * float((model(x).argmax(1) != y).double().mean()))
    assert task.loss(model, next(iter(batches))).shape == ()
    assert (task.metric, task.n_examples) == (ss.Metric(), 8_000)


@pytest.mark.slow
def test_the_template_goes_through_the_whole_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that init prints, in fewer steps. The folder is new, and its name needs quotes."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my tasks/net.py"]) == 0
    program, *command = shlex.split(capsys.readouterr().out.partition("Try it: ")[2])
    assert program == "softshare"
    assert os.listdir("my tasks") == ["net.py"]
    assert main([*command, "--steps", "400"]) == 0
    result = Result.load(Path("runs/net/result.json"))
    assert result.file_bytes == Path("runs/net/model.sws").stat().st_size
    assert result.error_before < 15  # chance is 50
    assert result.error_after < result.error_before + 2  # three times its noise, for it is not what was searched by
    assert result.outcome is not None
    assert result.outcome["kept"]
    assert result.n_nonzero < 0.5 * result.n_weights
    assert main(["evaluate", "runs/net", "--trust"]) == 0


@pytest.mark.parametrize("name", ["my net.py", 'a"""b\\N.py', "it's.py"])
def test_its_docstrings_name_the_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    assert main(["init", str(file)]) == 0
    tree = ast.parse(file.read_text())
    (line,) = [line for line in (ast.get_docstring(tree) or "").splitlines() if "softshare compress" in line]
    (made,) = [f for f in tree.body if isinstance(f, ast.FunctionDef) and f.name == "make_task"]
    compress, _, report = line.partition(" && ")
    assert shlex.split(compress)[2:] == [f"{name}:make_task"]
    assert shlex.split(report) == ["softshare", "report", f"runs/{file.stem}"]
    assert shlex.quote(f"{name}:make_task") in (ast.get_docstring(made) or "")
    assert "my_task" not in file.read_text()


def test_an_earlier_file_is_kept_unless_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_task.py"
    file.write_text("mine")
    assert main(["init", str(file)]) == 2
    assert f"{file} already exists. Give --overwrite" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["init", str(file), "--overwrite"]) == 0
    assert "def make_task() -> ss.Task:" in file.read_text()
    assert os.listdir(tmp_path) == [file.name]


def test_what_cannot_be_a_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for name, problem in (
        ("my_task", "expected a name that ends in .py, for example my_task.py, got"),
        ("file/my_task.py", "cannot write to the folder"),
    ):
        assert main(["init", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert problem in error
        assert "Traceback" not in error
    assert os.listdir(tmp_path) == ["file"]
