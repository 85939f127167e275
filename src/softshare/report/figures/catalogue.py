"""Every figure of a report: its title, what it says, and the two functions it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from softshare.report.figures.account import account_data, draw_account
from softshare.report.figures.before_after import draw_weights, weights_data
from softshare.report.figures.curves import curves_data, draw_curves
from softshare.report.figures.dynamics import draw_dynamics, dynamics_data
from softshare.report.figures.film import draw_film, film_data
from softshare.report.figures.filters import draw_filters, filters_data
from softshare.report.figures.hyperprior_curves import draw_hyperpriors, hyperpriors_data
from softshare.report.figures.masks import draw_masks, masks_data
from softshare.report.figures.sizes import bits_data, draw_bits, draw_sizes, sizes_data
from softshare.report.figures.storage import draw_storage, storage_data
from softshare.report.run import Run
from softshare.report.style import require_matplotlib, styled, to_svg


@dataclass(frozen=True)
class Plot:
    """A figure of one or more panels: none where the run lacks what it shows."""

    name: str
    title: str
    caption: str
    data: Callable[[Run], tuple[Any, ...]]
    draw: Callable[[Any], Any]
    wide: bool = False  # panels that need the width of the page


FIGURES = (
    Plot(
        "weights",
        "Weights before and after",
        "Each dot is a weight: where it was, and where retraining left it. On top their histogram before, on the right "
        "after. Bands are two standard deviations about each component's mean; a weight takes the mean of its "
        "component. Grey weights become zero. (Figures 1 and 3 of the paper.)",
        weights_data,
        draw_weights,
    ),
    Plot(
        "dynamics",
        "The mixture in training",
        "Means with bands of two standard deviations; the thicker the line, the larger the mixing. The line at 0 is "
        "the zero component. A component that no weight ends in is pale; a ring marks where one has come to lie on "
        "another, and dotted lines lead to the components after merging. (Figure 3 of the paper, left.)",
        dynamics_data,
        draw_dynamics,
    ),
    Plot(
        "account",
        "Description length",
        "What the mixtures estimate, what the indices' entropy would allow, and what was written. The error cost is "
        "the loss over the training set, in bytes where that loss is a negative log-likelihood.",
        account_data,
        draw_account,
    ),
    Plot("sizes", "Where the bytes are", "Every byte of the file, by tensor.", sizes_data, draw_sizes),
    Plot(
        "bits",
        "Bits per weight against density",
        "Below the line a tensor takes less than its mask alone would, were its non-zeros anywhere.",
        bits_data,
        draw_bits,
    ),
    Plot(
        "hyperpriors",
        "Hyper-priors",
        "As configured, and the same mode held half and twice as strongly. (Appendix B of the paper.)",
        hyperpriors_data,
        draw_hyperpriors,
    ),
    Plot("curves", "Training", "Every epoch of retraining, as history.csv has it.", curves_data, draw_curves),
    Plot(
        "filters",
        "Filters before and after",
        "Blue is above zero, orange below. Afterwards each weight has the value that it has in the file, whose "
        "units may stand in another order. (Appendix D of the paper.)",
        filters_data,
        draw_filters,
        wide=True,
    ),
    Plot(
        "masks",
        "What is left",
        "Non-zero weights as they are in the file, its units ordered for coding; of a large matrix the share in each "
        "cell.",
        masks_data,
        draw_masks,
    ),
    Plot(
        "storage",
        "A row in Han's format",
        "Column indices are stored as the number of zeros since the entry before; where that is too many for their "
        "bits, a zero is filled in (orange). The file itself is coded otherwise. (Appendix A of the paper.)",
        storage_data,
        draw_storage,
    ),
    Plot(
        "film",
        "Retraining, frame by frame",
        "Histograms of all weights with the components' bands.",
        film_data,
        draw_film,
    ),
)


def draw(run: Run, plot: Plot) -> Iterator[Any]:
    """The panels of a figure."""
    require_matplotlib()
    for data in plot.data(run):
        with styled():
            yield plot.draw(data)


def draw_svgs(run: Run, plot: Plot) -> list[str]:
    """The same, as matplotlib writes them."""
    with styled():
        return [to_svg(figure, f"{plot.name}-{k}") for k, figure in enumerate(draw(run, plot))]
