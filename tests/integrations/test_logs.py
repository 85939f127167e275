"""The logs for W&B, MLflow and TensorBoard: each is read back by its own tool, offline."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import softshare as ss
from softshare import route
from softshare.errors import NotAvailableError
from softshare.integrations import MlflowLog, TensorBoardLog, WandbLog
from softshare.integrations.log import Log, final_numbers, flat, numbers_of
from softshare.train.hooks import EpochRecord, Hook
from softshare.verdict import verdict
from trained import config, make_task

SETTINGS = config(epochs=3, tau=1e-4)
mlflow_of_today = pytest.mark.filterwarnings("ignore:.*noload.*")  # it asks SQLAlchemy for something old


class Kept(Hook):
    def __init__(self) -> None:
        self.records: list[EpochRecord] = []

    def on_epoch(self, record: EpochRecord) -> None:
        self.records.append(record)


@cache
def run() -> tuple[tuple[EpochRecord, ...], ss.Compressed, ss.Result]:
    task, kept = make_task(), Kept()
    compressed = route.compress(task, SETTINGS, [kept], target=None)
    return tuple(kept.records), compressed, ss.measure(task, compressed, SETTINGS)


def tell(log: Hook) -> None:
    """What `compress` calls."""
    records, compressed, result = run()
    log.on_prior(None)
    log.on_start(3, 16)
    for record in records:
        log.on_step(record.epoch, 1)
        log.on_epoch(record)
    log.on_end()
    log.on_result(compressed, result)


def points(name: str) -> list[tuple[int, float]]:
    """The curve of a number, as the history has it."""
    found = [(r.epoch, numbers_of(r, ss.Metric())) for r in run()[0]]
    return [(epoch, values[name]) for epoch, values in found if name in values]


NAMES = [*numbers_of(EpochRecord(0, 0, 0, 0, 0, 0, 0, 0, {"first.weight": 1, "last.bias": 1}), ss.Metric())]


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'softshare[wandb]'")
    wandb.teardown()  # a process asks for its settings once, and another test may have been the first
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path), "CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    yield wandb
    wandb.teardown()


def wandb_records(folder: Path) -> list[Any]:
    """Everything in the .wandb files of a folder, one after the other, read by W&B."""
    store = pytest.importorskip("wandb.sdk.internal.datastore", reason="this version of wandb cannot read its own file")
    from wandb.proto import wandb_internal_pb2

    importlib.import_module("wandb").teardown()  # it writes from a process of its own, whose end is awaited here
    found: list[Any] = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data = store.DataStore()
        data.open_for_scan(str(file))
        while (row := data.scan_data()) is not None:
            found.append(wandb_internal_pb2.Record())
            found[-1].ParseFromString(row)
        data.close()
    return found


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_wandb_reads_the_run(tmp_path: Path, offline: Any) -> None:
    tell(WandbLog(project="small"))
    assert offline.run is None
    records = wandb_records(tmp_path)
    rows = [values_of(r.history.item) for r in records if r.HasField("history")]
    for name in NAMES:
        assert [(row["epoch"], row[name]) for row in rows if name in row] == points(name), name
    summary: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for r in records:
        summary |= values_of(r.summary.update) if r.HasField("summary") else {}
        settings |= values_of(r.config.update) if r.HasField("config") else {}
    _, compressed, result = run()
    assert final_numbers(result).items() <= summary.items()
    assert summary["verdict"] == verdict(result).sentence
    assert {name: settings[name] for name in result.config} == result.config
    [artifact] = [r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")] or [
        r.artifact for r in records if r.HasField("artifact")
    ]
    assert artifact.type == "model"
    [entry] = artifact.manifest.contents
    assert entry.path == "model.sws"
    assert Path(entry.local_path).read_bytes() == compressed.to_bytes()


@pytest.mark.slow
def test_a_run_of_wandb_that_is_under_way_is_used_and_left_open(tmp_path: Path, offline: Any) -> None:
    with offline.init(project="mine") as mine:
        tell(WandbLog())
        assert offline.run is mine
        mine.log({"own": 1.0})
    rows = [values_of(r.history.item) for r in wandb_records(tmp_path) if r.HasField("history")]
    assert [row["own"] for row in rows if "own" in row] == [1.0]
    assert [row["tau"] for row in rows if "tau" in row] == [value for _, value in points("tau")]


@pytest.mark.slow
def test_a_run_of_wandb_that_goes_on_counts_its_steps_on(tmp_path: Path, offline: Any) -> None:
    """Offline, each process writes a file of its own. W&B puts those of one run together by their steps."""
    records, compressed, result = run()
    first, again = WandbLog(project="small"), WandbLog(project="small")
    first.on_start(3, 16)
    for record in records[:2]:
        first.on_epoch(record)
    state = json.loads(json.dumps(first.state_dict()))
    first.on_epoch(records[2])  # it was killed after this, and has to train this epoch again
    first.on_end()
    offline.teardown()
    again.load_state_dict(state)
    again.on_start(3, 16)
    for record in records[2:]:
        again.on_epoch(record)
    again.on_end()
    again.on_result(compressed, result)
    found = wandb_records(tmp_path)
    assert len({r.run.run_id for r in found if r.HasField("run")}) == 1
    steps = {r.history.step.num: values_of(r.history.item) for r in found if r.HasField("history")}
    assert [(row["epoch"], row["tau"]) for _, row in sorted(steps.items())] == points("tau")
    assert sum(r.HasField("history") for r in found) == len(records) + 1
    summary: dict[str, Any] = {}
    for r in found:
        summary |= values_of(r.summary.update) if r.HasField("summary") else {}
    assert summary["final/ratio"] == result.ratio


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow: pip install 'softshare[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy, for MLflow's store in a file")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


@pytest.mark.slow
@mlflow_of_today
def test_mlflow_reads_the_run(tmp_path: Path, store: Any) -> None:
    log = MlflowLog("small", "first")
    tell(log)
    [found] = store.search_runs([store.get_experiment_by_name("small").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "first"
    for name in NAMES:
        history = sorted(store.get_metric_history(found.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in history] == points(name), name
    _, compressed, result = run()
    assert final_numbers(result).items() <= found.data.metrics.items()
    assert found.data.params == dict(flat(result.config))
    assert found.data.params["retrain.tau"] == "0.0001"
    assert found.data.tags["verdict"] == verdict(result).sentence
    assert [file.path for file in store.list_artifacts(found.info.run_id)] == ["model.sws"]
    copy = store.download_artifacts(found.info.run_id, "model.sws", str(tmp_path))
    assert Path(copy).read_bytes() == compressed.to_bytes()


@pytest.mark.slow
@mlflow_of_today
def test_a_run_of_mlflow_that_is_under_way_is_used_and_left_open(store: Any) -> None:
    import mlflow

    mlflow.set_experiment("mine")
    with mlflow.start_run() as mine:
        tell(MlflowLog())
        assert store.get_run(mine.info.run_id).info.status == "RUNNING"
    found = store.get_run(mine.info.run_id)
    assert found.data.metrics["final/ratio"] == run()[2].ratio


@pytest.mark.slow
@mlflow_of_today
def test_a_run_that_goes_on_has_one_log(store: Any) -> None:
    records, compressed, result = run()
    first, again = MlflowLog("small"), MlflowLog("small")
    first.on_start(3, 16)
    first.on_epoch(records[0])
    state = first.state_dict()
    first.on_end()
    again.load_state_dict(state)
    again.on_start(3, 16)
    again.on_epoch(records[1])
    again.on_end()
    again.on_result(compressed, result)
    [found] = store.search_runs([store.get_experiment_by_name("small").experiment_id])
    assert [point.step for point in store.get_metric_history(found.info.run_id, "tau")] == [0, 1]


def test_tensorboard_reads_the_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'softshare[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell(TensorBoardLog(tmp_path))
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    for name in NAMES:
        found = read.Scalars(name)
        assert [event.step for event in found] == [epoch for epoch, _ in points(name)], name
        assert [event.value for event in found] == pytest.approx(
            [float(value) for _, value in points(name)], rel=1e-6
        ), name
    _, compressed, result = run()
    for name, value in final_numbers(result).items():
        [event] = read.Scalars(name)
        assert event.value == pytest.approx(value, rel=1e-6)
        assert event.step == 3

    def text(name: str) -> str:
        [event] = read.Tensors(f"{name}/text_summary")
        return str(event.tensor_proto.string_val[0].decode())

    assert text("verdict") == verdict(result).sentence
    assert json.loads(text("settings")) == result.config
    assert (tmp_path / "model.sws").read_bytes() == compressed.to_bytes()


class Broken(Log):
    package = "json"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def open_(self) -> None:
        self.calls += 1
        raise ConnectionError("no such server")

    def log(self, *_: Any) -> None: ...

    def finish(self, *_: Any) -> None: ...


def test_a_log_that_fails_costs_one_message() -> None:
    log = Broken()
    with pytest.warns(UserWarning, match=r"Broken failed \(ConnectionError: no such server\)\.") as said:
        compressed = route.compress(make_task(), SETTINGS, [log], target=None)
    log.on_result(compressed, run()[2])
    assert len([w for w in said if "Broken" in str(w.message)]) == 1
    assert log.calls == 2 + SETTINGS.retrain.looks + 1
    assert compressed.to_bytes() == run()[1].to_bytes()


@pytest.mark.parametrize("make", [WandbLog, MlflowLog, lambda: TensorBoardLog("events")])
def test_without_its_package_it_says_what_to_install(make: Callable[[], Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softshare.integrations.log.find_spec", lambda _: None)
    with pytest.raises(NotAvailableError, match=r"Log needs (\w+): pip install 'softshare\[\1\]'"):
        make()


def test_numbers_have_the_name_of_the_metric_and_are_finite() -> None:
    values = numbers_of(EpochRecord(0, 0, 0, math.nan, 0, 0, 97.5, 0), ss.Metric("accuracy", "%", True))
    assert values["validation_accuracy"] == 97.5
    assert "validation_error" not in values
    assert "task_loss" not in values


def test_the_package_names_its_logs() -> None:
    found = importlib.import_module("softshare.integrations")
    assert {getattr(found, name).__name__ for name in found.__all__} == set(found.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = found.nothing
