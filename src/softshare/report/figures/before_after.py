"""Weights after retraining against before, with histograms and the components' bands (paper, figures 1 and 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare.report.figures.quantized import held
from softshare.report.frames import Array, Frames
from softshare.report.names import IN_TITLE, short
from softshare.report.run import Run
from softshare.report.style import DOTS, FAINT, INK, SERIES, describe, new_figure, padded, plain_log, tip


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one mixture."""

    name: str
    n: int  # weights in all
    before: Array  # (S,) a sample of them
    after: Array  # (S,) the same weights after retraining
    is_zero: Array  # (S,) whether it ends in the zero component, or in one that merges with it
    edges_before: Array  # (B + 1,)
    counts_before: Array  # (B,) of all weights
    edges_after: Array  # (B + 1,)
    counts_after: Array  # (B,)
    mean: Array  # (K,) of the components in use, zero first
    std: Array  # (K,)
    counts: Array  # (K,) weights of each


def weights_data(run: Run) -> tuple[Weights, ...]:
    frames = run.frames
    return () if frames is None else tuple(_of_part(run, frames, q) for q in range(len(frames.shown)))


def _of_part(run: Run, frames: Frames, q: int) -> Weights:
    part, own, last = int(frames.shown[q]), frames.owner == q, len(frames.epochs) - 1
    after = frames.sample[last, own].astype(np.float32)
    parameters = (frames.log_mixing[last, part], frames.mean[last, part], frames.log_var[last, part])
    kept = held(run, frames, last, q)
    used = frames.counts[last, part] > 0
    used[0] = True
    return Weights(
        frames.parts[part],
        int(frames.about["sizes"][part]),
        frames.sample[0, own].astype(np.float32),
        after,
        kept.values[kept.index] == 0,
        frames.edges(0, q),
        frames.histograms[0, q],
        frames.edges(last, q),
        frames.histograms[last, q],
        parameters[1][used],
        np.exp(0.5 * parameters[2][used]),
        frames.counts[last, part][used],
    )


def draw_weights(data: Weights) -> Any:
    figure = new_figure(4.8, 4.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4), wspace=0.02, hspace=0.02)
    main = figure.add_subplot(grid[1, 0])
    top, right = figure.add_subplot(grid[0, 0], sharex=main), figure.add_subplot(grid[1, 1], sharey=main)
    for axes in (main, right):
        for k, (mean, std) in enumerate(zip(data.mean, data.std, strict=True)):
            colour = FAINT if k == 0 else SERIES[1]
            band = axes.axhspan(mean - 2 * std, mean + 2 * std, color=colour, alpha=0.12, linewidth=0)
            tip(band, f"component at {mean:.4g}, two sigma {2 * std:.3g}, {data.counts[k]:,} weights")
            axes.axhline(mean, color=colour, linewidth=0.7)
    main.axline((0, 0), slope=1, color=FAINT, linewidth=0.6, linestyle=":")
    for chosen, colour in ((data.is_zero, FAINT), (~data.is_zero, DOTS)):
        points = main.scatter(data.before[chosen], data.after[chosen], s=3, color=colour, alpha=0.6, linewidths=0)
        points.set_rasterized(True)
    low, high = padded(data.edges_after[0], data.edges_after[-1])
    low, high = min(low, float((data.mean - 2 * data.std).min())), max(high, float((data.mean + 2 * data.std).max()))
    main.set(xlim=padded(data.edges_before[0], data.edges_before[-1]), ylim=(low, high))
    main.set(xlabel="before", ylabel="after retraining")
    top.stairs(data.counts_before, data.edges_before, fill=True, color=SERIES[0])
    right.stairs(data.counts_after, data.edges_after, fill=True, color=SERIES[0], orientation="horizontal")
    top.set(yscale="log", ylim=(0.7, None), ylabel="weights")
    right.set(xscale="log", xlim=(0.7, None), xlabel="weights")
    for axis in (top.yaxis, right.xaxis):
        plain_log(axis, few=True)
    top.tick_params(labelbottom=False)
    right.tick_params(labelleft=False)
    top.set_title(f"{short(data.name, IN_TITLE)}: {data.n:,} weights", color=INK)
    describe(figure, f"The {data.n:,} weights of {data.name}, after retraining against before, with both histograms")
    return figure
