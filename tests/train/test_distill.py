"""Distillation: the divergence, the loss, one forward pass for both, and its place in the route."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence
from torch.nn import functional as F

from softshare.config import CompressConfig, RetrainConfig
from softshare.errors import ConfigError, TaskError
from softshare.prior.prior import MixturePrior
from softshare.route import compress
from softshare.task import Task
from softshare.train.distill import distilled, soft_divergence
from softshare.train.retrain import retrain_

Batch = tuple[Tensor, Tensor]


class Net(nn.Sequential):
    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        for layer in self:
            x = layer(x)
        return x


def batch(seed: int = 0, n: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)


def task_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def logits(model: nn.Module, batch: Batch) -> Tensor:
    out: Tensor = model(batch[0])
    return out


def make_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {"loss": task_loss, "outputs": logits, "evaluate": lambda m: 1.0, "test": lambda m: 2.0}
    return Task(Net(0), [batch(k) for k in range(3)], n_examples=24, **fields | changes)


def test_the_divergence_by_hand() -> None:
    """The teacher says 3/4 and 1/4, the student 1/2 and 1/2. At temperature 2, logits are twice the logarithms."""
    teacher = 2 * torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    student = torch.tensor([[5.0, 5.0], [1.0, 1.0]])
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5) + 0.0) / 2
    assert float(soft_divergence(teacher, student, 2.0)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 7.0])
def test_the_divergence_against_torch_distributions(temperature: float) -> None:
    """Both the value and the gradient."""
    torch.manual_seed(0)
    teacher = 3 * torch.randn(5, 4, dtype=torch.float64)
    student = (3 * torch.randn(5, 4, dtype=torch.float64)).requires_grad_()
    p, q = Categorical(logits=teacher / temperature), Categorical(logits=student / temperature)
    ours, theirs = soft_divergence(teacher, student, temperature), kl_divergence(p, q).mean()
    torch.testing.assert_close(ours, theirs)
    (own,), (other,) = torch.autograd.grad(ours, student), torch.autograd.grad(theirs, student)
    torch.testing.assert_close(own, other)
    assert torch.autograd.gradcheck(lambda s: soft_divergence(teacher, s, temperature), student)


def test_the_divergence_is_computed_in_float32_at_least() -> None:
    teacher, student = torch.randn(2, 3, 4).bfloat16()
    assert soft_divergence(teacher, student, 2.0).dtype == torch.float32


@pytest.mark.parametrize(("share", "temperature"), [(0.0, 2.0), (0.3, 4.0), (0.9, 1.0), (1.0, 0.5)])
def test_the_loss_and_its_gradients(share: float, temperature: float) -> None:
    task, teacher = make_task(), Net(1).eval()
    task.model.eval()
    data = batch(5)
    loss = distilled(task, teacher, share, temperature).loss(task.model, data)
    p, q = (Categorical(logits=logits(net, data) / temperature) for net in (teacher, task.model))
    expected = (1 - share) * task_loss(task.model, data) + share * temperature**2 * kl_divergence(p, q).mean()
    torch.testing.assert_close(loss, expected)
    parameters = list(task.model.parameters())
    for own, other in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(own, other)


def test_all_else_stays() -> None:
    task = make_task(name="mine", dataset="theirs")
    student = distilled(task, Net(1), 0.5)
    for name in ("model", "train", "evaluate", "n_examples", "test", "name", "dataset", "outputs"):
        assert getattr(student, name) is getattr(task, name)
    assert student.loss is not task.loss


def test_the_teacher_is_a_copy_in_evaluation_mode_that_learns_nothing() -> None:
    task, teacher = make_task(), Net(1)
    assert teacher.training
    student = distilled(task, teacher, 1.0)
    task.model.eval()
    before = student.loss(task.model, batch()).detach()
    state = copy.deepcopy(teacher.state_dict())
    assert teacher.training  # the given teacher is unchanged
    assert all(p.requires_grad for p in teacher.parameters())
    with torch.no_grad():
        for p in teacher.parameters():
            p.add_(1.0)
    teacher.train()
    assert torch.equal(student.loss(task.model, batch()), before)  # also: no dropout, no batch statistics
    student.loss(task.model, batch()).backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(torch.equal(b, state[name]) for name, b in teacher.named_buffers())


def test_the_network_itself_may_be_the_teacher() -> None:
    task = make_task()
    student = distilled(task, task.model, 1.0)
    task.model.eval()
    assert student.loss(task.model, batch()).item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        next(task.model.parameters()).mul_(3)
    assert student.loss(task.model, batch()).item() > 1e-3


def test_the_network_runs_once() -> None:
    """Otherwise its batch statistics would move twice as fast, and dropout would differ between the two losses."""
    task, alone = make_task(), make_task()
    student = distilled(task, Net(1), 0.5)
    assert isinstance(task.model, Net)
    torch.manual_seed(0)
    student.loss(task.model.train(), batch()).backward()
    assert task.model.passes == 1
    torch.manual_seed(0)
    task_loss(alone.model.train(), batch()).backward()
    for name, buffer in alone.model.named_buffers():
        assert torch.equal(buffer, task.model.get_buffer(name))
    assert "forward" not in vars(task.model)
    student.loss(task.model, batch(1))
    assert task.model.passes == 2


def test_a_loss_that_calls_the_network_twice_gets_two_passes() -> None:
    """Two passes with dropout differ. The outputs reuse the second one."""
    seen: list[Tensor] = []

    def twice(model: nn.Module, batch: Batch) -> Tensor:
        seen.extend(model(batch[0]) for _ in range(2))
        return F.cross_entropy(seen[-2], batch[1]) + F.mse_loss(seen[-2], seen[-1])

    def outputs(model: nn.Module, batch: Batch) -> Tensor:
        seen.append(model(batch[0]))
        return seen[-1]

    task = make_task(loss=twice, outputs=outputs)
    assert isinstance(task.model, Net)
    distilled(task, Net(1), 0.5).loss(task.model.train(), batch()).backward()
    _, first, second, student = seen  # the teacher's outputs come first
    assert task.model.passes == 2
    assert not torch.equal(first, second)
    assert student is second


def test_another_input_is_another_pass() -> None:
    task = make_task(outputs=lambda model, batch: model(batch[0].clone() + 1))
    student = distilled(task, Net(1), 1.0)
    assert isinstance(task.model, Net)
    task.model.eval()
    loss, data = student.loss(task.model, batch()), batch()
    assert task.model.passes == 2
    p, q = (Categorical(logits=net(data[0] + 1) / 2) for net in (Net(1).eval(), task.model))
    torch.testing.assert_close(loss, 4 * kl_divergence(p, q).mean())


def test_after_an_error_the_network_is_restored() -> None:
    def broken(model: nn.Module, batch: Batch) -> Tensor:
        raise RuntimeError("broken")

    task = make_task(loss=broken)
    with pytest.raises(TaskError, match="broken"):
        distilled(task, Net(1), 0.5).loss(task.model, batch())
    assert "forward" not in vars(task.model)


SHORT = CompressConfig().override(epochs=2)


def test_in_the_route_the_teacher_is_the_network_before() -> None:
    """The option equals `distilled` with a copy of the task's own network. The task still evaluates it."""
    task = make_task()
    before = copy.deepcopy(task.model.state_dict())
    option = compress(task, SHORT.override(distill=0.5), target=None)
    by_hand = compress(distilled(task, copy.deepcopy(task.model), 0.5), SHORT, target=None)
    assert option.to_bytes() == by_hand.to_bytes()
    assert [r.task_loss for r in option.history[1:]] == [r.task_loss for r in by_hand.history[1:]]
    assert [r.validation_error for r in option.history] == [1.0] * 3
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())
    assert option.history[-1].task_loss != compress(task, SHORT, target=None).history[-1].task_loss


def test_retraining_alone_takes_the_network_at_its_start_for_a_teacher() -> None:
    config = RetrainConfig(epochs=2)
    losses = []
    for task, settings in (
        (make_task(), dataclasses.replace(config, distill=0.5)),
        (distilled(make_task(), make_task().model, 0.5), config),
        (make_task(), config),
    ):
        losses.append([r.task_loss for r in retrain_(task, MixturePrior(task.model), settings)[1:]])
    option, by_hand, plain = losses
    assert option == by_hand
    assert option != plain


def test_a_share_of_0_needs_no_outputs_and_changes_nothing() -> None:
    config = SHORT.override(distill=0.0)
    with_outputs, without = (compress(make_task(**c), config, target=None) for c in ({}, {"outputs": None}))
    plain = compress(make_task(), SHORT, target=None)
    assert with_outputs.to_bytes() == without.to_bytes() == plain.to_bytes()
    losses = [[r.task_loss for r in c.history[1:]] for c in (with_outputs, without, plain)]
    assert losses[0] == losses[1] == losses[2]


def test_in_the_route_a_task_without_outputs_is_refused_before_training() -> None:
    def never(model: nn.Module, batch: Batch) -> Tensor:
        pytest.fail("trained")

    with pytest.raises(ConfigError, match=r"a task with `outputs`.*Task\(outputs=\.\.\.\)"):
        compress(make_task(outputs=None, loss=never), SHORT.override(distill=0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": -0.1}, "share: expected a number between 0 and 1, got -0.1"),
        ({"share": math.nan}, "share"),
        ({"share": True}, "share"),
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": "2"}, "temperature"),
        ({"teacher": "net"}, "expected a torch.nn.Module as the teacher, got str"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"teacher": Net(1), "share": 0.5}
    with pytest.raises(ConfigError, match=message):
        distilled(make_task(), **arguments | changes)


def test_a_task_without_outputs() -> None:
    with pytest.raises(ConfigError, match=r"a task with `outputs`.*Task\(outputs=\.\.\.\)"):
        distilled(make_task(outputs=None), Net(1), 0.5)


@pytest.mark.parametrize(
    "outputs", [lambda m, b: m(b[0])[0], lambda m, b: m(b[0])[: len(m(b[0])) - isinstance(m, Net)]]
)
def test_outputs_of_a_wrong_shape(outputs: Any) -> None:
    task = make_task(outputs=outputs)
    student = distilled(task, nn.Linear(4, 3), 0.5)
    with pytest.raises(ConfigError, match=r"expected logits of the same shape \(batch, classes\), got \("):
        student.loss(task.model, batch())
