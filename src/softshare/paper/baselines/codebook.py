"""Codebooks: train the values that weights share, while each weight keeps its index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.network.weights import WeightView
from softshare.quantization.assignment import assemble, order_values
from softshare.quantization.quantized import QuantizedWeights, index_dtype
from softshare.train.step import Latent


class Codebook:
    """The values that some tensors share, in one layer or a whole network. Index 0 is 0.0 and is not trained."""

    def __init__(
        self,
        tensors: Sequence[Tensor],  # live parameters, with n weights together
        index: Tensor,  # (n,) in [0, k]
        values: Tensor,  # (k,) of the indices 1 to k
    ) -> None:
        self.tensors, self.index = tuple(tensors), index
        self.values = nn.Parameter(values)
        self._members = _members(index, len(values))

    @property
    def all_values(self) -> Tensor:  # (k + 1,), detached
        return F.pad(self.values.detach(), (1, 0))

    def pull_(self) -> None:
        """The gradient of a value is the sum of those of its weights. A weight outside the loss adds 0."""
        parts = [(torch.zeros_like(t) if t.grad is None else t.grad).reshape(-1) for t in self.tensors]
        gradient = F.pad(torch.cat(parts), (0, 1))  # a member beyond the last weight adds 0
        self.values.grad = gradient[self._members].sum(1).to(self.values.dtype)

    @torch.no_grad()
    def push_(self) -> None:
        weights = self.all_values[self.index].split([t.numel() for t in self.tensors])
        for tensor, own in zip(self.tensors, weights, strict=True):
            tensor.copy_(own.reshape(tensor.shape))

    def quantized(self) -> list[tuple[Tensor, Tensor]]:
        """Indices and codebook of each tensor. The values are in order, and equal values become one."""
        codebook, index_of = order_values(self.all_values.float())
        index_of = index_of.to(index_dtype(len(codebook)))
        indices, codebook = index_of[self.index].cpu(), codebook.cpu()
        return [(own.clone(), codebook) for own in indices.split([t.numel() for t in self.tensors])]


def _members(
    index: Tensor,  # (n,) in [0, k]
    k: int,
) -> Tensor:  # (k, m)
    """The weights of each value, padded with n. Sums over this are always the same; atomic adds are not."""
    order = index.argsort(stable=True)
    counts = index.bincount(minlength=k + 1)
    starts = (counts.cumsum(0) - counts)[1:]
    counts = counts[1:]
    place = torch.arange(int(counts.max()) if k else 0, device=index.device)
    source = starts[:, None] + place
    return torch.where(place < counts[:, None], order[source.clamp(max=len(index) - 1)], len(index))


class Codebooks(Latent):
    """The optimizer trains the codebooks instead of the weights, and also the tensors that are not shared."""

    def __init__(self, books: Iterable[Codebook]) -> None:
        self.books = tuple(books)

    def parameters(self, model: nn.Module) -> list[Tensor]:
        replaced = {id(t) for book in self.books for t in book.tensors}
        values: list[Tensor] = [book.values for book in self.books if book.values.numel()]
        return values + [p for p in model.parameters() if id(p) not in replaced]

    def pull_(self) -> None:
        for book in self.books:
            book.pull_()

    def push_(self) -> None:
        for book in self.books:
            book.push_()

    def quantize(self, view: WeightView) -> QuantizedWeights:
        """Quantize the network of this moment. A tensor without a codebook must be empty."""
        found = {id(t): q for book in self.books for t, q in zip(book.tensors, book.quantized(), strict=True)}
        none = torch.zeros(0, dtype=torch.uint8), torch.zeros(1)
        return assemble(view, {s.name: found.get(id(s.tensor), none) for s in view.shared})
