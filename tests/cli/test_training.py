from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import softshare
from cifar_files import N, write_binary
from softshare.cli import main
from softshare.cli.run_task import _few_steps
from softshare.config import CompressConfig, RetrainConfig
from softshare.zoo import cifar10, datasets, experiments
from softshare.zoo.datasets import Split, load_mnist
from softshare.zoo.models import LeNet300100

COMMANDS = [
    "demo",
    "init",
    "pretrain",
    "compress",
    "tune",
    "inspect",
    "decompress",
    "evaluate",
    "export",
    "reproduce",
    "verify",
    "report",
    "results",
]
RUN_FILES = ["frames.npz", "history.csv", "model.sws", "pretrained.safetensors", "result.json", "retrained.safetensors"]

# A user's file: a small convolutional net with batch norm on a few random images.
TASK = """
import torch
from torch import nn
from torch.nn import functional as F

import softshare

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
data = [(torch.randn(16, 1, 6, 6), torch.randint(3, (16,))) for _ in range(4)]


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def error(model):
    return 100 * sum(int((model(x).argmax(1) != y).sum()) for x, y in data) / 64


def make_task(**changes):
    fields = dict(model=model, train=data, loss=loss, evaluate=error, n_examples=64)
    return softshare.Task(**fields | changes)
"""


def write_task(folder: Path, extra: str = "", name: str = "net.py") -> str:
    """The file above with some lines more, which may redefine `task`; returns what the command line takes."""
    (folder / name).write_text(f"{TASK}\n\ndef task():\n    return make_task()\n\n\n{extra}\n")
    return f"{folder / name}:task"


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, hidden ones too, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def result_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return values


def assert_same_state(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


class Refusals:
    """Runs the command line and expects exit status 2, one message, no traceback, and no file touched."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, *args: object, naming: str | list[str]) -> str:
        before = self.everything()
        self.capsys.readouterr()
        assert run(*args) == 2
        message = self.capsys.readouterr().err
        for word in [naming] if isinstance(naming, str) else naming:
            assert word in message
        assert "Traceback" not in message
        assert self.everything() == before
        return message

    def everything(self) -> tuple[list[Path], dict[str, bytes]]:
        return sorted(self.folder.rglob("*")), contents(self.folder)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refusals:
    return Refusals(tmp_path, capsys)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every terminal; and Python shall not write a folder of its own beside the user's files."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of the user's task. Not to be changed: see `copy`."""
    folder = tmp_path_factory.mktemp("finished")
    spec = write_task(folder)
    assert run("compress", spec, "--epochs", 3, "--tau", 0.5, "--seed", 7, "--out", folder / "run") == 0
    return folder / "run"


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    (tmp_path / "run").mkdir()
    for name, data in contents(finished).items():
        (tmp_path / "run" / name).write_bytes(data)
    return tmp_path / "run"


@functools.cache
def small_mnist() -> tuple[Split, Split, Split]:
    train, validation, test = (s[torch.arange(256)] for s in load_mnist())
    return train, validation, test


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> tuple[Split, Split, Split]:
    """256 examples of each part of MNIST, one batch, and a pre-training of one epoch."""
    monkeypatch.setattr(experiments, "load_mnist", small_mnist)
    short = dataclasses.replace(
        experiments.EXPERIMENTS["lenet-300-100"], pretrain=RetrainConfig(epochs=1, lr_weights=2e-3)
    )
    monkeypatch.setitem(experiments.EXPERIMENTS, "lenet-300-100", short)
    return small_mnist()


def lenet_error(state: dict[str, Tensor], split: Split) -> float:
    """The error of LeNet-300-100 with these weights, by plain matrix products."""
    x = split.images.flatten(1)
    for layer in ("fc1", "fc2", "fc3"):
        x = x @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]
        x = x.relu() if layer != "fc3" else x
    return 100 * int((x.argmax(1) != split.labels).sum()) / len(split)


# Help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    usage, _, described = text.strip().partition("\n")
    assert f" {command} [OPTIONS]" in usage
    assert len(described.strip().splitlines()[0]) > 20  # says what it does
    assert all(len(line) <= 80 for line in text.splitlines())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert [c for c in COMMANDS if f"│ {c} " in text] == COMMANDS


def test_python_m_softshare_is_the_same_program(capsys: pytest.CaptureFixture[str]) -> None:
    forcing = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS")  # a colour to what is no terminal
    environment = {name: value for name, value in os.environ.items() if name not in forcing} | {"OMP_NUM_THREADS": "1"}
    for args, status in ((["--help"], 0), (["inspect", "missing.sws"], 2)):
        command = [sys.executable, "-m", "softshare", *args]
        child = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert child.returncode == run(*args) == status
        here = capsys.readouterr()
        assert child.stdout.strip().splitlines()[1:] == here.out.strip().splitlines()[1:]  # all but the usage line
        assert child.stderr == here.err


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "compress" in "".join(capsys.readouterr())


def test_an_unknown_command_is_refused(refused: Refusals) -> None:
    refused("shrink", naming="shrink")


# A user's task, all the way


def test_compress_leaves_the_whole_run(finished: Path) -> None:
    assert sorted(os.listdir(finished)) == RUN_FILES
    result = result_of(finished)
    assert result["file_bytes"] == (finished / "model.sws").stat().st_size
    n_weights = 4 * 9 + 4 + 2 * 4 + 64 * 3 + 3
    assert result["n_weights"] == n_weights
    assert result["ratio"] == 4 * n_weights / result["file_bytes"]
    assert result["seed"] == 7
    assert result["method"] == "softshare"
    assert result["config"] == json.loads(json.dumps(CompressConfig().override(epochs=3, tau=0.5, seed=7).to_dict()))
    with (finished / "history.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert "density/0.weight" in rows[0]


def test_the_checkpoints_are_before_and_after_retraining(finished: Path) -> None:
    names = ["0.weight", "0.bias", *(f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var"))]
    names += ["1.num_batches_tracked", "4.weight", "4.bias"]
    before = safetensors.torch.load_file(finished / "pretrained.safetensors")
    after = safetensors.torch.load_file(finished / "retrained.safetensors")
    torch.manual_seed(0)
    first = torch.nn.Conv2d(1, 4, 3)  # what the user's file makes first
    assert torch.equal(before["0.weight"], first.weight)
    assert sorted(before) == sorted(after) == sorted(names)
    assert int(before["1.num_batches_tracked"]) == 0
    assert int(after["1.num_batches_tracked"]) == 3 * 4
    decoded = softshare.load(finished / "model.sws")
    for name in names:
        if name.startswith("1."):  # the rest is stored as it is
            assert torch.equal(decoded[name], after[name])
    values = {v for n in ("0.weight", "0.bias", "4.weight", "4.bias") for v in decoded[n].flatten().tolist()}
    assert len(values) <= 17


def test_inspect_shows_every_tensor_and_the_size(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", finished / "model.sws") == 0
    text = capsys.readouterr().out
    for name in ("0.weight", "0.bias", "4.weight", "4.bias", "1.weight", "overhead"):
        assert f"│ {name} " in text
    assert f"{(finished / 'model.sws').stat().st_size:,} bytes" in " ".join(text.split())


def test_inspect_as_json(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as from Python, and nothing else on the output."""
    assert run("inspect", "--json", finished / "model.sws") == 0
    values = json.loads(capsys.readouterr().out)
    info = softshare.inspect(finished / "model.sws")
    assert values == json.loads(json.dumps(info.to_dict()))
    assert [t["name"] for t in values["tensors"]] == [t.name for t in info.tensors]
    assert values["file_bytes"] == (finished / "model.sws").stat().st_size
    assert values["codec"] == "adaptive"


def test_decompress_within_max_bytes(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    """The size of the decoded tensors is the limit, to the byte."""
    target = tmp_path / "model.safetensors"
    size = sum(t.numel() * t.element_size() for t in softshare.load(finished / "model.sws").values())
    args = ["decompress", finished / "model.sws", target, "--max-bytes"]
    refused(*args, size - 1, naming=[str(finished / "model.sws"), f"at most {size - 1:,} bytes", f"got {size:,}"])
    refused(*args, -1, naming="--max-bytes")
    assert run(*args, size) == 0
    assert_same_state(safetensors.torch.load_file(target), softshare.load(finished / "model.sws"))


def test_a_file_without_names(tmp_path: Path, refused: Refusals, capsys: pytest.CaptureFixture[str]) -> None:
    """The run evaluates, for it has the network; inspect numbers the tensors; decompress needs the network."""
    folder, task = tmp_path / "run", write_task(tmp_path)
    assert run("compress", task, "--names", "none", "--epochs", 1, "--out", folder) == 0
    assert run("evaluate", folder) == 0
    capsys.readouterr()
    assert run("inspect", folder / "model.sws") == 0
    text = capsys.readouterr().out
    assert "#0" in text
    assert "0.weight" not in text
    assert run("inspect", "--json", folder / "model.sws") == 0
    assert all(t["name"] is None for t in json.loads(capsys.readouterr().out)["tensors"])
    target = tmp_path / "a.safetensors"
    refused("decompress", folder / "model.sws", target, naming=["names='none'", "load_into_", "--task"])
    assert run("decompress", folder / "model.sws", target, "--task", task) == 0
    state = safetensors.torch.load_file(target)
    again = tmp_path / "again"
    assert run("compress", task, "--epochs", 1, "--out", again) == 0
    assert_same_state(state, softshare.load(again / "model.sws"))


def test_decompress_writes_what_load_gives(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    assert run("decompress", finished / "model.sws", target) == 0
    assert_same_state(safetensors.torch.load_file(target), softshare.load(finished / "model.sws"))
    assert os.listdir(tmp_path) == [target.name]


def test_evaluate_measures_the_same_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", finished) == 0
    result, printed = result_of(finished), capsys.readouterr().out
    assert f"error {result['error_after']:.4f}%" in printed
    assert f"{result['file_bytes']} bytes" in printed


@pytest.mark.parametrize("change", [{"error_after": 0.0123}, {"file_bytes": 1}])
def test_evaluate_says_when_the_result_is_not_the_files(copy: Path, change: dict[str, Any]) -> None:
    (copy / "result.json").write_text(json.dumps(result_of(copy) | change))
    assert run("evaluate", copy) == 1


def test_evaluate_reads_the_file_and_not_a_checkpoint(copy: Path) -> None:
    for name in ("pretrained.safetensors", "retrained.safetensors", "history.csv"):
        (copy / name).unlink()
    assert run("evaluate", copy) == 0


def test_evaluate_with_another_task(finished: Path, tmp_path: Path) -> None:
    always = "def task():\n    return make_task(evaluate=lambda model: 12.5)"
    assert run("evaluate", finished, "--task", write_task(tmp_path, always)) == 1
    assert run("evaluate", finished, "--task", write_task(tmp_path)) == 0


def test_a_run_is_repeated_by_its_seed(finished: Path, tmp_path: Path) -> None:
    args = ["compress", write_task(tmp_path), "--epochs", 3, "--tau", 0.5, "--out", tmp_path / "run"]
    assert run(*args, "--seed", 7) == 0
    for name in ("model.sws", "retrained.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()


def test_compress_prints_where_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compress", write_task(tmp_path), "--epochs", 1, "--out", tmp_path / "[b]run") == 0
    text = "".join(line.rstrip("\n") for line in capsys.readouterr().out.splitlines())
    assert "[b]run" in text
    assert f"{result_of(tmp_path / '[b]run')['file_bytes']:,}" in text


def test_enough_steps_are_not_spoken_of() -> None:
    assert _few_steps(0) == _few_steps(3_000) == ""
    assert "2,999 steps" in _few_steps(2_999)


@pytest.mark.parametrize(("hard_from", "advice"), [(1, "So quantizing did it"), (0.5, "Try a smaller --tau")])
@pytest.mark.parametrize(("after", "says_so"), [(5.0, False), (6.0, False), (6.5, True), (50.0, True)])
def test_compress_says_when_the_error_rose(
    after: float, says_so: bool, hard_from: float, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = f"lambda model: {after} if len(model[4].weight.unique()) <= 17 else 5.0"  # known by its few values
    spec = write_task(tmp_path, f"def task():\n    return make_task(evaluate=lambda model: 4.0, test={test})")
    assert run("compress", spec, "--epochs", 1, "--hard-from", hard_from, "--out", tmp_path / "run") == 0
    text = " ".join(capsys.readouterr().out.split())
    said = (
        f"The error rose from 5.00% to {after:.2f}%; at the end of retraining it was 4.00% on validation data. {advice}"
    )
    assert (said in text) == says_so
    assert (" steps, where the defaults were made for 6,000: more --epochs come first." in text) == says_so
    result = result_of(tmp_path / "run")
    assert (result["error_before"], result["error_after"]) == (5.0, after)  # of `test`, not of `evaluate`


@pytest.mark.parametrize(
    ("option", "value", "status", "text"),
    [
        ("--max-bytes", 215, 0, "target met: "),
        ("--max-error", 100, 0, "target met: "),
        ("--max-error-increase", 100.0, 0, "target met: "),
        ("--max-error", 0.0, 1, "target not met: at most 0% validation error allowed, the nearest that was found has "),
    ],
)
def test_a_target_is_met_or_said_not_to_be(
    option: str, value: float, status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--epochs", 3, "--zero-mixing", 0.5, option, value, "--out", tmp_path / "run")
    assert run("compress", write_task(tmp_path), *args) == status
    assert text in " ".join(capsys.readouterr().out.split())
    assert sorted(contents(tmp_path / "run")) == RUN_FILES  # the nearest is there
    result = result_of(tmp_path / "run")
    assert result["outcome"]["target"] == {option[2:].replace("-", "_"): value}
    assert result["outcome"]["met"] == (status == 0)
    assert result["file_bytes"] == (tmp_path / "run" / "model.sws").stat().st_size
    if option == "--max-bytes":
        assert 0.9 * value <= result["outcome"]["reached"] == result["file_bytes"] <= value


def test_targets_that_are_refused(tmp_path: Path, refused: Refusals) -> None:
    spec, folder = write_task(tmp_path), tmp_path / "run"
    refused("compress", spec, "--max-error", 2, "--max-bytes", 900, "--out", folder, naming="expected one target")
    refused("compress", spec, "--max-bytes", 3, "--out", folder, naming="expected at least")
    refused("compress", spec, "--max-error", -1, "--out", folder, naming="MaxError: expected")
    refused(
        "compress", spec, "--config", "paper", "--max-error", 2, "--out", folder, naming="expected hard_from below 1"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--max-bytes", 3], "expected at least"),
        (["--max-error", 2, "--hard-from", 1], "expected hard_from below 1"),
        (["--max-error", 2, "--max-bytes", 900], "expected one target"),
    ],
)
def test_an_experiments_target_is_refused_before_it_is_pre_trained(
    args: list[Any], text: str, tmp_path: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(*args: Any) -> None:
        raise AssertionError("it was pre-trained")

    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", pretrain)
    refused("compress", "lenet-300-100", *args, "--out", tmp_path / "run", naming=text)


def test_the_default_folder_carries_the_files_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.pytorch").mkdir()
    spec = write_task(tmp_path / "my.pytorch")
    monkeypatch.chdir(tmp_path)
    assert run("compress", spec, "--epochs", 1) == 0
    assert sorted(os.listdir("runs/net")) == RUN_FILES


def test_options_reach_the_run(tmp_path: Path) -> None:
    options = (
        "--config paper --epochs 1 --components 3 --mixing-prior alpha=9,beta=2 --free-precision-prior none "
        "--rule keep:*.bias"
    )
    args = [*options.split(), "--rest-dtype", "float16"]
    assert run("compress", write_task(tmp_path), *args, "--out", tmp_path / "run") == 0
    result = result_of(tmp_path / "run")
    config = CompressConfig.paper().override(
        epochs=1,
        components=3,
        mixing_prior=softshare.Beta(9, 2),
        free_precision_prior=None,
        rules=(softshare.Rule("*.bias", share=False),),
        rest_dtype="float16",
    )
    assert CompressConfig.from_dict(result["config"]) == config
    assert result["method"] == "paper"
    kinds = {t.name: t.kind for t in softshare.inspect(tmp_path / "run" / "model.sws").tensors}
    assert kinds["0.bias"] == kinds["4.bias"] == "rest"
    assert kinds["0.weight"] == kinds["4.weight"] == "shared"


def test_a_width_beside_the_papers_settings_is_an_error_that_advises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        "compress",
        write_task(tmp_path),
        "--config",
        "paper",
        "--epochs",
        1,
        "--width",
        0.3,
        "--out",
        tmp_path / "run",
    ]
    assert run(*args) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "init_std, zero_precision_prior, free_precision_prior: no effect while width is set" in message
    assert "Set width to None ('none' on the command line)" in message
    assert not (tmp_path / "run").exists()
    nones = "--init-std none --zero-precision-prior none --free-precision-prior none"
    assert run(*args, *nones.split()) == 0
    assert result_of(tmp_path / "run")["config"]["prior"]["width"] == 0.3


def test_a_tensor_in_any_memory_layout(tmp_path: Path) -> None:
    channels_last = "model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)"
    transposed = "model[4].weight.data = model[4].weight.data.t().contiguous().t()"
    spec = write_task(tmp_path, f"{channels_last}\n{transposed}")
    assert run("compress", spec, "--epochs", 1, "--out", tmp_path / "run") == 0
    assert run("evaluate", tmp_path / "run") == 0


# An experiment of the zoo


def test_compress_an_experiment_from_given_weights(mnist: tuple[Split, Split, Split], tmp_path: Path) -> None:
    torch.manual_seed(3)
    weights = LeNet300100().state_dict()
    safetensors.torch.save_file(weights, tmp_path / "weights.safetensors")
    args = ["compress", "lenet-300-100", "--weights", tmp_path / "weights.safetensors", "--out", tmp_path / "run"]
    assert run(*args, "--epochs", 1) == 0
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    assert_same_state(safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors"), weights)
    result, decoded = result_of(tmp_path / "run"), softshare.load(tmp_path / "run" / "model.sws")
    assert result["error_before"] == lenet_error(weights, mnist[2])
    assert result["error_after"] == lenet_error(decoded, mnist[2])
    assert result["n_weights"] == 266_610
    assert result["n_nonzero"] == sum(int(t.count_nonzero()) for t in decoded.values())
    assert result["file_bytes"] == (tmp_path / "run" / "model.sws").stat().st_size
    assert (result["experiment"], result["dataset"]) == ("lenet-300-100", "MNIST")
    digest = hashlib.sha256((tmp_path / "weights.safetensors").read_bytes()).hexdigest()
    assert result["config"]["pretrain"] == {"weights": "weights.safetensors", "sha256": digest}
    assert run("evaluate", tmp_path / "run") == 0


def test_compress_an_experiment_from_scratch(
    mnist: tuple[Split, Split, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_", lambda *_: pytest.fail("the network was pre-trained"))
    args = ["compress", "lenet-300-100", "--from-scratch", "--epochs", 1, "--seed", 4, "--out", tmp_path / "run"]
    assert run(*args) == 0
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    torch.manual_seed(4)
    fresh = LeNet300100().state_dict()
    assert_same_state(safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors"), fresh)
    result = result_of(tmp_path / "run")
    assert result["config"]["task"]["from_scratch"] is True
    assert result["config"]["pretrain"] is None
    assert result["error_before"] == lenet_error(fresh, mnist[2])


def test_from_scratch_takes_no_weights_that_are_there_already(
    mnist: tuple[Split, Split, Split], tmp_path: Path, refused: Refusals
) -> None:
    safetensors.torch.save_file(LeNet300100().state_dict(), tmp_path / "pretrained.safetensors")
    args = ["compress", "lenet-300-100", "--from-scratch", "--epochs", 1]
    refused(*args, "--out", tmp_path, naming=["--overwrite", str(tmp_path)])
    weights = tmp_path / "pretrained.safetensors"
    refused(*args, "--weights", weights, "--out", tmp_path / "run", naming=["--from-scratch", "--weights"])
    refused(*args, "--distill", 0.5, "--out", tmp_path / "run", naming=["--from-scratch", "--distill"])
    assert not (tmp_path / "run").exists()


def test_demo(mnist: tuple[Split, Split, Split], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", tmp_path / "demo") == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "demo"
    assert sorted(os.listdir(folder)) == RUN_FILES
    result = result_of(folder)
    assert result["config"].pop("task") == {"augment": False, "label_smoothing": 0.05, "from_scratch": False}
    schedule = experiments.EXPERIMENTS["lenet-300-100"].pretrain
    assert result["config"].pop("pretrain") == experiments.pretraining_settings(schedule)
    assert CompressConfig.from_dict(result["config"]) == experiments.EXPERIMENTS["lenet-300-100"].compress
    assert result["file_bytes"] == (folder / "model.sws").stat().st_size
    assert result["error_after"] == lenet_error(softshare.load(folder / "model.sws"), mnist[2])
    pretrained = safetensors.torch.load_file(folder / "pretrained.safetensors")
    assert result["error_before"] == lenet_error(pretrained, mnist[2])
    for text in (
        "the paper (estimated)",
        "1.89 -> 1.94",
        "64.0",
        f"{result['file_bytes']:,}",
        f"{result['ratio']:.1f}",
    ):
        assert text in printed


def test_pretrain_then_compress(
    mnist: tuple[Split, Split, Split], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run("pretrain", "lenet-300-100", "--out", folder, "--seed", 4) == 0
    assert os.listdir(folder) == ["pretrained.safetensors"]
    weights = safetensors.torch.load_file(folder / "pretrained.safetensors")
    assert f"test error {lenet_error(weights, mnist[2]):.2f}%" in capsys.readouterr().out
    torch.manual_seed(4)
    assert not torch.equal(weights["fc3.weight"], LeNet300100().get_parameter("fc3.weight"))  # trained
    assert run("compress", "lenet-300-100", "--out", folder, "--epochs", 1, "--seed", 4) == 0
    assert sorted(os.listdir(folder)) == RUN_FILES
    assert_same_state(safetensors.torch.load_file(folder / "pretrained.safetensors"), weights)
    assert result_of(folder)["config"]["pretrain"]["weights"] == "pretrained.safetensors"


# What bad input gets: an output folder


def test_an_existing_result_needs_overwrite(copy: Path, refused: Refusals) -> None:
    args = ["compress", write_task(copy.parent), "--epochs", 1, "--out", copy]
    refused(*args, naming=["--overwrite", str(copy)])
    assert run(*args, "--overwrite") == 0
    assert result_of(copy)["config"]["retrain"]["epochs"] == 1
    assert sorted(os.listdir(copy)) == RUN_FILES


@pytest.mark.parametrize("command", [["demo"], ["pretrain", "lenet-300-100"]])
def test_an_existing_result_needs_overwrite_in_other_commands_too(
    command: list[str], mnist: tuple[Split, Split, Split], copy: Path, refused: Refusals
) -> None:
    refused(*command, "--out", copy, naming=["--overwrite", str(copy)])


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_an_output_folder_that_cannot_be_written(below: str, tmp_path: Path, refused: Refusals) -> None:
    (tmp_path / "file").write_text("not a folder")
    spec = write_task(tmp_path)
    refused("compress", spec, "--epochs", 1, "--out", tmp_path / "file" / below, naming=str(tmp_path / "file"))


def test_decompress_onto_an_existing_file(copy: Path, refused: Refusals) -> None:
    target = copy / "retrained.safetensors"
    refused("decompress", copy / "model.sws", target, naming=["--overwrite", str(target)])
    assert run("decompress", copy / "model.sws", target, "--overwrite") == 0
    assert_same_state(safetensors.torch.load_file(target), softshare.load(copy / "model.sws"))


def test_decompress_into_a_folder_that_is_not_there(copy: Path, refused: Refusals) -> None:
    target = copy / "missing" / "model.safetensors"
    refused("decompress", copy / "model.sws", target, naming=str(target))


# What bad input gets: a model


BAD_MODELS = {
    "no parameter at all": ("nn.Sequential(nn.ReLU())", ["no parameter to share"]),
    "no shareable parameter": ("nn.Sequential(nn.BatchNorm2d(1))", ["no parameter to share", "0.weight"]),
    "frozen": ("model.requires_grad_(False)", ["no parameter to share", "0.weight", "4.bias"]),
    "NaN": ("model; model[4].bias.data[1] = float('nan')", ["4.bias", "1 of 3", "NaN"]),
    "infinite": ("model; model[0].weight.data[2] = float('inf')", ["0.weight", "9 of 36", "infinite"]),
    "all equal": ("model; [p.data.fill_(0.25) for p in model.parameters()]", ["equal 0.25", "0.weight"]),
    "lazy": ("nn.Sequential(nn.Flatten(), nn.LazyLinear(3))", ["1.weight", "1.bias"]),
}


@pytest.mark.parametrize("kind", BAD_MODELS)
def test_a_model_that_cannot_be_shared(kind: str, tmp_path: Path, refused: Refusals) -> None:
    source, naming = BAD_MODELS[kind]
    spec = write_task(tmp_path, f"model = {source}")
    refused("compress", spec, "--epochs", 1, "--out", tmp_path / "run", naming=naming)


@pytest.mark.parametrize("kind", ["NaN", "no shareable parameter"])
def test_a_bad_model_does_not_cost_the_earlier_result(kind: str, copy: Path, refused: Refusals) -> None:
    source, naming = BAD_MODELS[kind]
    spec = write_task(copy.parent, f"model = {source}")
    refused("compress", spec, "--epochs", 1, "--out", copy, "--overwrite", naming=naming)


# What bad input gets: options


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("--components", "0", "components"),
        ("--tau", "-0.1", "tau"),
        ("--tau", "nan", "tau"),
        ("--epochs", "0", "epochs"),
        ("--lr-weights", "-1", "lr_weights"),
        ("--seed", str(2**70), "seed"),
        ("--init", "random", "init"),
        ("--zero-precision-prior", "alpha=-1,beta=2", "--zero-precision-prior"),
        ("--free-precision-prior", "std=0.1", "--free-precision-prior"),
        ("--mixing-prior", "std=1,strength=2", "--mixing-prior"),
        ("--rule", "fc1", "--rule"),
        ("--rule", "keep:fc1*", "keep:fc1*"),
        ("--codec", "zip", "codec"),
        ("--bogus", "1", "--bogus"),
    ],
)
def test_bad_options(option: str, value: str, name: str, tmp_path: Path, refused: Refusals) -> None:
    refused("compress", write_task(tmp_path), option, value, "--out", tmp_path / "run", naming=name)


def test_a_rule_that_matches_nothing_is_found_out_before_the_pre_training(
    mnist: tuple[Split, Split, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refusals
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_", lambda *_: pytest.fail("the network was pre-trained"))
    refused("compress", "lenet-300-100", "--rule", "keep:conv*", "--out", tmp_path / "run", naming="keep:conv*")


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "meta", "mps"])
def test_a_device_that_is_none(device: str, tmp_path: Path, refused: Refusals) -> None:
    for task in ("lenet-300-100", write_task(tmp_path)):
        refused("compress", task, "--epochs", 1, "--device", device, "--out", tmp_path / "run", naming="--device")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    refused("pretrain", "lenet-300-100", "--device", "cuda", "--out", tmp_path / "run", naming="--device cuda")


def test_an_unknown_experiment(tmp_path: Path, refused: Refusals) -> None:
    for command in ("pretrain", "compress"):
        refused(command, "lenet-7", "--out", tmp_path / "run", naming=["lenet-7", "lenet-300-100", "lenet-5-caffe"])


def test_an_experiment_whose_data_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    for command in ("pretrain", "compress"):
        refused(command, "wrn-16-4", "--out", tmp_path / "run", naming=["CIFAR-10", "--data", "SOFTSHARE_DATA"])
        naming = [f"CIFAR-10 is not in {tmp_path}", "cifar-10-batches-bin"]
        refused(command, "wrn-16-4", "--out", tmp_path / "run", "--data", tmp_path, naming=naming)


@pytest.mark.parametrize("command", ["pretrain", "compress"])
def test_options_of_an_experiment_that_are_wrong(command: str, tmp_path: Path, refused: Refusals) -> None:
    out = "--out", tmp_path / "run"
    refused(command, "lenet-300-100", *out, "--label-smoothing", 1, naming="label_smoothing: expected a share")
    refused(command, "wrn-16-4", *out, "--no-augment", naming=["--no-augment", "always augmented, as in the paper"])


@pytest.mark.parametrize(
    "flags", ["--data x", "--augment", "--no-augment", "--label-smoothing 0", "--data x --augment", "--from-scratch"]
)
def test_a_task_of_the_users_takes_no_options_of_an_experiment(flags: str, tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path)
    names = [word for word in flags.split() if word.startswith("--")]
    naming = [f"{', '.join(names)}: {spec}", "leave the option out"]
    refused("compress", spec, "--out", tmp_path / "run", *flags.split(), naming=naming)


def test_augmentation_and_smoothing_reach_the_task_and_the_result(
    mnist: tuple[Split, Split, Split], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[experiments.TaskConfig] = []
    make = experiments.make_task

    def noting(*args: Any) -> softshare.Task:
        seen.append(args[3])
        return make(*args)

    monkeypatch.setattr("softshare.zoo.experiments.make_task", noting)
    given = experiments.TaskConfig(augment=True, label_smoothing=0.1)
    flags = "--augment", "--label-smoothing", 0.1
    assert run("pretrain", "lenet-300-100", "--out", tmp_path / "run", *flags) == 0
    assert run("compress", "lenet-300-100", "--out", tmp_path / "run", "--epochs", 1, *flags) == 0
    assert seen == [given, given]
    assert result_of(tmp_path / "run")["config"]["task"] == {
        "augment": True,
        "label_smoothing": 0.1,
        "from_scratch": False,
    }


def test_cifar_10_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "N_RECORDS", N)
    monkeypatch.setattr(datasets, "N_VALIDATION", 10)
    monkeypatch.setitem(experiments.EXPERIMENTS, "wrn-16-4", tiny_wrn())
    write_binary(tmp_path / "data" / "cifar-10-batches-bin")
    args = "compress", "wrn-16-4", "--data", tmp_path / "data", "--augment", "--epochs", 1
    assert run(*args, "--out", tmp_path / "run") == 0
    result = result_of(tmp_path / "run")
    assert (result["experiment"], result["dataset"]) == ("wrn-16-4", "CIFAR-10 (unknown copy)")
    assert "task" not in result["config"]  # it is augmented anyway: nothing was changed
    monkeypatch.setenv("SOFTSHARE_DATA", str(tmp_path / "data"))
    assert run("evaluate", tmp_path / "run", "--device", "cpu") == 0


class TinyNet(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Conv2d(3, 4, 5, stride=4), torch.nn.Flatten(), torch.nn.Linear(196, 10))


def tiny_wrn() -> experiments.Experiment:
    """The experiment with a network for a test."""
    pretrain = RetrainConfig(epochs=1)
    return dataclasses.replace(experiments.EXPERIMENTS["wrn-16-4"], make_model=TinyNet, pretrain=pretrain)


# What bad input gets: a task


@pytest.mark.parametrize(
    ("function", "extra", "naming"),
    [
        ("missing", "", "missing"),
        ("answer", "answer = 42", "answer"),
        ("wrong", "def wrong():\n    return model", "Sequential"),
        ("nothing", "def nothing():\n    pass", "NoneType"),
        ("no_model", "def no_model():\n    return make_task(model=3)", "Task.model"),
        ("no_loss", "def no_loss():\n    return make_task(loss=None)", "Task.loss"),
        ("no_error", "def no_error():\n    return make_task(evaluate=5.0)", "Task.evaluate"),
        ("no_test", "def no_test():\n    return make_task(test=5.0)", "Task.test"),
        ("no_outputs", "def no_outputs():\n    return make_task(outputs=5.0)", "Task.outputs"),
        ("no_n", "def no_n():\n    return make_task(n_examples=0)", "Task.n_examples"),
        ("half_n", "def half_n():\n    return make_task(n_examples=0.5)", "Task.n_examples"),
        ("no_batches", "def no_batches():\n    return make_task(train=3)", "Task.train"),
        ("vector", "def vector():\n    return make_task(loss=lambda m, b: m(b[0])[:, 0])", "Task.loss"),
    ],
)
def test_a_make_task_that_is_wrong(function: str, extra: str, naming: str, tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path, extra).replace(":task", f":{function}")
    refused("compress", spec, "--epochs", 1, "--out", tmp_path / "run", naming=naming)


@pytest.mark.parametrize("spec", ["missing.py:make_task", "net.py", "net:make_task", "net.txt:make_task", ":make_task"])
def test_a_task_that_is_not_there(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refusals
) -> None:
    write_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    refused("compress", spec, "--out", "run", naming=[spec, "FILE.py:make_task" if spec[0] != "m" else "missing.py"])


ONE_PASS = """
class OnePass:
    def __init__(self):
        self.batches = iter(data)

    def __iter__(self):
        return self.batches
"""


@pytest.mark.parametrize(
    ("train", "epochs", "naming"),
    [
        ("[]", 1, "no batch"),
        ("(batch for batch in data)", 1, "only once"),
        ("iter(data)", 1, "only once"),
        ("zip(data)", 1, "only once"),
        ("OnePass()", 2, "each time"),
    ],
)
def test_a_training_iterable_that_is_empty_or_cannot_be_iterated_twice(
    train: str, epochs: int, naming: str, tmp_path: Path, refused: Refusals
) -> None:
    spec = write_task(tmp_path, f"{ONE_PASS}\n\ndef task():\n    return make_task(train={train})")
    refused("compress", spec, "--epochs", epochs, "--out", tmp_path / "run", naming=["Task.train", naming])


# What bad input gets: weights


def test_weights_that_do_not_fit_are_all_listed(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    state = safetensors.torch.load_file(finished / "pretrained.safetensors")
    del state["4.bias"], state["1.running_var"]
    state |= {"4.weight": torch.zeros(64, 3), "5.weight": torch.zeros(1), "head": torch.zeros(1)}
    safetensors.torch.save_file(state, tmp_path / "other.safetensors")
    message = refused(
        *("compress", write_task(tmp_path), "--out", tmp_path / "run", "--weights", tmp_path / "other.safetensors"),
        naming=[str(tmp_path / "other.safetensors"), "(64, 3)", "(3, 64)"],
    )
    lines = [line.strip() for line in message.splitlines()[1:]]
    assert sorted(line.split(":")[0] for line in lines) == [
        "4.weight",
        "missing from the file",
        "missing from the file",
        "not in the model",
        "not in the model",
    ]
    for name in ("4.bias", "1.running_var", "4.weight", "5.weight", "head"):
        assert sum(name in line for line in lines) == 1


def test_weights_that_do_not_fit_an_experiment(
    mnist: tuple[Split, Split, Split], finished: Path, tmp_path: Path, refused: Refusals
) -> None:
    args = ["--weights", finished / "pretrained.safetensors", "--out", tmp_path / "run"]
    refused("compress", "lenet-300-100", *args, naming=["0.weight", "fc1.weight", "fc3.bias"])


def test_weights_that_are_missing_pickled_or_damaged(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    torch.save({"0.weight": torch.zeros(1)}, tmp_path / "pickled.pt")
    whole = (finished / "pretrained.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-1])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    spec = write_task(tmp_path)
    for name in ("missing.safetensors", "pickled.pt", "cut.safetensors", "empty.safetensors", "."):
        args = ["--weights", tmp_path / name, "--out", tmp_path / "run"]
        refused("compress", spec, *args, naming=str(tmp_path / name))
    refused(*("compress", spec, "--weights", finished / "model.sws", "--out", tmp_path / "run"), naming="safetensors")


def test_weights_are_read_into_a_users_model(finished: Path, tmp_path: Path) -> None:
    retrained = finished / "retrained.safetensors"
    args = ["--weights", retrained, "--epochs", 1, "--out", tmp_path / "run"]
    assert run("compress", write_task(tmp_path), *args) == 0
    assert (tmp_path / "run" / "pretrained.safetensors").read_bytes() == retrained.read_bytes()


# What bad input gets: a file


@pytest.mark.parametrize(
    ("damage", "inspected", "decoded"),
    [
        (lambda data: b"", "every .sws file", "every .sws file"),
        (lambda data: b"PK\3\4" + data[4:], "every .sws file", "every .sws file"),
        (lambda data: data[:-1], "header, byte", "checksum, byte"),
        (lambda data: data[:100], "header, byte", "checksum, byte"),
        (lambda data: data[:6], "every .sws file", "every .sws file"),
        (lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], None, "checksum, byte"),
        (lambda data: data + b"\0", "header, byte", "checksum, byte"),
        (lambda data: data[:4] + b"\7" + data[5:], "expected version 1, got 7", "expected version 1, got 7"),
    ],
    ids=["empty", "not .sws", "one byte short", "short", "very short", "one bit altered", "longer", "newer"],
)
def test_a_file_that_cannot_be_decoded(
    damage: Any, inspected: str | None, decoded: str, copy: Path, refused: Refusals
) -> None:
    """`inspect` reads headers only, and so does not see a bit that is wrong elsewhere."""
    file = copy / "model.sws"
    file.write_bytes(damage(file.read_bytes()))
    for args in (["decompress", file, copy / "a.safetensors"], ["evaluate", copy]):
        refused(*args, naming=[str(file), decoded, "expected", "got"])
    for args in (["inspect", file], ["inspect", "--json", file]):
        if inspected is None:
            assert run(*args) == 0
        else:
            refused(*args, naming=[str(file), inspected, "expected", "got"])


def test_a_file_that_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    for path in (tmp_path / "missing.sws", tmp_path):
        for args in (["inspect", path], ["decompress", path, tmp_path / "a.safetensors"]):
            refused(*args, naming=str(path))


def test_a_run_that_is_none(copy: Path, refused: Refusals) -> None:
    refused("evaluate", copy / "missing", naming=str(copy / "missing" / "result.json"))
    good = (copy / "result.json").read_text()
    for bad in ("", "[]", "{}", good[:-9], json.dumps(json.loads(good) | {"schema": 2})):
        (copy / "result.json").write_text(bad)
        refused("evaluate", copy, naming=[str(copy / "result.json"), "not a result"])
    (copy / "result.json").write_text(good)
    (copy / "model.sws").unlink()
    refused("evaluate", copy, naming=str(copy / "model.sws"))


def test_a_run_of_another_network(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    other = write_task(tmp_path, "model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))")
    refused("evaluate", finished, "--task", other, naming=["0.weight", "1.weight", "4.bias"])


def test_a_run_of_a_task_with_a_name_of_its_own(tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path, "def task():\n    return make_task(name='mine')")
    assert run("compress", spec, "--epochs", 1, "--out", tmp_path / "run") == 0
    assert result_of(tmp_path / "run")["experiment"] == "mine"
    refused("evaluate", tmp_path / "run", naming=["mine", "--task"])
    assert run("evaluate", tmp_path / "run", "--task", spec) == 0


# A run that fails later


def test_a_run_that_diverges_keeps_the_last_good_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path)
    assert run("compress", spec, "--epochs", 2, "--lr-weights", 1e30, "--out", tmp_path / "run") == 2
    message = capsys.readouterr().err
    assert "diverged in epoch 1" in message
    assert "lr_weights" in message
    assert sorted(os.listdir(tmp_path / "run")) == [
        "frames.npz",
        "history.csv",
        "last_good.safetensors",
        "pretrained.safetensors",
    ]
    good = safetensors.torch.load_file(tmp_path / "run" / "last_good.safetensors")
    assert_same_state(good, safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors"))
    assert all(bool(t.isfinite().all()) for t in good.values())


def test_a_users_own_error_is_shown_as_it_is(tmp_path: Path) -> None:
    spec = write_task(tmp_path, "def task():\n    raise ZeroDivisionError('of my own')")
    with pytest.raises(ZeroDivisionError, match="of my own"):
        run("compress", spec, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Tasks of the user's


def test_a_task_file_may_import_its_neighbours_and_be_called_anything(finished: Path, tmp_path: Path) -> None:
    spec = write_task(tmp_path)
    file = Path(spec.rpartition(":")[0])
    (tmp_path / "json_neighbour.py").write_text("SEED = 3")
    (tmp_path / "json.py").write_text("from json_neighbour import SEED\n" + file.read_text())
    import json as before

    assert (
        main(
            [
                "compress",
                f"{tmp_path / 'json.py'}:{spec.rpartition(':')[2]}",
                "--out",
                str(tmp_path / "r"),
                "--epochs",
                "1",
            ]
        )
        == 0
    )
    import json as after

    assert before is after
    assert hasattr(after, "loads")


def test_device_is_refused_for_a_task_file(tmp_path: Path, refused: Refusals) -> None:
    refused("compress", write_task(tmp_path), "--device", "cpu", "--out", tmp_path / "run", naming=["--device cpu"])


def test_a_pass_that_is_missing_after_the_training_does_not_cost_the_training(tmp_path: Path) -> None:
    spec = write_task(tmp_path, f"{ONE_PASS}\n\ndef task():\n    return make_task(train=OnePass())")
    assert main(["compress", spec, "--epochs", "1", "--out", str(tmp_path / "run")]) == 2
    assert (tmp_path / "run" / "retrained.safetensors").exists()
    assert not (tmp_path / "run" / "result.json").exists()
