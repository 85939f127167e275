"""The inputs that a network multiplies its weights with.

They are seen while the network runs, below the level of modules: wherever a weight, or a block of its rows, is a factor
of a matrix product or of a convolution. So it does not matter which class or function uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from softshare.calibrate.running import Operation

aten = torch.ops.aten
MOST_INPUTS, MOST_PATCH = 16_384, 6_144  # of a product and of a convolution: of more, only blocks are multiplied
BLOCK_INPUTS = 2_048
MOST_ROWS = 4_096  # of a batch, about, if there are blocks


@dataclass(frozen=True)
class Use:
    """A block of a weight, as a matrix of one row per entry of its first dimension, that inputs are multiplied with."""

    name: str
    start: int  # first row of the block
    stop: int
    across: bool = False  # whether the inputs run along the first dimension, not along the others


@dataclass(frozen=True, eq=False)
class Seen:
    """A use of a weight, and its inputs."""

    use: Use
    source: Tensor  # as the network has them: q, k and v have the same ones
    spans: tuple[slice, ...]  # columns whose products with each other are wanted
    rows: Callable[[slice], Tensor]  # (rows, columns of a span)

    def same_inputs(self, other: Seen) -> bool:
        """Whether the inputs, both alive, are the same memory in the same form."""
        where = [(t.data_ptr(), t.shape, t.stride(), t._version) for t in (self.source, other.source)]
        return where[0] == where[1]


def spans_of(
    n_in: int,
    taps: int = 1,  # columns of an input channel
) -> tuple[slice, ...]:
    """All columns, or blocks of whole channels if their products would take too much memory."""
    if n_in <= (MOST_INPUTS if taps == 1 else MOST_PATCH):
        return (slice(0, n_in),)
    width = max(1, BLOCK_INPUTS // taps) * taps
    return tuple(slice(start, min(start + width, n_in)) for start in range(0, n_in, width))


class Moments:
    """Mean products of the inputs, over all rows that were seen, for each span of columns."""

    def __init__(self) -> None:
        self.n = 0
        self.spans: tuple[slice, ...] = ()
        self._own: list[Tensor] = []  # (columns, columns), float64
        self._other: list[Tensor] = []

    def add(
        self,
        seen: Seen,
        before: Seen | None = None,  # the same rows in another network
    ) -> None:
        first, n = not self.spans, 0
        self.spans = seen.spans
        for k, span in enumerate(seen.spans):
            x = seen.rows(span)
            step = max(1, len(x) // MOST_ROWS) if len(seen.spans) > 1 else 1
            n, x = len(x[::step]), x[::step].float()
            other = None if before is None else before.rows(span)[::step]
            own = (x.T @ x).double()
            crossed = own if other is None or other.shape != x.shape else (other.float().T @ x).double()
            if first:
                self._own.append(own)
                self._other.append(crossed.clone())
            else:
                self._own[k] += own
                self._other[k] += crossed
        self.n += n

    @property
    def own(self) -> Iterator[Tensor]:
        return (t / max(1, self.n) for t in self._own)

    @property
    def crossed(self) -> Iterator[Tensor]:
        """Of the other network's inputs with the own ones."""
        return (t / max(1, self.n) for t in self._other)


class Finder:
    """Knows the weights of a network by their memory, and so their uses by operations."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._owners = {t.untyped_storage().data_ptr(): (name, t) for name, t in weights.items() if t.dim() > 1}
        self._named = dict(weights)
        self._now: dict[str, Tensor] = {}

    def put(self, name: str, weights: Tensor) -> None:
        """Other weights, for `swapped`."""
        now = torch.empty_like(self._named[name]).copy_(weights)
        self._now[name] = now
        self._owners[now.untyped_storage().data_ptr()] = name, now

    def swapped(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with those weights in place of the network's own."""
        if not self._now:
            return args
        return tuple(
            self._swapped(a)
            if isinstance(a, Tensor)
            else [self._swapped(t) if isinstance(t, Tensor) else t for t in a]
            if isinstance(a, list)
            else a
            for a in args
        )

    def _swapped(self, tensor: Tensor) -> Tensor:
        name, weights = self._owners.get(tensor.untyped_storage().data_ptr(), ("", tensor))
        now = self._now.get(name)
        if now is None or now is weights:
            return tensor
        offset = tensor.storage_offset() - weights.storage_offset() + now.storage_offset()
        return now.as_strided(tensor.shape, tensor.stride(), offset)

    def table(self, operation: Operation) -> str | None:
        """The weight whose rows are looked up."""
        if operation.function is not aten.embedding.default:
            return None
        return self._owners.get(operation.args[0].untyped_storage().data_ptr(), (None,))[0]

    def seen(self, operation: Operation) -> Seen | None:
        """The use of a weight by an operation, if it is one."""
        args = operation.args
        if operation.function is aten.convolution.default:
            return self._convolution(args[0], args[1], (*args[3:7], args[8]))
        if operation.function is aten.mm.default:
            return self._product(args[0], args[1])
        if operation.function is aten.addmm.default:
            return self._product(args[1], args[2])
        if operation.function is aten.bmm.default and len(args[0]) == 1:
            return self._product(args[0][0], args[1][0])
        return None

    def _product(self, left: Tensor, right: Tensor) -> Seen | None:
        """left @ right, either of which may be a weight."""
        if (use := self._use(right)) is not None:
            return Seen(use, left, spans_of(left.shape[1]), lambda span: left[:, span])
        if (use := self._use(left.T)) is not None:
            return Seen(use, right, spans_of(right.shape[0]), lambda span: right.T[:, span])
        return None

    def _convolution(self, x: Tensor, weight: Tensor, options: tuple[Any, ...]) -> Seen | None:
        stride, padding, dilation, transposed, groups = options
        found = self._owners.get(weight.untyped_storage().data_ptr())
        if found is None or found[1].shape != weight.shape or transposed or groups != 1 or weight.dim() > 4:
            return None

        taps = weight[0, 0].numel()

        def patches(span: slice) -> Tensor:
            flat = weight.dim() == 3  # one dimension: a picture that is one pixel high
            part = x[:, span.start // taps : span.stop // taps]
            picture, size = (part[:, :, None], (1, weight.shape[2])) if flat else (part, tuple(weight.shape[2:]))
            s, p, d = ((1, *o) if flat else tuple(o) for o in (stride, padding, dilation))
            columns = F.unfold(picture, size, d, (0, p[1]) if flat else p, s)
            return columns.transpose(1, 2).reshape(-1, columns.shape[1])

        return Seen(Use(found[0], 0, weight.shape[0]), x, spans_of(weight[0].numel(), taps), patches)

    def _use(
        self,
        factor: Tensor,  # (n_in, n_out)
    ) -> Use | None:
        """Which weight, or block of its rows, a factor is a view of."""
        found = self._owners.get(factor.untyped_storage().data_ptr())
        if found is None:
            return None
        name, weight = found
        n_rows, n_cols = weight.shape[0], weight[0].numel() if weight.shape[0] else 0
        offset = factor.storage_offset() - weight.storage_offset()
        (n_in, n_out), strides = factor.shape, factor.stride()
        if n_in == n_cols and (strides == (1, n_cols) or n_cols == 1) and offset % n_cols == 0:
            return Use(name, offset // n_cols, offset // n_cols + n_out)
        if (n_in, n_out) == (n_rows, n_cols) and strides == (n_cols, 1) and offset == 0:
            return Use(name, 0, n_rows, across=True)
        return None
