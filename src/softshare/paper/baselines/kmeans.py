"""One-dimensional k-means. The first centroids lie evenly between the extreme values (Han et al. 2016, 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from softshare.errors import ConfigError

MOST_ROUNDS = 1000  # Lloyd's algorithm ends by itself, usually after some dozens


def kmeans_linear(
    values: Tensor,  # (n,)
    k: int,
    max_rounds: int = MOST_ROUNDS,
) -> tuple[Tensor, Tensor]:  # (m,), (n,) int64
    """At most k rising centroids in the dtype of the values, and the index of the centroid nearest to each value.

    Lloyd's algorithm runs until nothing changes. A centroid without values stays where it is. If it still has none at
    the end, it is left out.

    A value midway between two centroids goes to the lower one. Sums are in float64 on the CPU, so that the result does
    not depend on the device.
    """
    if k < 1:
        raise ConfigError(f"k-means: expected at least 1 centroid, got {k}")
    if values.numel() == 0:
        return values.new_zeros(0), torch.zeros(0, dtype=torch.int64, device=values.device)
    ordered = values.detach().reshape(-1).cpu().double().sort().values
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centroids = torch.linspace(float(ordered[0]), float(ordered[-1]), k, dtype=torch.float64)
    ends = _ends(ordered, centroids)
    for _ in range(max_rounds):
        counts = ends.diff()
        centroids = torch.where(counts > 0, sums[ends].diff() / counts, centroids)
        before, ends = ends, _ends(ordered, centroids)
        if torch.equal(before, ends):
            break
    kept = centroids[ends.diff() > 0].to(values.dtype).unique()  # rising
    index = torch.searchsorted(_midpoints(kept.double()), values.detach().reshape(-1).cpu().double())
    return kept.to(values.device), index.to(values.device)


def _ends(
    ordered: Tensor,  # (n,)
    centroids: Tensor,  # (k,)
) -> Tensor:  # (k + 1,)
    """Where the values of each centroid begin in the ordered values, and where the last ones end."""
    inner = torch.searchsorted(ordered, _midpoints(centroids), right=True)
    return torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), len(ordered))])


def _midpoints(centroids: Tensor) -> Tensor:
    return (centroids[1:] + centroids[:-1]) / 2
