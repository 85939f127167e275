"""Bits of each tensor of a quantized checkpoint against its error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare.datafree.fitted import FittedWeights
from softshare.report.style import FAINT, SERIES, describe, new_figure, plain_log, tip

EVEN = math.sqrt(2 * math.pi * math.e / 12)  # error of an even grid and an entropy coder over the least that bits allow


@dataclass(frozen=True)
class Rates:
    """A point for each tensor: its name, weights, bits per weight, and the error relative to a root mean square."""

    of: str  # what the error is of
    points: tuple[tuple[str, int, float, float], ...]


def rates_data(fitted: FittedWeights) -> tuple[Rates, ...]:
    """The errors of the weights, and with batches those of the outputs. An error of 0 has no place on a log axis."""
    found = []
    for of, errors in (("weights", fitted.errors), ("outputs of the layer", fitted.layer_errors)):
        points = tuple(
            (cost.name, cost.n, cost.bits, errors[cost.name])
            for cost in fitted.costs()
            if errors.get(cost.name, 0) > 0 and cost.n
        )
        if points:
            found.append(Rates(of, points))
    return tuple(found)


def draw_rates(data: Rates) -> Any:
    figure = new_figure(4.8, 3.8)
    axes = figure.subplots()
    bits, errors = [point[2] for point in data.points], [point[3] for point in data.points]
    r = np.linspace(max(0.0, min(bits) - 0.5), max(bits) + 0.5, 100)
    axes.plot(r, np.minimum(1, EVEN * 2**-r), color=FAINT, linewidth=1, label="even grid, normal weights")
    axes.plot(r, 2**-r, color=FAINT, linewidth=1, linestyle=":", label="least possible, normal weights")
    most = max(point[1] for point in data.points)
    for name, n, rate, error in data.points:
        size = 4 + 11 * math.log1p(n) / math.log1p(most)
        (point,) = axes.plot(rate, error, "o", ms=size, color=SERIES[0], alpha=0.5, mew=0, zorder=3)
        tip(point, f"{name}: {n:,} weights, {rate:.3f} bits per weight, error {100 * error:.3g}%")
    axes.set(yscale="log", xlabel="bits per weight", ylabel=f"relative error of the {data.of}")
    axes.set(ylim=(min(errors) / 1.5, 1.5 * max(errors)))
    plain_log(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=2)
    text = f"{len(data.points)} tensors, {min(bits):.2f} to {max(bits):.2f} bits per weight, errors of the {data.of}"
    describe(figure, f"{text} {100 * min(errors):.2g}% to {100 * max(errors):.2g}%")
    return figure
