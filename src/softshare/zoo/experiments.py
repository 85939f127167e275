"""The paper's experiments as Tasks, with their pre-training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import CompressConfig, RetrainConfig
from softshare.errors import ConfigError, NotAvailableError
from softshare.retrain import EpochRecord, Hook, retrain_
from softshare.task import Task
from softshare.zoo.datasets import Batches, Split, load_mnist
from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table 1."""

    error_before: float
    error_after: float
    nonzero_percent: float
    ratio: float


@dataclass(frozen=True)
class Experiment:
    name: str
    dataset: str
    make_model: Callable[[], nn.Module]
    batch_size: int
    pretrain: RetrainConfig
    compress: CompressConfig  # thousands of steps: time enough for components that start broad to tighten
    paper: PaperRow


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            name="lenet-300-100",
            dataset="MNIST",
            make_model=LeNet300100,
            batch_size=256,
            pretrain=RetrainConfig(epochs=15, lr_weights=4e-3),
            compress=CompressConfig().override(lr_weights=5e-3, init_std=None),
            paper=PaperRow(1.89, 1.94, 4.3, 64),
        ),
        Experiment(
            name="lenet-5-caffe",
            dataset="MNIST",
            make_model=LeNet5Caffe,
            batch_size=256,
            pretrain=RetrainConfig(epochs=10, lr_weights=2e-3),
            compress=CompressConfig().override(lr_weights=3e-3, init_std=None),
            paper=PaperRow(0.88, 0.97, 0.5, 162),
        ),
        Experiment(
            name="wrn-16-4",
            dataset="CIFAR-10",
            make_model=WRN164,
            batch_size=128,
            pretrain=RetrainConfig(epochs=100, lr_weights=1e-3),
            compress=CompressConfig().override(components=64, init_std=None),  # 6.3
            paper=PaperRow(6.48, 8.50, 6.6, 45),
        ),
    )
}


@dataclass(frozen=True)
class TaskConfig:
    """Switches of an experiment's training, which its results record."""

    augment: bool = False
    label_smoothing: float = 0.0


def get_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; known are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def make_task(
    name: str,
    device: torch.device | str = "cpu",
    seed: int = 0,
    config: TaskConfig | None = None,
    data: Path | None = None,
) -> Task:
    """The experiment as a Task, its model freshly initialized; the data lives on the device."""
    experiment, config = get_experiment(name), config or TaskConfig()
    if experiment.dataset != "MNIST":
        raise NotAvailableError(f"{name} needs {experiment.dataset}, which this version cannot load yet")
    if config.augment:
        raise NotAvailableError(f"{name}: this version cannot augment yet")
    train, validation, test = (split.to(device) for split in load_mnist())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = experiment.make_model().to(device)
    return Task(
        model=model,
        train=Batches(train, experiment.batch_size),
        loss=partial(cross_entropy, label_smoothing=config.label_smoothing),
        evaluate=lambda m: error_percent(m, validation),
        n_examples=len(train),
        test=lambda m: error_percent(m, test),
        name=name,
        dataset=experiment.dataset,
    )


def pretrain_(task: Task, config: RetrainConfig, hooks: Sequence[Hook] = ()) -> tuple[EpochRecord, ...]:
    """Plain training, no prior."""
    return retrain_(task, None, config, hooks)


def cross_entropy(model: nn.Module, batch: Split, label_smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(model(batch.images), batch.labels, label_smoothing=label_smoothing)


@torch.no_grad()
def error_percent(model: nn.Module, split: Split, batch_size: int = 1000) -> float:
    wrong = torch.zeros((), dtype=torch.int64, device=split.labels.device)
    for part in torch.split(torch.arange(len(split), device=wrong.device), batch_size):
        batch = split[part]
        wrong += (model(batch.images).argmax(1) != batch.labels).sum()
    return 100 * int(wrong) / len(split)
