"""The curvatures by which a finished network is trimmed, and the files it would be."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.codec import decode, encode
from softshare.errors import ConfigError
from softshare.target.files import Files, check_size
from softshare.target.worth import BATCHES, curvatures
from softshare.train.curvature import DECAY
from softshare.train.hard import quantized

Batch = tuple[Tensor, Tensor]
PRIOR = ss.PriorConfig(components=4, zero_mixing=0.3, rules=(ss.Rule("0.*", share=True),))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_task(n_batches: int = 4) -> ss.Task:
    """The first layer is frozen. Batch norm and dropout show what a measurement leaves behind."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    model[0].requires_grad_(False)
    x = torch.randn(8 * n_batches, 6)
    y = (x[:, 0] > 0).long()
    evaluate = lambda m: 100 * float((m(x).argmax(1) != y).double().mean())  # noqa: E731
    return ss.Task(model, list(zip(x.split(8), y.split(8), strict=True)), loss, evaluate)


def test_curvatures_equal_a_direct_computation() -> None:
    """The batch size times the weighted mean of the squared gradients at the quantized weights, in training mode.

    A hundredth of the tensor's mean is added to all.
    """
    task = make_task()
    prior = ss.MixturePrior(task.model, PRIOR)
    found = curvatures(task, prior, ss.RetrainConfig(seed=3))

    weight = task.model.get_parameter("4.weight")
    batches, total, share = list(task.train), torch.zeros(2, 8), 0.0
    task.model.train()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for k in range(BATCHES):
            with quantized(prior):
                gradient = torch.autograd.grad(loss(task.model, batches[k % len(batches)]), weight)[0]
            total, share = DECAY * total + (1 - DECAY) * gradient**2, DECAY * share + 1 - DECAY
    expected = 8 * total / share
    torch.testing.assert_close(found["4.weight"], expected + 0.01 * expected.mean(), rtol=1e-4, atol=1e-9)


def test_curvatures_are_infinite_for_frozen_weights() -> None:
    task = make_task()
    found = curvatures(task, ss.MixturePrior(task.model, PRIOR), ss.RetrainConfig())
    assert list(found) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert bool(found["0.weight"].isinf().all())
    assert bool(found["4.weight"].isfinite().all())


@pytest.mark.parametrize("training", [False, True])
def test_curvatures_leave_the_network_and_the_random_state_alone(training: bool) -> None:
    task = make_task()
    task.model.train(training)
    prior = ss.MixturePrior(task.model, PRIOR)
    before, random = copy.deepcopy((task.model.state_dict(), prior.state_dict())), torch.get_rng_state()
    curvatures(task, prior, ss.RetrainConfig())
    for state, own in zip((task.model.state_dict(), prior.state_dict()), before, strict=True):
        assert all(torch.equal(t, own[name]) for name, t in state.items())
    assert task.model.training == training
    assert all(p.grad is None for p in [*task.model.parameters(), *prior.parameters()])
    assert torch.equal(torch.get_rng_state(), random)


def test_curvatures_do_not_depend_on_whether_the_batches_know_their_number() -> None:
    """A pass of more batches than are measured does not end, so its number stays unknown."""

    class Unsized:
        def __init__(self, batches: Any) -> None:
            self.batches = batches

        def __iter__(self) -> Any:
            return iter(self.batches)

    task = make_task(BATCHES + 1)
    unsized = ss.Task(task.model, Unsized(task.train), loss, task.evaluate, task.n_examples)
    found, again = (curvatures(t, ss.MixturePrior(t.model, PRIOR), ss.RetrainConfig()) for t in (task, unsized))
    assert torch.equal(found["4.weight"], again["4.weight"])


# Files


CONFIG = ss.CompressConfig().override(rules=PRIOR.rules)


def test_a_file_is_judged_as_it_decodes() -> None:
    """By the codebook's values in float16, in a copy of the network."""
    task = make_task()
    prior = ss.MixturePrior(task.model, PRIOR)
    before = copy.deepcopy(task.model.state_dict())
    weights = prior.quantize(hard=True).quantized
    files = Files(task, CONFIG)
    assert files.size(weights) == len(encode(weights, CONFIG.encode))
    found = files.judge(weights)
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())
    task.model.load_state_dict(decode(encode(weights)).state_dict())
    assert found == task.judge(task.model)


def test_the_smallest_file_has_every_shared_weight_0() -> None:
    task = make_task()
    weights = ss.MixturePrior(task.model, PRIOR).quantize().quantized
    with torch.no_grad():
        for name in ("0.weight", "0.bias", "4.weight", "4.bias"):
            task.model.get_parameter(name).zero_()
    for t in weights.shared:
        t.indices.zero_()
    least = len(encode(weights))
    check_size(ss.MaxBytes(least), weights, CONFIG)
    with pytest.raises(ConfigError, match=f"expected at least {least} bytes, .*, got {least - 1}"):
        check_size(ss.MaxBytes(least - 1), weights, CONFIG)


def test_trimmed_to_a_metric_of_which_more_is_better() -> None:
    """As many weights are zeroed as the limit allows, and the network stays within it."""
    task = make_task()
    prior = ss.MixturePrior(task.model, PRIOR)
    weights, files = prior.quantize(hard=True).quantized, Files(task, CONFIG)
    worth = {t.name: torch.ones(t.shape) for t in weights.shared}
    accuracy = ss.Task(
        task.model, task.train, loss, lambda m: 100 - task.judge(m), metric=ss.Metric("accuracy", "%", True)
    )
    limit = files.judge(weights) + 10
    by_error = files.trim_to_metric(weights, worth, limit).quantized
    by_accuracy = Files(accuracy, CONFIG).trim_to_metric(weights, worth, 100 - limit).quantized
    assert encode(by_error) == encode(by_accuracy)
    assert by_error.n_nonzero < weights.n_nonzero
    assert files.judge(by_error) <= limit
