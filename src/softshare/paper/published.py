"""Published figures for the zoo's networks. Each has one of three accountings, which may not share an axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from softshare.tune.plots import Others, Points

Accounting = Literal["a", "b", "c"]

ACCOUNTINGS: dict[Accounting, str] = {
    "a": "count of non-zero weights",
    "b": "estimated bits, weights only",
    "c": "real bytes",
}


@dataclass(frozen=True)
class Published:
    """One row. `kilobytes` (of 1000 bytes) is None if only weights were counted."""

    experiment: str
    who: str
    error_before: float | None  # percent, test
    error_after: float
    kilobytes: float | None
    ratio: float
    accounting: Accounting
    nonzero_percent: float | None = None
    note: str = ""

    @property
    def n_bytes(self) -> int | None:
        return None if self.kilobytes is None else round(1000 * self.kilobytes)


PAPER, _DEEP = "Soft weight-sharing, the paper (2017)", "Deep Compression (Han 2016)"
_SURGERY, _NNCODEC = "Dynamic Network Surgery (Guo 2016)", "pruning, fine-tuning and NNCodec 2.1.3"
_EPR, _MIRACLE = "Entropy-penalized reparameterization (2019)", "MIRACLE"
_ONE_SEED = "measured, one seed"
_RANDOM = "random codes, not deterministic weights"
_EXCHANGE = "files in its exchange format"
_OTHER_NET = "on ResNet-20-4, another network"

PUBLISHED = (
    Published("lenet-300-100", PAPER, 1.89, 1.94, 16.6, 64, "b", 4.3),
    Published("lenet-300-100", _DEEP, 1.64, 1.58, 27, 40, "b", 8.0),
    Published("lenet-300-100", _SURGERY, 2.28, 1.99, None, 56, "a", 1.8),
    Published("lenet-300-100", "public PyTorch re-implementation of the paper", 2.05, 1.93, 18.5, 57.7, "c"),
    Published("lenet-300-100", _NNCODEC, 1.49, 1.95, 14.3, 74, "c", note=_ONE_SEED),
    Published("lenet-300-100", _NNCODEC, 1.49, 2.24, 9.84, 108, "c", note=_ONE_SEED),
    Published("lenet-300-100", _EPR, 1.6, 1.9, 8.56, 124, "c"),
    Published("lenet-5-caffe", PAPER, 0.88, 0.97, 10.6, 162, "b", 0.5),
    Published("lenet-5-caffe", _DEEP, 0.80, 0.74, 44, 39, "b", 8.0),
    Published("lenet-5-caffe", _SURGERY, 0.91, 0.91, None, 108, "a", 0.9),
    Published("lenet-5-caffe", _NNCODEC, 0.65, 0.97, 9.13, 189, "c", note=_ONE_SEED),
    Published("lenet-5-caffe", _NNCODEC, 0.65, 1.00, 6.64, 260, "c", note=_ONE_SEED),
    Published("lenet-5-caffe", _EPR, 0.7, 1.0, 2.84, 606, "c"),
    Published("lenet-5-caffe", "Bayesian Compression (GHS)", None, 1.0, 2.23, 771, "b"),
    Published("lenet-5-caffe", _MIRACLE, None, 0.69, 3.03, 555, "c", note=_RANDOM),
    Published("lenet-5-caffe", _MIRACLE, None, 0.96, 1.52, 1110, "c", note=_RANDOM),
    Published("lenet-5-caffe", _MIRACLE, None, 0.83, 1.694, 1000, "c", note=_EXCHANGE),
    Published("lenet-5-caffe", _MIRACLE, None, 0.98, 1.140, 1500, "c", note=_EXCHANGE),
    Published("wrn-16-4", PAPER, 6.48, 8.50, 240, 45, "b", 6.6),
    Published("wrn-16-4", _EPR, 5.0, 8.8, 128, 134, "c", note=_OTHER_NET),
    Published("wrn-16-4", "LilNetX", 5.0, 8.5, 66, 260, "c", note=_OTHER_NET),
)


def published(experiment: str) -> tuple[Published, ...]:
    return tuple(row for row in PUBLISHED if row.experiment == experiment)


def published_points(experiment: str) -> Others:
    """The rows with an error before compression, for the figure of a study."""
    found: dict[str, dict[str, Points]] = {accounting: {} for accounting in ACCOUNTINGS}
    for row in published(experiment):
        if row.error_before is not None:
            rise = row.error_after - row.error_before
            found[row.accounting].setdefault(row.who, []).append((row.ratio, rise))
    return Others(file=found["c"], paper=found["b"])
