"""The hyper-priors as configured: Gamma on the precisions, Beta on the zero component's mixing (appendix B)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from softshare._util.schema import from_plain
from softshare.config import Beta, Dirichlet, Gamma
from softshare.report.frames import Array
from softshare.report.run import Run
from softshare.report.style import SERIES, new_figure

_POINTS = 400
_STRENGTHS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, eq=False)
class HyperPrior:
    """A density scaled to a maximum of 1, and the densities that hold its mode half and twice as strongly."""

    name: str
    axis: str
    x: Array  # (n,)
    curves: dict[str, Array]  # label -> (n,); the label of the configured one is its parameters
    configured: str


def hyperpriors_data(run: Run) -> tuple[HyperPrior, ...]:
    if run.frames is None:
        return ()
    about = run.frames.about
    zero, free = (None if g is None else from_plain(Gamma, g, "the film's prior") for g in about["precision_priors"])
    relative = about["width"] is not None
    found = []
    if zero is not None and zero == free:
        found.append(_gamma("precision of every component", relative, zero))
    else:
        named = {"zero component": zero, "free components": free}
        found += [_gamma(f"precision, {name}", relative, g) for name, g in named.items() if g is not None]
    prior = about["mixing_prior"]
    if prior is not None:
        n_free = run.frames.mean.shape[2] - 1
        if "alpha" in prior:
            beta = from_plain(Beta, prior, "the film's prior")
        else:
            dirichlet = from_plain(Dirichlet, prior, "the film's prior")
            beta = Beta(dirichlet.zero, n_free * dirichlet.free)  # the marginal
        found.append(_beta("mixing of the zero component", beta))
    return tuple(found)


def _gamma(name: str, relative: bool, gamma: Gamma) -> HyperPrior:
    mode = 1 / gamma.std**2
    spread = math.sqrt(gamma.alpha) / gamma.beta
    x = np.linspace(max(spread / 1e3, mode - 8 * spread), mode + 8 * spread, _POINTS)
    family = {gamma: str(gamma).replace(",", ", ")}
    if gamma.alpha > 1:
        others = {Gamma.from_std(gamma.std, s * gamma.strength): s for s in _STRENGTHS if s != 1}
        family |= {g: f"{_times(s)} as strong" for g, s in others.items()}
    curves = {
        label: _highest_1(
            np.array([-float(g.neg_log_density(torch.tensor(-math.log(v), dtype=torch.float64))) for v in x])
        )
        for g, label in family.items()
    }
    held = f" (at the mode the standard deviation is {gamma.std:.3g})" if not relative and gamma.alpha > 1 else ""
    axis = "precision / precision at the held width" if relative else f"precision{held}"
    return HyperPrior(f"Gamma: {name}", axis, x, curves, family[gamma])


def _beta(name: str, beta: Beta) -> HyperPrior:
    x = np.linspace(0, 1, 2 * _POINTS + 2)[1:-1]
    family = {beta: str(beta).replace(",", ", ")}
    if beta.alpha > 1 and beta.beta > 1:
        x = np.linspace(*_around(1 - beta.free, beta), _POINTS)
        others = {Beta.from_mode(beta.free, 2 + s * (beta.count - 2)): s for s in _STRENGTHS if s != 1}
        family |= {b: f"{_times(s)} as strong" for b, s in others.items()}
    log_mixing = torch.from_numpy(np.stack([np.log(x), np.log1p(-x)], 1))
    curves = {
        label: _highest_1(np.array([-float(b.neg_log_density(row)) for row in log_mixing]))
        for b, label in family.items()
    }
    return HyperPrior(f"Beta: {name}", "mixing", x, curves, family[beta])


def _around(mode: float, beta: Beta) -> tuple[float, float]:
    spread = math.sqrt(beta.alpha * beta.beta / (beta.count + 1)) / beta.count
    return max(1e-9, mode - 8 * spread), min(1 - 1e-9, mode + 8 * spread)


def _highest_1(log_density: Array) -> Array:
    out: Array = np.exp(log_density - log_density.max())
    return out


def _times(factor: float) -> str:
    return "half" if factor < 1 else "twice"


def draw_hyperpriors(data: HyperPrior) -> Any:
    figure = new_figure(4.8, 3.2)
    axes = figure.subplots()
    for colour, (label, y) in zip(SERIES, data.curves.items(), strict=False):
        own = label == data.configured
        style = "-" if own else ("--" if label.startswith("half") else ":")
        axes.plot(data.x, y, style, color=colour, linewidth=2 if own else 1.2, label=label)
    axes.set(xlabel=data.axis, ylabel="density, highest = 1", ylim=(0, 1.05))
    axes.locator_params(axis="x", nbins=5)  # mixings near 1 are long numbers
    figure.legend(loc="outside lower center", ncols=2)
    axes.xaxis.label.set_fontsize(8)
    axes.set_title(data.name)
    return figure
