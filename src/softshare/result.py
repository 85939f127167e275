"""Evaluate: a file, decoded and measured, as a `Result`. Nothing here is a formula over numbers that no file holds."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from softshare._util.files import read_bytes, write_atomic
from softshare._util.schema import from_plain, require_types, to_plain
from softshare.codec import decode, encode
from softshare.compressed import Compressed
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied, unwrapped
from softshare.quantization.description_length import complexity_bits, entropy_bits
from softshare.task import Task
from softshare.train.retrain import seeded

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """One measured point; the same schema for every method."""

    schema: int
    experiment: str
    method: str
    dataset: str
    seed: int
    error_before: float  # percent, test
    error_after: float  # percent, test, of the network that the file decodes to
    n_weights: int  # parameters of the model
    n_nonzero: int
    n_components: int  # distinct values of shared weights, zero included
    file_bytes: int  # of the whole file
    ratio: float  # 4 * n_weights / file_bytes
    han_bytes: int  # of the whole file, with the codec 'han'
    han_ratio: float
    entropy_bytes: float  # order-0 entropy of each shared tensor's indices, summed; codebooks not counted
    complexity_bytes: float | None  # bits to name every weight's component under the mixture, / 8; None without one
    error_bits: (
        float  # task loss over the training set in bits; the error cost where the loss is a negative log-likelihood
    )
    seconds: float  # of retraining
    device: str
    versions: dict[str, str]
    config: dict[str, Any]
    published_ratio: float | None = None  # a baseline's, in the accounting of its own paper
    outcome: dict[str, Any] | None = None  # of a target: that, its limit, what was reached, whether it is met

    def __post_init__(self) -> None:
        require_types(self)

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        write_atomic(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        data = read_bytes(path)
        try:
            values = json.loads(data)
            if not isinstance(values, dict) or values.get("schema") != SCHEMA:
                raise ValueError(f"expected an object of schema {SCHEMA}")
            return from_plain(cls, values, "result")
        except ValueError as problem:
            raise FormatError(f"{os.fspath(path)} is not a result: {problem}") from None


class RunConfig(Protocol):
    """What is asked of a method's config: `CompressConfig`, or a baseline's."""

    @property
    def encode(self) -> EncodeConfig: ...

    @property
    def seed(self) -> int: ...

    def to_dict(self) -> dict[str, Any]: ...


def measure(
    task: Task,
    compressed: Compressed,
    config: RunConfig,
    *,
    method: str = "softshare",
    error_before: float | None = None,
    model: nn.Module | None = None,
) -> Result:
    """Encode, decode, load into `model` (by default a copy of `task.model`), measure that. Here the test set is read.

    Without `error_before`, `task.model` is taken for the network before compression, as `compress` leaves it.
    """
    if config.encode != compressed.config:
        raise ConfigError(f"measure: expected the config of the file, {compressed.config}, got {config.encode}")
    data = compressed.to_bytes()
    decoded = decode(data, like=task.model, max_bytes=None)
    model = load_copy(task.model if model is None else model, decoded.state_dict())
    han_bytes = len(encode(decoded, dataclasses.replace(config.encode, codec="han")))
    n_weights = sum(p.numel() for p in model.parameters())
    return Result(
        schema=SCHEMA,
        experiment=task.name,
        method=method,
        dataset=task.dataset,
        seed=config.seed,
        error_before=final_error(task, task.model) if error_before is None else error_before,
        error_after=final_error(task, model),
        n_weights=n_weights,
        n_nonzero=sum(int(p.count_nonzero()) for p in model.parameters()),
        n_components=decoded.n_components,
        file_bytes=len(data),
        ratio=4 * n_weights / len(data),
        han_bytes=han_bytes,
        han_ratio=4 * n_weights / han_bytes,
        entropy_bytes=entropy_bits(decoded) / 8,
        complexity_bytes=_complexity_bytes(compressed),
        error_bits=_mean_train_loss(task, model, config.seed) * task.n_examples / math.log(2),
        seconds=sum(record.seconds for record in compressed.history),
        device=_device_name(model),
        versions={"python": platform.python_version(), "torch": torch.__version__, "softshare": _own_version()},
        config=config.to_dict(),
        outcome=compressed.outcome.to_dict() if compressed.outcome else None,
    )


def load_copy(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` holding `state`, ready to be evaluated."""
    model = copied(unwrapped(model)).eval()
    load_state_(model, state, "the decoded file")
    return model


@torch.no_grad()
def final_error(task: Task, model: nn.Module) -> float:
    """Error in percent by `task.test`, or by `task.evaluate` where there is no such; the model's mode is put back."""
    was_training = model.training
    model.eval()
    error = float((task.test or task.evaluate)(model))
    model.train(was_training)
    return error


def _complexity_bytes(compressed: Compressed) -> float | None:
    if not compressed.mixtures:
        return None
    return complexity_bits(compressed.quantized, compressed.mixtures) / 8  # of values not yet rounded


@torch.no_grad()
def _mean_train_loss(task: Task, model: nn.Module, seed: int) -> float:
    with seeded(model, seed):
        losses = [float(task.loss(model, batch)) for batch in task.train]
    if not losses:
        raise ConfigError(
            "Task.train gave no batch after training: it must give its batches anew each time it is iterated"
        )
    return sum(losses) / len(losses)


def _device_name(model: nn.Module) -> str:
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _own_version() -> str:
    from softshare import __version__

    return __version__


def frontier(values: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs that no other beats in both bytes and error, by bytes."""
    out: list[tuple[float, float]] = []
    for n_bytes, error in sorted(values):
        if not out or error < out[-1][1]:
            out.append((n_bytes, error))
    return out
