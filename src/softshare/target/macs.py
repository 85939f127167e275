"""Multiply-adds: how many the network of a file needs once it is shrunk, and which of its units can go most cheaply."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from softshare.errors import ConfigError
from softshare.network.groups import Group
from softshare.network.wrapped import copied
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.cut import cut
from softshare.simplify.shrink import shrink
from softshare.simplify.speed import multiply_adds
from softshare.simplify.unread import without_unread
from softshare.target.limits import MaxMacs
from softshare.train.first_look import FirstLook

EXAMPLES = 2  # that a network is run on, to count

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)


class Macs:
    """Counts multiply-adds, relative to those of the network before. The model is only read."""

    def __init__(self, model: nn.Module, first: FirstLook, target: MaxMacs, start: QuantizedWeights) -> None:
        if first.call is None or not first.groups:
            why = "; ".join(first.alone) or "its loss or its evaluation does not call it, or all of its sizes are fixed"
            raise ConfigError(f"MaxMacs: expected a network with units that can be removed, found none: {why}")
        self.limit = target.max_macs_ratio
        self._model, (self._args, self._kwargs) = copied(model).eval(), _few(first.call)
        self._before = multiply_adds(self._model, self._args, self._kwargs)
        self.uses = _uses(self._model, self._args, self._kwargs)
        empty = tuple(dataclasses.replace(t, indices=torch.zeros_like(t.indices)) for t in start.shared)
        least = self.ratio(dataclasses.replace(start, shared=empty))
        if self.limit < least:
            raise ConfigError(
                f"MaxMacs: expected a share of at least {least:.3g}, that of the network with one unit in each layer "
                f"that can be shrunk, got {self.limit:g}"
            )

    def ratio(self, quantized: QuantizedWeights) -> float:
        """The share of the multiply-adds that is left in the network that `shrink` makes of these weights."""
        small, _ = cut(shrink(self._model, quantized), self._args, self._kwargs)
        return multiply_adds(small.eval(), self._args, self._kwargs) / self._before

    def trim(self, cuts: UnitCuts) -> QuantizedWeights:
        """The network without its cheapest units, as few as it takes to fit. If none fits, the smallest."""
        if self.ratio(cuts.quantized) <= self.limit:
            return cuts.quantized
        low, high = 0, len(cuts)  # too few, and enough
        while high - low > 1:
            middle = (low + high) // 2
            if self.ratio(cuts.without(middle)) <= self.limit:
                high = middle
            else:
                low = middle
        return cuts.without(high)


class UnitCuts:
    """A quantized network, and its units by what their loss costs for each multiply-add that it saves."""

    def __init__(
        self,
        quantized: QuantizedWeights,
        curvatures: Mapping[str, Tensor],
        groups: Sequence[Group],
        uses: Mapping[str, float],  # how often a weight of a tensor is multiplied
    ) -> None:
        self.quantized, self._groups = quantized, groups
        costs = {t.name: curvatures[t.name].cpu() * t.dense().square() / 2 for t in quantized.shared}
        costs |= {alias: costs[name] for alias, name in quantized.tied.items() if name in costs}
        found: list[tuple[float, int, int]] = []
        for k, group in enumerate(groups):
            if all(s.name in costs for s in group.slices if s.read):  # others are not zeroed
                found += _prices(k, group, costs, uses)
        self._order = [(k, unit) for _, k, unit in sorted(found)]

    def __len__(self) -> int:
        """How many units can go. One stays in each group."""
        return len(self._order)

    def without(self, n: int) -> QuantizedWeights:
        """The network without its `n` cheapest units: nothing reads them, and they have no weights."""
        tensors = {t.name: t.indices.clone().reshape(t.shape) for t in self.quantized.shared}
        tensors |= {alias: tensors[name] for alias, name in self.quantized.tied.items() if name in tensors}
        for k, unit in self._order[:n]:
            group = self._groups[k]
            for s in group.slices:
                if s.read:
                    s.of(tensors[s.name], group.n_units).select(s.dim + 1, unit).zero_()
        shared = tuple(dataclasses.replace(t, indices=tensors[t.name].flatten()) for t in self.quantized.shared)
        return without_unread(dataclasses.replace(self.quantized, shared=shared), self._groups)[0]


def _prices(
    k: int, group: Group, costs: Mapping[str, Tensor], uses: Mapping[str, float]
) -> list[tuple[float, int, int]]:
    """The price of each unit that is read, with the place of its group and its own. The dearest one stays."""
    cost, saved = torch.zeros(group.n_units, dtype=torch.float64), 0.0
    for s in group.slices:
        if s.name in costs:
            saved += uses.get(s.name, 0.0) * costs[s.name].numel() / group.n_units
        if s.read:
            cost += s.of(costs[s.name], group.n_units).movedim(s.dim + 1, 0).flatten(1).double().sum(1)
    read = [(float(own) / saved, k, unit) for unit, own in enumerate(cost) if own > 0] if saved else []
    return sorted(read)[:-1]


def _few(call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with a few examples, if all of its tensors have the same number of them."""
    args, kwargs = call
    sizes = {len(leaf) if leaf.dim() else 0 for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    if len(sizes) != 1 or sizes.pop() <= EXAMPLES:
        return args, dict(kwargs)
    few: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(
        lambda leaf: leaf[:EXAMPLES] if isinstance(leaf, Tensor) else leaf, (args, dict(kwargs))
    )
    return few


@torch.no_grad()
def _uses(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
    """How often each weight of a layer is multiplied in one call, by the name of the tensor."""
    uses: dict[str, float] = {}
    names: dict[nn.Module, str] = {m: f"{name}.weight" for name, m in model.named_modules() if isinstance(m, _LAYERS)}

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        counted = inputs[0] if isinstance(module, _TRANSPOSED) else output
        uses[names[module]] = uses.get(names[module], 0.0) + counted.numel() / module.get_parameter("weight").shape[0]

    hooks = [module.register_forward_hook(count) for module in names]
    try:
        model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return uses
