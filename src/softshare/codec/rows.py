"""The tensors of a file as rows of a table, where repeated blocks are one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softshare._util.folding import fold
from softshare.codec.info import TensorInfo


@dataclass(frozen=True)
class Row:
    """One tensor, or several of one kind and one shape. Numbers are sums over them."""

    name: str
    tensors: tuple[TensorInfo, ...]

    @property
    def n_bytes(self) -> int:
        return sum(t.n_bytes for t in self.tensors)

    @property
    def n(self) -> int | None:
        counts = [t.n for t in self.tensors if t.n is not None]
        return sum(counts) if len(counts) == len(self.tensors) else None

    @property
    def n_nonzero(self) -> int | None:
        """None if one of them is kept as it is, because a header does not count there."""
        counts = [t.n_nonzero for t in self.tensors if t.n_nonzero is not None]
        return sum(counts) if len(counts) == len(self.tensors) else None


def unfolded(tensors: Iterable[TensorInfo]) -> list[Row]:
    """A row for each tensor. One without a name has its number."""
    return [Row(t.name if t.name is not None else f"#{k}", (t,)) for k, t in enumerate(tensors)]


def folded(tensors: Iterable[TensorInfo]) -> list[Row]:
    """The rows in the order of their first tensors. Tensors fold if only the numbers in their names differ."""
    rows = unfolded(tensors)
    each = [row.tensors[0] for row in rows]
    found = fold([row.name for row in rows], [(t.kind, t.shape) for t in each])
    return [Row(name, tuple(each[k] for k in places)) for name, places in found]
