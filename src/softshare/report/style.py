"""The style of the figures, and their SVG and PNG. The palette suits colour-blind readers, on light and dark pages."""

from __future__ import annotations

import colorsys
import contextlib
import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from softshare._util.printable import printable
from softshare.errors import NotAvailableError
from softshare.report.frames import Array

INK, FAINT, GROUND = "#1a1b1c", "#646669", "#fdfefe"
BAD = "#b3123c"  # what is ruined; it is also said in words
# Blue and vermilion are Okabe and Ito's. The others differ from these, from each other and from ink, also for an eye
# without red or green cones. None is too pale for a line on white.
SERIES = ("#0072b2", "#d55e00", "#199dae", "#b47878", "#001361", "#003809", "#5a4b69")
# Colours of pixels, which no variable of the page can change. They are visible on white and on black.
POSITIVE, NEGATIVE = (43, 140, 214), (224, 108, 20)
DOTS = "#2b8cd6"
SCALE = "viridis_r", 0.1, 0.75  # a colormap and the part of it that is visible on white and on black
# The page's variable for each colour of a figure. A dark page sets other colours.
VARIABLES = {INK: "ink", FAINT: "faint", BAD: "bad", **{colour: f"series-{k}" for k, colour in enumerate(SERIES)}}
MOST_TIPS = 120  # strips of a figure
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


def colours(n: int) -> list[str]:
    """As many colours, no two alike: those of the palette, or hues all around if it has too few."""
    if n <= len(SERIES):
        return list(SERIES[:n])
    hues = (colorsys.hls_to_rgb(k / n, 0.46, 0.7) for k in range(n))
    return ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in hues]


def scale() -> Any:
    """A colormap for dots and lines, on light and dark pages."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    name, low, high = SCALE
    return ListedColormap(matplotlib.colormaps[name](np.linspace(low, high, 256)))


def mark_phases(axes: Any, epochs: Array, hard: Sequence[tuple[float, float]] | None) -> None:
    """Shade the hard phases, from epoch to epoch, and name the two phases above. Phases that are not known are None."""
    begin, end = float(epochs[0]), float(epochs[-1])
    if hard is None or len(hard) > 1:  # of several, the shades say it
        names = {}
    elif not hard:
        names = {"soft phase": (begin, end)}
    else:
        ((first, last),) = hard
        names = {"hard phase": (first, last)}
        if first > begin + 0.1 * (last - begin):  # else there is no room for its name
            names["soft"] = (begin, first)
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "fontsize": 8, "color": FAINT, "ha": "center"}
    for name, (first, last) in names.items():
        axes.text((first + last) / 2, 1.01, name, va="bottom", **place)
    for first, last in hard or ():
        axes.axvspan(first, last, color=FAINT, alpha=0.09, linewidth=0, zorder=0)


def tip(artist: Any, text: str) -> None:
    """Set the text that appears when the pointer is on the artist."""
    artist.set_gid(_TIP + printable(text))


def beside(axes: Any, x: float, y: float, text: str) -> None:
    """Write a text at the end of a bar."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=8)


def plain_log(axis: Any, few: bool = False) -> None:
    """The ticks of a logarithmic axis as plain numbers, as many as have room. A short axis has room for few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    subs = (1,) if few or high > 1000 * low else (1, 3) if high > 30 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=subs, numticks=4 if few else 12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def plain_numbers(axis: Any) -> None:
    """A few whole numbers on a linear axis, such as 500, 1k and 1.5k."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(4, integer=True, steps=(1, 2, 5, 10)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    """'0.03', '500', '10k', '2M'."""
    for unit, size in {"G": 1e9, "M": 1e6, "k": 1e3}.items():
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def describe(figure: Any, text: str) -> None:
    """Set what a screen reader says of the figure."""
    figure.set_label(text)


def description(figure: Any) -> str:
    """What was set, or the titles and the labels of the axes."""
    if figure.get_label():
        return printable(str(figure.get_label()))
    titles = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center")]
    labels = [text for axes in figure.axes for text in (axes.get_xlabel(), axes.get_ylabel())]
    heading = figure.get_suptitle()
    return printable(", ".join(dict.fromkeys(text for text in (heading, *titles, *labels) if text)))


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
        figure.savefig(file, format="svg", dpi=150, metadata={"Date": None, "Title": description(figure)})
    return file.getvalue().decode()


def for_file(svg: str) -> str:
    """The SVG with native tooltips."""
    return re.sub(rf'<g id="{_TIP}([^"]*)">', r"<g><title>\1</title>", svg)


def for_page(svg: str) -> str:
    """The SVG with the page's variables as colours, tooltips for its script, and no size of its own.

    Its title becomes a label for screen readers: as a title it would also be a tooltip of the whole figure.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    title = re.search(r"<title>(.*?)</title>\n?", svg, flags=re.DOTALL)
    if title:
        label = title[1].replace('"', "&quot;")
        svg = svg.replace(title[0], "", 1).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
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
