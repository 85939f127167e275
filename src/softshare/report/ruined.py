"""Layers that compression has ruined: all their weights are zero, so nothing passes through them."""

from __future__ import annotations

from dataclasses import dataclass

from softshare.report.course import DENSITY, died
from softshare.report.run import Run


@dataclass(frozen=True)
class Ruined:
    """A tensor of zeros only, and the epoch from which it was so; None if that is not known."""

    name: str
    epoch: float | None
    counted: str = "epoch"  # or look

    @property
    def since(self) -> str:
        return "all zero" if self.epoch is None else f"all zero since {self.counted} {self.epoch:g}"


def ruined_data(run: Run) -> tuple[Ruined, ...]:
    """The matrices of the file that are zero. During training: the weights that are zero in the hard phase.

    A bias may be zero, and so may a vector that scales: the network can do without.
    """
    if run.info is not None:
        names = [
            t.name or f"tensor {k}"
            for k, t in enumerate(run.info.tensors, 1)
            if t.kind == "shared" and t.n and t.n_nonzero == 0 and (t.shape is None or len(t.shape) > 1)
        ]
    elif run.history and run.is_hard[-1]:
        columns = {name.removeprefix(DENSITY): value for name, value in run.history[-1].items() if DENSITY in name}
        names = [name for name, value in columns.items() if value == 0 and not name.endswith("bias")]
    else:
        names = []
    last = float(run.frames.epochs[-1]) if run.frames and run.result else None
    return tuple(Ruined(name, died(run.history, name, last), run.counted) for name in names)
