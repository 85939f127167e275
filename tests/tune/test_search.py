from __future__ import annotations

import csv
import dataclasses
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

import tuning
from softshare.codec import load
from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.network.checkpoint import save_checkpoint
from softshare.result import Result, load_copy
from softshare.task import Metric, Task
from softshare.train.hooks import EpochRecord, Hook
from softshare.tune.search import Job, StudyConfig, _HopelessError, _Watch, tune
from softshare.tune.space import search_space, values_in, with_values
from softshare.tune.study import ask, requeue
from softshare.tune.trials import Row
from studies import started, trials_said, wait_for

BASE = CompressConfig().override(backend="torch", epochs=2, width=0.15)
HELD = ("epochs", "components", "width")


def job(folder: Path, **changes: Any) -> Job:
    fields: dict[str, Any] = {"task": tuning.make_task(), "config": BASE, "folder": folder, "held": HELD}
    return Job(**fields | changes)


def optuna_trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    name = optuna.get_all_study_names(f"sqlite:///{folder / 'study.db'}")[0]
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / 'study.db'}").trials


class Test:
    """A test set that counts how often it is read."""

    __test__ = False

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, model: nn.Module) -> float:
        self.read += 1
        return 10.0 + sum(int(p.count_nonzero()) for p in model.parameters()) / 1000


class Stop(Hook):
    """Raises at the end of the n-th epoch that it sees."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left, self.error = after, error

    def on_epoch(self, record: EpochRecord) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


# One study, to its end

Finished = tuple[Path, list[Row], Test, list[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A study of 12 trials, the last of them by Gaussian processes. Not to be changed."""
    folder, test, said = tmp_path_factory.mktemp("study") / "s", Test(), list[str]()
    rows = tune(
        job(folder, task=tuning.make_task(test), recorded={"task": {"augment": True}}),
        StudyConfig(trials=12, error_bound=50.0),
        say=said.append,
    )
    return folder, rows, test, said


@pytest.mark.slow
def test_as_many_trials_as_asked_for_no_two_alike(finished: Finished) -> None:
    folder, rows, *_ = finished
    assert [row.trial for row in rows] == list(range(12))
    assert len({str(row.settings) for row in rows}) == 12
    assert {trial.state.name.lower() for trial in optuna_trials(folder)} == {row.state for row in rows}


@pytest.mark.slow
def test_the_first_trial_is_the_base(finished: Finished) -> None:
    _, rows, *_ = finished
    assert rows[0].settings == values_in(BASE, search_space(BASE, HELD))


@pytest.mark.slow
def test_each_complete_trial_has_a_file_and_a_result_that_agree_with_its_values(finished: Finished) -> None:
    folder, rows, *_ = finished
    values = {t.number: t.values for t in optuna_trials(folder)}
    task = tuning.make_task()
    complete = [row for row in rows if row.state == "complete"]
    assert len(complete) >= 3
    for row in complete:
        pair = folder / "trials" / f"trial-{row.trial:04d}"
        result, file = Result.load(pair / "result.json"), pair / "model.sws"
        decoded = load_copy(task.model, load(file))
        error = task.evaluate(decoded)
        assert values[row.trial] == [error, file.stat().st_size] == [row.validation_error, row.file_bytes]
        assert (result.error_after, result.file_bytes) == (error, file.stat().st_size)
        assert result.error_before == task.evaluate(task.model) == row.validation_error_before
        assert result.config.pop("task") == {"augment": True}
        assert CompressConfig.from_dict(result.config) == with_values(BASE, row.settings)


@pytest.mark.slow
def test_trials_have_no_test_error_and_the_front_has_each_measured_once(finished: Finished) -> None:
    folder, rows, test, _ = finished
    assert {Result.load(p).dataset for p in (folder / "trials").glob("*/result.json")} == {"custom, validation"}
    best = [row for row in rows if row.on_front]
    assert {p.name for p in (folder / "front").iterdir()} == {f"trial-{row.trial:04d}" for row in best}
    for row in best:
        pair = folder / "front" / f"trial-{row.trial:04d}"
        assert {p.name for p in pair.iterdir()} == {"model.sws", "result.json"}
        result = Result.load(pair / "result.json")
        assert (pair / "model.sws").read_bytes() == (folder / "trials" / pair.name / "model.sws").read_bytes()
        assert (result.error_before, result.error_after) == (row.test_error_before, row.test_error)
        assert result.error_after == 10.0 + result.n_nonzero / 1000
        assert result.dataset == "custom"
    assert test.read == 1 + len(best)  # the network before, and each file
    assert all(row.test_error is None for row in rows if not row.on_front)


@pytest.mark.slow
def test_the_summary(finished: Finished) -> None:
    folder, rows, *_ = finished
    read = list(csv.DictReader((folder / "summary.csv").read_text().splitlines()))
    assert [(r["trial"], r["state"], r["on_front"]) for r in read] == [
        (str(row.trial), row.state, str(row.on_front)) for row in rows
    ]
    for name in ("front.png", "settings.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_is_said(finished: Finished) -> None:
    _, rows, _, said = finished
    assert len(said) == 12
    for k, (row, line) in enumerate(zip(rows, said, strict=True)):
        outcome = f"error {row.validation_error:.2f}%" if row.state == "complete" else f"pruned, {row.reason}"
        assert line.startswith(f"trial {k}: {outcome}")
        assert f"; {k + 1} of 12 done, " in line
        assert line.endswith(" left")


@pytest.mark.slow
def test_asked_again_it_trains_nothing_and_reads_no_test_set(finished: Finished) -> None:
    folder, rows, *_ = finished
    test, before = Test(), (folder / "summary.csv").read_bytes()
    again = job(
        folder,
        task=dataclasses.replace(tuning.make_task(test), loss=lambda model, batch: pytest.fail("it was trained")),
        recorded={"task": {"augment": True}},
    )
    assert tune(again, StudyConfig(trials=12, error_bound=50.0)) == rows
    assert test.read == 0
    assert (folder / "summary.csv").read_bytes() == before


@pytest.mark.slow
def test_without_a_test_set_there_are_no_test_errors_until_there_is_one(tmp_path: Path) -> None:
    asked, test = StudyConfig(trials=2, error_bound=100.0), Test()
    without = dataclasses.replace(tuning.make_task(), test=None)
    for _ in range(2):  # asked again, too
        rows = tune(job(tmp_path, task=without), asked)
        assert {(row.test_error_before, row.test_error) for row in rows} == {(None, None)}
        read = csv.DictReader((tmp_path / "summary.csv").read_text().splitlines())
        assert {(r["test_error_before"], r["test_error"]) for r in read} == {("", "")}
    for row in (row for row in rows if row.on_front):
        result = Result.load(tmp_path / "front" / f"trial-{row.trial:04d}" / "result.json")
        assert (result.dataset, result.error_after) == ("custom, validation", row.validation_error)
    rows = tune(job(tmp_path, task=tuning.make_task(test)), asked)
    assert test.read == 1 + sum(row.on_front for row in rows)
    assert all((row.test_error is not None) == row.on_front for row in rows)


# What is hopeless


def one_pruned(folder: Path, bound: float, **changes: Any) -> Row:
    held = (*HELD, *changes)
    rows = tune(job(folder, config=BASE.override(**changes), held=held), StudyConfig(trials=1, error_bound=bound))
    assert [trial.state.name for trial in optuna_trials(folder)] == ["PRUNED"]
    assert optuna_trials(folder)[0].values is None
    assert (rows[0].state, rows[0].on_front) == ("pruned", False)
    assert not list((folder / "front").iterdir())
    return rows[0]


@pytest.mark.slow
def test_a_training_that_diverges_is_pruned(tmp_path: Path) -> None:
    row = one_pruned(tmp_path, 100.0, lr_weights=1e30)
    assert row.reason.startswith("training diverged in epoch ")
    assert "Lower" not in row.reason
    assert not list((tmp_path / "trials").iterdir())


@pytest.mark.slow
def test_a_collapsed_mixture_is_pruned(tmp_path: Path) -> None:
    row = one_pruned(tmp_path, 100.0, width=50.0)
    assert row.reason == "collapsed: every shared weight is zero"


def test_a_training_past_the_bound_ends_at_half_time(tmp_path: Path) -> None:
    epochs: list[int] = []

    class Seen(Hook):
        def on_epoch(self, record: EpochRecord) -> None:
            epochs.append(record.epoch)

    rows = tune(
        job(tmp_path, config=BASE.override(epochs=8)),
        StudyConfig(trials=1, error_bound=-1.0),
        hooks=lambda title: [Seen()],
    )
    assert rows[0].state == "pruned"
    assert rows[0].reason.endswith("past the bound of -1.00%")
    assert epochs[-1] == 3  # the bound is looked at first


@pytest.mark.slow
def test_a_file_past_the_bound_is_kept_and_pruned(tmp_path: Path) -> None:
    """Without a hard phase the error is that of the network before quantizing, which the bound lets through."""
    row = one_pruned(tmp_path, 30.0, hard_from=1.0, tau=0.0, width=0.3, scaling="paper")
    assert row.reason == f"validation error {row.validation_error:.2f}%, past the bound of 30.00%"
    assert row.file_bytes == (tmp_path / "trials" / "trial-0000" / "model.sws").stat().st_size


@pytest.mark.slow
def test_the_bound_is_five_points_more_than_before_unless_given(tmp_path: Path) -> None:
    task = tuning.make_task()
    rows = tune(job(tmp_path, config=BASE.override(epochs=2, width=50.0), held=HELD), StudyConfig(trials=1))
    assert rows[0].reason.endswith(f"past the bound of {task.judge(task.model) + 5:.2f}%")


@pytest.mark.slow
def test_a_resumed_study_keeps_its_bound_where_the_error_before_comes_out_different(tmp_path: Path) -> None:
    task = tuning.make_task()
    elsewhere = dataclasses.replace(task, evaluate=lambda model: task.judge(model) + 0.5)
    collapsing = BASE.override(width=50.0)
    tune(job(tmp_path, config=collapsing), StudyConfig(trials=1))
    rows = tune(job(tmp_path, task=elsewhere, config=collapsing), StudyConfig(trials=2))
    bound = f"past the bound of {task.judge(task.model) + 5:.2f}%"
    assert [row.reason.endswith(bound) for row in rows] == [True, True]


# Other metrics


def accurate_task() -> Task:
    task = tuning.make_task()

    def turned(final: bool) -> Callable[[nn.Module], dict[str, float]]:
        return lambda model: {"accuracy": 100 - task.judge(model, final=final), "parameters": 595.0}

    accuracy = Metric("accuracy", "%", higher_is_better=True)
    return dataclasses.replace(task, evaluate=turned(False), test=turned(True), metric=accuracy)


def test_a_study_of_a_metric_that_should_be_high(tmp_path: Path) -> None:
    said: list[str] = []
    untrained = dataclasses.replace(
        accurate_task(), model=nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
    )
    rows = tune(job(tmp_path, task=untrained), StudyConfig(trials=2, error_bound=0.0), say=said.append)
    best = min((row for row in rows if row.on_front), key=lambda row: -(row.validation_error or 0))
    assert best.validation_error == max(row.validation_error or 0 for row in rows)
    for row, trial in zip(rows, optuna_trials(tmp_path), strict=True):
        assert trial.values == [-(row.validation_error or 0), row.file_bytes]
        result = Result.load(tmp_path / "trials" / f"trial-{row.trial:04d}" / "result.json")
        assert result.metric == untrained.metric
        assert result.others == {"parameters": [595.0, 595.0]}
        assert f"trial {row.trial}: accuracy {row.validation_error:.2f}%," in said[row.trial]
    study = optuna.load_study(study_name=untrained.name, storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert study.metric_names == ["-validation accuracy %", "bytes"]
    for other in (Metric("parameters", ""), Metric()):
        task = dataclasses.replace(untrained, metric=other, evaluate=lambda model: {"parameters": 1, "error": 1})
        with pytest.raises(ConfigError, match=r"has other settings \(metric\)"):
            tune(job(tmp_path, task=task), StudyConfig(trials=2, error_bound=0.0))


@pytest.mark.parametrize(
    ("metric", "bound", "past"), [(Metric("accuracy", "%", True), 90.0, 89.0), (Metric("loss", ""), 0.5, 0.51)]
)
def test_a_metric_past_the_bound_is_hopeless(metric: Metric, bound: float, past: float) -> None:
    watch = _Watch(bound, metric)
    watch.require(bound)
    watch.require(2 * bound - past)
    message = f"validation {metric.name} {metric.text(past)}, past the bound of {metric.text(bound)}"
    for bad in (past, math.nan):
        with pytest.raises(_HopelessError, match=message if bad is past else "nan"):
            watch.require(bad)


# Samplers and storages


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_other_samplers(sampler: str, tmp_path: Path) -> None:
    rows = tune(job(tmp_path), StudyConfig(trials=3, sampler=sampler, error_bound=100.0))
    assert len({str(row.settings) for row in rows}) == 3


@pytest.mark.slow
def test_a_storage_by_its_address(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    tune(job(tmp_path / "s"), StudyConfig(trials=2, error_bound=100.0, storage=url, name="mine"))
    assert len(optuna.load_study(study_name="mine", storage=url).trials) == 2
    assert not (tmp_path / "s" / "study.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"trials": 0}, "trials: expected at least 1, got 0"), ({"sampler": "grid"}, "one of gp, tpe, nsga2, got 'grid'")],
)
def test_studies_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StudyConfig(**changes)


def test_nothing_left_to_search(tmp_path: Path) -> None:
    held = (*HELD, *search_space(BASE))
    with pytest.raises(ConfigError, match="leave at least one"):
        tune(job(tmp_path / "s", held=held), StudyConfig())
    assert not (tmp_path / "s").exists()


def test_a_base_outside_the_ranges_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="epochs: expected 15 to 60, got 5"):
        tune(job(tmp_path / "s", config=CompressConfig().override(epochs=5), held=()), StudyConfig(trials=2))
    assert not (tmp_path / "s").exists()


# The network that all trials start from


@pytest.mark.slow
def test_the_network_is_pre_trained_once_for_a_study_and_is_the_same_after_a_stop(tmp_path: Path) -> None:
    called: list[int] = []

    def pretrain_(task: Any, _: object) -> None:
        called.append(1)
        for parameter in task.model.parameters():
            nn.init.normal_(parameter)

    for trials in (1, 2):
        tune(job(tmp_path, pretrain_=pretrain_), StudyConfig(trials, error_bound=100.0))
    assert len(called) == 1
    befores = {Result.load(p).error_before for p in (tmp_path / "trials").glob("*/result.json")}
    assert len(befores) == 1


def zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}


@pytest.mark.slow
def test_weights_are_the_studys_and_no_others_resume_it(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours.safetensors", tmp_path / "others.safetensors"
    task = tuning.make_task()
    save_checkpoint(ours, task.model.state_dict())
    save_checkpoint(others, zeros(task.model))
    given = {"weights": ours, "pretrain_": lambda task: pytest.fail("it was pre-trained")}
    tune(job(tmp_path / "s", **given), StudyConfig(1, error_bound=100.0))
    tune(job(tmp_path / "s", **given), StudyConfig(2, error_bound=100.0))
    with pytest.raises(ConfigError, match=r"study of another network than .*others"):
        tune(job(tmp_path / "s", weights=others), StudyConfig(3, error_bound=100.0))


@pytest.mark.slow
def test_a_study_of_other_settings_is_refused(tmp_path: Path) -> None:
    tune(job(tmp_path), StudyConfig(1, error_bound=100.0))
    with pytest.raises(ConfigError, match=r"other settings \(config\)"):
        tune(job(tmp_path, config=BASE.override(seed=1)), StudyConfig(2, error_bound=100.0))
    with pytest.raises(ConfigError, match=r"other settings \(error_bound\)"):
        tune(job(tmp_path), StudyConfig(2, error_bound=90.0))


# Stopped, shared, killed


@pytest.mark.slow
def test_a_trial_that_was_interrupted_is_run_next_time_with_the_same_settings(tmp_path: Path) -> None:
    stop = Stop(5, KeyboardInterrupt())  # in the second trial
    with pytest.raises(KeyboardInterrupt):
        tune(job(tmp_path), StudyConfig(3, error_bound=100.0), hooks=lambda title: [stop])
    assert [t.state.name for t in optuna_trials(tmp_path)] == ["COMPLETE", "FAIL", "WAITING"]
    rows = tune(job(tmp_path), StudyConfig(3, error_bound=100.0))
    trials = optuna_trials(tmp_path)
    assert [t.state.name for t in trials] == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert trials[2].params == trials[1].params
    assert [row.trial for row in rows] == [0, 2, 3]


@pytest.mark.slow
def test_an_error_of_the_users_ends_the_search_and_its_trial_does_not_count(tmp_path: Path) -> None:
    stop = Stop(5, ZeroDivisionError("in the user's code"))
    with pytest.raises(ZeroDivisionError):
        tune(job(tmp_path), StudyConfig(3, error_bound=100.0), hooks=lambda title: [stop])
    assert [t.state.name for t in optuna_trials(tmp_path)] == ["COMPLETE", "FAIL"]
    assert len(tune(job(tmp_path), StudyConfig(2, error_bound=100.0))) == 2


@pytest.mark.parametrize("name", [".lock", "study.db"])
def test_a_link_in_place_of_the_studys_own_files_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="found a symbolic link"):
        tune(job(tmp_path / "s"), StudyConfig(1))
    assert not (tmp_path / "elsewhere").exists()


def test_a_network_that_cannot_be_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> Result:
        raise RuntimeError("no memory")

    monkeypatch.setattr("softshare.tune.search.measure", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        tune(job(tmp_path), StudyConfig(2))
    assert [p.name for p in (tmp_path / "trials").rglob("*") if p.is_file()] == ["model.sws"]
    monkeypatch.undo()
    assert len(tune(job(tmp_path), StudyConfig(2))) == 2


@pytest.mark.slow
def test_a_trial_that_another_process_has_given_up_is_left_to_it(tmp_path: Path) -> None:
    said: list[str] = []
    url = f"sqlite:///{tmp_path / 'study.db'}"

    class GiveUp(Hook):
        def on_epoch(self, record: EpochRecord) -> None:
            if len(trials := optuna_trials(tmp_path)) == 1:
                requeue(optuna.load_study(study_name="custom", storage=url), trials[0])

    rows = tune(job(tmp_path), StudyConfig(2, error_bound=100.0), hooks=lambda title: [GiveUp()], say=said.append)
    assert said[0].startswith("trial 0: given up by another process")
    trials = optuna_trials(tmp_path)
    assert [t.state.name for t in trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert trials[1].params == trials[0].params
    assert [row.trial for row in rows] == [1, 2]


@pytest.mark.slow
def test_trials_are_asked_for_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite locks no rows: without this, two processes may be given the same queued trial."""
    taken: list[bool] = []

    def noting(*args: Any) -> optuna.Trial | None:
        try:
            FileLock(tmp_path / ".lock").acquire(timeout=0).__exit__(None, None, None)
        except Timeout:
            taken.append(True)
        else:
            taken.append(False)
        return ask(*args)

    monkeypatch.setattr("softshare.tune.search.ask", noting)
    tune(job(tmp_path), StudyConfig(2, error_bound=100.0))
    assert taken == [True, True]


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path: Path) -> None:
    """None is lost, none is run twice, and both have a part in it."""
    meeting, folder, logs = tmp_path / "meeting", tmp_path / "s", [tmp_path / "0", tmp_path / "1"]
    meeting.mkdir()
    with started(folder, 8, logs[0], MEETING=meeting) as one, started(folder, 8, logs[1], MEETING=meeting) as other:
        assert [one.wait(300), other.wait(300)] == [0, 0]
    trials = optuna_trials(folder)
    assert [t.state.name for t in trials] == ["COMPLETE"] * 8
    assert len({str(t.params) for t in trials}) == 8
    first, second = (trials_said(log) for log in logs)
    assert first
    assert second
    assert sorted(first + second) == list(range(8))
    assert len(list((folder / "trials").glob("*/model.sws"))) == 8


@pytest.mark.slow
def test_a_trial_whose_process_was_killed_is_run_by_the_next(tmp_path: Path) -> None:
    folder, hang, log = tmp_path / "s", tmp_path / "hang", tmp_path / "log"
    with started(folder, 4, log, HANG=hang, TRIALS=folder / "trials") as process:
        wait_for(hang, process, log)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    assert [t.state.name for t in optuna_trials(folder)] == ["COMPLETE", "COMPLETE", "RUNNING"]
    with started(folder, 4, log) as process:  # it need not wait for the heartbeat
        assert process.wait(300) == 0, log.read_text()
    with started(tmp_path / "whole", 4, log) as process:
        assert process.wait(300) == 0, log.read_text()
    trials = optuna_trials(folder)
    killed, ended = trials[2], [t for t in trials if t.state.name == "COMPLETE"]
    assert killed.state.name == "FAIL"
    assert len(ended) == 4
    assert sum(t.params == killed.params for t in ended) == 1
    assert [t.params for t in ended] == [t.params for t in optuna_trials(tmp_path / "whole")]
    assert not list(folder.glob(".running*"))
