"""Quantize each tensor within an error of its weights: the widest components of a mixture that the error allows."""

from __future__ import annotations

import math
from collections.abc import Callable

from softshare.datafree.fit import Cells, cells_of, fit, quantized, with_norms
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.source import Source
from softshare.datafree.stored import Sections
from softshare.errors import ConfigError
from softshare.quantization.quantized import QuantizedTensor

WIDTHS = (2.0**-11, 4.0)  # range of the search for a width, in root mean squares of a tensor's weights
HALVINGS = 16  # of the range of widths, on a logarithmic scale
MOST_TRIES = 8
SAFE = 0.997  # share of the error to aim at, because the file rounds its values


def by_error(source: Source, wanted: float) -> FittedWeights:
    source.start("read", source.checkpoint.shared)
    for name in source.checkpoint.shared:  # bad weights end the work before it begins
        source.stages.done(source.checked(name).numel())
    source.start("quantize", source.checkpoint.shared)
    sections, coded = Sections(), []
    for name in source.checkpoint.shared:
        tensor, error = _within(source, name, cells_of(source.checkpoint[name]), wanted)
        coded.append(source.code(tensor, sections, error))
    return source.fitted(coded, source.encoded([c.tensor for c in coded], coded=sections))


def _within(source: Source, name: str, cells: Cells, wanted: float) -> tuple[QuantizedTensor, float]:
    error = math.inf
    aim = wanted
    if source.is_difference(name) and cells.rms:  # the error counts against the weights, not against their differences
        whole = source.scale(name)
        aim *= float(whole.double().square().mean().sqrt()) / cells.rms
    for _ in range(MOST_TRIES):
        width = _widest(lambda width: fit(cells, width).error, aim)
        weights = source.checkpoint[name]
        tensor = quantized(name, weights, fit(cells, width))
        other = source.magnitudes(name)
        if other is not None:
            tensor = with_norms(tensor, weights, source.whole[other].shape)
        error = source.error(tensor)
        if error <= wanted:
            return tensor, error
        aim *= SAFE * wanted / error  # make room for rounding: of the codebook, and to the tensor's dtype
    raise ConfigError(
        f"weight_error: tensor {name} has an error of {error:.2g}, more than {wanted}, because the file rounds its "
        f"values; allow more, give codebook_dtype='float32', or store it unchanged by the rule keep:{name}"
    )


def _widest(rising: Callable[[float], float], limit: float) -> float:
    """The widest width, nearly, at which the function is at most `limit`."""
    below, above = WIDTHS
    for _ in range(HALVINGS):
        middle = math.sqrt(below * above)
        below, above = (middle, above) if rising(middle) <= limit else (below, middle)
    return below
