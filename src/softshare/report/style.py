"""The style of the figures, and their SVG and PNG. The palette suits colour-blind readers, on light and dark pages."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from softshare._util.printable import printable
from softshare.errors import NotAvailableError
from softshare.report.frames import Array

INK, FAINT, GROUND = "#1a1b1c", "#646669", "#fdfefe"
# Blue and vermilion are Okabe and Ito's. The others differ from these, from each other and from ink, also for an eye
# without red or green cones. None is too pale for a line on white.
SERIES = ("#0072b2", "#d55e00", "#0f2d96", "#c37869", "#692d00", "#0078f0", "#874b69")
# Colours of pixels, which no variable of the page can change. They are visible on white and on black.
POSITIVE, NEGATIVE = (43, 140, 214), (224, 108, 20)
DOTS = "#2b8cd6"
# The page's variable for each colour of a figure. A dark page sets other colours.
VARIABLES = {INK: "ink", FAINT: "faint", **{colour: f"series-{k}" for k, colour in enumerate(SERIES)}}
MOST_TIPS = 500  # strips of a figure
_TIP = "tip:"
_SETTINGS = {
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "figure.facecolor": GROUND,
    "savefig.facecolor": GROUND,
    "axes.facecolor": "none",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",  # text stays text: smaller and searchable
}


def require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise NotAvailableError("a report needs matplotlib: pip install 'softshare[report]'")


@contextlib.contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        yield


def new_figure(width: float = 4.8, height: float = 3.4) -> Any:
    """A figure without pyplot: nothing global, and no window."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def tip(artist: Any, text: str) -> None:
    """Set the text that appears when the pointer is on the artist."""
    artist.set_gid(_TIP + printable(text))


def beside(axes: Any, x: float, y: float, text: str) -> None:
    """Write a text at the end of a bar."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8)


def epoch_tips(axes: Any, epochs: Array, texts: list[str], counted: str = "epoch") -> None:
    """Add an invisible strip with a tooltip for each epoch or look, or for some of many."""
    step = -(-len(epochs) // MOST_TIPS)
    epochs, texts = epochs[::step], texts[::step]
    half = np.diff(epochs).max() / 2 if len(epochs) > 1 else 0.5
    for epoch, text in zip(epochs, texts, strict=True):
        strip = axes.axvspan(epoch - half, epoch + half, color=FAINT, alpha=0.004, linewidth=0, zorder=9)
        tip(strip, f"{counted} {epoch:g}: {text}")


def plain_texts(figure: Any) -> Any:
    """The same figure, with all texts as they are: a name with two dollar signs is no formula.

    Only the ticks of a logarithmic axis are formulas, such as 10^3, because matplotlib writes those itself.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    every = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    powers = [axis for axis in every if isinstance(axis.get_major_formatter(), LogFormatter)]
    formulas = {id(label) for axis in powers for label in axis.get_ticklabels(which="both")}
    for text in figure.findobj(Text):
        if id(text) not in formulas:
            text.set_parse_math(False)
            text.set_text(printable(text.get_text(), keep="\n"))
    return figure


def to_svg(figure: Any, salt: str) -> str:
    """The SVG that matplotlib writes. The salt keeps the ids of figures in one page apart."""
    import matplotlib

    plain_texts(figure)
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None})
    return file.getvalue().decode()


def for_file(svg: str) -> str:
    """The SVG with native tooltips."""
    return re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", svg)


def for_page(svg: str) -> str:
    """The SVG with the page's variables as colours, tooltips for its script, and no size of its own."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for name in ("width", "height"):
        svg = re.sub(rf'(<svg [^>]*?) {name}="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace(f'id="{_TIP}', 'data-tip="').replace(GROUND, "none")
    return re.sub("|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0]]})", svg)


def to_png(figure: Any) -> bytes:
    file = io.BytesIO()
    plain_texts(figure).savefig(file, format="png", dpi=150)
    return file.getvalue()


def signed_image(
    values: Array,  # (h, w)
    largest: float,
) -> Array:  # (h, w, 4)
    """Blue above 0 and orange below, stronger for larger values. NaN and 0 are clear, so any background works."""
    clear = np.nan_to_num(values)
    image = np.zeros((*values.shape, 4))
    image[..., :3] = np.where(clear[..., None] > 0, POSITIVE, NEGATIVE)
    image[..., :3] /= 255
    image[..., 3] = np.minimum(1, np.abs(clear) / (largest or 1))
    return image


def padded(low: float, high: float) -> tuple[float, float]:
    """The limits of an axis, with a margin around the values."""
    margin = 0.04 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None
