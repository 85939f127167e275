"""Deep Compression (Han, Mao, Dally 2016): prune and retrain, share by k-means, fine-tune the centroids, code.

Pruning is that of Han, Pool, Tran, Dally 2015. A weight is pruned if its magnitude is below a quality parameter times
the standard deviation of its layer's weights. The others are retrained, and this is repeated with rising quality. All
rounds use the standard deviation before pruning, because that of a layer of mostly zeros says little.

By default biases are neither pruned nor shared, as in the paper, whose table counts weights only. In our file they are
part of the rest, in `EncodeConfig.rest_dtype`, and count. Layers of normalization do not change either.

Two things differ from the paper: Adam replaces Caffe's SGD, and no dropout rate changes, because these networks have
no dropout.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softshare._util.float64 import in_float64
from softshare.codec import encode, inspect
from softshare.compressed import Compressed
from softshare.config import EncodeConfig, Rule
from softshare.network.weights import WeightView
from softshare.paper.baselines.layers import Layer, layers_of, require_weights
from softshare.paper.baselines.pruning_masks import Masked
from softshare.paper.baselines.rival_config import DeepCompressionConfig, require_matches, value_of
from softshare.paper.baselines.sharing import share_
from softshare.paper.baselines.tasks import copy_of, with_l2
from softshare.quantization.quantized import QuantizedWeights
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.phases import Phases


def deep_compression(task: Task, config: DeepCompressionConfig | None = None, hooks: Sequence[Hook] = ()) -> Compressed:
    """Compress a copy of `task.model`. `Compressed.retrained` is the pruned network, before its weights are shared."""
    config = config or DeepCompressionConfig()
    task = copy_of(task)
    rules = config.rules if config.compress_biases else (*config.rules, *_keep_biases(task))
    view = WeightView.of(task.model, rules)
    view.check()
    layers, prune = layers_of(view), config.prune
    require_matches(prune.qualities, [layer.name for layer in layers])
    stds = [float(in_float64(layer.flat()).std(correction=0)) for layer in layers]
    task = with_l2(task, layers, config.train.l2)
    with Phases(task, prune.rounds * prune.round_epochs + config.share.share_epochs, hooks) as phases:
        for round_ in range(1, prune.rounds + 1):
            for layer, std in zip(layers, stds, strict=True):
                quality = value_of(layer.name, prune.qualities, prune.quality)
                prune_(layer, quality * std * round_ / prune.rounds)
            require_weights(layers, "lower the quality")
            phases.run(config.train.phase(prune.round_epochs), Masked(layers))
        return share_(phases, rules, config.train, config.share, config.encode)


@torch.no_grad()
def prune_(layer: Layer, threshold: float) -> None:
    for tensor in layer.tensors:
        tensor.mul_(tensor.abs() >= threshold)


def published_bytes(quantized: QuantizedWeights) -> int:
    """The paper's accounting, in real bytes: coded weights and float32 codebooks; no header, no biases, no rest.

    The paper divides 4 bytes per weight by this. The ratio of the whole file is `Result.han_ratio`.
    """
    file = inspect(encode(quantized, EncodeConfig(codec="han", codebook_dtype="float32")))
    codebooks = {tuple(t.codebook.tolist()) for t in quantized.shared}
    return sum(t.n_bytes for t in file.tensors if t.kind == "shared") + 4 * sum(len(book) - 1 for book in codebooks)


def _keep_biases(task: Task) -> tuple[Rule, ...]:
    has_biases = any(name.endswith("bias") for name in task.model.state_dict())
    return (Rule("*bias", share=False),) if has_biases else ()
