"""Filters before and after compression: the first convolutions and the first fully-connected layer (appendix D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from softshare._util.run_folder import PRETRAINED
from softshare.compressed import Compressed
from softshare.report.frames import Array
from softshare.report.names import IN_TITLE, short
from softshare.report.run import Run
from softshare.report.style import FAINT, new_figure, signed_image

MOST_OUTPUTS, MOST_INPUTS = 50, 32  # of a layer
MOST_IMAGES = 100  # of a layer whose input is one image
LAYERS = 2  # convolutions shown, as in the paper
LEAST_SIDE = 8  # of an image that a fully-connected layer reads; fewer inputs are hardly an image

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
Shape = tuple[int, ...]  # outputs, inputs, height, width


@dataclass(frozen=True, eq=False)
class Filters:
    """A picture of tiles, before or after compression. NaN marks the lines between tiles, and missing tiles."""

    name: str
    when: str
    picture: Array  # (h, w)
    largest: float  # weight, of the strongest colour
    left_out: str  # how many filters the picture shows, if not all


def kept_filters(model: nn.Module, compressed: Compressed) -> dict[str, Tensor]:
    """The first filters of each layer for the figure: values of the file, in the network's order of units.

    The film keeps them, because the file may have the units in another order.
    """
    shared = {t.name for t in compressed.quantized.shared}
    return {
        name: _kept(compressed.in_place(name).reshape(shape)).clone()
        for name, shape in filter_shapes(model).items()
        if name in shared
    }


def filter_shapes(model: nn.Module) -> dict[str, Shape]:
    """The weights that are filters of images: the first convolutions, and the first fully-connected layer.

    A fully-connected layer that comes first reads an image of one or three channels. Right after a convolution it reads
    the flattened channels of that. Elsewhere its input is no image.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if (is_parametrized(module) or next(module.parameters(recurse=False), None) is not None)
        and not isinstance(module, (*_NORMS, ParametrizationList))
    ]
    convolutions = {f"{n}.weight": tuple(m.weight.shape) for n, m in layers if isinstance(m, nn.Conv2d)}
    found = dict(list(convolutions.items())[:LAYERS])
    k = next((k for k, (_, module) in enumerate(layers) if isinstance(module, nn.Linear)), None)
    if k is None:
        return found
    name, linear = layers[k]
    units, inputs = linear.weight.shape  # not always a parameter: `weight_norm` computes it
    before = layers[k - 1][1] if k else None
    if isinstance(before, nn.Conv2d):
        shapes = [(before.out_channels, 2)]
    else:
        shapes = [] if before else [(1, LEAST_SIDE), (3, LEAST_SIDE)]
    for channels, least in shapes:
        side = math.isqrt(inputs // channels)
        if channels * side**2 == inputs and side >= least:
            found[f"{name}.weight"] = (units, channels, side, side)
    return found


def filters_data(run: Run) -> tuple[Filters, ...]:
    frames = run.frames
    if frames is None:
        return ()
    found, there = [], run.checkpoint(PRETRAINED)
    for name, after in frames.filters.items():
        if name not in there:
            continue
        before = there[name]
        before = before.reshape(len(before), -1, *after.shape[2:])
        n, m = before.shape[0] * before.shape[1], after.shape[0] * after.shape[1]
        left_out = "" if m == n else f"{m:,} of {n:,} filters"
        pictures = {"before": _picture(_kept(before).float().numpy()), "after": _picture(after)}
        largest = float(np.nanquantile(np.abs(pictures["before"]), 0.995))
        found += [Filters(name, when, picture, largest, left_out) for when, picture in pictures.items()]
    return tuple(found)


def _kept(
    filters: Tensor,  # (outputs, inputs, h, w)
) -> Tensor:
    return filters[:MOST_IMAGES] if filters.shape[1] == 1 else filters[:MOST_OUTPUTS, :MOST_INPUTS]


def _picture(
    filters: Array,  # (outputs, inputs, h, w)
) -> Array:
    """A row of tiles per input and a column per output. With one input, the tiles form a square."""
    return _in_a_square(filters[:, 0]) if filters.shape[1] == 1 else tiled(filters.swapaxes(0, 1))


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
    h, w = data.picture.shape
    figure = new_figure(4.8, min(5.0, 0.6 + 4.6 * h / w))
    axes = figure.subplots()
    axes.imshow(signed_image(data.picture, data.largest), interpolation="nearest")
    lines = np.zeros((*data.picture.shape, 4))
    lines[..., :3], lines[..., 3] = 0.46, np.where(np.isnan(data.picture), 0.25, 0)
    axes.imshow(lines, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT)
    more = f" ({data.left_out})" if data.left_out else ""
    axes.set_title(f"{short(data.name, IN_TITLE)} {data.when}{more}", fontsize=9)
    return figure
