"""Weight sharing by k-means, and fine-tuning of the shared values (Han et al. 2016, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.baselines.config import ShareConfig, TrainConfig
from softshare.baselines.kmeans import kmeans_linear
from softshare.baselines.layers import Layer, layers_of
from softshare.baselines.phases import Phases
from softshare.config import EncodeConfig, Rule
from softshare.quantize import QuantizedTensor, QuantizedWeights, index_dtype
from softshare.route import Compressed
from softshare.step import Latent
from softshare.weights import WeightView


def share_(
    phases: Phases, rules: Sequence[Rule], train: TrainConfig, share: ShareConfig, encode: EncodeConfig
) -> Compressed:
    """k-means on the non-zero weights of every layer, then fine-tuning of the centroids."""
    model = phases.task.model
    view = WeightView.of(model, rules)
    pruned = view.state_dict()
    centroids = Centroids(layers_of(view), share)
    centroids.push_()
    if share.share_epochs:
        phases.run(train.phase(share.share_epochs, share.lr_centroids), centroids)
    return Compressed(quantize_values(WeightView.of(model, rules)), {}, pruned, phases.history, encode)


class Centroids(Latent):
    """A codebook per layer, over its non-zero weights; which weight has which value is fixed.

    The optimizer trains the codebooks in place of the weights, and what is not shared along with them. The gradient of
    a centroid is the sum of the gradients of its weights (3.3).
    """

    def __init__(self, layers: list[Layer], config: ShareConfig) -> None:
        self.layers = [_SharedLayer(layer, config.conv_bits if layer.is_conv else config.fc_bits) for layer in layers]

    def parameters(self, model: nn.Module) -> list[Tensor]:
        replaced = {id(t) for shared in self.layers for t in shared.layer.tensors}
        codebooks: list[Tensor] = [shared.codebook for shared in self.layers if shared.codebook.numel()]
        return codebooks + [p for p in model.parameters() if id(p) not in replaced]

    def pull_(self) -> None:
        for shared in self.layers:
            shared.pull_()

    def push_(self) -> None:
        for shared in self.layers:
            shared.push_()


class _SharedLayer:
    def __init__(self, layer: Layer, bits: int) -> None:
        self.layer = layer
        flat = layer.flat()
        alive = flat.nonzero().reshape(-1)
        centroids, assigned = kmeans_linear(flat[alive], 1 << bits)
        self.codebook = nn.Parameter(centroids)  # (k,)
        self.index = torch.full_like(flat, len(centroids), dtype=torch.int64)  # (n,) into the codebook; k: pruned
        self.index[alive] = assigned
        self.members = _members(self.index, len(centroids))

    def pull_(self) -> None:
        gradient = F.pad(self.layer.flat_grad(), (0, 1))  # a member beyond the last weight adds 0
        self.codebook.grad = gradient[self.members].sum(1)

    @torch.no_grad()
    def push_(self) -> None:
        values = F.pad(self.codebook, (0, 1))[self.index]
        for tensor, part in zip(self.layer.tensors, self.layer.split(values), strict=True):
            tensor.copy_(part)


def _members(
    index: Tensor,  # (n,) in [0, k]
    k: int,
) -> Tensor:  # (k, m)
    """The weights of each centroid, filled up with n. Atomic adds would round differently each time; this does not."""
    order = index.argsort(stable=True)
    counts = index.bincount(minlength=k + 1)[:k]
    ends = counts.cumsum(0)
    place = torch.arange(int(counts.max()) if k else 0, device=index.device)
    source = (ends - counts)[:, None] + place
    return torch.where(place < counts[:, None], order[source.clamp(max=len(index) - 1)], len(index))


def quantize_values(view: WeightView) -> QuantizedWeights:
    """A network whose weights already have few values: each layer's codebook holds just those."""
    layer_of = {id(t): _codebook(layer.flat()) for layer in layers_of(view) for t in layer.tensors}
    shared = tuple(_quantize(s.name, s.tensor.detach(), layer_of.get(id(s.tensor))) for s in view.shared)
    rest = {name: t.detach().cpu().clone() for name, t in view.rest.items()}
    return QuantizedWeights(shared, rest, dict(view.tied), view.order)


def _codebook(
    flat: Tensor,  # (n,)
) -> Tensor:  # (k,)
    values = flat.float().cpu().unique()
    values = values[values != 0]
    return torch.cat([values.new_zeros(1), values[values.abs().argsort(stable=True)]])


def _quantize(name: str, tensor: Tensor, codebook: Tensor | None) -> QuantizedTensor:
    codebook = torch.zeros(1) if codebook is None else codebook  # of a tensor without weights
    rising, order = codebook.sort()
    indices = order[torch.searchsorted(rising, tensor.reshape(-1).float().cpu())]
    return QuantizedTensor(name, tuple(tensor.shape), tensor.dtype, indices.to(index_dtype(len(codebook))), codebook)
