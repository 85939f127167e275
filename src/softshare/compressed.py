"""A compressed network before it becomes a file, and the last two steps of the route: quantize and simplify."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """A quantized network that is ready to be written, with the training that led to it."""

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # the merged mixture of each shared tensor, if any
    retrained: dict[str, Tensor] = field(repr=False)  # just before quantizing, in the network's order of units
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    config: EncodeConfig = field(default_factory=EncodeConfig)
    messages: tuple[str, ...] = field(default=(), repr=False)  # what simplifying and the target changed
    moved: Mapping[str, Moved] = field(default_factory=dict, repr=False)  # units that the file has elsewhere
    outcome: Outcome | None = None  # what became of the network and the target; None without a task
    record: Any = field(default=None, repr=False)  # the measured result and the film, if `softshare.compress` made it

    def __repr__(self) -> str:
        import softshare  # through the package, because the summary lives in a layer above this one

        return f"<Compressed: {softshare.line_of(self)}>"

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        import softshare

        return softshare.html_of(self)

    def summary(self) -> str:
        """What became of the network, in a few lines:

            print(compressed.summary())

        Returns:
            The verdict, the metric before and after with its noise, the size of the file, and the time.
        """
        import softshare

        return softshare.summary_of(self)

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write a page that shows the weights before and after, the training, and where the bytes are:

            compressed.report("report")

        Args:
            folder: for the page and its figures. It needs matplotlib.

        Returns:
            The path of the page, which works offline.
        """
        import softshare

        return softshare.write_report_of(self, folder)

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        return encode(self.quantized, self.config)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all, and return its size in bytes."""
        return save(self.quantized, path, self.config)

    def state_dict(self) -> dict[str, Tensor]:
        """The state dict that the file decodes to, found by encoding and decoding it."""
        named = dataclasses.replace(self.config, names="keep")  # a file without names has the same values
        return decode(encode(self.quantized, named), max_bytes=None).state_dict()

    def in_place(self, name: str) -> Tensor:
        """A shared tensor with the values of the file, in the network's order of units."""
        found = next(t for t in self.quantized.shared if t.name == name)
        values = torch.from_numpy(rounded_codebook(found, self.config).values)
        return self.moved.get(name, Moved()).back(dataclasses.replace(found, codebook=values).dense())


def dead_layers(compressed: Compressed) -> list[str]:
    """A message for each matrix that has lost all of its weights: its output no longer depends on its input."""
    dead = [t.name for t in compressed.quantized.shared if len(t.shape) > 1 and t.indices.numel() and not t.n_nonzero]
    lines = []
    for name in dead:
        alive = [record.epoch for record in compressed.history if record.density.get(name)]
        runs = sum(
            math.isnan(record.task_loss) for record in compressed.history
        )  # each starts with a record of its own
        since = f" after epoch {alive[-1]}" if alive and runs == 1 else ""
        lines.append(
            f"{name}: all of its weights are 0{since}, so nothing passes through it; lower tau, zeroing or zero_mixing"
        )
    return lines


def quantize_prior(prior: MixturePrior, config: MergeConfig, hard: bool = False) -> Compressed:
    """Merge the components, then quantize.

    A network trained on quantized weights (`hard`) has learned which component each weight belongs to. It keeps this
    assignment, because merging wide components would move their borders. Merging then changes only the values.
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
    """The network as it will be written: by `config.encode` and, with `symmetries`, its units in the best order.

    The units of `broken` layers stay where they are; the values are the reasons.
    """
    if not config.simplify.symmetries:
        return dataclasses.replace(compressed, config=config.encode)
    quantized, messages, moved = simplify(model, compressed.quantized, config.encode, broken)
    return dataclasses.replace(
        compressed, quantized=quantized, config=config.encode, messages=tuple(messages), moved=moved
    )
