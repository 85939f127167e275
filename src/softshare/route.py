"""The whole route in one call: prior, retrain, merge, quantize, train the codebooks, simplify; it can be saved."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softshare.budget import Budget
from softshare.codebook import Codebook, Codebooks, with_values
from softshare.codec import check, decode, encode, save
from softshare.codec.shared import rounded_codebook
from softshare.config import CompressConfig, EncodeConfig, MergeConfig, RetrainConfig
from softshare.distill import distilled
from softshare.errors import ConfigError
from softshare.merge import merge_groups, spread
from softshare.phases import Phases
from softshare.prior import Mixture, MixturePrior
from softshare.quantize import QuantizedWeights, complexity_bits, quantize
from softshare.retrain import EpochRecord, Hook
from softshare.symmetries import simplify
from softshare.target import Outcome, Target
from softshare.task import Task


@dataclass(frozen=True, eq=False)
class Compressed:
    """A network on its way into a file, with what led there."""

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # merged; of each shared tensor, if any; its means as coded
    retrained: dict[str, Tensor] = field(repr=False)  # the state dict just before quantizing; units as they were
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    config: EncodeConfig = field(default_factory=EncodeConfig)
    messages: tuple[str, ...] = field(default=(), repr=False)  # what was done to the network's units
    outcome: Outcome | None = None  # of the target, if there was one

    def to_bytes(self) -> bytes:
        """The file."""
        return encode(self.quantized, self.config)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all, and return its size in bytes."""
        return save(self.quantized, path, self.config)

    def state_dict(self) -> dict[str, Tensor]:
        """What the file decodes to, by way of the file."""
        named = dataclasses.replace(self.config, names="keep")  # the same values, whether or not the file has names
        return decode(encode(self.quantized, named), max_bytes=None).state_dict()

    def in_place(self, name: str) -> Tensor:
        """A shared tensor as the file holds it, but with its units where the network has them."""
        found = next(t for t in (self.quantized.unordered or self.quantized).shared if t.name == name)
        values = torch.from_numpy(rounded_codebook(found, self.config).values)
        return dataclasses.replace(found, codebook=values).dense()


def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = None,
) -> Compressed:
    """Retrain a copy of `task.model` under the prior, merge and quantize. `task.model` itself is left as it is.

    With a target, the run is steered to meet it, and `Compressed.outcome` says whether it did. What is returned is then
    the nearest that was found.
    """
    if not isinstance(task, Task):
        raise ConfigError(f"compress: expected a softshare.Task, got {type(task).__name__}")
    config = config or CompressConfig()
    retraining = config.retrain
    if retraining.distill:  # here, so that the network before is the codebooks' teacher too
        task = distilled(task, task.model, retraining.distill)
        retraining = dataclasses.replace(retraining, distill=0.0)
    task = dataclasses.replace(task, model=copy.deepcopy(task.model))
    prior, hard = MixturePrior(task.model, config.prior), config.retrain.hard_from < 1
    start = quantize_prior(prior, config.merge, hard).quantized
    check(start, config.encode)  # what no file can hold is better known now
    budget = None
    if target is not None:
        budget = Budget(task, prior, config, target, lambda: quantize_prior(prior, config.merge, hard).quantized)
    steering = budget.steering if budget else None
    hooks = [steering, *hooks] if steering else hooks
    with Phases(task, config.retrain.epochs + config.codebook.codebook_epochs, hooks) as phases:
        phases.run(retraining, prior=prior, zeroing=steering)
        messages = []
        if steering and (epoch := steering.settle_()) is not None:
            phases.on_return(epoch)
            messages = [f"target: the last network was above the limit; that of epoch {epoch}, the best, is taken"]
        compressed = quantize_prior(prior, config.merge, hard)
        if config.codebook.codebook_epochs:
            compressed = _train_codebooks_(phases, prior, compressed, config)
    if budget:
        trimmed = budget.trim(compressed.quantized)
        messages += trimmed.messages
        compressed = dataclasses.replace(
            compressed,
            quantized=trimmed.quantized,
            config=config.encode,
            messages=tuple(messages),
            outcome=budget.outcome(trimmed),
        )
    else:
        compressed = simplified(task.model, compressed, config)
    return dataclasses.replace(compressed, history=phases.history)


def quantize_prior(prior: MixturePrior, config: MergeConfig, hard: bool = False) -> Compressed:
    """Merge, then quantize.

    A network that was trained on quantized weights (`hard`) has learned which component each weight belongs to, and
    keeps that; where components are wide, merging them moves their borders. Only the values change, by merging.
    """
    view = prior.current_view()
    before: dict[str, Mixture] = {}
    mixtures: dict[str, Mixture] = {}
    values: dict[str, Tensor] = {}
    for part, mixture in zip(prior.parts, prior.mixtures(), strict=True):
        names = [s.name for s in part.shared]
        merged, groups = merge_groups(mixture, config)
        before |= dict.fromkeys(names, mixture)
        mixtures |= dict.fromkeys(names, merged)
        values |= dict.fromkeys(names, spread(merged.mean, groups))
    quantized = quantize(view, before, values) if hard else quantize(view, mixtures)
    return Compressed(quantized, mixtures, view.state_dict())


def simplified(model: nn.Module, compressed: Compressed, config: CompressConfig) -> Compressed:
    """As it will be written: by `config.encode`, its units in the best order, if that is asked for."""
    quantized, messages = compressed.quantized, list[str]()
    if config.simplify.symmetries:
        quantized, messages = simplify(model, quantized, config.encode)
    return dataclasses.replace(compressed, quantized=quantized, config=config.encode, messages=tuple(messages))


def _train_codebooks_(
    phases: Phases, prior: MixturePrior, compressed: Compressed, config: CompressConfig
) -> Compressed:
    """The shared values trained in place of the weights; the means of the mixtures move with them."""
    shared = {t.name: t for t in compressed.quantized.shared}
    books = Codebooks(Codebook.of(part, shared) for part in prior.parts)
    known = {
        "complexity_bits": complexity_bits(compressed.quantized, compressed.mixtures),
        "components_alive": books.n_alive,
        "density": {name: t.n_nonzero / max(1, t.indices.numel()) for name, t in shared.items()},
    }
    phases.run(_codebook_phase(config), books, known=known)
    mixtures: dict[str, Mixture] = {}
    for part, book in zip(prior.parts, books.books, strict=True):
        name = part.shared[0].name
        moved = with_values(compressed.mixtures[name], shared[name].codebook, book.all_values)
        mixtures |= dict.fromkeys((s.name for s in part.shared), moved)
    return dataclasses.replace(compressed, quantized=books.quantize(prior.current_view()), mixtures=mixtures)


def _codebook_phase(config: CompressConfig) -> RetrainConfig:
    """Plain training by Adam: what is fixed by now needs neither prior nor decay."""
    return RetrainConfig(
        epochs=config.codebook.codebook_epochs,
        tau=0.0,
        lr_weights=config.codebook.lr_codebook,
        schedule=config.retrain.schedule,
        seed=config.retrain.seed,
        capture=config.retrain.capture,
    )
