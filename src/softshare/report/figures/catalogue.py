"""Every figure of a report: its title, its caption, and the two functions that make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from softshare.report.figures.account import account_data, draw_account
from softshare.report.figures.before_after import draw_weights, weights_data
from softshare.report.figures.curves import curves_data, draw_curves, prior_curves_data
from softshare.report.figures.dynamics import draw_dynamics, dynamics_data
from softshare.report.figures.film import draw_film, film_data
from softshare.report.figures.filters import draw_filters, filters_data
from softshare.report.figures.hyperprior_curves import draw_hyperpriors, hyperpriors_data
from softshare.report.figures.masks import draw_masks, masks_data
from softshare.report.figures.sizes import bits_data, draw_bits, draw_sizes, sizes_data
from softshare.report.figures.speed import draw_speed, speed_data
from softshare.report.figures.storage import draw_storage, storage_data
from softshare.report.run import Run
from softshare.report.style import require_matplotlib, styled, to_svg


@dataclass(frozen=True)
class Plot:
    """A figure of one or more panels. It has none if the run lacks its data."""

    name: str
    title: str
    caption: str
    data: Callable[[Run], tuple[Any, ...]]
    draw: Callable[[Any], Any]
    details: bool = False  # for readers of the paper
    live: bool = False  # also drawn while the run is under way, again and again


FIGURES = (
    Plot(
        "sizes",
        "Where the bytes are",
        "A bar is a layer, or the same layer of several blocks. Together the bars are the whole file. A layer in red "
        "has lost all its weights.",
        sizes_data,
        draw_sizes,
    ),
    Plot(
        "bits",
        "Bits per weight against density",
        "A tensor below the line takes fewer bits than the mask of its non-zeros would take without structure.",
        bits_data,
        draw_bits,
    ),
    Plot(
        "curves",
        "Training",
        "In the soft phase the prior pulls the weights together. In the hard phase (shaded) the network runs on the "
        "values that the file will hold. If there are several runs, a grey line marks the start of each, and a dotted "
        "line marks the network that is in the file.",
        curves_data,
        draw_curves,
        live=True,
    ),
    Plot(
        "weights",
        "Weights before and after",
        "Each dot is a weight: its value before and after retraining. The histogram on top shows all weights before, "
        "the one on the right all weights after. Bands are two standard deviations around each component's mean. "
        "Quantizing gives each weight the mean of its component. Grey weights become zero. (Figures 1 and 3 of the "
        "paper.)",
        weights_data,
        draw_weights,
    ),
    Plot(
        "dynamics",
        "The mixture in training",
        "Lines are means, and bands are two standard deviations. A thicker line is a larger mixing proportion. The "
        "line at 0 is the zero component. Pale components have no weights at the end. A ring marks where a component "
        "starts to lie on another. Dotted lines lead to the components after merging. (Figure 3 of the paper, left.)",
        dynamics_data,
        draw_dynamics,
    ),
    Plot(
        "masks",
        "What is left",
        "Blue cells are non-zero weights of the file, which orders its units for coding. In a large matrix a cell "
        "shows a share of non-zero weights.",
        masks_data,
        draw_masks,
    ),
    Plot(
        "filters",
        "Filters before and after",
        "Blue is above zero, and orange is below. After compression each weight has its value in the file. The file "
        "may have the units in another order. (Appendix D of the paper.)",
        filters_data,
        draw_filters,
    ),
    Plot(
        "speed",
        "Speed of the shrunk network",
        "Median times of the whole network, and of the smaller dense one that softshare export --shrunk writes. It "
        "lacks the units that do nothing.",
        speed_data,
        draw_speed,
    ),
    Plot(
        "account",
        "Description length",
        "The size that the mixtures estimate, the size that the entropy of the indices allows, and the size of the "
        "file. The error cost is the loss over the training set, if that loss is a negative log-likelihood.",
        account_data,
        draw_account,
        details=True,
    ),
    Plot(
        "storage",
        "A row in Han's format",
        "Han's format stores a column index as the number of zeros since the previous entry. If that number is too "
        "large for its bits, a zero is filled in (orange). The file itself has another code. (Appendix A of the "
        "paper.)",
        storage_data,
        draw_storage,
        details=True,
    ),
    Plot(
        "prior",
        "The prior in training",
        "Components in use are those that some weight belongs to. The prior is a density, so its logarithm may have "
        "either sign. tau is its weight in the loss.",
        prior_curves_data,
        draw_curves,
        details=True,
    ),
    Plot(
        "hyperpriors",
        "Hyper-priors",
        "Solid lines are the configured hyper-priors. The others hold the same mode half and twice as strongly. "
        "(Appendix B of the paper.)",
        hyperpriors_data,
        draw_hyperpriors,
        details=True,
    ),
    Plot(
        "film",
        "Retraining, frame by frame",
        "Each frame shows the histogram of all weights, with the bands of the components.",
        film_data,
        draw_film,
    ),
)


def draw(run: Run, plot: Plot) -> Iterator[Any]:
    """Draw the panels of a figure, one at a time."""
    require_matplotlib()
    for data in plot.data(run):
        with styled():
            yield plot.draw(data)


def draw_svgs(run: Run, plot: Plot) -> list[str]:
    """The panels of a figure as SVG, as matplotlib writes them."""
    with styled():
        return [to_svg(figure, f"{plot.name}-{k}") for k, figure in enumerate(draw(run, plot))]
