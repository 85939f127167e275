"""Compressed: a network on its way into a file, and the two steps that end there, quantizing and simplifying."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softshare.codec import decode, encode, save
from softshare.codec.shared_section import rounded_codebook
from softshare.config import CompressConfig, EncodeConfig, MergeConfig
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.quantization.assignment import quantize
from softshare.quantization.merge import merge_groups, spread
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Moved, simplify
from softshare.target.limits import Outcome
from softshare.train.hooks import EpochRecord


@dataclass(frozen=True, eq=False)
class Compressed:
    """A network on its way into a file, with what led there."""

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # merged; of each shared tensor, if any; its means as coded
    retrained: dict[str, Tensor] = field(repr=False)  # the state dict just before quantizing; units as they were
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    config: EncodeConfig = field(default_factory=EncodeConfig)
    messages: tuple[str, ...] = field(default=(), repr=False)  # what was done to the network's units
    moved: Mapping[str, Moved] = field(default_factory=dict, repr=False)  # the units that the file has elsewhere
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
        found = next(t for t in self.quantized.shared if t.name == name)
        values = torch.from_numpy(rounded_codebook(found, self.config).values)
        return self.moved.get(name, Moved()).back(dataclasses.replace(found, codebook=values).dense())


def dead_layers(compressed: Compressed) -> list[str]:
    """A line for each matrix that has lost all of its weights: what passes through it no longer depends on its input."""
    dead = [t.name for t in compressed.quantized.shared if len(t.shape) > 1 and t.indices.numel() and not t.n_nonzero]
    lines = []
    for name in dead:
        alive = [record.epoch for record in compressed.history if record.density.get(name)]
        since = f" after epoch {alive[-1]}" if alive else ""
        lines.append(
            f"{name}: all of its weights are 0{since}, so nothing passes through it; lower tau, zeroing or zero_mixing"
        )
    return lines


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


def simplified(
    model: nn.Module, compressed: Compressed, config: CompressConfig, broken: Mapping[str, str] | None = None
) -> Compressed:
    """As it will be written: by `config.encode`, its units in the best order, if that is asked for."""
    if not config.simplify.symmetries:
        return dataclasses.replace(compressed, config=config.encode)
    quantized, messages, moved = simplify(model, compressed.quantized, config.encode, broken)
    return dataclasses.replace(
        compressed, quantized=quantized, config=config.encode, messages=tuple(messages), moved=moved
    )
