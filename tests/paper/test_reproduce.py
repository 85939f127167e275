"""Recipes of one epoch on a few images. `verify` finds what `reproduce` keeps."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from digits import digits
from softshare._util import run_folder
from softshare._util.files import write_atomic
from softshare._util.run_folder import write_pair
from softshare.cli import main
from softshare.config import CompressConfig, RetrainConfig
from softshare.errors import ConfigError, FormatError, NotAvailableError
from softshare.paper import recipes
from softshare.paper import reproduce as module
from softshare.paper.baselines import DeepCompressionConfig, DnsConfig, PruneConfig, ShareConfig, SurgeryConfig
from softshare.paper.baselines.rival_config import TrainConfig
from softshare.paper.recipes import Recipe, get_recipe
from softshare.paper.reproduce import recorded_config, reproduce
from softshare.paper.results_page import points
from softshare.paper.verify import verify
from softshare.result import Result
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.resume import Checkpoint
from softshare.zoo import experiments
from softshare.zoo.datasets import Split
from softshare.zoo.experiments import TaskConfig, pretraining_settings

NAME = "lenet-300-100"
PRETRAIN = RetrainConfig(epochs=1, lr_weights=2e-3)
SHARE = ShareConfig(fc_bits=2, share_epochs=1)
OURS = CompressConfig().override(epochs=1, tau=0.5)
RECIPES = (
    Recipe(NAME, "softshare", PRETRAIN, TaskConfig(), OURS),
    Recipe(NAME, "deep-compression", PRETRAIN, TaskConfig(), DeepCompressionConfig(
        train=TrainConfig(), share=SHARE, prune=PruneConfig(rounds=1, round_epochs=1))),
    Recipe(NAME, "dns", PRETRAIN, TaskConfig(), DnsConfig(
        train=TrainConfig(), share=SHARE, surgery=SurgeryConfig(surgery_epochs=1, settle_epochs=0))),
    Recipe(NAME, "scratch", None, TaskConfig(label_smoothing=0.1), OURS),
    Recipe("wrn-16-4", "softshare", PRETRAIN, TaskConfig(), OURS),
)  # fmt: skip
METHODS = ("softshare", "deep-compression", "dns", "scratch")


def few() -> tuple[Split, Split, Split]:
    return digits(256, 256, 256)


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "load_mnist", few)
        patch.setattr(recipes, "RECIPES", RECIPES)
        patch.delenv("SOFTSHARE_DATA", raising=False)
        yield


class Recorder:
    """Makes hooks that note the titles, and the settings of cuDNN at every step."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.cudnn: set[tuple[bool, bool]] = set()

    def __call__(self, title: str) -> Sequence[Hook]:
        self.titles.append(title)
        return [_Note(self)]


class _Note(Hook):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def on_step(self, epoch: int, step: int) -> None:
        self.recorder.cudnn.add(_cudnn())


def _cudnn() -> tuple[bool, bool]:
    return torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark


def no_training(title: str) -> Sequence[Hook]:
    raise AssertionError(f"{title} was trained")


@dataclasses.dataclass
class Made:
    out: Path
    results: list[Result]
    recorder: Recorder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Four methods with two seeds each. Do not change them: see `copy`."""
    out, recorder = tmp_path_factory.mktemp("made") / "results", Recorder()
    return Made(out, list(reproduce(NAME, METHODS, [0, 1], out, hooks=recorder)), recorder)


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.out, tmp_path / "results"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def place(method: str, seed: int) -> str:
    return f"{NAME}/{method}/seed-{seed}"


def pair(method: str, seed: int) -> list[str]:
    return [f"{place(method, seed)}/{name}" for name in ("model.sws", "result.json")]


def stable(result: Result) -> Result:
    """The result without its time, which differs between runs."""
    return dataclasses.replace(result, seconds=0.0)


# What is kept


def test_pairs_and_nothing_else(made: Made) -> None:
    assert list(contents(made.out)) == sorted(f for m in METHODS for seed in (0, 1) for f in pair(m, seed))
    assert [(r.seed, r.method) for r in made.results] == [(seed, m) for seed in (0, 1) for m in METHODS]
    for r in made.results:
        assert Result.load(made.out / NAME / r.method / f"seed-{r.seed}" / "result.json") == r
        assert (r.experiment, r.dataset, r.device) == (NAME, "MNIST", "cpu")
        assert r.seconds > 0


def test_verify_finds_the_same(made: Made) -> None:
    checks = list(verify(made.out))
    assert len(checks) == 8
    assert all(c.ok and not c.not_checked for c in checks), checks


def test_a_result_says_how_it_was_made(made: Made) -> None:
    for r in made.results:
        config = dict(r.config)
        task, pretrain = config.pop("task"), config.pop("pretrain")
        recipe = get_recipe(NAME, r.method).seeded(r.seed)
        assert type(recipe.config).from_dict(config) == recipe.config
        scratch = r.method == "scratch"
        assert task == {"augment": False, "label_smoothing": 0.1 if scratch else 0.0, "from_scratch": scratch}
        assert pretrain == (None if scratch else pretraining_settings(dataclasses.replace(PRETRAIN, seed=r.seed)))


def test_the_page_has_one_point_per_method_and_names_its_switches(made: Made) -> None:
    assert {p.first.method: len(p.results) for p in points(made.results)} == dict.fromkeys(METHODS, 2)
    switches = {p.first.method: p.switches for p in points(made.results)}
    ours = {"hard_from": 0.2, "zeroing": CompressConfig().retrain.zeroing, "symmetries": True}
    assert switches["softshare"] == ours
    assert switches["scratch"] == ours | {"label_smoothing": 0.1, "from_scratch": True}
    assert switches["deep-compression"] == {}


def test_only_the_baselines_have_their_own_accounting(made: Made) -> None:
    for r in made.results:
        if r.method == "dns":
            assert r.published_ratio == r.n_weights / r.n_nonzero
        elif r.method == "deep-compression":
            n_shared = r.n_weights - 410  # biases are not counted
            assert r.published_ratio is not None
            assert 4 * n_shared / r.han_bytes < r.published_ratio < 4 * n_shared / (r.n_nonzero / 8)
        else:
            assert r.published_ratio is None


def test_a_published_ratio_that_is_not_the_files_differs(copy: Path) -> None:
    for method, seed in (("dns", 0), ("deep-compression", 1), ("softshare", 1)):
        path = copy / pair(method, seed)[1]
        values = json.loads(path.read_text())
        values["published_ratio"] = 1.001 * (values["published_ratio"] or 50.0)
        path.write_text(json.dumps(values))
    bad = {c.path: c.differences for c in verify(copy) if not c.ok}
    assert list(bad) == [place(*at) for at in (("deep-compression", 1), ("dns", 0), ("softshare", 1))]
    assert all(len(d) == 1 and d[0].startswith("published_ratio: expected ") for d in bad.values())
    assert bad[place("softshare", 1)][0].endswith("got None from the file")


# Training


def test_one_pre_training_serves_all_methods_of_a_seed(made: Made) -> None:
    expected = []
    for seed in (0, 1):
        first, *others = (f"{m}, seed {seed}" for m in METHODS)
        expected += [f"pre-train, seed {seed}", first, *others]
    assert made.recorder.titles == expected
    before = {(r.seed, r.method): r.error_before for r in made.results}
    for seed in (0, 1):
        assert len({before[seed, m] for m in METHODS[:3]}) == 1
        assert before[seed, "scratch"] > before[seed, "dns"]  # not trained at all


def test_stopped_again_and_again_it_gives_the_same(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pre-training, and in the method: no sitting has more than two steps."""
    left = 0

    def tick(self: Checkpoint, at_end: bool = False) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            self.write()
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "tick", tick)
    sittings = 0
    while True:
        left, sittings = 2, sittings + 1
        try:
            (again,) = reproduce(NAME, ["softshare"], [1], tmp_path / "out", checkpoints=tmp_path / "pretrained")
            break
        except KeyboardInterrupt:
            continue
    (whole,) = (r for r in made.results if (r.method, r.seed) == ("softshare", 1))
    assert sittings > 2
    assert stable(again) == stable(whole)
    assert sorted(contents(tmp_path / "out")) == pair("softshare", 1)
    assert [path.suffix for path in (tmp_path / "pretrained").iterdir()] == [".safetensors"]


def test_the_interval_is_that_of_both_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(Checkpoint, "write", lambda self: written.append(self.path.suffix + self.path.stem[:4]))
    list(reproduce(NAME, ["softshare"], [1], tmp_path / "a", checkpoints=tmp_path / "p", every=0))
    assert set(written) == {f".run{NAME[:4]}", ".runretr"}


@pytest.mark.slow
def test_a_method_alone_gives_the_same(made: Made, tmp_path: Path) -> None:
    for method in METHODS:
        (alone,) = reproduce(NAME, [method], [1], tmp_path)
        (beside,) = (r for r in made.results if (r.method, r.seed) == (method, 1))
        assert stable(alone) == stable(beside)
        name = pair(method, 1)[0]
        assert (tmp_path / name).read_bytes() == (made.out / name).read_bytes()


def test_cudnn_is_deterministic_during_training_only(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's random state does not change either."""
    assert made.recorder.cudnn == {(True, False)}
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    recorder, before = Recorder(), torch.get_rng_state()
    results = reproduce(NAME, ["scratch", "softshare"], [0], tmp_path, hooks=recorder)
    next(results)
    assert torch.equal(torch.get_rng_state(), before)
    assert recorder.cudnn == {(True, False)}
    assert _cudnn() == (False, True)
    monkeypatch.setattr(module, "run_method", no_training)
    with pytest.raises(TypeError):
        next(results)
    assert _cudnn() == (False, True)


@pytest.mark.slow
def test_errors_are_those_of_the_task_that_verify_makes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task on the CPU without switches measures. That of the training must not, because it may be on a GPU."""

    def not_the_trainings(name: str, device: Any = "cpu", *rest: Any, **named: Any) -> Task:
        task = experiments.make_task(name, device, *rest, **named)
        return dataclasses.replace(task, test=no_training) if rest else task  # type: ignore[arg-type]

    monkeypatch.setattr(module, "make_task", not_the_trainings)
    (result,) = reproduce(NAME, ["dns"], [0], tmp_path)
    assert stable(result) == stable(made.results[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_captured_the_same_twice_and_verified_on_the_cpu(tmp_path: Path) -> None:
    first, second = (list(reproduce(NAME, METHODS, [0], tmp_path / name, "cuda")) for name in "ab")
    assert [stable(r) for r in first] == [stable(r) for r in second]
    assert all(r.device == torch.cuda.get_device_name() for r in first)
    for name in (pair(m, 0)[0] for m in METHODS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert all(c.ok for c in verify(tmp_path / "a"))
    assert all(r.config["pretrain"]["capture"] for r in first if r.method != "scratch")


# Existing results


def test_existing_results_are_kept_without_data(copy: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_task", no_training)
    before, said = contents(copy), list[str]()
    again = list(reproduce(NAME, METHODS, [0, 1], copy, hooks=no_training, say=said.append))
    assert again == made.results
    assert contents(copy) == before
    assert len(said) == 8
    assert said[0] == f"{copy / NAME}/softshare/seed-0 exists and is kept"


def test_a_result_of_other_settings_is_kept_with_a_message(copy: Path) -> None:
    path = copy / pair("softshare", 0)[1]
    values = json.loads(path.read_text())
    values["config"]["retrain"]["tau"] = 0.25
    path.write_text(json.dumps(values))
    said: list[str] = []
    list(reproduce(NAME, ["softshare"], [0, 1], copy, hooks=no_training, say=said.append))
    assert ["--overwrite" in text for text in said] == [True, False]


def test_overwrite_makes_them_again(copy: Path, made: Made) -> None:
    files = [copy / name for name in pair("scratch", 0)]
    for file in files:
        file.write_bytes(file.read_bytes()[:20])
    (result,) = reproduce(NAME, ["scratch"], [0], copy, overwrite=True)
    assert stable(result) == stable(made.results[3])
    assert all(c.ok for c in verify(copy))


@pytest.mark.slow
def test_a_result_without_its_file_or_the_reverse_is_made_again(copy: Path, made: Made) -> None:
    for name in pair("scratch", 0):
        (copy / name).unlink()
        (result,) = reproduce(NAME, ["scratch", "scratch"], [0], copy)  # a method given twice is made once
        assert stable(result) == stable(made.results[3])
        assert set(contents(copy)) == set(contents(made.out))


def test_a_kept_result_that_cannot_be_read(copy: Path) -> None:
    (copy / pair("dns", 1)[1]).write_text("{}")
    with pytest.raises(FormatError, match=r"seed-1/result\.json is not a result"):
        reproduce(NAME, METHODS, [0, 1], copy, hooks=no_training)


# A file and its result


def test_a_pair_that_cannot_be_written_leaves_the_earlier_one(
    copy: Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could be written is kept, but never beside the result of another file."""
    before = contents(copy)

    def full(path: Path, data: bytes) -> int:
        if ".json" in path.name:
            raise ConfigError("the disk is full")
        return write_atomic(path, data)

    monkeypatch.setattr(run_folder, "write_atomic", full)
    for seed in ("seed-0", "seed-9"):
        with pytest.raises(ConfigError, match="the disk is full"):
            write_pair(copy / NAME / "softshare" / seed, b"another", made.results[1].to_json().encode())
    new = {f"{NAME}/softshare/{folder}/model.sws": b"another" for folder in (".seed-0.unfinished", "seed-9")}
    assert contents(copy) == before | new


def test_a_measurement_that_fails_does_not_cost_the_file(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such image")

    before = contents(copy)
    monkeypatch.setattr("softshare.paper.reproduce.measure", fail)
    with pytest.raises(RuntimeError, match="no such image"):
        list(reproduce(NAME, ["scratch"], [0], copy, overwrite=True))
    kept = [f"{NAME}/scratch/.seed-0.unfinished/{name}" for name in ("model.sws", "retraining.run")]
    assert contents(copy) == before | {name: (copy / name).read_bytes() for name in kept}


def test_a_result_that_is_no_result_is_refused_before_the_training(copy: Path) -> None:
    (copy / pair("dns", 1)[1]).write_text("my own")
    (copy / pair("dns", 1)[0]).unlink()
    with pytest.raises(ConfigError, match=r"seed-1 holds result\.json, which is no file of a run"):
        reproduce(NAME, METHODS, [0, 1], copy, hooks=no_training)


# What is refused, before anything is trained


def test_refused_at_the_call(tmp_path: Path) -> None:
    refused: list[tuple[str, list[str], list[int], type[Exception], str]] = [
        ("lenet-7", ["softshare"], [0], ConfigError, "unknown experiment 'lenet-7'"),
        (NAME, ["softshare", "magic"], [0], ConfigError, r"unknown method 'magic' for lenet-300-100; expected one of"),
        (NAME, ["softshare"], [], ConfigError, r"seeds: expected .* got \[\]"),
        (NAME, ["softshare"], [0, 0], ConfigError, r"each once, got \[0, 0\]"),
        (NAME, ["softshare"], [-1], ConfigError, r"at least 0, each once, got \[-1\]"),
        (NAME, ["softshare"], [2**64], ConfigError, "seed: expected a whole number of 64 bits"),
        ("wrn-16-4", ["softshare"], [0], NotAvailableError, r"wrn-16-4.*CIFAR-10"),
    ]
    for experiment, methods, seeds, error, message in refused:
        with pytest.raises(error, match=message):
            reproduce(experiment, methods, seeds, tmp_path / "out", hooks=no_training)
        assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write to the folder"):
        reproduce(NAME, ["softshare"], [0], tmp_path / "out", hooks=no_training)


def test_a_recorded_config_is_plain() -> None:
    for recipe in RECIPES:
        values = recorded_config(recipe)
        assert json.loads(json.dumps(values)) == values


# The command


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


@pytest.mark.slow
def test_the_command(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", "scratch", "--method", "softshare", "--seeds", "1", "--device", "cpu", "--out", tmp_path]
    assert run("reproduce", NAME, *options) == 0
    said = capsys.readouterr()
    assert "pre-train, seed 1" in said.err
    assert contents(tmp_path).keys() == {*pair("scratch", 1), *pair("softshare", 1)}
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.out.splitlines() if "->" in line]
    by_method = {r.method: r for r in made.results if r.seed == 1}
    assert rows == [
        [m, "1", f"{r.file_bytes:,}", f"{r.ratio:.1f}", f"{r.error_before:.2f} -> {r.error_after:.2f}"]
        for m, r in ((m, by_method[m]) for m in ("scratch", "softshare"))
    ]
    assert run("reproduce", NAME, *options) == 0
    said = capsys.readouterr()
    assert said.err.count("exists and is kept") == 2
    assert "seed 1  error" not in said.err
    assert run("verify", tmp_path) == 0


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, naming in (
        (["lenet-7"], "unknown experiment 'lenet-7'"),
        ([NAME, "--method", "magic"], "expected one of softshare, deep-compression"),
        ([NAME, "--seeds", "0,one"], "got '0,one'"),
        ([NAME, "--seeds", ""], "--seeds: expected"),
        ([NAME, "--seeds", "1,1"], "each once"),
        ([NAME, "--device", "gpu"], "--device: expected cpu, cuda or auto"),
        (["wrn-16-4"], "CIFAR-10"),
    ):
        assert run("reproduce", *options, "--out", tmp_path / "out") == 2
        assert naming in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_without_a_method_all_are_made(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", NAME, "--seeds", "0,1", "--out", copy) == 0
    said = capsys.readouterr()
    assert said.err.count("is kept") == said.out.count("->") == 2 * len(METHODS)


def test_missing_data_of_one_method_are_reported_before_another_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_smoothing(name: str, device: Any, seed: int, config: TaskConfig, data: Path | None) -> Task:
        if config.label_smoothing:
            raise NotAvailableError("no smoothing here")
        return experiments.make_task(name, device, seed, config, data)

    monkeypatch.setattr(module, "make_task", no_smoothing)
    with pytest.raises(NotAvailableError, match="no smoothing here"):
        reproduce(NAME, ["softshare", "scratch"], [0], tmp_path / "out", hooks=no_training)
    assert not (tmp_path / "out").exists()
