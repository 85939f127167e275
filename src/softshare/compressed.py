"""A compressed network before it becomes a file, and the last two steps of the route: quantize and simplify."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.words import listed
from softshare.codec import decode, encode, save
from softshare.codec.shared_section import rounded_codebook
from softshare.config import CompressConfig, EncodeConfig, MergeConfig
from softshare.distributed.group import ALONE, Group
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.quantization.assignment import quantize
from softshare.quantization.merge import merge_groups, spread
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.changes import Changes, changed
from softshare.simplify.symmetries import Moved
from softshare.target.limits import Outcome
from softshare.train.hooks import EpochRecord


@dataclass(frozen=True, eq=False)
class Compressed:
    """A quantized network that is ready to be written, with the training that led to it:

        compressed = softshare.compress(task)
        print(compressed.summary())
        compressed.save("model.sws")

    `outcome` says what the network lost and whether the target is met, and `history` how training went.
    """

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # the merged mixture of each shared tensor, if any
    retrained: dict[str, Tensor] = field(repr=False)  # just before quantizing, in the network's order of units
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    config: EncodeConfig = field(default_factory=EncodeConfig)
    messages: tuple[str, ...] = field(default=(), repr=False)  # what simplifying and the target changed
    moved: Mapping[str, Moved] = field(default_factory=dict, repr=False)  # units that the file has elsewhere
    outcome: Outcome | None = None  # what became of the network and the target; None without a task
    counted: str = "epoch"  # or look: what the records of the history are
    with_units: bool = False  # whether a prior over whole units was used: then the network may be shrunk
    group: Group = field(default=ALONE, repr=False)  # that encodes together: then all must call what makes bytes
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
        """The bytes of the file.

        Returns:
            What `save` writes.
        """
        return encode(self.quantized, self.config, group=self.group)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all:

            compressed.save("model.sws")

        If the weights are sharded, every process must call this, and the first one writes.

        Args:
            path: of the file, which is replaced if it exists.

        Returns:
            The size of the file in bytes.
        """
        return save(self.quantized, path, self.config, group=self.group)

    def state_dict(self) -> dict[str, Tensor]:
        """The state dict that the file decodes to, found by encoding and decoding it.

        Returns:
            Each tensor by its name.
        """
        named = dataclasses.replace(self.config, names="keep")  # a file without names has the same values
        return decode(encode(self.quantized, named, group=self.group), max_bytes=None).state_dict()

    def in_place(self, name: str) -> Tensor:
        """A shared tensor with the values of the file, in the network's order of units.

        Args:
            name: of the tensor.

        Returns:
            The tensor, dense.
        """
        found = next(t for t in self.quantized.shared if t.name == name)
        values = torch.from_numpy(rounded_codebook(found, self.config).values)
        return self.moved.get(name, Moved()).back(dataclasses.replace(found, codebook=values).dense())


def dead_layers(compressed: Compressed, spared: Collection[str] = ()) -> list[str]:
    """Which matrices have lost all of their weights: their output no longer depends on their input.

    One sentence for all that lost the last weight at the same time, the earliest first. Those in `spared` may be 0.
    """
    # Each run starts with a record of its own.
    records = compressed.history if sum(math.isnan(r.task_loss) for r in compressed.history) == 1 else ()
    dead: dict[int | None, list[str]] = {}
    for t in compressed.quantized.shared:
        if len(t.shape) > 1 and t.indices.numel() and not t.n_nonzero and t.name not in spared:
            alive = [k for k, record in enumerate(records) if record.density.get(t.name, 1)]
            zero = records[alive[-1] + 1 if alive else 0 :]
            dead.setdefault(zero[0].epoch if zero else None, []).append(t.name)
    return [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} all zero"
        f"{'' if epoch is None else f' since {compressed.counted} {epoch}'}: nothing passes through "
        f"{'it' if len(names) == 1 else 'them'}."
        for epoch, names in sorted(dead.items(), key=lambda one: math.inf if one[0] is None else one[0])
    ]


REVIVE = "To keep such layers, lower tau, zeroing or zero_mixing."


def dead_messages(compressed: Compressed) -> list[str]:
    """What `dead_layers` says, and what to do about it."""
    lines = dead_layers(compressed)
    return [*lines, *([REVIVE] if lines else [])]


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
    return Compressed(quantized, mixtures, view.state_dict(), group=view.group)


def simplified(model: nn.Module, compressed: Compressed, config: CompressConfig, changes: Changes) -> Compressed:
    """The network as it will be written: by `config.encode`, and with these changes."""
    quantized, messages, moved, _ = changed(model, compressed.quantized, config.encode, changes)
    return dataclasses.replace(
        compressed, quantized=quantized, config=config.encode, messages=tuple(messages), moved=moved
    )
