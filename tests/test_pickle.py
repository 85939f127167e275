"""Every public exception and object survives pickle and copy.deepcopy, so that it can leave a process."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import multiprocessing
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare import errors
from softshare._util.user_code import Guarded
from softshare.config import SimplifyConfig
from softshare.paper.verify import Check
from softshare.quantization.quantized import QuantizedWeights
from softshare.train.first_look import FirstLook
from softshare.train.hooks import EpochRecord
from softshare.train.retrain import retrain_

STATE = {"weight": torch.arange(3.0)}
ERRORS: dict[str, errors.SoftShareError] = {
    "SoftShareError": errors.SoftShareError("no"),
    "ConfigError": errors.ConfigError("tau: expected a number, got 'x'"),
    "ModelError": errors.ModelError("no weights"),
    "FormatError": errors.FormatError("too short", "header", 7, "model.sws"),
    "NotAvailableError": errors.NotAvailableError("no GPU"),
    "TaskError": errors.TaskError("Task.loss failed in epoch 1, batch 2: ValueError: no"),
    "NotANumberError": errors.NotANumberError("Task.test returned nan", " in the final measurement"),
    "DivergedError": errors.DivergedError("the loss became nan", STATE),
}
BATCHES = [(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1]))]
CONFIG = ss.CompressConfig().override(components=3, epochs=1, rules=(ss.Rule("*.bias"),))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def error(model: nn.Module) -> float:
    return 100 * float((model(BATCHES[0][0]).argmax(1) != BATCHES[0][1]).float().mean())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))


def task() -> ss.Task:
    return ss.Task(net(), BATCHES, loss, error, test=error, metric=ss.Metric("error", "%"))


def compressed() -> ss.Compressed:
    return ss.compress(task(), CONFIG, target=None)


def outcome() -> ss.Outcome:
    return ss.Outcome(None, ss.Metric(), 1.0, 2.0, 0.5, math.inf, 100)


def prior() -> ss.MixturePrior:
    return ss.MixturePrior(net(), CONFIG.prior)


OBJECTS: dict[str, Callable[[], Any]] = {
    "Beta": lambda: ss.Beta(40, 2),
    "Checkpoint": lambda: ss.Checkpoint("a.run", every=5),
    "CompressConfig": lambda: CONFIG,
    "Compressed": compressed,
    "Dirichlet": lambda: ss.Dirichlet(40, 1.5),
    "EncodeConfig": ss.EncodeConfig,
    "Hook": ss.Hook,
    "FittedWeights": lambda: ss.compress_weights({"w": torch.randn(20, 20)}),
    "Gamma": lambda: ss.Gamma(5000, 2),
    "MaxBytes": lambda: ss.MaxBytes(4000),
    "MaxError": lambda: ss.MaxError(1.5),
    "MaxErrorIncrease": lambda: ss.MaxErrorIncrease(0.5),
    "MaxMacs": lambda: ss.MaxMacs(0.5),
    "MergeConfig": ss.MergeConfig,
    "Metric": lambda: ss.Metric("PSNR", "dB", True),
    "Mixture": lambda: ss.Mixture(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.0, 1.0]), torch.zeros(2)),
    "Mixture of a prior": lambda: prior().mixtures()[0],
    "MixturePrior": prior,
    "Outcome": outcome,
    "PriorConfig": ss.PriorConfig,
    "Result": lambda: ss.measure(task(), compressed(), CONFIG),
    "RetrainConfig": ss.RetrainConfig,
    "Rule": lambda: ss.Rule("*.bias", share=True),
    "Task": task,
    "Task of loaders": lambda: ss.Task.from_loaders(net(), BATCHES, BATCHES, nn.CrossEntropyLoss(), "loss"),
    "WithinNoise": ss.WithinNoise,
    # Not in `softshare.__all__`, but what these hold and what calls return.
    "Check": lambda: Check("a", 3, 1.5, ("differs",)),
    "EpochRecord": lambda: EpochRecord(1, 2.0, 0.1, math.nan, 3.0, 4.0, 5.0, 6, {"w": 0.5}),
    "FirstLook": lambda: FirstLook(1.0, 0.5),
    "QuantizedWeights": lambda: compressed().quantized,
    "SimplifyConfig": SimplifyConfig,
}


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def same(a: Any, b: Any) -> bool:
    """Whether two objects hold the same values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return torch.equal(a.detach(), b.detach())
    if isinstance(a, nn.Module):
        return same(dict(a.state_dict()), dict(b.state_dict()))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, Guarded):
        return a.what == b.what and same(a.function, b.function)
    if inspect.ismethod(a):  # of the object that holds the loaders
        return a.__func__ is b.__func__ and type(a.__self__) is type(b.__self__)
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b) or "__eq__" not in vars(type(a))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
@pytest.mark.parametrize("name", ERRORS)
def test_an_exception_survives(name: str, copied: Callable[[Any], Any]) -> None:
    before, after = ERRORS[name], copied(ERRORS[name])
    assert type(after) is type(before)
    assert str(after) == str(before)
    assert same(vars(after), vars(before))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_survives(name: str, copied: Callable[[Any], Any]) -> None:
    before = OBJECTS[name]()
    assert same(copied(before), before)


def test_nothing_public_is_left_out() -> None:
    kinds = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert kinds == set(ERRORS)
    public = {name for name in ss.__all__ if inspect.isclass(getattr(ss, name))}
    own = {"SoftShareError", "CsvLog", "ProgressBar"}  # the last two hold an open file and a display
    assert public - own <= set(OBJECTS)


def test_a_copy_of_a_task_works_alone() -> None:
    for name in ("Task", "Task of loaders"):
        own = OBJECTS[name]()
        for other in (pickled(own), copy.deepcopy(own)):
            assert other.judge(other.model) == own.judge(own.model)
            assert other.model is not own.model
            batch = next(iter(other.train))
            assert torch.equal(other.loss(other.model, batch), own.loss(own.model, batch))


def test_the_copy_of_what_was_compressed_writes_the_same_file() -> None:
    own = compressed()
    assert pickled(own).to_bytes() == copy.deepcopy(own).to_bytes() == own.to_bytes()
    assert isinstance(own.quantized, QuantizedWeights)


def diverges(_: int) -> None:
    retrain_(task(), None, ss.RetrainConfig(epochs=3, lr_weights=1e30, scaling="paper"))


@pytest.mark.slow
def test_a_run_that_diverges_in_a_pool_ends() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map_async(diverges, [0])
        with pytest.raises(errors.DivergedError, match="diverged in epoch") as caught:
            found.get(timeout=120)
    assert set(caught.value.state) == set(net().state_dict())
