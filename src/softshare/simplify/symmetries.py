"""Symmetries of a quantized network: other weights for the same function, with a smaller file.

A hidden unit that no later layer reads, or that is always 0, may lose all of its weights. The hidden units of a layer
may stand in any order. `chains.find_links` finds the layers that feed each other unit by unit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from softshare.codec import encode
from softshare.config import EncodeConfig
from softshare.network.chains import Link, find_links
from softshare.network.weights import layout
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.simplify.words import done, left_alone

_Order = npt.NDArray[np.int64]  # (units,)
_Distance = npt.NDArray[np.float64]  # (units, units)

_DEFAULTS = EncodeConfig()
PASSES = 2  # over the layers: a layer's best order depends on its neighbours'; a second pass earned up to 0.2%
MOST_UNITS = 1 << 12  # in a layer whose units are ordered by distance, which compares all pairs
MOST_WEIGHTS = 1 << 24  # in such a layer and the next


class Moved(NamedTuple):
    """Which unit of the network stands at each place of a tensor; None if the units have not moved."""

    rows: Tensor | None = None  # (units,)
    columns: Tensor | None = None  # (units,); a unit has one or more weights of a row

    def back(
        self,
        tensor: Tensor,  # as the file has it
    ) -> Tensor:
        """The tensor with its units where the network has them."""
        shape = tensor.shape
        if self.rows is not None:
            tensor = tensor.index_select(0, self.rows.argsort())
        if self.columns is not None:
            tensor = tensor.reshape(shape[0], len(self.columns), -1).index_select(1, self.columns.argsort())
        return tensor.reshape(shape)


class Simplified(NamedTuple):
    """A quantized network with its units in another order, and messages: what changed, what did not, and why."""

    quantized: QuantizedWeights
    messages: list[str]
    moved: dict[str, Moved]  # by tensor; in all other tensors no unit has moved
    plain: QuantizedWeights | None = None  # the network before, if it is known


def simplify(
    model: nn.Module,
    quantized: QuantizedWeights,
    config: EncodeConfig = _DEFAULTS,
    broken: Mapping[str, str] | None = None,  # layers to leave alone, with the reasons
    through_norms: bool = False,  # units also move where batch norm lies between their layers
) -> Simplified:
    """Weights for the same function whose file, as `config` writes it, is no larger.

    Hidden units without effect lose their weights and biases, until no such unit is left. Then the units of each layer
    are put into the best of a few orders, layer after layer, by the size of the file. The result is deterministic. The
    model gives its structure and is only read; `quantized` does not change. The two functions agree except for the
    order of float sums.

    A unit stays if its incoming weights are all 0 but its constant output is not 0. Its effect would have to move into
    the next layer's biases, and the sums are in general not values of the codebook.
    """
    links, messages = usable_links(model, quantized, broken or {}, through_norms)
    if not links:
        return Simplified(quantized, messages, {})
    bare, removed = _without_idle_units(quantized, links)
    ordered, orders = bare, dict[str, Tensor]()
    for link in links * PASSES:
        found = _best_order(ordered, link, config)
        if found is not None:
            ordered, order = found
            orders[link.source] = orders[link.source][order] if link.source in orders else order
    # An adaptive coder may, by chance, gain nothing from fewer weights: then nothing changes.
    candidates = (quantized, bare, ordered)
    sizes = [len(encode(candidate, config)) for candidate in candidates]
    best = sizes.index(min(sizes))
    n_removed = removed if best > 0 else {}
    messages.append(done(links, n_removed, orders if best == 2 else (), sizes[0] - sizes[best]))
    return Simplified(candidates[best], messages, _moved(links, orders) if best == 2 else {})


def _moved(links: list[Link], orders: Mapping[str, Tensor]) -> dict[str, Moved]:
    """What these orders of layers move in each tensor: rows in the layer's own tensors, columns in the next layer's."""
    moved: dict[str, Moved] = {}
    for link in links:
        if link.source in orders:
            order, (incoming, outgoing, *bias) = orders[link.source], _shared_names(link)
            for name in (incoming, *bias):
                moved[name] = moved.get(name, Moved())._replace(rows=order)
            moved[outgoing] = moved.get(outgoing, Moved())._replace(columns=order)
    return moved


def permuted(quantized: QuantizedWeights, orders: Mapping[Link, Tensor]) -> QuantizedWeights:
    """The network with the units of each link in this order. The function is the same if the links are true."""
    links = list(orders)
    indices, units = _open(quantized, links)
    for link, u in zip(links, units, strict=True):
        u.permute_(orders[link])
    return _close(quantized, indices)


def usable_links(
    model: nn.Module, quantized: QuantizedWeights, broken: Mapping[str, str], through_norms: bool
) -> tuple[list[Link], list[str]]:
    """The model's links that the quantized weights share and that are not broken, and messages about the others."""
    links, reasons = find_links(model, through_norms)
    shapes = {name: tuple(t.shape) for name, t in layout(model)[0].items()}
    problems = [broken.get(link.source) or _problem(link, shapes, quantized) for link in links]
    left = {link.source: text for link, text in zip(links, problems, strict=True) if text}
    return [link for link in links if link.source not in left], left_alone(reasons | left)


def _shared_names(link: Link) -> list[str]:
    return [f"{link.source}.weight", f"{link.target}.weight", *([f"{link.source}.bias"] if link.has_bias else [])]


def _problem(link: Link, shapes: Mapping[str, tuple[int, ...]], quantized: QuantizedWeights) -> str:
    """How the quantized weights differ from the model, whose shapes these are; empty if they agree."""
    shared = {t.name: t.shape for t in quantized.shared}
    tied = {*quantized.tied, *quantized.tied.values()}
    for name in link.norms:
        if name not in quantized.rest or name in tied:
            return "its batch norm is shared or tied"
        if tuple(quantized.rest[name].shape) != shapes[name]:
            return "its batch norm has another size in the network"
    for name in _shared_names(link):
        if name not in shared:
            return f"its {_part(link, name)} is not shared"
        if name in tied:
            return f"its {_part(link, name)} is tied to another tensor"
        if shared[name] != shapes[name]:
            return f"its {_part(link, name)} has the shape {shared[name]}, and {shapes[name]} in the network"
        if 0 in shapes[name]:
            return f"its {_part(link, name)} is empty"
    return ""


def _part(link: Link, name: str) -> str:
    """A tensor of a link without the name of its layer, so that layers with one problem share a message."""
    own = name.startswith(f"{link.source}.")
    return f"{name.rpartition('.')[2]}" if own else "successor's weight"


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """Views of one link's tensors, laid out by hidden unit: of indices, and of the values of batch norm.

    Writing to them changes the tensors.
    """

    incoming: Tensor  # (units, inputs of a unit)
    bias: Tensor  # (units,)
    outgoing: Tensor  # (units of the next layer, units, positions of a unit: in a kernel, or in a flattened channel)
    norms: Mapping[str, Tensor] = field(default_factory=dict)  # (units,) each

    @classmethod
    def of(cls, indices: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], link: Link) -> Units:
        incoming, outgoing, *bias = (indices[name] for name in _shared_names(link))
        n_next = shapes[f"{link.target}.weight"][0]
        none = torch.zeros(link.n_units, dtype=torch.uint8)
        return cls(
            incoming.view(link.n_units, -1),
            bias[0] if bias else none,
            outgoing.view(n_next, link.n_units, -1),
            {name: indices[name] for name in link.norms},
        )

    def permute_(
        self,
        order: Tensor,  # (units,)
    ) -> None:
        of_norms = ((tensor, 0) for tensor in self.norms.values())
        for tensor, dim in ((self.incoming, 0), (self.bias, 0), (self.outgoing, 1), *of_norms):
            tensor.copy_(tensor.index_select(dim, order))

    def zero_(
        self,
        units: Tensor,  # (units,) bool
    ) -> None:
        self.incoming[units] = 0
        self.bias[units] = 0
        self.outgoing[:, units] = 0
        for name, tensor in self.norms.items():
            tensor[units] = cleared(name)

    def has_something(self) -> Tensor:  # (units,) bool
        """Whether a unit has an entry that `zero_` would change."""
        something = (self.incoming != 0).any(1) | (self.outgoing != 0).any(2).any(0) | (self.bias != 0)
        for name, tensor in self.norms.items():
            something |= tensor != cleared(name)
        return something


def cleared(name: str) -> float:
    """What an entry of a batch norm is without its channel: the variance is 1, as in a new network."""
    return 1.0 if name.endswith("running_var") else 0.0


def _open(quantized: QuantizedWeights, links: list[Link]) -> tuple[dict[str, Tensor], list[Units]]:
    """Copies of the indices and of the batch norms' tensors, by name, and each link's views of them."""
    indices = {t.name: t.indices.clone() for t in quantized.shared}
    indices |= {name: quantized.rest[name].clone() for link in links for name in link.norms}
    shapes = {t.name: t.shape for t in quantized.shared}
    return indices, [Units.of(indices, shapes, link) for link in links]


def _close(quantized: QuantizedWeights, indices: Mapping[str, Tensor]) -> QuantizedWeights:
    """The same weights with other indices, and other values in batch norms."""
    shared = (dataclasses.replace(t, indices=indices[t.name]) for t in quantized.shared)
    rest = {name: indices.get(name, t) for name, t in quantized.rest.items()}
    return dataclasses.replace(quantized, shared=tuple(shared), rest=rest)


def _without_idle_units(quantized: QuantizedWeights, links: list[Link]) -> tuple[QuantizedWeights, dict[str, int]]:
    """The weights with idle units zeroed, and the number of such units in each link's source.

    A unit is idle if nothing reads it or if it is always 0. Without it, another unit before or after it may become
    idle, so this repeats until nothing changes. A constant of 0 is the only one that zero padding does not alter.
    """
    indices, units = _open(quantized, links)
    by_name = {t.name: t for t in quantized.shared}
    biases = [by_name.get(f"{link.source}.bias") for link in links]
    removed, changed = dict.fromkeys((link.source for link in links), 0), True
    while changed:
        changed = False
        for link, u, bias in zip(links, units, biases, strict=True):
            reads, feeds = (u.incoming != 0).any(1), (u.outgoing != 0).any(2).any(0)
            idle = ~feeds | (~reads & _silent(link, u, bias))
            idle &= u.has_something()
            if idle.any():
                u.zero_(idle)
                removed[link.source] += int(idle.sum())
                changed = True
    return _close(quantized, indices), removed


def _silent(link: Link, units: Units, bias: QuantizedTensor | None) -> Tensor:  # (units,) bool
    """Whether a unit whose output is constantly its bias arrives at the next layer as 0."""
    codebook = torch.zeros(1) if bias is None else bias.codebook.to(bias.dtype)
    return link.vanishes(codebook[units.bias.long()], units.norms)


def _best_order(
    quantized: QuantizedWeights, link: Link, config: EncodeConfig
) -> tuple[QuantizedWeights, Tensor] | None:
    """The weights with the link's units in the order of the smallest file, and that order. None if none is smaller."""
    best, best_size = None, _size(quantized, link, config)
    _, (units,) = _open(quantized, [link])
    for order in _orders(units):
        indices, (moved,) = _open(quantized, [link])
        moved.permute_(torch.from_numpy(order))
        candidate = _close(quantized, indices)
        size = _size(candidate, link, config)
        if size < best_size:
            best, best_size = (candidate, torch.from_numpy(order)), size
    return best


def _size(quantized: QuantizedWeights, link: Link, config: EncodeConfig) -> int:
    """Bytes of a file with only the link's tensors: the others do not change."""
    shared = tuple(t for t in quantized.shared if t.name in _shared_names(link))
    rest = {name: quantized.rest[name] for name in link.norms}
    return len(encode(QuantizedWeights(shared, rest, {}), dataclasses.replace(config, names="keep")))


def _orders(units: Units) -> Iterator[_Order]:
    """A few orders for a coder whose contexts are the densities of rows and columns, and near neighbours.

    Units without weights come last in all of them, because a tensor's code ends at its last non-zero. On trained
    LeNets, orders by values, biases, principal components or the centre of the non-zeros were worse than the best of
    these.
    """
    reads = (units.incoming != 0).numpy()  # (units, inputs)
    feeds = (units.outgoing != 0).transpose(0, 1).flatten(1).numpy()  # (units, outputs)
    n_in, n_out = reads.sum(1), feeds.sum(1)
    idle = (n_in + n_out == 0) & (units.bias == 0).numpy()
    for count in (n_in, n_out, n_in + n_out):
        yield np.lexsort((-count, idle))  # most weights first
        yield np.lexsort((count, idle))  # fewest weights first
    if len(idle) <= MOST_UNITS and reads.size + feeds.size <= MOST_WEIGHTS:
        start = int(np.argmin(np.where(idle, np.inf, n_in + n_out)))
        for distance in _distances(reads, feeds):
            yield _nearest_next(distance, idle, start)


def _distances(
    reads: npt.NDArray[np.bool_],  # (units, inputs)
    feeds: npt.NDArray[np.bool_],  # (units, outputs)
) -> Iterator[_Distance]:
    """Measures of how much two units differ: by the patterns of their weights, or by how many they have."""
    n_in = reads.sum(1).astype(np.float64)
    incoming, outgoing, gap = _hamming(reads), _hamming(feeds), np.abs(n_in[:, None] - n_in)
    yield incoming
    yield outgoing + incoming
    yield outgoing * (1 + incoming.max()) + incoming  # by the outgoing, then by the incoming
    yield outgoing * (1 + gap.max()) + gap
    yield outgoing + gap / 8


def _hamming(
    pattern: npt.NDArray[np.bool_],  # (units, weights)
) -> _Distance:
    ones = pattern.astype(np.float32)  # sums of ones below 2^24 are exact
    count = ones.sum(1)
    distance: npt.NDArray[np.float32] = count[:, None] + count - 2 * (ones @ ones.T)
    return distance.astype(np.float64)


def _nearest_next(
    distance: _Distance,
    idle: npt.NDArray[np.bool_],  # (units,)
    start: int,
) -> _Order:
    """From each unit to the nearest one left; the first one wins a tie. Idle units come last."""
    far = np.where(idle, np.inf, 0)
    order, here = list[int](), start
    for _ in range(int((~idle).sum())):
        order.append(here)
        far[here] = np.inf
        here = int(np.argmin(distance[here] + far))
    return np.array([*order, *np.flatnonzero(idle)], np.int64)
