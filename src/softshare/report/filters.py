"""Filters before and after: of the first convolutions, or else of the first fully-connected layer (appendix D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from softshare.report.frames import Array
from softshare.report.run import Run
from softshare.report.style import FAINT, new_figure, shorten, signed_image
from softshare.runs import PRETRAINED, RETRAINED

MOST_OUTPUTS, MOST_INPUTS = 50, 32  # channels of a convolution
MOST_UNITS = 100  # of a fully-connected layer
LAYERS = 2  # convolutions shown, as in the paper


@dataclass(frozen=True, eq=False)
class Filters:
    """Two pictures, tiles with a line between them: NaN where there is none."""

    name: str
    before: Array  # (h, w)
    after: Array  # (h, w)
    left_out: str  # what is not in the pictures


def filters_data(run: Run) -> tuple[Filters, ...]:
    shapes, frames = run.tensors(RETRAINED), run.frames
    if frames is None:
        return ()
    order = [name for names in frames.about["tensors"] for name in names]  # as the network has its layers
    convolutions = [name for name in order if len(shapes.get(name, ())) == 4][:LAYERS]
    square = [name for name in order if len(shapes.get(name, ())) == 2 and _side(shapes[name][1])][:1]
    found = []
    for name in convolutions or square:
        after = run.tensor(RETRAINED, name)
        final = frames.final(frames.of(name))
        if final is not None:
            after = final.mean[final.assign(after.float())].reshape(after.shape)
        found.append(_pictures(name, run.tensor(PRETRAINED, name), after))
    return tuple(found)


def _side(inputs: int) -> int:
    """Of a square image that so many inputs make, in one channel or three; 0 for none."""
    return next(
        (math.isqrt(n) for n in (inputs, inputs // 3) if n > 4 and math.isqrt(n) ** 2 * (inputs // n) == inputs), 0
    )


def _pictures(name: str, before: Tensor, after: Tensor) -> Filters:
    tiles = []
    left_out = ""
    for tensor in (before, after):
        values = tensor.float().numpy()
        if values.ndim == 2:
            side = _side(values.shape[1])
            kept = values[:MOST_UNITS]
            tiles.append(_in_a_square(kept.reshape(len(kept), -1, side, side).sum(1)))
            left_out = _of("units", len(kept), len(values))
        else:
            kept = values[:MOST_OUTPUTS, :MOST_INPUTS].swapaxes(0, 1)  # a row for each input, a column for each output
            tiles.append(_in_a_square(kept[0]) if len(kept) == 1 else tiled(kept))
            left_out = _of("filters", kept.shape[0] * kept.shape[1], values.shape[0] * values.shape[1])
    return Filters(name, tiles[0], tiles[1], left_out)


def _of(what: str, shown: int, there: int) -> str:
    return "" if shown == there else f"{shown} of {there:,} {what}"


def _in_a_square(
    images: Array,  # (n, h, w)
) -> Array:
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    padded = np.full((rows * columns, *images.shape[1:]), np.nan, np.float32)
    padded[: len(images)] = images
    return tiled(padded.reshape(rows, columns, *images.shape[1:]))


def tiled(
    images: Array,  # (rows, columns, h, w)
) -> Array:  # (rows * (h + 1) - 1, columns * (w + 1) - 1)
    rows, columns, h, w = images.shape
    out = np.full((rows * (h + 1), columns * (w + 1)), np.nan, np.float32)
    for r in range(rows):
        for c in range(columns):
            out[r * (h + 1) :, c * (w + 1) :][:h, :w] = images[r, c]
    return out[:-1, :-1]


def draw_filters(data: Filters) -> Any:
    h, w = data.before.shape
    beside = w < 1.5 * h
    figure = new_figure(6.4, min(9.0, 0.55 + 3.1 * h / w if beside else 0.8 + 12.4 * h / w))
    largest = float(np.nanquantile(np.abs(data.before), 0.995))
    both = figure.subplots(1, 2) if beside else figure.subplots(2, 1)
    for axes, picture, title in zip(both, (data.before, data.after), ("before", "after"), strict=True):
        axes.imshow(signed_image(picture, largest), interpolation="nearest")
        lines = np.zeros((*picture.shape, 4))
        lines[..., :3], lines[..., 3] = 0.46, np.where(np.isnan(picture), 0.25, 0)
        axes.imshow(lines, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        axes.set_title(title)
        for spine in axes.spines.values():
            spine.set(visible=True, color=FAINT)
    figure.suptitle(shorten(data.name, 60) + (f" ({data.left_out})" if data.left_out else ""), fontsize=9)
    return figure
