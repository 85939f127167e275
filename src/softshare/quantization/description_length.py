"""Description lengths of quantized weights that need no file: by the mixtures, and by order-0 entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from softshare.prior.mixture import Mixture
from softshare.quantization.quantized import QuantizedWeights


def complexity_bits(quantized: QuantizedWeights, mixtures: Mapping[str, Mixture]) -> float:
    """The mixtures' estimate: -log2 of the mixing of each weight's value. Components with the same mean are added."""
    bits = 0.0
    for tensor in quantized.shared:
        mixture = mixtures[tensor.name]
        mean, log_mixing = mixture.mean.detach().float().cpu(), mixture.log_mixing.detach().cpu().double()
        counts = tensor.counts().double()
        same = torch.where(tensor.codebook[:, None] == mean, log_mixing, -torch.inf)
        bits -= float((counts * torch.logsumexp(same, 1))[counts > 0].sum()) / math.log(2)
    return bits


def entropy_bits(quantized: QuantizedWeights) -> float:
    """Order-0 empirical entropy of each shared tensor's indices, summed: sum_t sum_k n_tk log2(n_t / n_tk)."""
    bits = 0.0
    for tensor in quantized.shared:
        counts = tensor.counts().double()
        counts = counts[counts > 0]
        bits += float((counts * torch.log2(counts.sum() / counts)).sum())
    return bits
