"""Shrink: a smaller network for the same function, without the hidden units that do nothing."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softshare._util.float64 import in_float64
from softshare.network.chains import Link, find_links
from softshare.network.weights import load_state_
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.cut import cut
from softshare.simplify.symmetries import Units


@torch.no_grad()
def shrink(
    model: nn.Module,
    weights: QuantizedWeights | Mapping[str, Tensor] | None = None,
    inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
) -> nn.Module:
    """A smaller copy of a network, without the units that do nothing. In evaluation mode it computes the same:

        small = softshare.shrink(model, inputs=(images,))

    In chains of Linear and Conv2d, a hidden unit is removed if its outgoing weights are all 0. It is also removed if
    its incoming weights are all 0: its constant output is then added to the next layer's biases. A removed unit may
    leave others without effect, so this repeats until nothing changes. A constant stays if zero padding, or a pooling
    that counts the padding, makes it differ from place to place. Every layer keeps at least one unit. The two functions
    agree up to float rounding.

    With `inputs`, the whole network is looked at: channels behind batch norm, those that a residual stream shares,
    depthwise convolutions and attention heads go too, if nothing reads them. Its outputs on the inputs are compared.

    Args:
        model: the network. It does not change.
        weights: take these in place of the model's own, for example `compressed.state_dict()`.
        inputs: of one call of the network, as a tuple or as a dict by name.

    Returns:
        A dense network of the same class, with smaller layers.
    """
    small = copied(model)
    if weights is not None:
        dropped = weights.dropped if isinstance(weights, QuantizedWeights) else ()
        state = weights.state_dict() if isinstance(weights, QuantizedWeights) else weights
        load_state_(small, state, "the state dict", strict=not dropped)
    links = [dataclasses.replace(link, has_bias=True) for link in find_links(small)[0] if link.n_units]
    layers = {name: small.get_submodule(name) for link in links for name in (link.source, link.target)}
    tensors = {k: t for name, layer in layers.items() for k, t in _tensors(name, layer).items()}
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    units = [Units.of(tensors, shapes, link) for link in links]
    changed = True
    while changed:
        changed = False
        for link, u in zip(links, units, strict=True):
            uniform = _keeps_constants(layers[link.target])
            changed |= _empty_units_(link, u, tensors[f"{link.target}.bias"], uniform)
    _cut_(tensors, links, units)
    for name, layer in layers.items():
        _replace_(layer, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
    if inputs is None:
        return small
    by_name = isinstance(inputs, Mapping)
    small, messages = cut(small, () if by_name else tuple(inputs), dict(inputs) if by_name else {})
    for message in messages:
        warnings.warn(message, stacklevel=3)
    return small


def _tensors(name: str, layer: nn.Module) -> dict[str, Tensor]:
    """Copies of a layer's weights and biases; zeros if it has no biases."""
    weight = layer.get_parameter("weight").detach().clone(memory_format=torch.contiguous_format)
    bias = weight.new_zeros(weight.shape[0]) if layer.bias is None else layer.get_parameter("bias").detach().clone()
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _keeps_constants(layer: nn.Module) -> bool:
    """Whether the layer sees a constant input channel as the same constant at every place."""
    return not isinstance(layer, nn.Conv2d) or layer.padding_mode != "zeros" or layer.padding in ((0, 0), "valid")


def _empty_units_(
    link: Link,
    units: Units,
    next_bias: Tensor,  # (units of the next layer,)
    uniform: bool,  # whether the next layer sees a constant as the same at every place
) -> bool:
    """Zero the weights of units that do nothing or that biases can replace. Returns whether there was such a unit."""
    reads, feeds = (units.incoming != 0).any(1), (units.outgoing != 0).any(2).any(0)
    constant = _arriving(link, units.bias)
    known = (constant == 0) | (~constant.isnan() & uniform)
    folds = feeds & ~reads & known
    added = in_float64(units.outgoing[:, folds]).sum(2) @ in_float64(constant[folds])
    next_bias += added.to(next_bias.dtype).to(next_bias.device)
    gone = folds | (~feeds & (reads | (units.bias != 0)))
    units.zero_(gone)
    return bool(gone.any())


def _arriving(
    link: Link,
    values: Tensor,  # (units,)
) -> Tensor:  # (units,)
    """The constants that reach the next layer from units with these outputs; NaN if they vary from place to place."""
    values = values.clone()  # a step may work in place
    for step in link.steps:
        if step.kind == "unit":
            values = step.apply(values)
        elif step.kind == "scale":
            values = torch.where(values == 0, values, torch.nan)
    return values


def _cut_(tensors: dict[str, Tensor], links: Sequence[Link], units: Sequence[Units]) -> None:
    """Remove the units without outgoing weights, first from the next layer's inputs, then from their own layer."""
    kept = [_kept(u) for u in units]
    for link, u, keep in zip(links, units, kept, strict=True):
        name = f"{link.target}.weight"
        n_next, _, *kernel = tensors[name].shape
        tensors[name] = u.outgoing[:, keep].reshape(n_next, -1, *kernel)
    for link, keep in zip(links, kept, strict=True):
        for name in (f"{link.source}.weight", f"{link.source}.bias"):
            tensors[name] = tensors[name][keep]


def _kept(units: Units) -> Tensor:  # (kept,)
    feeds = (units.outgoing != 0).any(2).any(0)
    return feeds.nonzero().flatten() if feeds.any() else torch.zeros(1, dtype=torch.int64, device=feeds.device)


def _replace_(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Give a layer its new weights, and its bias if it had one or needs one now."""
    trained = layer.get_parameter("weight").requires_grad
    layer.weight = nn.Parameter(weight, trained)
    if layer.bias is not None or bias.any():
        layer.bias = nn.Parameter(bias, trained)
    if isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = weight.shape[:2]
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
