"""Tasks on the command line: experiments and users' files, their options and devices, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from cli_runs import Refusals, run, write_task
from softshare.cli.task_options import TaskOptions, load_task

# Devices and experiments


def test_a_device_that_does_not_exist(tmp_path: Path, refused: Refusals) -> None:
    for device in ("gpu", "meta", "cuda:x"):
        refused("compress", "lenet-300-100", "--device", device, "--out", tmp_path / "run", naming="--device: expected")
    refused("compress", write_task(tmp_path), "--device", "gpu", "--out", tmp_path / "run", naming="--device: expected")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    refused("pretrain", "lenet-300-100", "--device", "cuda", "--out", tmp_path / "run", naming="--device cuda")


def test_an_experiment_whose_data_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    for command in ("pretrain", "compress"):
        refused(command, "wrn-16-4", "--out", tmp_path / "run", naming=["CIFAR-10", "--data", "SOFTSHARE_DATA"])
        naming = [f"CIFAR-10 is not in {tmp_path}", "cifar-10-batches-bin"]
        refused(command, "wrn-16-4", "--out", tmp_path / "run", "--data", tmp_path, naming=naming)


def test_options_of_an_experiment_that_are_wrong(tmp_path: Path, refused: Refusals) -> None:
    out = "--out", tmp_path / "run"
    for command in ("pretrain", "compress"):
        refused(command, "lenet-300-100", *out, "--label-smoothing", 1, naming="label_smoothing: expected")
        refused(
            command,
            "wrn-16-4",
            *out,
            "--no-augment",
            naming=["--no-augment", "always augmented, as in the paper"],
        )


def test_a_users_task_takes_no_options_of_an_experiment(tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path)
    for flags in ("--no-augment", "--label-smoothing 0", "--data x --augment", "--from-scratch"):
        names = [word for word in flags.split() if word.startswith("--")]
        naming = [f"{', '.join(names)}: {spec}", "Leave the option out"]
        refused("compress", spec, "--out", tmp_path / "run", *flags.split(), naming=naming)


# A user's file


WRONG_TASKS = [
    ("missing", "", "missing"),
    ("wrong", "def wrong():\n    return model", "Sequential"),
    (
        "model",
        "",
        "expected a function without arguments that returns a softshare.Task, got an object of type Sequential",
    ),
    (
        "answer",
        "answer = 42",
        "expected a function without arguments that returns a softshare.Task, got an object of type int",
    ),
    ("sized", "def sized(n, seed=0):\n    return make_task()", "returns a softshare.Task, got sized(n, seed=0)"),
    ("no_model", "def no_model():\n    return make_task(model=3)", "Task.model"),
    ("no_loss", "def no_loss():\n    return make_task(loss=None)", "Task.loss"),
    ("no_error", "def no_error():\n    return make_task(evaluate=5.0)", "Task.evaluate"),
    ("no_test", "def no_test():\n    return make_task(test=5.0)", "Task.test"),
    ("no_outputs", "def no_outputs():\n    return make_task(outputs=5.0)", "Task.outputs"),
    ("half_n", "def half_n():\n    return make_task(n_examples=0.5)", "Task.n_examples"),
    ("no_batches", "def no_batches():\n    return make_task(train=3)", "Task.train"),
    ("no_batch", "def no_batch():\n    return make_task(train=[])", "Task.train"),
    ("one_pass", "def one_pass():\n    return make_task(train=iter(data))", "can be iterated only once"),
    ("vector", "def vector():\n    return make_task(loss=lambda m, b: m(b[0])[:, 0])", "Task.loss"),
]


def test_a_make_task_that_is_wrong(tmp_path: Path, refused: Refusals) -> None:
    for function, extra, naming in WRONG_TASKS:
        spec = write_task(tmp_path, extra).replace(":task", f":{function}")
        refused("compress", spec, "--epochs", 1, "--out", tmp_path / "run", naming=naming)


def test_a_task_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refusals) -> None:
    write_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    for spec in ("net.py", "net:make_task", "net.txt:make_task", ":make_task", "lenet-7"):
        refused("compress", spec, "--out", "run", naming=["expected one of lenet-300-100", "FILE.py:make_task", spec])
    refused("compress", "missing.py:make_task", "--out", "run", naming="there is no file missing.py")
    refused("pretrain", "lenet-7", "--out", "run", naming=["lenet-7", "lenet-300-100", "lenet-5-caffe"])


ONE_PASS = """
class OnePass:
    def __init__(self):
        self.batches = iter(data)

    def __iter__(self):
        return self.batches
"""


def test_a_second_pass_that_is_empty(tmp_path: Path, refused: Refusals) -> None:
    """It is found when training begins, because the task was looked at before."""
    spec = write_task(tmp_path, f"{ONE_PASS}\n\ndef task():\n    return make_task(train=OnePass())")
    refused(
        "compress", spec, "--epochs", 2, "--out", tmp_path / "run", naming="Task.train: expected at least one batch"
    )


FAILING = {
    "def helper():\n    return 1 / 0\n\n\ndef task():\n    return helper()": (
        "FILE:task failed: ZeroDivisionError: division by zero",
        ["in task\n    return helper()", "in helper\n    return 1 / 0"],
    ),
    "import no_such_module_at_all": (
        "the import of FILE failed: ModuleNotFoundError: No module named 'no_such_module_at_all'",
        ["in <module>\n    import no_such_module_at_all"],
    ),
    "def task(:": ("the import of FILE failed: SyntaxError: invalid syntax", ["def task(:\n"]),
    "def bad(model, batch):\n    return nn.Linear(3, 1)(batch[0]).mean()\n\n\ndef task():\n"
    "    return make_task(loss=bad)": (
        "Task.loss failed in epoch 1, batch 1: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
        ["in bad\n    return nn.Linear(3, 1)(batch[0]).mean()"],
    ),
}


@pytest.mark.parametrize("extra", FAILING)
def test_a_failure_of_the_users_code_is_one_line_and_their_own_frames(
    extra: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = write_task(tmp_path, extra)
    message, frames = FAILING[extra]
    assert run("compress", spec, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    line, _, rest = error.partition("\n")
    file = spec.rpartition(":")[0]
    assert line.startswith("softshare: " + message.replace("FILE", file))
    assert rest.startswith("Your own code, most recent call last:\n")
    assert all(frame in rest for frame in frames)
    assert set(re.findall(r'File "(.*?)"', rest)) == {file}
    assert rest.count("File ") == len(frames)
    assert not (tmp_path / "run").exists()


EXITS = {
    "import sys\nsys.exit(0)": "the import of FILE called sys.exit(0). Remove the call",
    "def task():\n    raise SystemExit(7)": "FILE:task called sys.exit(7). Remove the call",
    "def error(model):\n    raise SystemExit": "Task.evaluate called sys.exit(None) in the look before training.",
    "def loss(model, batch):\n    raise SystemExit(0)": "Task.loss called sys.exit(0) in epoch 1, batch 1. Remove",
    "class Odd(BaseException): pass\ndef loss(model, batch):\n    raise Odd('no')": (
        "Task.loss failed in epoch 1, batch 1: Odd: no"
    ),
    "def ends(data):\n    raise SystemExit(0)\nerror, data = (lambda m: 5.0), type('', (), {'__iter__': ends})()": (
        "Task.train called sys.exit(0) in epoch 1. Remove"
    ),
}


@pytest.mark.parametrize("code", EXITS)
def test_an_exit_of_the_users_code_is_an_error(tmp_path: Path, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path, code)
    assert run("compress", spec, "--out", tmp_path / "run", "--epochs", 1, "--no-limit") == 2
    line, rest = capsys.readouterr().err.split("\n", 1)
    file = spec.rpartition(":")[0]
    assert line.startswith("softshare: " + EXITS[code].replace("FILE", file))
    assert set(re.findall(r'File "(.*?)"', rest)) == {file}


def test_odd_code_where_nothing_guards_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model's own copy is not called by name."""
    odd = (
        "class Odd(BaseException): pass\ndef fails(self, memo):\n    raise Odd('no')\ntype(model).__deepcopy__ = fails"
    )
    own = "class Net(nn.Sequential): pass\nmodel = Net(*model)"
    assert run("compress", write_task(tmp_path, f"{own}\n{odd}"), "--out", tmp_path / "run", "--epochs", 1) == 2
    text = capsys.readouterr().err
    assert "failed" in text
    assert "Odd: no" in text
    assert "softshare/cli" not in text


def test_an_interrupt_passes_through(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_task(write_task(tmp_path, "def task():\n    raise KeyboardInterrupt"), "auto", 0, TaskOptions())


def test_a_task_file_may_import_its_neighbours_and_have_any_name(tmp_path: Path) -> None:
    write_task(tmp_path)
    (tmp_path / "json_neighbour.py").write_text("SEED = 3")
    (tmp_path / "json.py").write_text("from json_neighbour import SEED\n" + (tmp_path / "net.py").read_text())
    import json as before

    assert run("compress", f"{tmp_path / 'json.py'}:task", "--out", tmp_path / "r", "--epochs", 1, "--no-limit") == 0
    import json as after

    assert before is after
    assert hasattr(after, "loads")
