from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cifar_files import N, write_binary
from digits import digits
from softshare.config import RetrainConfig
from softshare.errors import ConfigError, ModelError, NotAvailableError
from softshare.train.distill import distilled
from softshare.zoo import cifar10, datasets, experiments
from softshare.zoo.datasets import Augmentation, Batches, Split, load_mnist
from softshare.zoo.experiments import (
    EXPERIMENTS,
    TAUGHT,
    TEMPERATURE,
    TaskConfig,
    cross_entropy,
    error_percent,
    get_experiment,
    make_task,
    pretrain_,
    taught,
)
from softshare.zoo.models import WRN164

LENETS = {"lenet-300-100": 266_610, "lenet-5-caffe": 431_080}


def slices() -> tuple[Split, Split, Split]:
    """In place of MNIST: 600 for training, 100 for validation, 150 for the test."""
    return digits(600, 100, 150)


@pytest.fixture(autouse=True)
def small_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "load_mnist", slices)


def hand_error(model: nn.Module, split: Split) -> float:
    with torch.no_grad():
        predicted: list[int] = model(split.images).argmax(1).tolist()
    labels: list[int] = split.labels.tolist()
    return 100 * sum(p != t for p, t in zip(predicted, labels, strict=True)) / len(labels)


@pytest.mark.parametrize("name", LENETS)
def test_make_task(name: str) -> None:
    task = make_task(name)
    train, validation, test = slices()
    assert (task.name, task.dataset, task.n_examples) == (name, "MNIST", 600)
    assert sum(p.numel() for p in task.model.parameters()) == LENETS[name]
    assert isinstance(task.train, Batches)
    assert task.train.split.images.shape == train.images.shape
    batch = next(iter(task.train))
    assert len(batch) == EXPERIMENTS[name].batch_size == 256
    loss = task.loss(task.model, batch)
    assert loss.shape == ()
    log_p = torch.log_softmax(task.model(batch.images), 1)
    torch.testing.assert_close(loss, -log_p[torch.arange(256), batch.labels].mean())
    assert task.outputs is not None
    assert torch.equal(task.outputs(task.model, batch), task.model(batch.images))
    assert task.outputs(task.model, batch).shape == (256, 10)
    assert task.test is not None
    assert task.evaluate(task.model) == pytest.approx(hand_error(task.model, validation))
    assert task.test(task.model) == pytest.approx(hand_error(task.model, test))


def test_the_seed_decides_the_initial_weights() -> None:
    """The caller's random state neither enters nor moves."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make_task("lenet-300-100", seed=5).model.state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (make_task("lenet-300-100", seed=s).model.state_dict() for s in (5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_unknown_names() -> None:
    for ask in (make_task, get_experiment):
        with pytest.raises(ConfigError, match=r"'lenet-7'.*lenet-300-100, lenet-5-caffe, wrn-16-4"):
            ask("lenet-7")


def test_an_experiment_without_its_data() -> None:
    with pytest.raises(NotAvailableError, match=r"wrn-16-4: CIFAR-10 is not part of the package.*SOFTSHARE_DATA"):
        make_task("wrn-16-4")


# TaskConfig


def test_a_bad_task_config() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"label_smoothing": 1.0}, "label_smoothing: expected a share of at least 0, below 1, got 1.0"),
        ({"label_smoothing": -0.1}, "label_smoothing"),
        ({"label_smoothing": float("nan")}, "label_smoothing"),
        ({"label_smoothing": "0.1"}, "label_smoothing: expected a number"),
        ({"augment": 1}, "augment: expected true or false, got 1"),
    ]
    for values, message in bad:
        with pytest.raises(ConfigError, match=message):
            TaskConfig(**values)


def test_mnist_is_augmented_on_request_only() -> None:
    plain, augmented = (make_task("lenet-300-100", config=TaskConfig(augment=a)) for a in (False, True))
    assert isinstance(plain.train, Batches)
    assert isinstance(augmented.train, Batches)
    assert plain.train.augmentation is None
    assert augmented.train.augmentation == Augmentation(shift=2, mirror=False)
    torch.manual_seed(0)
    first = next(iter(plain.train))
    torch.manual_seed(0)
    moved = next(iter(augmented.train))
    assert torch.equal(first.labels, moved.labels)
    assert not torch.equal(first.images, moved.images)
    assert plain.evaluate(plain.model) == augmented.evaluate(plain.model)  # on images that are not augmented
    assert plain.test is not None
    assert augmented.test is not None
    assert plain.test(plain.model) == augmented.test(plain.model)


def test_label_smoothing_by_hand_and_in_training_only() -> None:
    """Each label keeps 1 - 0.3, and all ten classes share 0.3."""
    task = make_task("lenet-300-100", config=TaskConfig(label_smoothing=0.3))
    batch = next(iter(task.train))
    log_p = torch.log_softmax(task.model(batch.images), 1)
    right = log_p[torch.arange(len(batch)), batch.labels]
    smoothed = -(0.7 * right + 0.3 * log_p.mean(1)).mean()
    torch.testing.assert_close(task.loss(task.model.train(), batch), smoothed)
    torch.testing.assert_close(task.loss(task.model.eval(), batch), -right.mean())


# CIFAR-10


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small CIFAR-10: 90 images for training, 10 for validation, 20 for the test."""
    monkeypatch.setattr(cifar10, "N_RECORDS", N)
    monkeypatch.setattr(datasets, "N_VALIDATION", 10)
    return write_binary(tmp_path / "cifar-10-batches-bin")


@pytest.mark.slow
def test_wrn_16_4_as_a_task(cifar: Path) -> None:
    task = make_task("wrn-16-4", config=TaskConfig(augment=False), data=cifar)
    assert (task.name, task.dataset, task.n_examples) == ("wrn-16-4", "CIFAR-10 (unknown copy)", 90)
    assert isinstance(task.train, Batches)
    assert task.train.augmentation == Augmentation(shift=4, mirror=True)  # as in the paper, whatever the config says
    batch = next(iter(task.train))
    assert batch.images.shape == (90, 3, 32, 32)
    some = batch[torch.arange(4)]
    task.model.eval()
    logits = task.model(some.images)
    assert task.outputs is not None
    assert torch.equal(task.outputs(task.model, some), logits)
    torch.testing.assert_close(task.loss(task.model, some), F.cross_entropy(logits, some.labels))
    _, (_, validation, test) = datasets.load_cifar10(cifar)
    assert task.test is not None
    assert task.evaluate(task.model) == hand_error(task.model, validation)
    assert task.test(task.model) == hand_error(task.model, test)


def test_the_data_are_found_by_the_environment(cifar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTSHARE_DATA", str(cifar.parent))
    assert make_task("wrn-16-4").n_examples == 90


def test_a_teacher_beside_the_labels(cifar: Path) -> None:
    """The loss by hand. Experiments without a teacher refuse one."""
    task = make_task("mobile-100k", data=cifar)
    teacher = make_task("wrn-16-4", data=cifar, seed=7).model.eval()
    assert isinstance(task.train, Batches)
    batch = next(iter(task.train))[torch.arange(6)]
    task.model.eval()
    with torch.no_grad():
        found = taught(task, teacher.state_dict(), "the teacher").loss(task.model, batch)
        wanted, own = teacher(batch.images), task.model(batch.images)
    p, q = (logits.div(TEMPERATURE).log_softmax(1) for logits in (wanted, own))
    divergence = (p.exp() * (p - q)).sum(1).mean()
    hard = F.cross_entropy(own, batch.labels)
    torch.testing.assert_close(found, (1 - TAUGHT) * hard + TAUGHT * TEMPERATURE**2 * divergence)
    with pytest.raises(ConfigError, match="--teacher: expected an experiment that has one, got lenet-300-100"):
        taught(make_task("lenet-300-100"), {}, "the teacher")
    with pytest.raises(ModelError, match="the teacher does not fit the model"):
        taught(task, task.model.state_dict(), "the teacher")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("distill", [False, True])
def test_wrn_16_4_on_a_gpu(cifar: Path, distill: bool) -> None:
    """Training runs in bfloat16, captured or not. Evaluation runs in float32, without TF32."""
    task = make_task("wrn-16-4", "cuda", config=TaskConfig(label_smoothing=0.1), data=cifar)
    torch.manual_seed(0)
    batch = next(iter(task.train))
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert all(p.is_contiguous() for p in task.model.parameters())
    assert task.outputs is not None
    kinds: list[tuple[torch.dtype, bool]] = []
    model = task.model
    assert isinstance(model, WRN164)
    hook = model.blocks.register_forward_hook(
        lambda _, __, out: kinds.append((out.dtype, torch.backends.cudnn.allow_tf32))
    )
    before = torch.backends.cudnn.allow_tf32
    with torch.no_grad():  # a graph kept from here would tie the capture below to this stream
        assert task.outputs(task.model, batch).dtype == task.loss(task.model, batch).dtype == torch.float32
        task.evaluate(task.model.eval())
    assert [dtype for dtype, _ in kinds] == [torch.bfloat16, torch.bfloat16, torch.float32]
    assert kinds[-1][1] is False
    assert torch.backends.cudnn.allow_tf32 == before
    with torch.no_grad():
        exact = F.cross_entropy(task.model(batch.images), batch.labels)
        torch.testing.assert_close(task.loss(task.model, batch), exact, rtol=0.02, atol=0.02)
    hook.remove()
    if distill:
        task = distilled(task, task.model, 0.5)
    history = pretrain_(task, RetrainConfig(epochs=6, lr_weights=1e-3, capture=True))
    assert history[-1].task_loss < history[1].task_loss


def test_the_papers_rows() -> None:
    """Table 1, 'Ours'."""
    table = {
        "lenet-300-100": (1.89, 1.94, 4.3, 64),
        "lenet-5-caffe": (0.88, 0.97, 0.5, 162),
        "wrn-16-4": (6.48, 8.50, 6.6, 45),
    }
    for name, row in table.items():
        paper = get_experiment(name).paper
        assert paper is not None
        assert (paper.error_before, paper.error_after, paper.nonzero_percent, paper.ratio) == row
    assert [name for name, experiment in EXPERIMENTS.items() if experiment.paper] == list(table)


class Echo(nn.Module):
    """Returns the image as logits, and notes the batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return x.flatten(1)


def test_error_percent_by_hand() -> None:
    """The 2nd, 4th and last of 7 examples are wrong. In batches of 3 the last is alone in its batch."""
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2])
    predicted = torch.tensor([0, 2, 2, 1, 0, 1, 3])
    split = Split(F.one_hot(predicted, 4).float()[:, None, None], labels)
    for batch_size, sizes in ((3, [3, 3, 1]), (7, [7]), (100, [7]), (1, [1] * 7)):
        model = Echo()
        assert error_percent(model, split, batch_size) == pytest.approx(300 / 7, rel=1e-12)
        assert model.sizes == sizes


def test_cross_entropy_by_hand() -> None:
    """Logits log 1 and log 3 are shares of 1/4 and 3/4. The loss is the mean over a right and a wrong label."""
    images = torch.tensor([1.0, 3.0]).log().expand(2, 1, 1, 2)
    loss = cross_entropy(Echo(), Split(images, torch.tensor([1, 0])))
    expected = -(torch.tensor(0.75).log() + torch.tensor(0.25).log()) / 2
    torch.testing.assert_close(loss, expected)


def test_label_smoothing_by_hand() -> None:
    """With 0.2, each class takes 0.1 of the target, and the label takes the other 0.8."""
    images = torch.tensor([1.0, 3.0]).log().expand(1, 1, 1, 2)
    loss = make_task("lenet-300-100", config=TaskConfig(label_smoothing=0.2)).loss(
        Echo(), Split(images, torch.tensor([1]))
    )
    torch.testing.assert_close(loss, -(0.9 * torch.tensor(0.75).log() + 0.1 * torch.tensor(0.25).log()))


@pytest.mark.slow
def test_a_short_pre_training_learns_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 real images are enough for an error below 15% on held-out ones."""
    splits = load_mnist()
    parts = tuple(split[torch.arange(n)] for split, n in zip(splits, (2000, 500, 700), strict=True))
    monkeypatch.setattr(experiments, "load_mnist", lambda: parts)
    task = make_task("lenet-300-100")
    history = pretrain_(task, RetrainConfig(epochs=8, lr_weights=2e-3))
    assert history[0].validation_error > 60
    assert history[-1].validation_error < 15
    assert task.test is not None
    assert task.judge(task.model, final=True) < 15
    assert task.evaluate(task.model) == history[-1].validation_error


def test_pre_training_follows_its_seed() -> None:
    def weights(seed: int) -> Tensor:
        task = make_task("lenet-300-100")
        pretrain_(task, RetrainConfig(epochs=1, lr_weights=2e-3, seed=seed))
        return torch.cat([p.detach().reshape(-1) for p in task.model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))
