"""What became of a network that another library trained, by the losses that its callback saw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch import nn

from softshare.codec import decode
from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.integrations.history import LOSS
from softshare.integrations.watch import Losses
from softshare.result import Result, facts_of
from softshare.target.limits import Outcome
from softshare.task import Metric


def outcome_of(validation: Losses, n_bytes: int) -> Outcome | None:
    """None without a validation before training and one at its end."""
    if not validation.are_known or not math.isfinite(validation.before + validation.after):
        return None
    before, after, noise = validation.before, validation.after, validation.allowed
    return Outcome(None, LOSS, before, after, noise, math.inf, n_bytes, guessed=validation.is_guessed)


def result_of(
    model: nn.Module,  # what the file decodes to
    compressed: Compressed,
    config: CompressConfig,
    losses: Sequence[Losses],  # that decides first, and that of training
    steps: int,
    n_examples: int,
) -> Result | None:
    """As `measure` gives it, but by the losses that were seen. None if none is known from start to end."""
    known = [one for one in losses if one.are_known and math.isfinite(one.before + one.after)]
    if not known:
        return None
    first, data = known[0], compressed.to_bytes()
    trained = next((one.after for one in known if one.kind == "training"), math.inf)
    retrain = dataclasses.replace(config.retrain, steps=steps, epochs=None)
    return Result(
        experiment=type(model).__name__.removeprefix("FSDP"),  # which fully_shard puts before the name of a class
        method="softshare",
        dataset="custom",
        error_before=first.before,
        error_after=first.after,
        error_bits=trained * n_examples / math.log(2),
        metric=LOSS if first.kind == "validation" else Metric("training loss", ""),
        others={one.kind + " loss": [one.before, one.after] for one in known[1:]} or None,
        **facts_of(
            compressed,
            dataclasses.replace(config, retrain=retrain),
            model,
            data,
            decode(data, like=model, max_bytes=None),
        ),
    )
