"""Symmetries of a quantized network: other weights of the same function, whose file is smaller.

A hidden unit that no later layer reads, or that is always 0, may lose all of its weights; and the hidden units of a
layer may stand in any order. Where layers feed each other unit by unit is found by `chains.find_links`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
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

_Order = npt.NDArray[np.int64]  # (units,)
_Distance = npt.NDArray[np.float64]  # (units, units)

_DEFAULTS = EncodeConfig()
MOST_MESSAGES, MOST_NAMES = 12, 4  # layers that are spoken of one by one, and that are named for one reason
PASSES = 2  # over the layers: the best order of one depends on its neighbours'; a second pass earned up to 0.2%
MOST_UNITS = 1 << 12  # of a layer whose units are ordered by distance: all pairs are compared
MOST_WEIGHTS = 1 << 24  # of such a layer and the next


class Moved(NamedTuple):
    """Which unit of the network stands at each place of a tensor; None if they are where they were."""

    rows: Tensor | None = None  # (units,)
    columns: Tensor | None = None  # (units,), each of one or more weights of a row

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
    """A quantized network with its units in another order, and what was done or left, and why."""

    quantized: QuantizedWeights
    messages: list[str]
    moved: dict[str, Moved]  # by tensor; those that are not in it have their units where they were


def simplify(
    model: nn.Module,
    quantized: QuantizedWeights,
    config: EncodeConfig = _DEFAULTS,
    broken: Mapping[str, str] | None = None,  # layers to leave alone, and why
) -> Simplified:
    """Weights of the same function whose file, as `config` writes it, is no larger.

    Hidden units without effect lose their weights and biases, until there are none left; then the units of each layer
    are put into the best of a few orders, layer after layer, by the size of the file. Deterministic. The model gives
    its structure and is only read; `quantized` is not changed. Functions agree but for the order of float sums.

    A unit whose incoming weights are all 0 but whose constant output is not is left as it is: its part in the next
    layer would have to be added to that layer's biases, and the sum is in general no value of the codebook.
    """
    links, messages = usable_links(model, quantized, broken or {})
    if not links:
        return Simplified(quantized, messages, {})
    bare, removed = _without_idle_units(quantized, links)
    ordered, names, orders = bare, dict.fromkeys(removed, "as it was"), dict[str, Tensor]()
    for link in links * PASSES:
        found = _best_order(ordered, link, config)
        if found is not None:
            ordered, names[link.source], order = found
            orders[link.source] = orders[link.source][order] if link.source in orders else order
    # A coder that learns may, by chance, gain nothing from fewer weights: then all stays as it was.
    candidates = (quantized, bare, ordered)
    sizes = [len(encode(candidate, config)) for candidate in candidates]
    best = sizes.index(min(sizes))
    done = []
    for link in links:
        n, name = removed[link.source] if best > 0 else 0, names[link.source] if best == 2 else "as it was"
        done.append(f"{link.source} -> {link.target}: {n} of {link.n_units} units removed; order: {name}")
    if len(done) > MOST_MESSAGES:
        n, of = sum(removed.values()) if best > 0 else 0, sum(link.n_units for link in links)
        done[MOST_MESSAGES:] = [f"... and {len(done) - MOST_MESSAGES} more layers; {n} of {of} units removed in all"]
    messages += done
    messages.append(f"file: {sizes[0]} -> {sizes[best]} bytes")
    return Simplified(candidates[best], messages, _moved(links, orders) if best == 2 else {})


def _moved(links: list[Link], orders: Mapping[str, Tensor]) -> dict[str, Moved]:
    """From the order of each layer's units, what has moved in each tensor: rows of its own, columns of the next."""
    moved: dict[str, Moved] = {}
    for link in links:
        if link.source in orders:
            order, (incoming, outgoing, *bias) = orders[link.source], _names(link)
            for name in (incoming, *bias):
                moved[name] = moved.get(name, Moved())._replace(rows=order)
            moved[outgoing] = moved.get(outgoing, Moved())._replace(columns=order)
    return moved


def permuted(quantized: QuantizedWeights, orders: Mapping[Link, Tensor]) -> QuantizedWeights:
    """The same function, if the links are links, with the units of each in this order."""
    links = list(orders)
    indices, units = _open(quantized, links)
    for link, u in zip(links, units, strict=True):
        u.permute_(orders[link])
    return _close(quantized, indices)


def usable_links(
    model: nn.Module, quantized: QuantizedWeights, broken: Mapping[str, str]
) -> tuple[list[Link], list[str]]:
    """The model's links that the quantized weights have too and that are not broken, and what is left as it is."""
    links, reasons = find_links(model)
    shapes = {name: tuple(t.shape) for name, t in layout(model)[0].items()}
    problems = [broken.get(link.source) or _problem(link, shapes, quantized) for link in links]
    left = {link.source: text for link, text in zip(links, problems, strict=True) if text}
    return [link for link in links if link.source not in left], folded(reasons | left)


def folded(reasons: Mapping[str, str]) -> list[str]:
    """A message for each reason, with the layers it is of."""
    layers: dict[str, list[str]] = {}
    for layer, reason in reasons.items():
        layers.setdefault(reason, []).append(layer)
    return [
        f"{', '.join(names[:MOST_NAMES])}{f' and {len(names) - MOST_NAMES} more' if len(names) > MOST_NAMES else ''}: "
        f"left as it is: {reason}"
        for reason, names in layers.items()
    ]


def _names(link: Link) -> list[str]:
    return [f"{link.source}.weight", f"{link.target}.weight", *([f"{link.source}.bias"] if link.has_bias else [])]


def _problem(link: Link, shapes: Mapping[str, tuple[int, ...]], quantized: QuantizedWeights) -> str:
    """What in the quantized weights is not as in the model, of these shapes; empty where all is."""
    shared = {t.name: t.shape for t in quantized.shared}
    tied = {*quantized.tied, *quantized.tied.values()}
    for name in _names(link):
        if name not in shared:
            return f"{name} is not among the shared tensors"
        if name in tied:
            return f"{name} is tied"
        if shared[name] != shapes[name]:
            return f"{name}: expected shape {shapes[name]}, got {shared[name]}"
        if 0 in shapes[name]:
            return f"{name} is empty"
    return ""


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """The indices of one link's tensors, laid out by hidden unit: views, to be written to."""

    incoming: Tensor  # (units, inputs of one)
    bias: Tensor  # (units,)
    outgoing: Tensor  # (units of the next layer, units, positions of one: of a kernel, or of a flattened channel)

    @classmethod
    def of(cls, indices: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], link: Link) -> Units:
        incoming, outgoing, *bias = (indices[name] for name in _names(link))
        n_next = shapes[f"{link.target}.weight"][0]
        none = torch.zeros(link.n_units, dtype=torch.uint8)
        return cls(incoming.view(link.n_units, -1), bias[0] if bias else none, outgoing.view(n_next, link.n_units, -1))

    def permute_(
        self,
        order: Tensor,  # (units,)
    ) -> None:
        for tensor, dim in ((self.incoming, 0), (self.bias, 0), (self.outgoing, 1)):
            tensor.copy_(tensor.index_select(dim, order))

    def zero_(
        self,
        units: Tensor,  # (units,) bool
    ) -> None:
        self.incoming[units] = 0
        self.bias[units] = 0
        self.outgoing[:, units] = 0


def _open(quantized: QuantizedWeights, links: list[Link]) -> tuple[dict[str, Tensor], list[Units]]:
    """Copies of the indices by name, and views of each link into them."""
    indices = {t.name: t.indices.clone() for t in quantized.shared}
    shapes = {t.name: t.shape for t in quantized.shared}
    return indices, [Units.of(indices, shapes, link) for link in links]


def _close(quantized: QuantizedWeights, indices: Mapping[str, Tensor]) -> QuantizedWeights:
    """The same weights with other indices."""
    shared = (dataclasses.replace(t, indices=indices[t.name]) for t in quantized.shared)
    return dataclasses.replace(quantized, shared=tuple(shared))


def _without_idle_units(quantized: QuantizedWeights, links: list[Link]) -> tuple[QuantizedWeights, dict[str, int]]:
    """Units that nothing reads, or that are always 0, set to 0; how many of each link's source.

    A unit that goes may leave another without effect, before or after it: repeated until nothing changes. A unit of
    zeros stays zero under the padding of a convolution, which no other constant does.
    """
    indices, units = _open(quantized, links)
    by_name = {t.name: t for t in quantized.shared}
    silent = [_silent_biases(link, by_name.get(f"{link.source}.bias")) for link in links]
    removed, changed = dict.fromkeys((link.source for link in links), 0), True
    while changed:
        changed = False
        for link, u, of_bias in zip(links, units, silent, strict=True):
            reads, feeds = (u.incoming != 0).any(1), (u.outgoing != 0).any(2).any(0)
            idle = ~feeds | (~reads & of_bias[u.bias.long()])
            idle &= reads | feeds | (u.bias != 0)  # something to remove
            if idle.any():
                u.zero_(idle)
                removed[link.source] += int(idle.sum())
                changed = True
    return _close(quantized, indices), removed


def _silent_biases(link: Link, bias: QuantizedTensor | None) -> Tensor:  # (K,) bool
    """For each index of the bias, whether a unit of that constant output reaches the next layer as 0."""
    return link.vanishes(torch.zeros(1) if bias is None else bias.codebook.to(bias.dtype))


def _best_order(
    quantized: QuantizedWeights, link: Link, config: EncodeConfig
) -> tuple[QuantizedWeights, str, Tensor] | None:
    """The link's units in the order whose file is smallest, its name, and itself; None if no file is smaller."""
    best, best_size = None, _size(quantized, link, config)
    _, (units,) = _open(quantized, [link])
    for name, order in _orders(units):
        indices, (moved,) = _open(quantized, [link])
        moved.permute_(torch.from_numpy(order))
        candidate = _close(quantized, indices)
        size = _size(candidate, link, config)
        if size < best_size:
            best, best_size = (candidate, name, torch.from_numpy(order)), size
    return best


def _size(quantized: QuantizedWeights, link: Link, config: EncodeConfig) -> int:
    """Bytes of a file of the link's tensors alone: the others do not change."""
    shared = tuple(t for t in quantized.shared if t.name in _names(link))
    return len(encode(QuantizedWeights(shared, {}, {}), dataclasses.replace(config, names="keep")))


def _orders(units: Units) -> Iterator[tuple[str, _Order]]:
    """A few orders that suit a coder whose contexts are the densities of rows and columns and near neighbours.

    Units without any weight stand last in all of them: a tensor's code ends at its last non-zero. On trained LeNets
    orders by values, biases, principal components or the centre of the non-zeros were worse than the best of these.
    """
    reads = (units.incoming != 0).numpy()  # (units, inputs)
    feeds = (units.outgoing != 0).transpose(0, 1).flatten(1).numpy()  # (units, outputs)
    n_in, n_out = reads.sum(1), feeds.sum(1)
    idle = (n_in + n_out == 0) & (units.bias == 0).numpy()
    for name, count in (("incoming", n_in), ("outgoing", n_out), ("all", n_in + n_out)):
        yield f"most {name} weights first", np.lexsort((-count, idle))
        yield f"fewest {name} weights first", np.lexsort((count, idle))
    if len(idle) <= MOST_UNITS and reads.size + feeds.size <= MOST_WEIGHTS:
        start = int(np.argmin(np.where(idle, np.inf, n_in + n_out)))
        for name, distance in _distances(reads, feeds):
            yield f"nearest next, by {name}", _nearest_next(distance, idle, start)


def _distances(
    reads: npt.NDArray[np.bool_],  # (units, inputs)
    feeds: npt.NDArray[np.bool_],  # (units, outputs)
) -> Iterator[tuple[str, _Distance]]:
    """Ways to say how unlike two units are."""
    n_in = reads.sum(1).astype(np.float64)
    incoming, outgoing, gap = _hamming(reads), _hamming(feeds), np.abs(n_in[:, None] - n_in)
    yield "the patterns of incoming weights", incoming
    yield "the patterns of all weights", outgoing + incoming
    yield "the patterns of outgoing, then of incoming weights", outgoing * (1 + incoming.max()) + incoming
    yield "the pattern of outgoing, then the number of incoming weights", outgoing * (1 + gap.max()) + gap
    yield "the pattern of outgoing and the number of incoming weights", outgoing + gap / 8


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
    """From one unit to the nearest that is left, the first of those as near; the idle ones last."""
    far = np.where(idle, np.inf, 0)
    order, here = list[int](), start
    for _ in range(int((~idle).sum())):
        order.append(here)
        far[here] = np.inf
        here = int(np.argmin(distance[here] + far))
    return np.array([*order, *np.flatnonzero(idle)], np.int64)
