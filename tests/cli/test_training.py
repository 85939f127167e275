"""The commands that train: `softshare compress`, `demo` and `pretrain`, from the task to the folder of the run."""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import html
import itertools
import json
import math
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import softshare
from cli_runs import (
    ACCURATE,
    RUN_FILES,
    Refusals,
    TinyNet,
    assert_same_state,
    contents,
    result_of,
    run,
    tiny_experiment,
    write_task,
    write_trained_task,
)
from random_kills import WRITTEN
from softshare.cli import main
from softshare.config import CompressConfig, RetrainConfig
from softshare.result import Result
from softshare.verdict import verdict
from softshare.zoo import experiments
from softshare.zoo.datasets import Split, load_mnist
from softshare.zoo.models import LeNet300100


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return tiny_experiment(tmp_path, monkeypatch)


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


# A user's task


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
        if name.startswith("1."):  # the rest is stored exactly
            assert torch.equal(decoded[name], after[name])
    values = {v for n in ("0.weight", "0.bias", "4.weight", "4.bias") for v in decoded[n].flatten().tolist()}
    assert len(values) <= 17


def test_compress_prints_where_and_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compress", write_task(tmp_path), "--epochs", 1, "--no-limit", "--out", tmp_path / "[b]run") == 0
    text = "".join(line.rstrip("\n") for line in capsys.readouterr().out.splitlines())
    assert "[b]run" in text
    assert f"{result_of(tmp_path / '[b]run')['file_bytes']:,}" in text
    assert "Description length" not in text  # nor any other detail


def test_details_are_shown_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The panel comes first. The table counts shared weights, the comparison all parameters, and both say so."""
    folder = tmp_path / "run"
    assert run("compress", write_task(tmp_path), "--epochs", 1, "--no-limit", "--out", folder, "--verbose") == 0
    text = capsys.readouterr().out
    parts = [
        "one standard",
        "softshare report",
        "Shared weights that are not 0",
        "Description length",
        "all non-zero %",
    ]
    assert sorted(parts, key=text.index) == parts
    assert "The run used one seed (0)" in text


def test_a_dead_layer_is_said_and_so_is_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path)
    rule = ("--rule", "keep:4.weight")
    assert run("compress", spec, "--epochs", 3, "--tau", 0.5, "--no-limit", *rule, "--out", tmp_path / "run") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.count("0.weight is all zero") == 1
    assert "of the weights are kept as they are: 4.weight" in text


@pytest.mark.parametrize(("after", "says"), [(5.0, False), (9.5, False), (12.0, True)])
def test_compress_says_what_is_lost_on_the_test_set(
    after: float, says: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it is more than twice the noise there, whatever validation says."""
    test = f"{after} if len(model[4].weight.unique()) <= 17 else 5.0"  # known by its few values
    spec = write_task(
        tmp_path,
        "def test(model):\n"
        "    model(torch.cat([x for x, _ in data]))\n"
        f"    return {test}\n\n\n"
        "def task():\n"
        "    return make_task(evaluate=lambda model: 4.0, test=test)",
    )
    assert run("compress", spec, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 0
    share = (0.05 * 64 + 0.5) / 65
    noise = 100 * math.sqrt(share * (1 - share) / 64)
    text = " ".join(capsys.readouterr().out.split())
    said = f"error 5.00% -> {after:.2f}%, where one standard error is {noise:.2f}%."
    assert (f"Lost {after - 5:.2f} points: {said}" in text.replace(" │ │ ", " ")) == says
    assert ("Kept its accuracy" in text) == (not says)
    result = result_of(tmp_path / "run")
    assert (result["error_before"], result["error_after"]) == (5.0, after)  # of `test`, not of `evaluate`
    assert result["noise"] == pytest.approx(noise)


def test_a_task_is_shown_by_its_own_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The network is the one of `finished`, so the accuracy is what its error leaves of 100."""
    spec = write_task(tmp_path, ACCURATE)
    assert run("compress", spec, "--epochs", 2, "--no-limit", "--seed", 7, "--out", tmp_path / "run") == 0
    text = capsys.readouterr().out
    result = result_of(tmp_path / "run")
    assert result["metric"] == {"name": "accuracy", "unit": "%", "higher_is_better": True}
    assert result["error_before"] == 100 - 100 * round(64 * (1 - result["error_before"] / 100)) / 64
    shown = f"accuracy  {result['error_before']:.2f}% -> {result['error_after']:.2f}% (noise "
    before, after = result["others"]["loss"]
    assert shown in text
    words = " ".join(text.replace("│", " ").split())
    assert "error" not in words.replace("standard error", "")
    assert re.search(rf"│ loss +{before:.4g} -> {after:.4g} ", text)
    assert run("evaluate", tmp_path / "run", "--trust") == 0
    assert f"Measured: accuracy {result['error_after']:.4f}%, " in capsys.readouterr().out
    assert run("verify", tmp_path / "run", "--task", spec) == 0
    assert "accuracy %" in capsys.readouterr().out
    assert run("report", tmp_path / "run") == 0
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert f"{result['error_before']:.2f} → {result['error_after']:.2f}%" in page
    assert "Validation accuracy" in page
    assert "alidation error" not in page


def test_a_metric_that_is_nan_in_the_end_is_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path, "def task():\n    return make_task(test=lambda model: float('nan'))")
    assert run("compress", spec, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 2
    message = capsys.readouterr().err
    assert "Task.test returned nan for the error of the network" in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("option", "value", "status", "text"),
    [
        ("--max-bytes", 215, 0, "The target is met."),
        ("--max-macs-ratio", 0.5, 0, "The target is met."),
        ("--max-error", 0.0, 3, "The target is not met."),
    ],
)
def test_a_target_is_met_or_the_exit_status_is_3(
    option: str, value: float, status: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("--epochs", 3, "--zero-mixing", 0.5, option, value, "--out", tmp_path / "run")
    assert run("compress", write_task(tmp_path), *args) == status
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text in printed
    assert ("No network within the target was found" in printed) == (status == 3)
    assert sorted(contents(tmp_path / "run")) == RUN_FILES  # the nearest network was written
    result = result_of(tmp_path / "run")
    kinds = {"--max-bytes": "MaxBytes", "--max-macs-ratio": "MaxMacs", "--max-error": "MaxError"}
    assert result["outcome"]["target"] == {"kind": kinds[option], option[2:].replace("-", "_"): value}
    assert result["outcome"]["met"] == (status == 0)
    assert result["file_bytes"] == (tmp_path / "run" / "model.sws").stat().st_size
    if option == "--max-bytes":
        assert 0.9 * value <= result["outcome"]["reached"] == result["file_bytes"] <= value


def test_by_default_the_network_is_as_good_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several runs, a history of all of them, and the verdict as the first words."""
    assert run("compress", write_trained_task(tmp_path), "--steps", 60, "--out", tmp_path / "run") == 0
    captured = capsys.readouterr()
    result = result_of(tmp_path / "run")
    outcome = result["outcome"]
    assert outcome["target"] == {"kind": "WithinNoise"}
    assert outcome["met"] is outcome["kept"] is True
    assert outcome["after"] <= outcome["before"] + outcome["noise"]
    assert outcome["after"] == result["error_after"]
    assert result["noise"] == outcome["noise"]
    said = verdict(Result.load(tmp_path / "run" / "result.json"))
    assert said.fate == "kept"
    assert " ".join(captured.out.replace("│", " ").split()[1:]).startswith(said.sentence)  # after the frame
    assert len(captured.out.splitlines()) <= 12
    assert "retrain, run 2" in captured.err
    with (tmp_path / "run" / "history.csv").open(newline="") as file:
        looks = [int(row["epoch"]) for row in csv.DictReader(file)]
    assert looks[:11] == list(range(11))  # a run of 60 steps is looked at ten times
    assert any(a == b for a, b in itertools.pairwise(looks))  # where a run starts
    assert run("evaluate", tmp_path / "run", "--trust") == 0
    config = ("--config", tmp_path / "run" / "result.json")
    assert run("compress", f"{tmp_path / 'trained.py'}:task", *config, "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "model.sws").read_bytes() == (tmp_path / "run" / "model.sws").read_bytes()


def test_a_network_that_cannot_be_compressed_without_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here any change of the weights makes it worse."""
    start = "start = model[4].weight.detach().clone()"
    evaluate = "lambda model: 1.0 if torch.equal(model[4].weight, start) else 30.0"
    spec = write_task(
        tmp_path, f"{start}\n\n\ndef task():\n    return make_task(evaluate={evaluate}, noise=lambda model: 0.5)"
    )
    args = ("--epochs", 1, "--zero-mixing", 0.5, "--components", 2, "--out", tmp_path / "run")
    assert run("compress", spec, *args) == 3
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Lost 29.00 points: error 1.00% -> 30.00%, where one standard error is 0.50%." in text
    assert "No network within the target was found" in text
    assert sorted(contents(tmp_path / "run")) == RUN_FILES
    outcome = result_of(tmp_path / "run")["outcome"]
    assert (outcome["met"], outcome["kept"], outcome["noise"]) == (False, False, 0.5)


def test_targets_that_are_refused(tmp_path: Path, refused: Refusals) -> None:
    spec, folder = write_task(tmp_path), tmp_path / "run"
    two = ("--max-error", 2, "--max-error-increase", 0.5)
    refused("compress", spec, *two, "--out", folder, naming="expected one target, got 2: MaxError(max_error=2.0), Max")
    refused("compress", spec, "--max-bytes", 3, "--out", folder, naming="expected at least")
    refused("compress", spec, "--max-error", "nan", "--out", folder, naming="MaxError: expected")
    refused("compress", spec, "--max-error-increase", -1, "--out", folder, naming="MaxErrorIncrease: expected")
    refused(
        "compress", spec, "--max-error", 2, "--no-limit", "--out", folder, naming="got 2: MaxError(max_error=2.0), --n"
    )
    refused(
        "compress", spec, "--config", "paper", "--max-error", 2, "--out", folder, naming="expected hard_from below 1"
    )


def test_the_default_folder_carries_the_files_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.pytorch").mkdir()
    spec = write_task(tmp_path / "my.pytorch")
    monkeypatch.chdir(tmp_path)
    assert run("compress", spec, "--epochs", 1, "--no-limit") == 0
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


def test_the_command_is_in_the_result_and_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path)
    monkeypatch.chdir(tmp_path)
    typed = "softshare compress net.py:task --epochs 1 --no-limit --out 'a <b>'"
    monkeypatch.setattr("sys.argv", shlex.split(typed))
    assert main() == 0  # as in a terminal, without arguments of its own
    assert result_of(tmp_path / "a <b>")["command"] == typed
    assert run("report", "a <b>") == 0
    page = (tmp_path / "a <b>" / "report" / "index.html").read_text()
    shown = page.partition("<dt>Command</dt><dd><code>")[2].partition("</code>")[0]
    assert "<" not in shown
    assert html.unescape(shown) == typed


def test_a_width_beside_the_papers_settings_is_refused_with_advice(tmp_path: Path, refused: Refusals) -> None:
    args = ["compress", write_task(tmp_path), "--config", "paper", "--epochs", 1, "--width", 0.3]
    message = refused(*args, "--out", tmp_path / "run", naming="init_std, zero_precision_prior, free_precision_prior: ")
    assert "To use these, set width to None ('none' on the command line)" in message
    nones = "--init-std none --zero-precision-prior none --free-precision-prior none"
    assert run(*args, *nones.split(), "--out", tmp_path / "run") == 0
    assert result_of(tmp_path / "run")["config"]["prior"]["width"] == 0.3


def test_a_tensor_in_any_memory_layout(tmp_path: Path) -> None:
    channels_last = "model[0].weight.data = model[0].weight.data.to(memory_format=torch.channels_last)"
    transposed = "model[4].weight.data = model[4].weight.data.t().contiguous().t()"
    spec = write_task(tmp_path, f"{channels_last}\n{transposed}")
    assert run("compress", spec, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 0
    assert run("evaluate", tmp_path / "run", "--trust") == 0


# An experiment


def test_an_experiment_is_pre_trained_and_compressed(experiment: str, tmp_path: Path) -> None:
    """The data come from SOFTSHARE_DATA or from --data. An option without effect is not recorded."""
    args = "compress", experiment, "--augment", "--epochs", 1, "--data", tmp_path / "data" / "cifar-10-batches-bin"
    assert run(*args, "--no-limit", "--out", tmp_path / "run") == 0
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    result = result_of(tmp_path / "run")
    assert (result["experiment"], result["dataset"]) == ("wrn-16-4", "CIFAR-10 (unknown copy)")
    assert "task" not in result["config"]  # it is always augmented, so nothing was changed
    assert run("evaluate", tmp_path / "run", "--device", "cpu") == 0


def test_compress_an_experiment_from_scratch(experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_", lambda *_: pytest.fail("the network was pre-trained"))
    args = ["compress", experiment, "--from-scratch", "--epochs", 1, "--seed", 4, "--out", tmp_path / "run"]
    assert run(*args) == 4  # quantized after one epoch, the fresh network dies
    assert sorted(os.listdir(tmp_path / "run")) == RUN_FILES
    torch.manual_seed(4)
    fresh = TinyNet().state_dict()
    assert_same_state(safetensors.torch.load_file(tmp_path / "run" / "pretrained.safetensors"), fresh)
    result = result_of(tmp_path / "run")
    assert result["config"]["task"]["from_scratch"] is True
    assert result["outcome"]["target"] is None  # a fresh network has no accuracy to keep
    assert result["config"]["pretrain"] is None


def test_from_scratch_uses_no_trained_network(experiment: str, tmp_path: Path, refused: Refusals) -> None:
    safetensors.torch.save_file(TinyNet().state_dict(), tmp_path / "pretrained.safetensors")
    args = ["compress", experiment, "--from-scratch", "--epochs", 1, "--no-limit"]
    refused(*args, "--out", tmp_path, naming=["--overwrite", str(tmp_path)])
    weights = tmp_path / "pretrained.safetensors"
    refused(*args, "--weights", weights, "--out", tmp_path / "run", naming=["--from-scratch", "--weights"])
    refused(*args, "--distill", 0.5, "--out", tmp_path / "run", naming=["--from-scratch", "--distill"])


def test_an_experiments_target_and_rules_are_checked_before_it_is_pre_trained(
    experiment: str, tmp_path: Path, refused: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softshare.cli.run_task.pretrain_into", lambda *_: pytest.fail("it was pre-trained"))
    for args, text in (
        (["--max-bytes", 3], "expected at least"),
        (["--max-error", 2, "--hard-from", 1], "expected hard_from below 1"),
        (["--max-error", 2, "--max-bytes", 900], "expected one target"),
        (["--rule", "keep:conv*"], "keep:conv*"),
    ):
        refused("compress", experiment, *args, "--out", tmp_path / "run", naming=text)


@pytest.mark.slow
def test_compress_an_experiment_from_given_weights(mnist: tuple[Split, Split, Split], tmp_path: Path) -> None:
    torch.manual_seed(3)
    weights = LeNet300100().state_dict()
    safetensors.torch.save_file(weights, tmp_path / "weights.safetensors")
    args = ["compress", "lenet-300-100", "--weights", tmp_path / "weights.safetensors", "--out", tmp_path / "run"]
    assert run(*args, "--epochs", 1, "--no-limit") == 0
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
    assert run("evaluate", tmp_path / "run", "--trust") == 0


@pytest.mark.slow
def test_demo(mnist: tuple[Split, Split, Split], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--verbose", "--out", tmp_path / "demo") in WRITTEN
    printed = capsys.readouterr().out
    folder = tmp_path / "demo"
    assert sorted(os.listdir(folder)) == sorted([*RUN_FILES, "report"])
    assert os.listdir(folder / "report") == ["draw.html"]
    assert f"Draw for the network:     {folder / 'report' / 'draw.html'}" in printed
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
        "paper, estimated",
        "1.89 -> 1.94",
        "64.0",
        f"{result['file_bytes']:,}",
        f"{result['ratio']:.1f}",
    ):
        assert text in printed


@pytest.mark.slow
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
    assert run("compress", "lenet-300-100", "--out", folder, "--epochs", 1, "--no-limit", "--seed", 4) in WRITTEN
    assert sorted(os.listdir(folder)) == RUN_FILES
    assert_same_state(safetensors.torch.load_file(folder / "pretrained.safetensors"), weights)
    assert result_of(folder)["config"]["pretrain"]["weights"] == "pretrained.safetensors"


def test_a_teacher_in_pretraining(experiment: str, tmp_path: Path, refused: Refusals, monkeypatch: Any) -> None:
    """It changes what is learned. A file that does not fit, and an experiment without a teacher, are refused."""
    teacher = experiments.EXPERIMENTS[experiment]
    taught = dataclasses.replace(teacher, name="mobile-100k", teacher=experiment, captured=True)
    monkeypatch.setitem(experiments.EXPERIMENTS, "mobile-100k", taught)
    assert run("pretrain", experiment, "--out", tmp_path / "teacher", "--device", "cpu", "--seed", 5) == 0
    weights = tmp_path / "teacher" / "pretrained.safetensors"
    for name, options in (("alone", ()), ("taught", ("--teacher", weights))):
        assert run("pretrain", "mobile-100k", "--out", tmp_path / name, "--device", "cpu", *options) == 0
    alone, other = (
        safetensors.torch.load_file(tmp_path / name / "pretrained.safetensors") for name in ("alone", "taught")
    )
    assert not torch.equal(alone["2.weight"], other["2.weight"])
    refused("pretrain", experiment, "--teacher", weights, "--out", tmp_path / "x", naming="expected an experiment that")
    safetensors.torch.save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
    refused("pretrain", "mobile-100k", "--teacher", tmp_path / "w.safetensors", "--out", tmp_path / "x", naming="fit")


@pytest.mark.slow
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
    assert run("compress", "lenet-300-100", "--out", tmp_path / "run", "--epochs", 1, "--no-limit", *flags) in WRITTEN
    assert seen == [given, given]
    assert result_of(tmp_path / "run")["config"]["task"] == {
        "augment": True,
        "label_smoothing": 0.1,
        "from_scratch": False,
    }


# Bad input


def test_an_existing_run_needs_overwrite(copy: Path, experiment: str, refused: Refusals) -> None:
    args = ["compress", write_task(copy.parent), "--epochs", 1, "--no-limit", "--out", copy]
    refused(*args, naming=["--overwrite", str(copy)])
    refused("pretrain", experiment, "--out", copy, naming=["--overwrite", str(copy)])
    assert run(*args, "--overwrite") == 0
    assert result_of(copy)["config"]["retrain"]["epochs"] == 1
    assert sorted(os.listdir(copy)) == RUN_FILES


def test_an_output_folder_that_cannot_be_written(tmp_path: Path, refused: Refusals) -> None:
    (tmp_path / "file").write_text("not a folder")
    spec = write_task(tmp_path)
    for below in ("", "a/b"):
        refused("compress", spec, "--epochs", 1, "--out", tmp_path / "file" / below, naming=str(tmp_path / "file"))


BAD_MODELS = {
    "no parameter at all": ("nn.Sequential(nn.ReLU())", ["no parameter to share"]),
    "no shareable parameter": ("nn.Sequential(nn.BatchNorm2d(1))", ["no parameter to share", "0.weight"]),
    "frozen": ("model.requires_grad_(False)", ["no parameter to share", "0.weight", "4.bias"]),
    "NaN": ("model; model[4].bias.data[1] = float('nan')", ["4.bias", "1 of 3", "NaN"]),
    "infinite": ("model; model[0].weight.data[2] = float('inf')", ["0.weight", "9 of 36", "infinite"]),
    "all equal": ("model; [p.data.fill_(0.25) for p in model.parameters()]", ["equal 0.25", "0.weight"]),
    "lazy": ("nn.Sequential(nn.Flatten(), nn.LazyLinear(3))", ["1.weight", "1.bias"]),
}


def test_a_model_that_cannot_be_shared(copy: Path, refused: Refusals) -> None:
    """It does not cost the earlier run either."""
    for source, naming in BAD_MODELS.values():
        spec = write_task(copy.parent, f"model = {source}")
        refused("compress", spec, "--epochs", 1, "--out", copy.parent / "new", naming=naming)
        refused("compress", spec, "--epochs", 1, "--out", copy, "--overwrite", naming=naming)


def test_bad_options(tmp_path: Path, refused: Refusals) -> None:
    """Options are tested in test_options.py. Here: whatever finds the problem, nothing is written."""
    for option, value, name in (
        ("--components", "0", "components"),
        ("--tau", "nan", "tau"),
        ("--seed", str(2**70), "seed"),
        ("--zero-precision-prior", "alpha=-1,beta=2", "--zero-precision-prior"),
        ("--rule", "keep:fc1*", "keep:fc1*"),
        ("--bogus", "1", "--bogus"),
    ):
        refused("compress", write_task(tmp_path), option, value, "--out", tmp_path / "run", naming=name)


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
    experiment: str, finished: Path, tmp_path: Path, refused: Refusals
) -> None:
    args = ["--weights", finished / "pretrained.safetensors", "--out", tmp_path / "run"]
    refused("compress", experiment, *args, naming=["0.weight", "2.weight", "4.bias"])


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
    args = ["--weights", retrained, "--epochs", 1, "--no-limit", "--out", tmp_path / "run"]
    assert run("compress", write_task(tmp_path), *args) == 0
    assert (tmp_path / "run" / "pretrained.safetensors").read_bytes() == retrained.read_bytes()


# A run that fails later


def test_a_run_that_diverges_keeps_the_last_good_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_task(tmp_path)
    assert run("compress", spec, "--epochs", 2, "--no-limit", "--lr-weights", 1e30, "--out", tmp_path / "run") == 2
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
