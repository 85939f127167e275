"""Measure a file: decode it, evaluate its network, and record a `Result`. Sizes are those of real files."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from softshare._util.files import read_bytes, write_atomic
from softshare._util.foreign import read_json
from softshare._util.schema import from_plain, require, require_types, to_plain
from softshare._util.user_code import at, batches
from softshare.codec import decode, encode
from softshare.compressed import Compressed
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied, unwrapped
from softshare.quantization.description_length import complexity_bits, entropy_bits
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.simplify.shrink import shrink
from softshare.simplify.speed import Speed, speed_of
from softshare.task import Metric, Task, examples_in, require_mean_loss
from softshare.train.first_look import first_call
from softshare.train.noise import noise_of
from softshare.train.retrain import seeded
from softshare.train.spared import spared

SCHEMA = 1
MOST_CHARACTERS = 1000  # of a name in a result


@dataclass(frozen=True)
class Result:
    """One measured point; the same schema for every method:

        result = softshare.measure(task, compressed, config)
        print(result.error_before, result.error_after, result.ratio)
        result.save("result.json")

    `Result.load` reads the file back.
    """

    schema: int
    experiment: str
    method: str
    dataset: str
    seed: int
    error_before: float  # the value of `metric` on the test set; by default it is the error in percent
    error_after: float  # the same of the network that the file decodes to
    n_weights: int  # parameters of the model
    n_nonzero: int
    n_components: int  # distinct values of shared weights, zero included
    file_bytes: int  # the whole file
    ratio: float  # 4 * n_weights / file_bytes
    han_bytes: int  # the whole file with the codec 'han'
    han_ratio: float
    entropy_bytes: float  # order-0 entropy of each shared tensor's indices, summed; codebooks not counted
    complexity_bytes: float | None  # bits that name every weight's component under the mixture, / 8
    error_bits: float  # task loss over the training set in bits: the error cost if it is a negative log-likelihood;
    # infinite if the loss is not finite, and null in the file
    seconds: float  # spent on retraining
    device: str
    versions: dict[str, str]
    config: dict[str, Any]
    published_ratio: float | None = None  # of a baseline, by the accounting of its own paper
    outcome: dict[str, Any] | None = None  # on validation data: the target, what was reached, what the network lost
    metric: Metric = Metric()  # what the errors are; older results do not say, and have the error in percent
    others: dict[str, Any] | None = None  # what else the task measures: name -> [before, after]
    noise: float | None = None  # standard error of `error_before`; older results do not have it
    threads: int | None = None  # of torch on the CPU; older results do not say
    speed: Speed | None = None  # of the shrunk network, if there was a prior over units; older results do not have it
    command: str | None = None  # as it was typed, quoted for a shell; None if the run was started from Python

    def __post_init__(self) -> None:
        """What JSON cannot say is None, so that a result equals what its file reads back to."""
        require_types(self)
        for name, value in vars(self).items():
            if name == "error_bits":
                object.__setattr__(self, name, value if math.isfinite(value) else math.inf)
            elif name in ("complexity_bytes", "published_ratio", "outcome", "others", "noise", "config"):
                object.__setattr__(self, name, _without_infinities(value))
            elif isinstance(value, float):
                require(math.isfinite(value), name, "a finite number", value)

    def _require_usable(self) -> None:
        """Raise unless every table and figure can show the result. One that was measured can be shown."""
        for name in ("n_weights", "file_bytes", "han_bytes"):
            require(getattr(self, name) > 0, f"result.{name}", "a number above 0", getattr(self, name))
        shown = (self.experiment, self.method, self.dataset, self.device, self.metric.name, self.metric.unit)
        for text in shown:
            require(len(text) <= MOST_CHARACTERS, "result", f"names of at most {MOST_CHARACTERS} characters", len(text))
        for name in ("n_nonzero", "n_components"):
            require(getattr(self, name) >= 0, f"result.{name}", "a number of at least 0", getattr(self, name))
        for name, pair in (self.others or {}).items():
            numbers = isinstance(pair, list) and all(value is None or _is_number(value) for value in pair)
            require(numbers and len(pair) == 2, f"result.others.{name}", "two numbers or null", pair)
        for name in ("retrain", "prior", "merge", "encode", "task"):
            stage = self.config.get(name, {})
            require(isinstance(stage, dict), f"result.config.{name}", "settings by their names", stage)
        rules = self.config.get("prior", {}).get("rules", [])
        of_rules = isinstance(rules, list) and all(isinstance(rule, dict) for rule in rules)
        require(of_rules, "result.config.prior.rules", "a list of rules", rules)
        _require_outcome(self.outcome)

    def to_json(self) -> str:
        """The text of `result.json`."""
        known = math.isfinite(self.error_bits)
        values = to_plain(self if known else dataclasses.replace(self, error_bits=0.0))
        return json.dumps(values if known else {**values, "error_bits": None}, indent=2) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all.

        Args:
            path: of the file, which is replaced if it exists.
        """
        write_atomic(path, self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a `result.json`, whoever wrote it.

        Args:
            path: of the file.

        Returns:
            The result, if the file holds one that tables and figures can show.
        """
        data = read_bytes(path)
        try:
            values = read_json(data)
            if not isinstance(values, dict) or values.get("schema") != SCHEMA:
                raise ValueError(f"expected a JSON object with schema {SCHEMA}")
            if "error_bits" in values and values["error_bits"] is None:
                values["error_bits"] = math.inf
            result = from_plain(cls, values, "result")
            result._require_usable()
            return result
        except ValueError as problem:
            raise FormatError(f"{os.fspath(path)} is not a result: {problem}") from None


def _without_infinities(value: Any) -> Any:
    """A plain value with None for every number that is NaN or infinite."""
    if isinstance(value, dict):
        return {key: _without_infinities(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _require_outcome(outcome: dict[str, Any] | None) -> None:
    """Older results have fewer entries, and one without a target has no limit."""
    if outcome is None:
        return
    target = outcome.get("target")
    require(target is None or isinstance(target, dict), "result.outcome.target", "a target or null", target)
    for name in ("limit", "reached", "before", "after", "noise"):
        value = outcome.get(name)
        require(value is None or _is_number(value), f"result.outcome.{name}", "a number or null", value)
    for name in ("met", "kept", "broken", "guessed"):
        require(isinstance(outcome.get(name, True), bool), f"result.outcome.{name}", "true or false", outcome.get(name))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class RunConfig(Protocol):
    """What `measure` needs from a method's config: `CompressConfig` or that of a baseline."""

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
    error_before: float | Mapping[str, float] | None = None,
    model: nn.Module | None = None,
) -> Result:
    """Encode, decode, load into a copy of the network, and measure that on the test set:

        result = softshare.measure(task, compressed, config)

    Without `error_before`, the error before compression is that of `task.model`, which `compress` does not change. It
    may be a dict of all that the task measures, as `Task.judge_all` gives it.

    Args:
        task: that the network was compressed for.
        compressed: the network.
        config: that it was compressed with.
        method: recorded in the result.
        error_before: of the network before, if it is known.
        model: to load the file into (a copy of it); by default `task.model`.

    Returns:
        The measured point: errors, sizes, time and settings.
    """
    if config.encode != compressed.config:
        raise ConfigError(
            f"measure: expected the config that compressed the network, with {compressed.config}, got {config.encode}"
        )
    data = compressed.to_bytes()
    decoded = decode(data, like=task.model, max_bytes=None)
    dropped = compressed.quantized.dropped  # the network has these tensors, the file does not
    model = load_copy(task.model if model is None else model, decoded.state_dict(), strict=not dropped)
    with at("the final measurement"):
        before = task.judge_all(task.model, final=True) if error_before is None else error_before
        before = before if isinstance(before, Mapping) else {task.metric.name: before}
        after = task.judge_all(model, final=True)
        noise = _noise(task, compressed, before[task.metric.name])
        train_loss = _mean_train_loss(task, model, config.seed)
    return Result(
        experiment=task.name,
        method=method,
        dataset=task.dataset,
        error_before=before[task.metric.name],
        error_after=after[task.metric.name],
        error_bits=train_loss * task.n_examples / math.log(2),
        metric=task.metric,
        others=other_measures(task, before, after),
        speed=_speed(task, model) if compressed.with_units else None,
        noise=noise,
        **facts_of(compressed, config, model, data, decoded),
    )


def _speed(task: Task, model: nn.Module) -> Speed | None:
    """Of the network without the units that do nothing, on the first batch. None, with a message, if that fails."""
    with spared("the timing of the shrunk network", then="The result has no times"):
        model = copied(model).eval()
        with torch.no_grad(), seeded(model, 0), first_call(model) as call, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about units that stay
            task.loss(model, next(batches(task.train)))
            args, kwargs = call
            inputs = kwargs if kwargs and not args else args
            return speed_of(model, shrink(model, inputs=inputs), inputs)
    return None


def facts_of(
    compressed: Compressed,
    config: RunConfig,
    model: nn.Module,  # what the file decodes to
    data: bytes,  # the file
    decoded: QuantizedWeights,
) -> dict[str, Any]:
    """What a result says without any data: about the file, the network, the run and this machine."""
    han_bytes = len(encode(decoded, dataclasses.replace(config.encode, codec="han")))
    stored = {name: p for name, p in model.named_parameters() if name not in compressed.quantized.dropped}
    n_weights = sum(p.numel() for p in stored.values())
    return {
        "schema": SCHEMA,
        "seed": config.seed,
        "n_weights": n_weights,
        "n_nonzero": sum(_n_nonzero(t) for name, t in decoded.items() if name in stored),
        "n_components": decoded.n_components,
        "file_bytes": len(data),
        "ratio": 4 * n_weights / len(data),
        "han_bytes": han_bytes,
        "han_ratio": 4 * n_weights / han_bytes,
        "entropy_bytes": entropy_bits(decoded) / 8,
        "complexity_bytes": _complexity_bytes(compressed),
        "seconds": sum(record.seconds for record in compressed.history),
        "device": device_name(model),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "softshare": _own_version()},
        "config": config.to_dict(),
        "outcome": compressed.outcome.to_dict() if compressed.outcome else None,
    }


def _n_nonzero(tensor: QuantizedTensor | Tensor) -> int:
    return int((tensor if isinstance(tensor, Tensor) else tensor.dense()).count_nonzero())


def _noise(task: Task, compressed: Compressed, before: float) -> float | None:
    """The standard error of the metric before compression: on the test set, if there is one. None for rivals."""
    if compressed.outcome is None:
        return None
    if task.test is None:
        return compressed.outcome.noise
    return noise_of(dataclasses.replace(task, evaluate=task.test), task.model, before)


def other_measures(task: Task, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any] | None:
    """What a task measures beside its metric: name -> [before, after]. None if there is nothing else."""
    names = [name for name in after if name in before and name != task.metric.name]
    return {name: [before[name], after[name]] for name in names} or None


def load_copy(model: nn.Module, state: Mapping[str, Tensor], *, strict: bool = True) -> nn.Module:
    """A copy of `model` with the values of `state`, in evaluation mode."""
    model = copied(unwrapped(model)).eval()
    load_state_(model, state, "the decoded file", strict=strict)
    return model


def final_error(task: Task, model: nn.Module) -> float:
    """The metric by `task.test`, or by `task.evaluate` if the task has no test."""
    return task.judge(model, final=True)


def _complexity_bytes(compressed: Compressed) -> float | None:
    if not compressed.mixtures:
        return None
    return complexity_bits(compressed.quantized, compressed.mixtures) / 8  # before the codebook is rounded


def _mean_train_loss(task: Task, model: nn.Module, seed: int) -> float:
    try:
        with torch.no_grad():
            return _mean_loss(task, model, seed)
    except ConfigError:
        raise
    except Exception:  # the loss may need gradients, or training mode as that of a detector does
        return _mean_loss(task, model.train(), seed)


def _mean_loss(task: Task, model: nn.Module, seed: int) -> float:
    """The mean over examples: a batch counts by its size, or all count the same if a size is not known."""
    with seeded(model, seed):
        found = []
        for n, batch in enumerate(batches(task.train), start=1):
            with at(f"batch {n}"):
                found.append((float(require_mean_loss(task.loss(model, batch)).detach()), examples_in(batch)))
    if not found:
        raise ConfigError(
            "Task.train gave no batch after training; expected the batches again each time it is iterated. "
            "Give a DataLoader or a list, not a generator"
        )
    sizes = [n for _, n in found if n]
    if len(sizes) < len(found):
        sizes = [1] * len(found)
    return sum(n * loss for n, (loss, _) in zip(sizes, found, strict=True)) / sum(sizes)


def device_name(model: nn.Module) -> str:
    """Of the GPU, or 'cpu'."""
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _own_version() -> str:
    from softshare import __version__

    return __version__


def frontier(values: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs that no other pair beats in both bytes and error, sorted by bytes."""
    out: list[tuple[float, float]] = []
    for n_bytes, error in sorted(values):
        if not out or error < out[-1][1]:
            out.append((n_bytes, error))
    return out
