"""What comes of a checkpoint without training: the quantized weights, their file, and what it cost."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import NamedTuple

from softshare._util.files import write_atomic
from softshare._util.printable import printable
from softshare._util.words import times
from softshare.codec import decode, inspect
from softshare.datafree.stored import FileBytes
from softshare.quantization.quantized import QuantizedWeights


class Cost(NamedTuple):
    """What a shared tensor takes in the file, and how far off it is. Errors are relative to root mean squares."""

    name: str
    shape: tuple[int, ...]
    n: int
    n_bytes: int
    error: float  # of its weights
    layer_error: float | None  # of its layer's outputs, with batches

    @property
    def bits(self) -> float:
        """Per weight."""
        return 8 * self.n_bytes / max(1, self.n)


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """The file of a quantized checkpoint, and the errors of its tensors:

        fitted = softshare.quantize(model, bits=4)
        print(fitted.summary())
        fitted.save("model.sws")

    A large file is in a temporary file until it is saved.
    """

    errors: Mapping[str, float]  # of each shared tensor: root mean square of the error over that of the weights
    n_weights: int  # values of the checkpoint. A tied tensor counts once
    n_shared: int  # values of the shared tensors
    original_bytes: int  # the size of the same tensors before, each in its own precision
    file: FileBytes = field(repr=False)
    layer_errors: Mapping[str, float] = field(default_factory=dict)  # with batches: of each layer's outputs, relative
    output_error: float | None = None  # with batches: of the network's outputs on the first of them, relative
    steps: int = 0  # by which it was refined
    loss: tuple[float, float] | None = None  # with a loss: before and after, on batches that did not calibrate

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return b"".join(self.file.pieces())

    @cached_property
    def quantized(self) -> QuantizedWeights:
        """What the file holds, decoded."""
        return decode(self.data, max_bytes=None)

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return len(self.file)

    @property
    def bits_per_weight(self) -> float:
        """The bits of the whole file over the number of values in the checkpoint."""
        return 8 * self.file_bytes / self.n_weights

    @property
    def ratio(self) -> float:
        """How many times smaller the file is."""
        return self.original_bytes / self.file_bytes

    def __repr__(self) -> str:
        return f"<FittedWeights: {self._sizes()}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<pre>{escape(self.summary())}</pre>"

    def _sizes(self) -> str:
        how = times(self.original_bytes, self.file_bytes)
        return f"{self.file_bytes:,} bytes, {how}, {self.bits_per_weight:.2f} bits a weight"

    def summary(self) -> str:
        """The sizes, and the tensor with the largest error:

            print(softshare.quantize(model, bits=4).summary())

        Returns:
            A few lines of text.
        """
        before = f"  before   {self.original_bytes:,} bytes, {self.n_weights:,} weights"
        if not self.errors:
            return "\n".join([f"{self._sizes()}. No weight was quantized.", before])
        worst = max(self.errors, key=lambda name: self.errors[name])
        trained = f"Refined for {self.steps:,} steps" if self.steps else "Nothing was trained"
        return "\n".join(
            [
                f"{self._sizes()}. {trained}{self._seen()}: try it before you use it.",
                before,
                f"  shared   {self.n_shared:,} weights in {len(self.errors)} tensors",
                f"  kept     {self.n_weights - self.n_shared:,} weights as they were",
                f"  error    at most {100 * self.errors[worst]:.2g}% of the weights' root mean square, in "
                f"{printable(worst)}",
            ]
        )

    def _seen(self) -> str:
        if self.output_error is None:
            return ", and no data were seen"
        off = f", and the outputs on the batches are off by {100 * self.output_error:.2g}% of their root mean square"
        return off if self.loss is None else f"{off}, the loss on others goes {self.loss[0]:.4g} -> {self.loss[1]:.4g}"

    @property
    def measured(self) -> str:
        """A sentence on what is known of the network's quality."""
        if self.loss is not None:
            return "The loss was measured on batches that did not calibrate."
        known = "Nothing was measured" if self.output_error is None else "Only the outputs on the batches were measured"
        return f"{known}: test the network before you use it."

    def table(self) -> str:
        """What each shared tensor cost, the largest first:

            print(softshare.quantize(model, bits=4, calibrate=batches).table())

        Returns:
            A line for each tensor: its weights, its bits per weight in the file, the error of its weights, and with
            batches the error of its layer's outputs. Errors are relative to root mean squares.
        """
        outputs = f"{'outputs':>9}" if self.layer_errors else ""
        lines = [f"{'weights':>12} {'bits':>6} {'error':>8}{outputs}  tensor"]
        for cost in self.costs():
            layer = "" if cost.layer_error is None else f"{cost.layer_error:.2%}"
            numbers = f"{cost.n:12,} {cost.bits:6.2f} {cost.error:8.2%}{layer:>{len(outputs)}}"
            lines.append(f"{numbers}  {printable(cost.name)}")
        return "\n".join(lines)

    def costs(self) -> list[Cost]:
        """The lines of the table as numbers."""
        found = [
            Cost(t.name, t.shape, math.prod(t.shape), t.n_bytes, self.errors[t.name], self.layer_errors.get(t.name))
            for t in inspect(self.data).tensors
            if t.name in self.errors and t.name is not None and t.shape is not None
        ]
        return sorted(found, key=lambda cost: (-cost.n, cost.name))

    def report(self, folder: str | os.PathLike[str]) -> Path:
        """Write a page with a table of the tensors, and a figure of their bits against their errors:

            softshare.quantize(model, bits=4).report("report")

        Args:
            folder: for the page and its figures. It needs matplotlib.

        Returns:
            The path of the page, which works offline.
        """
        import softshare  # through the package, because the page lives in a layer above this one

        return softshare.write_quantized_report(self, folder)

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all:

            softshare.quantize(model, bits=4).save("model.sws")

        Args:
            path: of the file, which is replaced if it exists.

        Returns:
            The size of the file in bytes.
        """
        return write_atomic(path, self.file.pieces())
