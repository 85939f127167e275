"""Retraining as a film: a slider moves through its frames on the page, and a picture shows a few of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare.report.figures.quantized import Held, held
from softshare.report.frames import Array
from softshare.report.names import IN_TITLE, short
from softshare.report.run import Run
from softshare.report.style import FAINT, SERIES, new_figure, padded

ON_PAPER = 6
_STEPS = 32767  # from one end of the axis to the other, for a weight in the page


@dataclass(frozen=True, eq=False)
class Film:
    """The weights of one mixture at every frame."""

    name: str
    n: int  # weights in all
    epochs: Array  # (E,)
    ends: Array  # (E, 2) the smallest and the largest weight
    mixing: Array  # (E, K)
    mean: Array  # (E, K)
    std: Array  # (E, K)
    counts: Array  # (E, K)
    histograms: Array  # (E, B) of all weights, between the ends
    sample: Array  # (E, S)
    held: tuple[Held, ...]  # (E,) what a file would hold
    phases: tuple[str, ...]  # (E,) soft, hard or, of some older runs, nothing
    counted: str = "epoch"  # or look
    left: int | None = None  # weights of the file that are not zero; None until there is a file with their names


def film_data(run: Run) -> tuple[Film, ...]:
    frames = run.frames
    if frames is None:
        return ()
    phases = tuple(_phase(run, epoch) for epoch in frames.epochs.tolist())
    return tuple(
        Film(
            frames.parts[part],
            int(frames.about["sizes"][part]),
            frames.epochs,
            np.stack([frames.edges(e, q)[[0, -1]] for e in range(len(frames.epochs))]),
            np.exp(frames.log_mixing[:, part]),
            frames.mean[:, part],
            np.exp(0.5 * frames.log_var[:, part]),
            frames.counts[:, part],
            frames.histograms[:, q],
            frames.sample[:, frames.owner == q],
            tuple(held(run, frames, e, q) for e in range(len(frames.epochs))),
            phases,
            run.counted,
            _left(run, frames.about["tensors"][part]),
        )
        for q, part in enumerate(frames.shown)
    )


def _left(run: Run, names: Sequence[str]) -> int | None:
    """What the file has of these tensors. Simplifying may have removed units that the last frame still has."""
    found = [t.n_nonzero for t in run.info.tensors if t.name in names] if run.info else []
    return sum(n or 0 for n in found) if len(found) == len(names) else None


def _phase(run: Run, epoch: float) -> str:
    if not run.knows_phases:
        return ""
    return "hard" if any(first < epoch <= last for first, last in run.hard_spans) else "soft"


def draw_film(data: Film) -> Any:
    chosen = np.unique(np.linspace(0, len(data.epochs) - 1, ON_PAPER).round().astype(int))
    figure = new_figure(4.8, 0.6 + 0.75 * len(chosen))
    all_axes = np.atleast_1d(figure.subplots(len(chosen), 1, sharex=True, sharey=True))
    for axes, e in zip(all_axes, chosen, strict=True):
        edges = np.linspace(data.ends[e, 0], data.ends[e, 1], data.histograms.shape[1] + 1)
        axes.stairs(data.histograms[e], edges, fill=True, color=SERIES[0])
        for k in np.flatnonzero(data.counts[e]):
            mean, std = data.mean[e, k], data.std[e, k]
            axes.axvspan(mean - 2 * std, mean + 2 * std, color=FAINT if k == 0 else SERIES[1], alpha=0.12, linewidth=0)
            axes.axvline(mean, color=FAINT if k == 0 else SERIES[1], linewidth=0.8)
        axes.set(yscale="log", ylim=(0.7, None), xlim=padded(*_limits(data)))
        title = f"{data.counted} {data.epochs[e]}" + (f", {data.phases[e]} phase" if data.phases[e] else "")
        axes.set_title(title, loc="right", fontsize=8, pad=2)
    all_axes[0].set_title(short(data.name, IN_TITLE), loc="left", fontsize=9, pad=2)
    all_axes[-1].set_xlabel("weight")
    return figure


def film_for_page(data: Film) -> dict[str, Any]:
    """The film as plain values. Sampled weights are 16-bit steps along the axis, in base64."""
    low, high = _limits(data)
    steps = np.clip((data.sample.astype(np.float64) - low) / (high - low), 0, 1) * _STEPS
    return {
        "name": data.name,
        "epochs": data.epochs.tolist(),
        "limits": [low, high],
        "ends": _rounded(data.ends),
        "mixing": _rounded(data.mixing),
        "mean": _rounded(data.mean),
        "std": _rounded(data.std),
        "counts": data.counts.tolist(),
        "histograms": data.histograms.tolist(),
        "sample": [_packed(frame.round(), "<u2") for frame in steps],
        "weights": data.n,
        "phases": data.phases,
        "left": data.left,
        "values": [_rounded(own.values) for own in data.held],
        "held": [own.counts.tolist() for own in data.held],
        "index": [_packed(own.index, "<u1" if len(data.mean[0]) <= 256 else "<u2") for own in data.held],
    }


def _packed(numbers: Array, kind: str) -> str:
    return base64.b64encode(numbers.astype(kind).tobytes()).decode()


def _limits(data: Film) -> tuple[float, float]:
    """The smallest and the largest weight of all frames."""
    return float(data.ends[:, 0].min()), float(data.ends[:, 1].max())


def _rounded(values: Array) -> Any:
    return [_rounded(row) for row in values] if values.ndim > 1 else [float(f"{v:.4g}") for v in values]
