"""Where the bytes are: bars for each tensor, and bits per weight against density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare._util.printable import shorten
from softshare.report.run import Run
from softshare.report.style import FAINT, INK, SERIES, beside, new_figure, tip

MOST_BARS = 24
MOST_LABELS = 12  # of points
MOST_POINTS = 1000  # the tensors with the most weights


@dataclass(frozen=True)
class Sizes:
    """Bytes of each part of the file, the largest first."""

    file_bytes: int
    bars: tuple[tuple[str, str, int], ...]  # name, 'shared', 'rest' or 'file', bytes


@dataclass(frozen=True)
class Bits:
    """A point for every shared tensor."""

    points: tuple[tuple[str, int, float, float], ...]  # name, weights, density, bits per weight


def sizes_data(run: Run) -> tuple[Sizes, ...]:
    info = run.info
    if info is None:
        return ()
    bars = [(t.name or f"tensor {k}", str(t.kind), t.n_bytes) for k, t in enumerate(info.tensors, 1)]
    bars.append(("header, codebooks, checksum", "file", info.overhead_bytes))
    bars.sort(key=lambda bar: -bar[2])
    others = bars[MOST_BARS:]
    if others:
        bars = [*bars[:MOST_BARS], (f"{len(others)} others", "file", sum(bar[2] for bar in others))]
    return (Sizes(info.file_bytes, tuple(bars)),)


def draw_sizes(data: Sizes) -> Any:
    figure = new_figure(4.8, 0.9 + 0.24 * len(data.bars))
    axes = figure.subplots()
    colours = {"shared": SERIES[0], "rest": SERIES[1], "file": FAINT}
    for k, (name, kind, n_bytes) in enumerate(data.bars):
        (bar,) = axes.barh(k, n_bytes, color=colours[kind])
        share = f"{100 * n_bytes / data.file_bytes:.1f}%"
        tip(bar, f"{name}: {n_bytes:,} bytes, {share} of the file")
        beside(axes, n_bytes, k, f"{n_bytes:,}")
    axes.set_yticks(range(len(data.bars)), [shorten(name) for name, _, _ in data.bars])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set(xlabel="bytes")
    axes.legend(handles=_handles(colours, {kind for _, kind, _ in data.bars}), loc="lower right")
    return figure


def _handles(colours: dict[str, str], used: set[str]) -> list[Any]:
    from matplotlib.patches import Patch

    labels = {"shared": "shared weights", "rest": "other tensors", "file": "everything else"}
    return [Patch(color=colours[kind], label=label) for kind, label in labels.items() if kind in used]


def bits_data(run: Run) -> tuple[Bits, ...]:
    points = tuple(
        (t.name or f"tensor {k}", t.n, t.density, t.bits_per_weight)
        for k, t in enumerate(run.info.tensors if run.info else (), 1)
        if t.n and t.density is not None and t.bits_per_weight is not None
    )
    if len(points) > MOST_POINTS:
        points = tuple(sorted(points, key=lambda point: -(point[1] or 0))[:MOST_POINTS])
    return (Bits(points),) if points else ()


def draw_bits(data: Bits) -> Any:
    figure = new_figure(4.8, 3.4)
    axes = figure.subplots()
    p = np.linspace(1e-4, 1 - 1e-4, 400)
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    axes.plot(p, entropy, color=FAINT, linewidth=1, label="entropy of a mask without structure")
    most = max(n for _, n, _, _ in data.points)
    for name, n, density, bits in data.points:
        size = 5 + 11 * math.log1p(n) / math.log1p(most)
        (point,) = axes.plot(density, bits, "o", ms=size, color=SERIES[0], alpha=0.6, mew=0, zorder=3)
        tip(point, f"{name}: {n:,} weights, {100 * density:.2f}% non-zero, {bits:.3f} bits per weight")
    axes.set(xlabel="density", ylabel="bits per weight")
    axes.margins(x=0.12, y=0.1)
    axes.set_xlim(0, min(1.1, 1.3 * max(0.05, *(d for _, _, d, _ in data.points))))
    if len(data.points) <= MOST_LABELS:
        _label_points(axes, data)
    figure.legend(loc="outside lower center")
    return figure


def _label_points(axes: Any, data: Bits) -> None:
    """Label the points right of the axes. A label is as high as its point, or just above the label below it."""
    low, high = axes.get_ylim()
    points = sorted(data.points, key=lambda point: point[3])
    heights = spaced([(bits - low) / (high - low) for _, _, _, bits in points], 1 / MOST_LABELS)
    for (name, _, density, bits), height in zip(points, heights, strict=True):
        axes.annotate(
            shorten(name, 20),
            (density, bits),
            (1.04, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=INK,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 0},
        )


def spaced(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights between 0 and 1, each at least a gap above the previous one, moved as little as possible."""
    out: list[float] = []
    for height in heights:
        out.append(max(height, out[-1] + gap) if out else max(height, 0.0))
    for k in range(len(out) - 1, -1, -1):  # move down what was pushed over the top
        out[k] = min(out[k], 1.0 - (len(out) - 1 - k) * gap)
    return out
