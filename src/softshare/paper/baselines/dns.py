"""Dynamic Network Surgery (Guo, Yao, Chen 2016): weights are pruned and, where they grow again, spliced back.

The network runs on T * W, weights times masks; the gradient taken there moves all of W, pruned weights too
(equation 2). With probability (1 + gamma * i)^-power, iteration i updates a layer's masks (equation 3):

    T = 0 where |w| < a,  T as before where a <= |w| < b,  T = 1 where b <= |w|
    a = 0.9 * max(mean + c * std, 0),  b = 1.1 * max(mean + c * std, 0)

Mean and standard deviation are those of the layer's |w|, biases included, before surgery, as in the authors' code.

The paper stops here and counts non-zero weights (`nonzero_ratio`). For a real file, the k-means of Deep Compression
shares the weights that are left. One thing differs from the paper: Adam replaces Caffe's SGD.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softshare._util.float64 import in_float64
from softshare.compressed import Compressed
from softshare.network.weights import WeightView
from softshare.paper.baselines.layers import Layer, layers_of, require_weights
from softshare.paper.baselines.pruning_masks import Masked
from softshare.paper.baselines.rival_config import DnsConfig, SurgeryConfig, require_matches, value_of
from softshare.paper.baselines.sharing import share_
from softshare.paper.baselines.tasks import copy_of, with_l2
from softshare.quantization.quantized import QuantizedWeights
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.phases import Phases
from softshare.train.step import Latent


def dns(task: Task, config: DnsConfig | None = None, hooks: Sequence[Hook] = ()) -> Compressed:
    """Compress a copy of `task.model`. `Compressed.retrained` is what the paper ends with: pruned, not quantized."""
    config = config or DnsConfig()
    task = copy_of(task)
    view = WeightView.of(task.model, config.rules)
    view.check()
    layers, surgery = layers_of(view), config.surgery
    require_matches(surgery.c_rates, [layer.name for layer in layers])
    epochs = surgery.surgery_epochs + surgery.settle_epochs + config.share.share_epochs
    task = with_l2(task, layers, config.train.l2)
    with Phases(task, epochs, hooks) as phases:
        phases.run(config.train.phase(surgery.surgery_epochs), Spliced(layers, surgery))
        require_weights(layers, "lower the c_rate")
        if surgery.settle_epochs:
            phases.run(config.train.phase(surgery.settle_epochs), Masked(layers))
        return share_(phases, config.rules, config.train, config.share, config.encode)


def nonzero_ratio(quantized: QuantizedWeights) -> float:
    """The paper's accounting: all weights over those that are not zero. Sharing makes no further zeros."""
    return quantized.n_shared / max(1, quantized.n_nonzero)


class Spliced(Latent):
    """The optimizer trains W; the network has T * W."""

    def __init__(self, layers: list[Layer], config: SurgeryConfig) -> None:
        self.layers = [_SplicedLayer(layer, config) for layer in layers]
        self.config = config
        self.iteration = torch.zeros((), device=layers[0].tensors[0].device)

    def parameters(self, model: nn.Module) -> list[Tensor]:
        latent = {id(t): w for s in self.layers for t, w in zip(s.tensors, s.latent, strict=True)}
        return [latent.get(id(p), p) for p in model.parameters()]

    def pull_(self) -> None:
        for layer in self.layers:
            for tensor, w in zip(layer.tensors, layer.latent, strict=True):
                w.grad = tensor.grad

    @torch.no_grad()
    def push_(self) -> None:
        """Draw on the device: nothing waits for it, and each replay of a captured step draws new numbers."""
        probability = (1 + self.config.decay * self.iteration) ** -self.config.power
        chosen = torch.rand(len(self.layers), device=self.iteration.device) < probability
        for layer, is_chosen in zip(self.layers, chosen, strict=True):
            layer.operate_(is_chosen)
        self.iteration += 1


class _SplicedLayer:
    def __init__(self, layer: Layer, config: SurgeryConfig) -> None:
        self.tensors = layer.tensors
        self.latent = [nn.Parameter(t.detach().clone(), t.requires_grad) for t in layer.tensors]
        self.masks = [torch.ones_like(t, dtype=torch.bool) for t in layer.tensors]
        sizes = in_float64(layer.flat().abs())
        c_rate = value_of(layer.name, config.c_rates, config.c_rate)
        threshold = max(float(sizes.mean() + c_rate * sizes.std(correction=0)), 0.0)
        self.prune_below, self.splice_from = (1 - config.margin) * threshold, (1 + config.margin) * threshold

    def operate_(
        self,
        is_chosen: Tensor,  # 0-d, bool
    ) -> None:
        """Update the masks if the layer is chosen, and apply them to the network's weights."""
        for tensor, w, mask in zip(self.tensors, self.latent, self.masks, strict=True):
            size = w.abs()
            updated = (mask & (size >= self.prune_below)) | (size >= self.splice_from)
            mask.copy_(torch.where(is_chosen, updated, mask))
            tensor.copy_(w * mask)
