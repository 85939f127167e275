"""Learning rates relative to what they change: a step of Adam has the size of its rate, whatever the gradient is.

The weights of a layer may be of any size, for example if its inputs or the targets are in another unit. So the rate of
each layer is in proportion to its weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from softshare.config import RetrainConfig
from softshare.network.weights import SharedTensor, WeightView
from softshare.prior.prior import USUAL_WEIGHT

USUAL_SCALE = 1.0  # of the weights of a norm, and of other vectors that multiply
FURTHEST = 10  # powers of two from the rate that is set


def network_groups(model: nn.Module, parameters: Sequence[Tensor], config: RetrainConfig) -> list[dict[str, Any]]:
    """Groups for the network's optimizer, each with a power of two times the learning rate that is set."""
    powers = _powers(model)
    groups: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        groups.setdefault(powers.get(parameter, 0), []).append(parameter)
    return [
        {"params": own, "lr": config.lr_weights * 2.0**power, "weight_decay": config.weight_decay}
        for power, own in sorted(groups.items())
    ]


def _powers(model: nn.Module) -> dict[Tensor, int]:
    """By parameter. A bias goes with the matrix of its layer, and the shift of a norm with its scale."""
    powers: dict[Tensor, int] = {}
    for module in model.modules():
        own = sorted(module.parameters(recurse=False), key=lambda p: (-p.dim(), -p.numel()))
        if own:
            usual = USUAL_WEIGHT if own[0].dim() > 1 else USUAL_SCALE
            of_layer = _power(own[0], usual)
            for parameter in own:
                powers.setdefault(parameter, _power(parameter, usual) if parameter.dim() > 1 else of_layer)
    return powers


def _power(parameter: Tensor, usual: float) -> int:
    size = WeightView((SharedTensor("", parameter),), {}, {}).size()
    return max(-FURTHEST, min(FURTHEST, round(math.log2(size / usual)))) if size else 0
