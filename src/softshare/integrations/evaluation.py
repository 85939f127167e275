"""The verdict of a network by what its user measures: the accuracy that a `Trainer` evaluates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from softshare._util.user_code import length_of
from softshare.compressed import Compressed
from softshare.target.limits import Outcome
from softshare.task import Metric

ACCURACY = Metric("accuracy", "%", higher_is_better=True)
PREFIX = "eval_"
UNKNOWN = "no validation before training and at its end is known, so there is no outcome; evaluate the network"
OF_THE_TRAINER = ("runtime", "_per_second", "loss", "model_preparation_time")  # ends of names that are no measures


@dataclass(frozen=True)
class Evaluation:
    """What `compute_metrics` has measured on how many examples."""

    values: dict[str, float]
    n_examples: int | None

    @classmethod
    def of(cls, metrics: Mapping[str, Any], batches: Any) -> Evaluation:
        named = {name.removeprefix(PREFIX): value for name, value in metrics.items() if name.startswith(PREFIX)}
        values = {
            name: float(value)
            for name, value in named.items()
            if isinstance(value, int | float) and math.isfinite(value) and not name.endswith(OF_THE_TRAINER)
        }
        return cls(values, length_of(getattr(batches, "dataset", None), "the dataset"))

    @property
    def accuracy(self) -> float | None:
        """In percent. None if it is not known as a share of a number of examples."""
        share = self.values.get("accuracy")
        return 100 * share if share is not None and 0 <= share <= 1 and self.n_examples else None

    @property
    def noise(self) -> float:
        """The standard error of the accuracy, in percent, as that of an error of `Task.from_loaders`."""
        n = self.n_examples or 1
        share = (self.values["accuracy"] * n + 0.5) / (n + 1)
        return 100 * math.sqrt(share * (1 - share) / n)


def by_accuracy(compressed: Compressed, before: Evaluation | None, after: Evaluation | None) -> Compressed:
    """The outcome and the result by the accuracy of two evaluations, if both are of as many examples.

    Otherwise they stay as they are. The metric that they had, and other measures, are beside the new one.
    """
    if before is None or after is None or before.n_examples != after.n_examples:
        return compressed
    if before.accuracy is None or after.accuracy is None:
        return compressed
    n_bytes = compressed.outcome.n_bytes if compressed.outcome else len(compressed.to_bytes())
    outcome = Outcome(None, ACCURACY, before.accuracy, after.accuracy, before.noise, math.inf, n_bytes)
    messages = tuple(text for text in compressed.messages if text != UNKNOWN)
    compressed = dataclasses.replace(compressed, outcome=outcome, messages=messages)
    if compressed.record is None:  # another process has it
        return compressed
    result = compressed.record.result
    others: dict[str, Any] = dict(result.others or {})
    if result.metric != ACCURACY:
        name = "validation loss" if result.metric.name == "loss" else result.metric.name
        others = {name: [result.error_before, result.error_after], **others}
    others |= {name: [before.values[name], after.values[name]] for name in before.values if name in after.values}
    del others["accuracy"]
    result = dataclasses.replace(
        result,
        metric=ACCURACY,
        error_before=before.accuracy,
        error_after=after.accuracy,
        noise=before.noise,
        others=others or None,
        outcome=outcome.to_dict(),
    )
    return dataclasses.replace(compressed, record=dataclasses.replace(compressed.record, result=result))
