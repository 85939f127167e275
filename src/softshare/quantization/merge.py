"""Merge components that have become similar (paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softshare._util.float64 import in_float64
from softshare.config import MergeConfig
from softshare.prior.mixture import Mixture


def divergences(mixture: Mixture) -> Tensor:  # (J + 1, J + 1)
    """Symmetric KL divergence between every two components, (KL(i||j) + KL(j||i)) / 2, in nats.

    KL(i||j) = (log_var_j - log_var_i + (var_i + (mean_i - mean_j)^2) / var_j - 1) / 2; the logarithms cancel.
    """
    var = mixture.log_var.exp()
    distance2 = (mixture.mean[:, None] - mixture.mean) ** 2
    directed = (var[:, None] + distance2) / var - 1
    return ((directed + directed.T) / 4).clamp(min=0)  # only rounding makes it negative


def merge_groups(mixture: Mixture, config: MergeConfig | None = None) -> tuple[Mixture, list[list[int]]]:
    """While the smallest divergence is below the threshold, merge that pair.

    Mixings add. Mean and variance are averages weighted by mixing. A merge with the zero component keeps the mean 0.
    Also returns, for each new component, the old ones it is made of, the lowest index first.
    """
    threshold = (config or MergeConfig()).merge_threshold
    mixture = mixture.detach()
    # Double precision starts at the logarithms: a mixing that is 0 in float32 may still be half of a pair's.
    mixing, var = in_float64(mixture.log_mixing).exp(), in_float64(mixture.log_var).exp()
    mean = in_float64(mixture.mean).clone()
    groups = [[k] for k in range(len(mean))]
    while len(mean) > 1:
        table = divergences(Mixture(mixing.log(), mean, var.log())).fill_diagonal_(torch.inf)
        first, second = sorted(divmod(int(table.argmin()), len(mean)))
        if not table[first, second] < threshold:
            break
        total = mixing[first] + mixing[second]
        share = mixing[second] / total
        if first != 0:
            mean[first] += share * (mean[second] - mean[first])
        var[first] += share * (var[second] - var[first])
        mixing[first] = total
        keep = torch.arange(len(mean), device=mean.device) != second
        mixing, mean, var = mixing[keep], mean[keep], var[keep]
        groups[first] += groups.pop(second)
    like = mixture.mean  # its dtype, and its device
    return Mixture(_as(mixing.log(), like), _as(mean, like), _as(var.log(), like)), groups


def _as(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).to(like.device)  # a device without float64 must not see it


def spread(
    values: Tensor,  # (K,), of merged components
    groups: Sequence[Sequence[int]],  # the components that each of them is made of
) -> Tensor:
    """The value of each component from before the merge."""
    out = values.new_empty(sum(map(len, groups)))
    for value, group in zip(values, groups, strict=True):
        out[list(group)] = value
    return out
