"""How much faster the shrunk network is: its time as a share of the whole network's, for each device and batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softshare._util.printable import printable, shorten
from softshare.report.run import Run
from softshare.report.style import FAINT, SERIES, beside, describe, new_figure, tip
from softshare.simplify.speed import Timing

MOST_BARS = 12  # pairs
MOST_CHARACTERS = 40  # of a device


@dataclass(frozen=True)
class Times:
    """The timings of a run."""

    timings: tuple[Timing, ...]


def label(timing: Timing) -> str:
    examples = "1 example" if timing.batch_size == 1 else f"{timing.batch_size:,} examples"
    return f"{examples}, {shorten(printable(timing.device), MOST_CHARACTERS)}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"


def compared(times: float) -> str:
    """How much faster the shrunk network is. Small batches may not gain, because a call has a cost of its own."""
    if times >= 1.05:
        return f"{times:.1f} times faster"
    return f"{1 / times:.1f} times slower" if times <= 0.95 else "as fast"


def speed_data(run: Run) -> tuple[Times, ...]:
    speed = run.result.speed if run.result else None
    return (Times(speed.timings[:MOST_BARS]),) if speed and speed.timings else ()


def draw_speed(data: Times) -> Any:
    """In percent, from 0: bars on a logarithmic axis of milliseconds would have lengths that mean nothing."""
    figure = new_figure(4.8, 1.1 + 0.7 * len(data.timings))
    axes = figure.subplots()
    for k, timing in enumerate(data.timings):
        for offset, name, seconds in ((-0.2, "whole", timing.before), (0.2, "shrunk", timing.after)):
            colour = FAINT if name == "whole" else SERIES[0]
            (bar,) = axes.barh(k + offset, 100 * seconds / timing.before, 0.36, color=colour, label=None if k else name)
            tip(bar, f"{name}: {1e3 * seconds:.4g} ms")
        beside(axes, 100, k - 0.2, f"{milliseconds(timing.before)} ms")
        share = 100 * timing.after / timing.before
        beside(axes, share, k + 0.2, f"{milliseconds(timing.after)} ms, {compared(timing.times)}")
    axes.set_yticks(range(len(data.timings)), [label(timing) for timing in data.timings])
    axes.invert_yaxis()
    longest = max(max(timing.before, timing.after) / timing.before for timing in data.timings)
    axes.set(xlabel="time, in percent of the whole network's", xlim=(0, 190 * longest))  # room for the texts
    figure.legend(loc="outside lower center", ncols=2)
    describe(figure, "Time of the shrunk network, in percent of the whole network's")
    return figure
