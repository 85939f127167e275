"""The mask of each shared matrix in the file shows which weights are left. Large matrices are binned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from softshare._util.run_folder import MODEL
from softshare.codec import load
from softshare.codec.info import TensorInfo
from softshare.report.frames import Array
from softshare.report.names import IN_TITLE, short
from softshare.report.run import Run
from softshare.report.style import FAINT, POSITIVE, new_figure

MOST_MASKS = 8
MOST_CELLS = 240  # in each direction
_CHUNK = 1 << 22  # weights at a time


@dataclass(frozen=True, eq=False)
class Mask:
    name: str
    shape: tuple[int, int]  # of the matrix: one row per entry of the first dimension
    density: Array  # (h, w) share of non-zero weights in each cell


def masks_data(run: Run) -> tuple[Mask, ...]:
    """The masks of the largest matrices. A file without names has none to show."""
    tensors = run.info.tensors if run.info else ()
    named = [t for t in tensors if t.kind == "shared" and t.name and len(t.shape or ()) > 1 and t.n]
    chosen = sorted(named, key=_size)[-MOST_MASKS:]
    return tuple(_mask(run, t.name) for t in named if t in chosen and t.name)


def _size(info: TensorInfo) -> int:
    return info.n or 0


def _mask(run: Run, name: str) -> Mask:
    values = load(run.folder / MODEL, [name])[name]
    matrix = values.reshape(len(values), -1)
    return Mask(name, (matrix.shape[0], matrix.shape[1]), binned(matrix))


def binned(
    matrix: Tensor,  # (rows, columns)
) -> Array:  # at most MOST_CELLS each way
    """The share of non-zeros in each cell of a grid of equal cells. The last cells may be smaller."""
    rows, columns = matrix.shape
    height, width = math.ceil(rows / MOST_CELLS), math.ceil(columns / MOST_CELLS)
    starts = np.arange(0, columns, width)
    out = np.zeros((math.ceil(rows / height), len(starts)))
    step = max(1, _CHUNK // max(1, columns))
    for first in range(0, rows, step):
        piece = np.add.reduceat((matrix[first : first + step] != 0).numpy().astype(np.float32), starts, axis=1)
        np.add.at(out, np.arange(first, first + len(piece)) // height, piece)
    tall = np.minimum(height, rows - np.arange(0, rows, height))
    wide = np.minimum(width, columns - starts)
    out /= np.outer(tall, wide)
    return out


def draw_masks(data: Mask) -> Any:
    rows, columns = data.shape
    ratio = min(1.0, max(0.25, rows / columns))
    figure = new_figure(4.8, 0.9 + 4.0 * ratio)
    axes = figure.subplots()
    image = np.zeros((*data.density.shape, 4))
    image[..., :3] = np.array(POSITIVE) / 255
    image[..., 3] = np.sqrt(data.density / (data.density.max() or 1))
    extent = (0, columns, rows, 0)
    axes.imshow(image, interpolation="nearest", extent=extent, aspect=ratio * columns / rows)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT)
    axes.set(xlabel="input", ylabel="output")
    axes.set_title(f"{short(data.name, IN_TITLE)}: {rows:,} x {columns:,}")
    return figure
