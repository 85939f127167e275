"""Gentleness: one number that decides how strongly a run makes the network smaller."""

from __future__ import annotations

import math
from typing import Any

from softshare.config import CompressConfig

HARDEST, GENTLEST = -3.0, 8.0
FINER_FROM = 1.5  # the gentleness from which codebooks have more values, and components are narrower
SLOWER_FROM = 4.0  # the gentleness from which the weights also move less
MOST_COMPONENTS = 255


def gentler(config: CompressConfig, by: float) -> CompressConfig:
    """The settings of a run that leaves more weights; for a negative number, of one that leaves fewer.

    A gentler run has a weaker prior, over weights and over units, with a less likely zero component. From some
    gentleness on, it also has more values to choose from, which a network needs that must be exact. The gentlest runs
    hardly move the weights.
    """
    prior, retrain = config.prior, config.retrain
    if by <= 0:
        return config.override(tau=retrain.tau * 3**-by)
    odds = math.log(prior.zero_mixing / (1 - prior.zero_mixing)) - math.log(10) * by
    finer, slower = 2 ** max(0.0, by - FINER_FROM), 2 ** max(0.0, by - SLOWER_FROM)
    width: dict[str, Any] = {"width": prior.width / finer} if prior.width else {}
    return config.override(
        tau=retrain.tau * 3 ** (-by / 2),
        zero_mixing=1 / (1 + math.exp(-odds)),
        units=prior.units * 3 ** (-by / 2),  # beside tau's own factor
        components=min(MOST_COMPONENTS, round(prior.components * finer)),
        lr_means=prior.lr_means / finer,
        lr_weights=retrain.lr_weights / slower,
        **width,
    )


def gentler_to_units(config: CompressConfig, by: float) -> CompressConfig:
    """The settings of a run that leaves more units, or fewer for a negative number. Weights are treated alike."""
    return config.override(units=(config.prior.units or 1.0) * 3**-by)
