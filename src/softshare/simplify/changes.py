"""What simplifying does to a network, step by step: fold batch norm, clear units that nothing reads, use symmetries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from softshare.codec import encode
from softshare.config import EncodeConfig, SimplifyConfig
from softshare.network.groups import Group
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.folding import fold_norms
from softshare.simplify.symmetries import Simplified, simplify
from softshare.simplify.unread import without_unread
from softshare.simplify.words import cleared_units, folded_norms, left_alone


@dataclass(frozen=True)
class Changes:
    """What may be done: what the settings ask for, less what the task does not allow."""

    symmetries: bool = True
    norms: bool = False  # batch norm is folded, and units move through it
    groups: tuple[Group, ...] = ()  # of units that are cleared if nothing reads them
    broken: Mapping[str, str] = field(default_factory=dict)  # layers whose units stay where they are, with the reasons
    refused: tuple[str, ...] = ()  # messages about what the task does not allow

    @classmethod
    def of(cls, config: SimplifyConfig, groups: Sequence[Group] = ()) -> Changes:
        return cls(config.symmetries, config.fold_batchnorm, tuple(groups) if config.symmetries else ())


def changed(model: nn.Module, quantized: QuantizedWeights, config: EncodeConfig, changes: Changes) -> Simplified:
    """Other weights for the same function, whose file, as `config` writes it, is no larger.

    The model gives its structure and is only read.
    """
    messages = list(changes.refused)
    if changes.norms:
        folded, names, left = fold_norms(model, quantized)
        quantized, saved = _smaller(quantized, folded, config)
        messages += [*folded_norms(names, saved), *left_alone(left, "batch norm left as it is")]
    if changes.groups:
        bare, n_dead, n_units = without_unread(quantized, changes.groups)
        quantized, saved = _smaller(quantized, bare, config)
        messages += cleared_units(n_dead, n_units, saved)
    if not changes.symmetries:
        return Simplified(quantized, messages, {})
    simple = simplify(model, quantized, config, changes.broken, changes.norms)
    return simple._replace(messages=[*messages, *simple.messages])


def reduced(model: nn.Module, quantized: QuantizedWeights, changes: Changes) -> QuantizedWeights:
    """The network with its batch norms folded and its unread units cleared, whatever that saves."""
    if changes.norms:
        quantized = fold_norms(model, quantized)[0]
    return without_unread(quantized, changes.groups)[0]


def _smaller(
    before: QuantizedWeights, after: QuantizedWeights, config: EncodeConfig
) -> tuple[QuantizedWeights, int]:  # and the bytes that this saves
    """An adaptive coder may, by chance, gain nothing."""
    saved = 0 if after is before else len(encode(before, config)) - len(encode(after, config))
    return (after, saved) if saved > 0 else (before, 0)
