"""The description length, estimated and measured: complexity cost, entropy, bytes, and the error cost beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softshare.report.run import Run
from softshare.report.style import FAINT, SERIES, beside, new_figure, plain_log, tip


@dataclass(frozen=True)
class Account:
    """Label, bytes and ratio to float32 of each row. The ratio is None if the row is no size of the weights."""

    rows: tuple[tuple[str, float, float | None], ...]


def account_data(run: Run) -> tuple[Account, ...]:
    result = run.result
    if result is None:
        return ()
    whole = 4 * result.n_weights
    sizes = {
        "float32": float(whole),
        "complexity cost, by the mixtures": result.complexity_bytes,
        "order-0 entropy of the indices": result.entropy_bytes,
        "Han's format, the whole file": float(result.han_bytes),
        "the file": float(result.file_bytes),
    }
    rows: list[tuple[str, float, float | None]] = [(k, v, whole / v) for k, v in sizes.items() if v]
    rows.append(("error cost on the training set", result.error_bits / 8, None))
    return (Account(tuple(rows)),)


def draw_account(data: Account) -> Any:
    figure = new_figure(4.8, 2.6)
    axes = figure.subplots()
    for k, (label, n_bytes, ratio) in enumerate(data.rows):
        colour = SERIES[1] if ratio is None else SERIES[0] if label == "the file" else FAINT
        text = f"{n_bytes:,.0f}" + (f" (1/{ratio:,.1f})" if ratio and ratio != 1 else "")
        (bar,) = axes.barh(k, n_bytes, color=colour)
        tip(bar, f"{label}: {n_bytes:,.0f} bytes")
        beside(axes, n_bytes, k, text)
    axes.set_yticks(range(len(data.rows)), [label for label, _, _ in data.rows])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="bytes")
    low = min(n for _, n, _ in data.rows if n > 0)
    axes.set_xlim(low / 3, 40 * max(n for _, n, _ in data.rows))
    plain_log(axes.xaxis)
    return figure
