"""The task: its metric, how it judges a network, and its number of examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from softshare.errors import ConfigError, NotANumberError, SoftShareError
from softshare.task import Metric, Task, count_examples, examples_in

ACCURACY, SCORE = Metric("accuracy", "%", higher_is_better=True), Metric("PSNR", "dB", higher_is_better=True)


TRAIN = [(torch.ones(3, 2), torch.ones(3))]


def make_task(evaluate: Any = lambda model: 1.0, train: Any = TRAIN, **fields: Any) -> Task:
    return Task(nn.Linear(2, 1), train, lambda model, batch: model(batch[0]).mean(), evaluate, **fields)


# Metric


def test_the_texts_of_a_metric() -> None:
    assert [m.text(12.3456) for m in (Metric(), ACCURACY, SCORE, Metric("mse", ""))] == [
        "12.35%",
        "12.35%",
        "12.35 dB",
        "12.35",
    ]
    assert Metric("mse", "").text(0.000123456) == "0.0001235"
    assert Metric().text(1.23456, more_digits=2) == "1.2346%"
    assert Metric("mse", "").text(0.000123456, more_digits=1) == "0.00012346"
    assert SCORE.number(31.25) == "31.25"
    assert [m.label for m in (Metric(), SCORE, Metric("mse", ""))] == ["error %", "PSNR dB", "mse"]


def test_what_is_worse() -> None:
    assert (Metric().loss(2.0, 3.0), ACCURACY.loss(97.0, 98.0)) == (1.0, -1.0)
    assert (Metric().worse(2.0, 1.0), ACCURACY.worse(98.0, 1.0)) == (3.0, 97.0)
    values = [0.1, 5.0, 2.0]
    assert sorted(values, key=Metric().badness) == [0.1, 2.0, 5.0]
    assert sorted(values, key=ACCURACY.badness) == [5.0, 2.0, 0.1]


def test_a_metric_that_says_nothing_is_refused() -> None:
    bad: list[dict[str, Any]] = [{"name": ""}, {"name": 3}, {"unit": None}, {"higher_is_better": "yes"}]
    for fields in bad:
        with pytest.raises(ConfigError, match=f"Metric.{next(iter(fields))}: expected"):
            Metric(**fields)
    with pytest.raises(ConfigError, match=r"Task.metric: expected a softshare.Metric, got 'accuracy'"):
        make_task(metric="accuracy")


# Judging


def test_a_dict_is_judged_by_the_metrics_name() -> None:
    values = {"loss": torch.tensor(0.25), "accuracy": 97.5, "confusion": torch.ones(2, 2), "note": None}
    task = make_task(lambda model: values, metric=ACCURACY)
    assert task.judge(task.model) == 97.5
    assert task.judge_all(task.model) == {"loss": 0.25, "accuracy": 97.5}  # what is no number is left out
    with pytest.raises(ConfigError, match=r"expected the metric 'error', got a dict with loss, accuracy, confusion"):
        dataclasses.replace(task, metric=Metric()).judge(task.model)
    with pytest.raises(ConfigError, match=r"Task.evaluate: expected a number.* got Tensor for 'confusion'"):
        dataclasses.replace(task, metric=Metric("confusion")).judge(task.model)


def test_a_number_alone_has_the_metrics_name() -> None:
    task = make_task(lambda model: torch.tensor(3.5), test=lambda model: 4, metric=Metric("loss", ""))
    assert task.judge_all(task.model) == {"loss": 3.5}
    assert task.judge_all(task.model, final=True) == {"loss": 4.0}
    with pytest.raises(ConfigError, match=r"Task.evaluate: expected a number, or a dict of numbers, got tuple$"):
        make_task(lambda model: (1.0, 2.0)).judge(task.model)


def test_nan_is_an_error_of_ours_and_a_floating_point_error() -> None:
    """The first for the user, the second for training, which restores the network."""
    task = make_task(lambda model: {"F1": 0.5, "AUC": math.nan}, metric=Metric("AUC", "", True))
    with pytest.raises(NotANumberError, match=r"Task.evaluate returned nan for the AUC of the network") as caught:
        task.judge(task.model, final=True)
    assert isinstance(caught.value, SoftShareError)
    assert isinstance(caught.value, FloatingPointError)
    other = dataclasses.replace(task, metric=Metric("F1", "", True))
    with pytest.raises(NotANumberError, match=r"nan for the AUC of the network; .* or None if it cannot be measured"):
        other.judge(task.model)


# Examples


def test_the_size_of_a_batch() -> None:
    x = torch.ones(5, 2)
    known: list[Any] = [x, (x, torch.ones(3)), ["text", {"name": 1, "x": [x]}], {"id": "a", "x": x}]
    unknown: list[Any] = ["text", (), {}, 3, torch.ones(()), ["a", 1]]
    assert [examples_in(batch) for batch in known] == [5] * 4
    assert [examples_in(batch) for batch in unknown] == [None] * 6


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(9, 2))


def test_examples_that_are_left_out_are_counted() -> None:
    data = TensorDataset(torch.ones(10, 2), torch.ones(10))
    batch_sampler = BatchSampler(SequentialSampler(data), 3, drop_last=False)
    for train in (
        DataLoader(data, batch_size=4, shuffle=True),
        DataLoader(data, batch_sampler=batch_sampler),
        list(DataLoader(data, batch_size=4)),
        DataLoader(list(DataLoader(data, batch_size=4)), batch_size=None),  # type: ignore[arg-type]
    ):
        assert make_task(train=train).n_examples == 10
        before = torch.get_rng_state()
        assert count_examples(train) == 10
        assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(ConfigError, match=r"batches without a length cannot be counted\. Give n_examples"):
        count_examples(DataLoader(Stream(), batch_size=3))
    with pytest.raises(ConfigError, match=r"hold no tensors that could be counted\. Give n_examples"):
        count_examples(["a", "b"])
    task = make_task(n_examples=7)
    assert dataclasses.replace(task, name="other").n_examples == 7


def test_fewer_examples_than_batches_are_refused() -> None:
    train = [(torch.ones(2, 2), torch.ones(2))] * 5
    assert make_task(train=train, n_examples=5).n_examples == 5
    with pytest.raises(ConfigError, match=r"at least one example for each of the 5 batches in Task\.train, got 4"):
        make_task(train=train, n_examples=4)
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ConfigError, match=r"Task\.n_examples: expected a whole number of at least 1"):
            make_task(train=train, n_examples=bad)
    assert make_task(train=DataLoader(Stream(), batch_size=3), n_examples=1).n_examples == 1  # a length is not known


def test_a_number_that_no_float_can_hold_is_infinite() -> None:
    task = Task(nn.Linear(2, 2), [], lambda model, batch: torch.zeros(()), lambda model: 10**400, n_examples=1)
    with pytest.raises(NotANumberError, match="returned inf"):
        task.judge(task.model)
