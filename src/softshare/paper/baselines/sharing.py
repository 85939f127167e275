"""Weight sharing by k-means, and fine-tuning of the shared values (Han et al. 2016, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softshare.compressed import Compressed
from softshare.config import EncodeConfig, Rule
from softshare.network.weights import WeightView
from softshare.paper.baselines.codebook import Codebook, Codebooks
from softshare.paper.baselines.kmeans import kmeans_linear
from softshare.paper.baselines.layers import Layer, layers_of
from softshare.paper.baselines.rival_config import ShareConfig, TrainConfig
from softshare.train.phases import Phases


def share_(
    phases: Phases, rules: Sequence[Rule], train: TrainConfig, share: ShareConfig, encode: EncodeConfig
) -> Compressed:
    """k-means on the non-zero weights of every layer, then fine-tuning of the centroids."""
    model = phases.task.model
    view = WeightView.of(model, rules)
    pruned = view.state_dict()
    codebooks = kmeans_codebooks(layers_of(view), share)
    if share.share_epochs:
        phases.run(train.phase(share.share_epochs, share.lr_centroids), codebooks)
    return Compressed(codebooks.quantize(WeightView.of(model, rules)), {}, pruned, phases.history, encode)


def kmeans_codebooks(layers: Sequence[Layer], config: ShareConfig) -> Codebooks:
    """A codebook for each layer, over its non-zero weights."""
    return Codebooks(_codebook(layer, config.conv_bits if layer.is_conv else config.fc_bits) for layer in layers)


def _codebook(layer: Layer, bits: int) -> Codebook:
    flat = layer.flat()
    alive = flat.nonzero().reshape(-1)
    centroids, assigned = kmeans_linear(flat[alive], 1 << bits)
    index = torch.zeros_like(flat, dtype=torch.int64)
    index[alive] = assigned + 1
    return Codebook(layer.tensors, index, centroids)
