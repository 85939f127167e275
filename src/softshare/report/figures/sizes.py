"""Where the bytes are: bars for each tensor, and bits per weight against density."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare._util.folding import fold
from softshare.codec.info import TensorInfo
from softshare.report.names import shortened, tensor_names
from softshare.report.ruined import ALL, ruined_data, some_of
from softshare.report.run import Run
from softshare.report.style import (
    BAD,
    FAINT,
    GROUND,
    INK,
    SERIES,
    beside,
    describe,
    new_figure,
    plain_log,
    plain_numbers,
    tip,
)

MOST_BARS = 10  # of the largest layers: more would be far taller than the figure beside it
MOST_RED = 4  # bars of smaller layers that are all zero; the others are one bar
ROW, RED_LINE = 0.38, 0.14  # inches
MOST_CHARACTERS = 28  # of a name
MOST_LABELS = 12  # of points
LABELS, DOT = 1.04, 0.03  # where labels begin, and the radius of a point, as shares of the axes
MOST_POINTS = 1000  # the tensors with the most weights
Point = tuple[float, float]


@dataclass(frozen=True)
class Layer:
    """A layer of the network with its tensors in the file."""

    name: str
    about: str  # the kind and the shape of its largest tensor
    parts: tuple[tuple[str, str, int], ...]  # name, 'shared', 'rest' or 'file', bytes
    ruined: str = ""  # since when all its weights are zero

    @property
    def n_bytes(self) -> int:
        return sum(n for _, _, n in self.parts)


@dataclass(frozen=True)
class Sizes:
    """Bytes of each part of the file, the largest first."""

    file_bytes: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Bits:
    """A point for every shared tensor."""

    points: tuple[tuple[str, int, float, float], ...]  # name, weights, density, bits per weight


def kind_by_shape(shape: Sequence[int] | None) -> str:
    """What a tensor is by its number of dimensions; a file does not know the modules."""
    names = {0: "number", 1: "vector", 2: "matrix", 3: "1-d convolution", 4: "convolution", 5: "3-d convolution"}
    return "" if shape is None else names.get(len(shape), "tensor")


def shape_text(shape: Sequence[int] | None) -> str:
    return "" if shape is None else " x ".join(map(str, shape))


def sizes_data(run: Run) -> tuple[Sizes, ...]:
    info = run.info
    if info is None:
        return ()
    ruined = {found.name: found.since for found in ruined_data(run)}
    tensors: dict[str, list[tuple[str, TensorInfo]]] = {}
    for name, t in zip(tensor_names(info.tensors), info.tensors, strict=True):
        tensors.setdefault(name.rpartition(".")[0] or name, []).append((name, t))
    layers = [_layer(name, own, ruined) for name, own in tensors.items()]
    layers.append(Layer("header, codebooks, checksum", "", (("", "file", info.overhead_bytes),)))
    layers = sorted(_folded(layers) if len(layers) > MOST_BARS else layers, key=lambda layer: -layer.n_bytes)
    shown, small = layers[:MOST_BARS], layers[MOST_BARS:]
    red, others = [layer for layer in small if layer.ruined], [layer for layer in small if not layer.ruined]
    rest = [_sum(red[MOST_RED:], ALL), _sum(others, "")]
    return (Sizes(info.file_bytes, (*shown, *red[:MOST_RED], *(layer for layer in rest if layer))),)


def _layer(name: str, tensors: Sequence[tuple[str, TensorInfo]], ruined: Mapping[str, str]) -> Layer:
    _, largest = max(tensors, key=lambda pair: pair[1].n or 0)
    about = f"{kind_by_shape(largest.shape)} {shape_text(largest.shape)}".strip()
    parts = tuple((own, str(t.kind), t.n_bytes) for own, t in tensors)
    return Layer(name, about, parts, next((ruined[own] for own, _ in tensors if own in ruined), ""))


def _folded(layers: Sequence[Layer]) -> list[Layer]:
    """The layers of repeated blocks as one, if they have the same shapes."""
    kinds = [(layer.about, tuple((own.rpartition(".")[2], kind) for own, kind, _ in layer.parts)) for layer in layers]
    found = fold([layer.name for layer in layers], kinds)
    return [
        _block(name, [layers[k] for k in places]) if len(places) > 1 else layers[places[0]] for name, places in found
    ]


def _block(name: str, layers: Sequence[Layer]) -> Layer:
    parts = []
    for same in zip(*(layer.parts for layer in layers), strict=True):
        (own, _), *_ = fold([own for own, _, _ in same])
        parts.append((own, same[0][1], sum(n for _, _, n in same)))
    dead = sum(bool(layer.ruined) for layer in layers)
    return Layer(name, layers[0].about, tuple(parts), some_of(dead, len(layers)) if dead else "")


def _sum(layers: Sequence[Layer], ruined: str) -> Layer | None:
    found = Layer(f"{len(layers)} others", "", (("", "file", sum(layer.n_bytes for layer in layers)),), ruined)
    return found if layers else None


def draw_sizes(data: Sizes) -> Any:
    n = len(data.layers)
    figure = new_figure(4.8, 1.0 + ROW * n + RED_LINE * sum(bool(layer.ruined) for layer in data.layers))
    axes = figure.subplots()
    colours = {"shared": SERIES[0], "rest": SERIES[1], "file": FAINT}
    for k, layer in enumerate(data.layers):
        start = 0
        for name, kind, n_bytes in layer.parts:
            (bar,) = axes.barh(k, n_bytes, left=start, color=colours[kind], edgecolor=GROUND, linewidth=0.6)
            tip(bar, f"{name or layer.name}: {n_bytes:,} bytes, {100 * n_bytes / data.file_bytes:.1f}% of the file")
            start += n_bytes
        beside(axes, start, k, f"{start:,} ({_percent(start, data.file_bytes)})")
    names = shortened([layer.name for layer in data.layers], MOST_CHARACTERS)
    ticks = ["\n".join(filter(None, (name, of.about, of.ruined))) for name, of in zip(names, data.layers, strict=True)]
    axes.set_yticks(range(n), ticks, fontsize=8)
    for label, layer in zip(axes.get_yticklabels(), data.layers, strict=True):
        if layer.ruined:
            label.set(color=BAD, fontweight="bold")
    axes.margins(x=0.25)
    axes.set(xlabel="bytes", ylim=(n - 0.4, -0.6))
    plain_numbers(axes.xaxis)
    kinds = {kind for layer in data.layers for _, kind, _ in layer.parts}
    figure.legend(handles=_handles(colours, kinds), loc="outside lower center", ncols=3)
    largest = ", ".join(f"{layer.name} {layer.n_bytes:,}" for layer in data.layers[:5])
    describe(figure, f"Bytes of each layer, the largest first: {largest}")
    return figure


def _percent(n_bytes: int, of: int) -> str:
    share = 100 * n_bytes / of
    return f"{share:.0f}%" if share >= 0.5 or not n_bytes else "<1%"


def _handles(colours: dict[str, str], used: set[str]) -> list[Any]:
    from matplotlib.patches import Patch

    labels = {"shared": "shared weights", "rest": "other tensors", "file": "everything else"}
    return [Patch(color=colours[kind], label=label) for kind, label in labels.items() if kind in used]


def bits_data(run: Run) -> tuple[Bits, ...]:
    tensors = run.info.tensors if run.info else ()
    points = tuple(
        (name, t.n, t.density, t.bits_per_weight)
        for name, t in zip(tensor_names(tensors), tensors, strict=True)
        if t.n and t.density and t.bits_per_weight  # a tensor of zeros has no place on a logarithmic axis
    )
    if len(points) > MOST_POINTS:
        points = tuple(sorted(points, key=lambda point: -(point[1] or 0))[:MOST_POINTS])
    return (Bits(points),) if points else ()


def draw_bits(data: Bits) -> Any:
    """Both axes are logarithmic: the tensors of one network often differ a hundredfold."""
    figure = new_figure(4.8, 3.8)
    axes = figure.subplots()
    densities, heights = [point[2] for point in data.points], [point[3] for point in data.points]
    low, high = min(densities) / 1.5, min(0.999, 1.5 * max(densities))
    p = np.geomspace(min(low, 0.5), min(0.97, max(high, 0.5)), 200)
    axes.plot(p, -(p * np.log2(p) + (1 - p) * np.log2(1 - p)), color=FAINT, linewidth=1, label="mask without structure")
    most = max(n for _, n, _, _ in data.points)
    for name, n, density, bits in data.points:
        size = 5 + 11 * math.log1p(n) / math.log1p(most)
        (point,) = axes.plot(density, bits, "o", ms=size, color=SERIES[0], alpha=0.6, mew=0, zorder=3)
        tip(point, f"{name}: {n:,} weights, {100 * density:.2f}% non-zero, {bits:.3f} bits per weight")
    axes.set(xscale="log", yscale="log", xlabel="density", ylabel="bits per weight")
    axes.set(xlim=(low, high * 1.1), ylim=(min(heights) / 2, 2 * max(heights)))
    for axis in (axes.xaxis, axes.yaxis):
        plain_log(axis)
    if len(data.points) <= MOST_LABELS:
        _label_points(axes, data)
    figure.legend(loc="outside lower center")
    return figure


def _label_points(axes: Any, data: Bits) -> None:
    """Label the points right of the axes. A label is about as high as its point, and no leader meets another point."""
    (left, right), (low, high) = (map(math.log, ends) for ends in (axes.get_xlim(), axes.get_ylim()))
    places = [
        ((math.log(density) - left) / (right - left), (math.log(bits) - low) / (high - low))
        for _, _, density, bits in data.points
    ]
    names = shortened([name for name, *_ in data.points], 20)
    for k, height in label_heights(places):
        axes.annotate(
            names[k],
            data.points[k][2:],
            (LABELS, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0},
        )


def label_heights(places: Sequence[Point]) -> list[tuple[int, float]]:
    """Each point and the height of its label, from below. Neighbours change places while that frees more points."""
    order = sorted(range(len(places)), key=lambda k: places[k][1])
    heights = spaced([places[k][1] for k in order], 1 / MOST_LABELS)
    best, k = _met(places, order, heights), 0
    while best and k + 1 < len(order):
        turned = [*order[:k], order[k + 1], order[k], *order[k + 2 :]]
        met = _met(places, turned, heights)
        order, best, k = (turned, met, 0) if met < best else (order, best, k + 1)
    return list(zip(order, heights, strict=True))


def _met(places: Sequence[Point], order: Sequence[int], heights: Sequence[float]) -> int:
    """How many points lie on the leaders of others."""
    met = 0
    for k, height in zip(order, heights, strict=True):
        x, y = places[k]
        for other_x, other_y in places:
            along = (other_x - x) / (LABELS - x)
            if other_x > x + DOT and along < 1:
                met += abs(y + along * (height - y) - other_y) < DOT
    return met


def spaced(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights between 0 and 1, each at least a gap above the previous one, moved as little as possible."""
    out: list[float] = []
    for height in heights:
        out.append(max(height, out[-1] + gap) if out else max(height, 0.0))
    for k in range(len(out) - 1, -1, -1):  # move down what was pushed over the top
        out[k] = min(out[k], 1.0 - (len(out) - 1 - k) * gap)
    return out
