"""What an evaluation of a Trainer says of a network, without the Trainer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss
from softshare.integrations.evaluation import ACCURACY, UNKNOWN, Evaluation, by_accuracy


def batches(n: int = 200) -> Any:
    return DataLoader(TensorDataset(torch.zeros(n, 1)), 32)


def test_it_keeps_what_compute_metrics_has_measured() -> None:
    metrics = {"eval_loss": 1.0, "eval_accuracy": 0.9, "eval_f1": 0.8, "eval_runtime": 3.0, "epoch": 1.0,
               "eval_samples_per_second": 9.0, "eval_text": "a", "eval_odd": float("nan")}  # fmt: skip
    found = Evaluation.of(metrics, batches())
    assert found == Evaluation({"accuracy": 0.9, "f1": 0.8}, 200)
    assert found.accuracy == pytest.approx(90)


@pytest.mark.parametrize(
    ("metrics", "data"),
    [({"eval_f1": 0.9}, batches()), ({"eval_accuracy": 93.0}, batches()), ({"eval_accuracy": 0.9}, iter(()))],
    ids=["no accuracy", "in percent", "an unknown number of examples"],
)
def test_an_accuracy_that_has_no_standard_error_is_none(metrics: dict[str, float], data: Any) -> None:
    assert Evaluation.of(metrics, data).accuracy is None


@pytest.mark.parametrize("right", [0, 150, 200])
def test_the_noise_is_that_of_a_task(right: int) -> None:
    x = torch.nn.functional.one_hot((torch.arange(200) >= right).long(), 2).float()
    loader = DataLoader(TensorDataset(x, torch.zeros(200, dtype=torch.long)), 50)
    task = ss.Task.from_loaders(nn.Identity(), loader, loader, nn.CrossEntropyLoss(), "accuracy")
    assert task.noise
    assert task.judge(task.model) == right / 2
    assert Evaluation({"accuracy": right / 200}, 200).noise == pytest.approx(task.noise(task.model))


def compressed() -> ss.Compressed:
    model = nn.Linear(20, 4)
    found = ss.MixturePrior(model).quantize()
    assert isinstance(found, ss.Compressed)
    return found


def test_evaluations_of_other_data_leave_it_as_it_is() -> None:
    found, one = compressed(), Evaluation({"accuracy": 0.9}, 200)
    fewer, others = Evaluation({"accuracy": 0.9}, 100), Evaluation({}, 200)
    for before, after in ((None, one), (one, None), (one, fewer), (one, others)):
        assert by_accuracy(found, before, after) is found


def test_a_process_without_the_result_has_the_outcome() -> None:
    found = dataclasses.replace(compressed(), messages=(UNKNOWN, "b"))
    judged = by_accuracy(found, Evaluation({"accuracy": 0.9}, 200), Evaluation({"accuracy": 0.8}, 200))
    assert judged.outcome
    assert (judged.outcome.metric, judged.outcome.kept, judged.messages) == (ACCURACY, False, ("b",))
    assert judged.outcome.n_bytes == len(found.to_bytes())
