"""The paper's experiments and one more as Tasks, with their pre-training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare._util.schema import require, require_types
from softshare.config import CompressConfig, RetrainConfig
from softshare.errors import ConfigError, NotAvailableError
from softshare.network.weights import load_state_
from softshare.task import Task
from softshare.train.distill import distilled
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.phases import Phases
from softshare.train.resume import Checkpoint
from softshare.train.retrain import retrain_
from softshare.zoo.datasets import Augmentation, Batches, Split, load_cifar10, load_mnist
from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100, Mobile100k


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table 1."""

    error_before: float
    error_after: float
    nonzero_percent: float
    ratio: float


@dataclass(frozen=True)
class TaskConfig:
    """The options of an experiment's training. Evaluation neither augments images nor smooths labels."""

    # The paper augments only CIFAR-10 (mirrored, shifted by up to 4 pixels). There this option changes nothing.
    augment: bool = False  # shift MNIST's images by up to 2 pixels
    label_smoothing: float = 0.0  # share of each label that is spread over all classes

    def __post_init__(self) -> None:
        require_types(self)
        require(
            0 <= self.label_smoothing < 1, "label_smoothing", "a share of at least 0, below 1", self.label_smoothing
        )


@dataclass(frozen=True)
class Experiment:
    name: str
    dataset: str
    make_model: Callable[[], nn.Module]
    batch_size: int
    pretrain: RetrainConfig
    compress: CompressConfig
    paper: PaperRow | None = None
    label_smoothing: float = 0.05  # default of the command line without augmentation; the paper has none
    augmentation: Augmentation = Augmentation(shift=2)
    always_augmented: bool = False  # whatever TaskConfig.augment says; the paper does so with CIFAR-10
    mixed_precision: bool = False  # in training on a GPU
    captured: bool = False  # pre-training on a GPU replays its steps from a graph
    teacher: str = ""  # the experiment whose network may teach this one in pre-training


_COMPRESS = CompressConfig().override(epochs=30, scaling="paper", zeroing=0.3)  # what the kept results were made with
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            name="lenet-300-100",
            dataset="MNIST",
            make_model=LeNet300100,
            batch_size=256,
            pretrain=RetrainConfig(epochs=15, lr_weights=4e-3),
            compress=_COMPRESS,
            paper=PaperRow(1.89, 1.94, 4.3, 64),
        ),
        Experiment(
            name="lenet-5-caffe",
            dataset="MNIST",
            make_model=LeNet5Caffe,
            batch_size=256,
            pretrain=RetrainConfig(epochs=10, lr_weights=2e-3),
            compress=_COMPRESS.override(units=2.0),
            paper=PaperRow(0.88, 0.97, 0.5, 162),
        ),
        Experiment(
            name="wrn-16-4",
            dataset="CIFAR-10",
            make_model=WRN164,
            batch_size=128,
            pretrain=RetrainConfig(epochs=100, optimizer="sgd", lr_weights=0.1, weight_decay=5e-4),
            compress=_COMPRESS.override(rest_dtype="float16"),
            paper=PaperRow(6.48, 8.50, 6.6, 45),
            label_smoothing=0.0,
            augmentation=Augmentation(shift=4, mirror=True),
            always_augmented=True,
            mixed_precision=True,
        ),
        Experiment(
            name="mobile-100k",
            dataset="CIFAR-10",
            make_model=Mobile100k,
            batch_size=128,
            pretrain=RetrainConfig(epochs=200, optimizer="sgd", lr_weights=0.1, weight_decay=2e-4),
            compress=_COMPRESS.override(rest_dtype="float16"),
            label_smoothing=0.0,
            augmentation=Augmentation(shift=4, mirror=True),
            always_augmented=True,
            mixed_precision=True,
            captured=True,
            teacher="wrn-16-4",
        ),
    )
}
TAUGHT = 0.9  # share of the loss that is the divergence from a teacher
TEMPERATURE = 4.0


def get_experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; expected one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def make_task(
    name: str,
    device: torch.device | str = "cpu",
    seed: int = 0,
    config: TaskConfig | None = None,
    data: Path | None = None,
) -> Task:
    """The experiment as a Task, with a freshly initialized model and its data on the device.

    `data` is the folder of CIFAR-10 or its parent (default: SOFTSHARE_DATA). MNIST is in the package.
    """
    experiment, config = get_experiment(name), config or TaskConfig()
    dataset, splits = _load(experiment, data)
    train, validation, test = (split.to(device) for split in splits)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = experiment.make_model().to(device)
    mixed = experiment.mixed_precision and train.labels.is_cuda
    outputs = mixed_outputs if mixed else plain_outputs
    return Task(
        model=model,
        train=Batches(
            train,
            experiment.batch_size,
            experiment.augmentation if config.augment or experiment.always_augmented else None,
            torch.channels_last if mixed else torch.contiguous_format,
        ),
        loss=lambda m, batch: cross_entropy(m, batch, outputs, config.label_smoothing),
        evaluate=lambda m: error_percent(m, validation),
        n_examples=len(train),
        test=lambda m: error_percent(m, test),
        name=name,
        dataset=dataset,
        outputs=outputs,
    )


def _load(experiment: Experiment, data: Path | None) -> tuple[str, tuple[Split, Split, Split]]:
    if experiment.dataset == "MNIST":
        return experiment.dataset, load_mnist()
    try:
        return load_cifar10(data)
    except NotAvailableError as problem:
        raise NotAvailableError(f"{experiment.name}: {problem}") from None


def taught(task: Task, state: Mapping[str, Tensor], source: str) -> Task:
    """The task of an experiment with a teacher beside its labels: the network of `Experiment.teacher` in this state."""
    name = get_experiment(task.name).teacher
    if not name:
        raise ConfigError(f"--teacher: expected an experiment that has one, got {task.name}. Leave the option out")
    teacher = get_experiment(name).make_model()
    load_state_(teacher, state, source)
    return distilled(task, teacher, TAUGHT, TEMPERATURE)


def pretrain_(
    task: Task,
    config: RetrainConfig,
    hooks: Sequence[Hook] = (),
    checkpoint: Checkpoint | None = None,
    teacher: str = "",  # what tells a teacher from others, if there is one
) -> tuple[EpochRecord, ...]:
    """Train without a prior. With `checkpoint`, a training that was stopped goes on from there."""
    if checkpoint is None:
        return retrain_(task, None, config, hooks)
    own = [task.name, task.dataset, task.n_examples, pretraining_settings(config), torch.__version__]
    device = next(task.model.parameters()).device.type
    checkpoint.begin([*own, *([teacher] if teacher else [])], device=device)
    with Phases(task, config.looks, hooks, checkpoint=checkpoint) as phases:
        phases.run(config)
    return phases.history


def pretraining_settings(config: RetrainConfig) -> dict[str, Any]:
    """The settings that have an effect without a prior."""
    counts = ("epochs", "lr_weights", "optimizer", "weight_decay", "schedule", "seed", "capture")
    return {name: getattr(config, name) for name in counts}


def plain_outputs(model: nn.Module, batch: Split) -> Tensor:
    logits: Tensor = model(batch.images)
    return logits


def mixed_outputs(model: nn.Module, batch: Split) -> Tensor:
    """Outputs in bfloat16 where autocast allows it, with images in the memory format that suits tensor cores."""
    # no cache: each weight is used once, and one captured graph must not see another's cache
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        logits: Tensor = model(batch.images.contiguous(memory_format=torch.channels_last))
    return logits.float()


def cross_entropy(
    model: nn.Module,
    batch: Split,
    outputs: Callable[[nn.Module, Split], Tensor] = plain_outputs,
    label_smoothing: float = 0.0,  # while the model is in training mode
) -> Tensor:
    smoothing = label_smoothing if model.training else 0.0
    return F.cross_entropy(outputs(model, batch), batch.labels, label_smoothing=smoothing)


@torch.no_grad()
def error_percent(model: nn.Module, split: Split, batch_size: int = 1000) -> float:
    """Error in percent. All of it is computed in float32, on a GPU too."""
    wrong = torch.zeros((), dtype=torch.int64, device=split.labels.device)
    with _without_tf32() if wrong.is_cuda else nullcontext():
        for part in torch.split(torch.arange(len(split), device=wrong.device), batch_size):
            batch = split[part]
            wrong += (model(batch.images).argmax(1) != batch.labels).sum()
    return 100 * int(wrong) / len(split)


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Turn TF32 off: by default cuDNN rounds the inputs of a float32 convolution to 10 bits."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
