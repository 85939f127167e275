"""The mixture during training: means with two-sigma bands, line width by mixing, merges (paper, figure 3, left)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softshare.config import MergeConfig
from softshare.prior.mixture import Mixture
from softshare.quantization.merge import merge_groups, spread
from softshare.report.frames import Array, Frames
from softshare.report.names import IN_TITLE, short
from softshare.report.run import Run
from softshare.report.style import FAINT, INK, colours, describe, epoch_tips, mark_phases, new_figure, tip

_FAINTEST = -6.0  # log10 of the mixing of the thinnest line


@dataclass(frozen=True, eq=False)
class Dynamics:
    """One mixture over E epochs; component 0 is the zero component."""

    name: str
    epochs: Array  # (E,)
    mixing: Array  # (E, K)
    mean: Array  # (E, K)
    std: Array  # (E, K)
    counts: Array  # (E, K) weights for which each is the most responsible
    joined: Array  # (K,) first frame from which it lies on an earlier component to the end; -1: never
    merged: Array  # (M,) means after merging; empty until the run is over
    onto: Array  # (K,) index of the merged component that each one joins
    counted: str = "epoch"  # or look
    hard: tuple[tuple[float, float], ...] | None = None  # the hard phases, from epoch to epoch; None if not known


def dynamics_data(run: Run) -> tuple[Dynamics, ...]:
    frames = run.frames
    if frames is None:
        return ()
    return tuple(_of_part(run, frames, int(part)) for part in frames.shown)


def _of_part(run: Run, frames: Frames, part: int) -> Dynamics:
    parameters = (frames.log_mixing[:, part], frames.mean[:, part], frames.log_var[:, part])
    final = frames.final(part) if run.result else None
    low, high = frames.epochs[0], frames.epochs[-1]
    hard = tuple((max(a, low), min(b, high)) for a, b in run.hard_spans if a < high and b > low)
    merged = np.empty(0) if final is None else final.mean.numpy()
    onto = np.zeros(parameters[1].shape[1], int)
    if final is not None:
        _, groups = merge_groups(Mixture(*(torch.from_numpy(values[-1]) for values in parameters)), run.merging)
        onto = spread(torch.arange(len(groups)), groups).numpy()
    return Dynamics(
        frames.parts[part],
        frames.epochs,
        np.exp(parameters[0]),
        parameters[1],
        np.exp(0.5 * parameters[2]),
        frames.counts[:, part],
        joined(*parameters, run.merging),
        merged,
        onto,
        run.counted,
        hard if run.knows_phases else None,
    )


def joined(
    log_mixing: Array,  # (E, K)
    mean: Array,  # (E, K)
    log_var: Array,  # (E, K)
    merging: MergeConfig,
) -> Array:  # (K,)
    """The first frame from which merging would always join a component with an earlier one; -1 if there is none."""
    apart = np.zeros(mean.shape, bool)
    for own, *values in zip(apart, log_mixing, mean, log_var, strict=True):
        _, groups = merge_groups(Mixture(*map(torch.from_numpy, values)), merging)
        own[[group[0] for group in groups]] = True
    last_apart = np.where(apart.any(0), len(apart) - 1 - apart[::-1].argmax(0), -1)
    out: Array = np.where(last_apart == len(apart) - 1, -1, last_apart + 1)
    return out


def draw_dynamics(data: Dynamics) -> Any:
    from matplotlib.collections import LineCollection

    figure = new_figure(4.8, 3.8)
    axes = figure.subplots()
    x, end = data.epochs, data.epochs[-1] + max(1.0, 0.06 * np.ptp(data.epochs))
    width = 0.5 + 5 * np.clip(1 - np.log10(np.maximum(data.mixing, 1e-30)) / _FAINTEST, 0, 1)
    own = [INK, *colours(data.mean.shape[1] - 1)]
    for k, colour in enumerate(own):
        in_use = data.counts[-1, k] > 0
        low, high = data.mean[:, k] - 2 * data.std[:, k], data.mean[:, k] + 2 * data.std[:, k]
        axes.fill_between(x, low, high, color=colour, alpha=0.1 if in_use else 0.03, linewidth=0)
        points = np.stack([x, data.mean[:, k]], 1)
        segments = np.stack([points[:-1], points[1:]], 1)
        line: dict[str, Any] = {"linewidths": width[1:, k], "colors": colour}
        line |= {"capstyle": "round"} if in_use else {"alpha": 0.3}  # overlapping ends of pale lines would show
        axes.add_collection(LineCollection(list(segments), **line))
        if data.joined[k] >= 0:
            at = data.joined[k]
            ring = axes.plot(x[at], data.mean[at, k], "o", ms=6, mfc="none", mec=colour, zorder=4)[0]
            tip(ring, f"from {data.counted} {x[at]} on this component lies on another")
        if data.merged.size:
            axes.plot([x[-1], end], [data.mean[-1, k], data.merged[data.onto[k]]], ":", color=colour, linewidth=0.8)
    for k, mean in enumerate(data.merged):
        n = int(data.counts[-1, data.onto == k].sum())
        dot = axes.plot(end, mean, "o", ms=5 if n else 3, color=INK if n else FAINT, zorder=10)[0]
        tip(dot, f"after merging: {mean:.4g}, {n:,} weights")
    texts = []
    for e in range(len(x)):
        used = data.counts[e] > 0
        means = ", ".join(f"{m:.3g}" for m in np.sort(data.mean[e, used])[:9])
        texts.append(f"{used.sum()} components in use, at {means}{', …' if used.sum() > 9 else ''}")
    mark_phases(axes, data.epochs, data.hard)
    epoch_tips(axes, x, texts, data.counted)
    axes.autoscale_view()
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=data.counted, ylabel="mean ± 2 standard deviations")
    axes.set_title(short(data.name, IN_TITLE), pad=14)
    describe(figure, f"Components of {data.name} by {data.counted}. In the end: {texts[-1]}")
    return figure
