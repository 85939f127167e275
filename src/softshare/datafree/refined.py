"""Train what a quantized file has besides its indices, so that the outputs come back to those of the float network.

These are the values of the codebooks, and the parameters that are not quantized, such as norms and biases. The indices
stay, so the file keeps its size. No label is needed: the outputs of the network itself are the target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare._util.user_code import at
from softshare.calibrate.abreast import MOST_COMPARED
from softshare.calibrate.batches import evaluating, logits_of, relative, run
from softshare.codec import write_to
from softshare.config import Rule
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.source import Source
from softshare.datafree.stored import FileBytes
from softshare.errors import ConfigError
from softshare.loaders.batches import part_of
from softshare.network.weights import first_match
from softshare.quantization.assignment import order_values
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.quantization.scales import factors

RATE = 1e-3  # of a step: values of a codebook move by this share, others by this share of their root mean square
HELD = 4  # of so many batches, the last one decides whether training has helped, and does not train


def trainable(rest: Mapping[str, Tensor], model: nn.Module, rules: Sequence[Rule]) -> list[str]:
    """Parameters that are not quantized. A rule that keeps a tensor keeps it whole."""
    own = {name for name, p in model.named_parameters() if p.is_floating_point()}
    return [name for name, t in rest.items() if name in own and t.numel() and first_match(rules, [name]) is None]


def reserve(source: Source, rest: Mapping[str, Tensor], names: Sequence[str]) -> int:
    """Bytes that parameters may take more once they are trained. Norms that are all 1 take next to none before."""
    g = torch.Generator().manual_seed(0)
    noisy = {name: _noise(rest[name], g) for name in names}
    changed = {name: _as(noisy[name], t) if name in noisy else t for name, t in rest.items()}
    return max(0, len(source.encoded([], changed)) - len(source.encoded([], rest)))


def refined(
    fitted: FittedWeights,
    source: Source,
    model: nn.Module,
    batches: Sequence[Any],
    steps: int,
    rules: Sequence[Rule],
    most: int,  # bytes
) -> FittedWeights:
    """The same file if training does not help on the batches that are held out."""
    weights = fitted.quantized
    k = min(HELD, len(batches))
    held = batches[k - 1 :: k]
    used = [batch for n, batch in enumerate(batches) if n % k != k - 1] or list(batches)
    moving = _Moving(weights, trainable(weights.rest, model, rules))
    with evaluating(model):
        before = _distance(model, held, moving.state())
        rate = torch.optim.Adam(moving.moves, lr=RATE)
        source.stages.start("refine", "steps", [1] * steps)
        slower = torch.optim.lr_scheduler.CosineAnnealingLR(rate, steps)
        for step in range(steps):
            batch = used[step % len(used)]
            with at(f"step {step + 1} of refine"), torch.enable_grad():
                loss = _difference(run(model, batch, moving.state()), _truth(model, batch))
                rate.zero_grad()
                loss.backward()
            rate.step()
            slower.step()
            source.stages.done()
        after = _distance(model, held, moving.state())
        error = _error(model, batches[:MOST_COMPARED], moving.state())
    if not after < before:
        return fitted
    trained, file = moving.weights(), FileBytes()
    write_to(file.file, trained, source.config)
    if len(file) > most:
        return fitted
    errors = {t.name: source.error(t) for t in trained.shared}
    return dataclasses.replace(fitted, errors=errors, file=file, layer_errors={}, output_error=error, steps=steps)


class _Moving:
    """The decoded weights as functions of what is trained: a move of each value, in its own unit."""

    def __init__(self, weights: QuantizedWeights, names: Sequence[str]) -> None:
        self._weights, self._names = weights, names
        self._codebooks = {t.name: torch.zeros(len(t.codebook) - 1, requires_grad=True) for t in weights.shared}
        self._rest = {name: torch.zeros(weights.rest[name].shape, requires_grad=True) for name in names}
        self._indices = {t.name: t.indices.int() for t in weights.shared}
        self._units = {t.name: _units(t) for t in weights.shared}

    @property
    def moves(self) -> list[Tensor]:
        return [m for m in (*self._codebooks.values(), *self._rest.values()) if m.numel()]

    def state(self) -> dict[str, Tensor]:
        """Tensors of all names, with a gradient if that is enabled."""
        found: dict[str, Tensor] = {}
        for name, t in self._weights.tensors.items():
            if isinstance(t, Tensor):
                found[name] = self._kept(name, t) if name in self._rest else t
                continue
            dense = F.embedding(self._indices[name], self._codebook(t)[:, None])[:, 0]
            unit = self._units[name]
            found[name] = (dense if unit is None else dense * unit).reshape(t.shape).to(t.dtype)
        return found | {alias: found[name] for alias, name in self._weights.tied.items()}

    def weights(self) -> QuantizedWeights:
        """As a file holds them."""
        with torch.no_grad():
            shared = tuple(self._ordered(t) for t in self._weights.shared)
            rest = {
                name: _as(self._kept(name, t), t) if name in self._rest else t for name, t in self._weights.rest.items()
            }
        return dataclasses.replace(self._weights, shared=shared, rest=rest)

    def _codebook(self, t: QuantizedTensor) -> Tensor:
        """No value changes its sign."""
        return torch.cat([t.codebook[:1], t.codebook[1:] * self._codebooks[t.name].exp()])

    def _kept(self, name: str, t: Tensor) -> Tensor:
        return t + (_scale(t) * self._rest[name]).to(t.dtype)

    def _ordered(self, t: QuantizedTensor) -> QuantizedTensor:
        codebook, index_of = order_values(self._codebook(t))
        indices = index_of.to(t.indices.dtype)[t.indices.long()]
        return dataclasses.replace(t, codebook=codebook, indices=indices)


def _units(t: QuantizedTensor) -> Tensor | None:
    """The factor of each weight, (numel,)."""
    if t.row_scales is None and t.column_scales is None:
        return None
    rows = t.shape[0]
    return factors(t.row_scales, t.column_scales, (rows, t.indices.numel() // max(1, rows))).reshape(-1)


def _scale(t: Tensor) -> float:
    return float(t.double().square().mean().sqrt())


def _noise(t: Tensor, g: torch.Generator) -> Tensor:
    """Numbers in which no code finds anything, about as large as the tensor's."""
    drawn = torch.randn(2, *t.shape, generator=g, dtype=torch.float64)
    return ((_scale(t) or 1.0) * drawn[0] * (2 * drawn[1]).exp().clamp(2**-10, 2**3)).to(t.dtype)


def _as(t: Tensor, like: Tensor) -> Tensor:
    """In half precision if the other tensor is, so that it takes no more room."""
    return t.to(torch.float16).to(like.dtype) if torch.equal(like.to(torch.float16).to(like.dtype), like) else t


def _truth(model: nn.Module, batch: Any) -> Any:
    with torch.no_grad():
        return run(model, batch)


def _difference(found: Any, truth: Any) -> Tensor:  # 0-d
    """The squared error of the outputs relative to them; of outputs that are named logits, the divergence."""
    a, b = logits_of(found), logits_of(truth)
    if a is None or b is None:
        raise ConfigError("refine: expected outputs of floating-point numbers, the first of them a tensor, got none")
    a, b = a.float(), b.float()
    if part_of(truth, "logits") is not None:
        return F.kl_div(a.log_softmax(-1), b.log_softmax(-1), reduction="sum", log_target=True) / b[..., 0].numel()
    return (a - b).square().sum() / b.square().sum().clamp(min=torch.finfo(torch.float32).tiny)


@torch.no_grad()
def _error(model: nn.Module, batches: Sequence[Any], weights: Mapping[str, Tensor]) -> float | None:
    after, before = ([logits_of(run(model, batch, w)) for batch in batches] for w in (weights, None))
    return relative([t.float() for t in after if t is not None], [t.float() for t in before if t is not None])


@torch.no_grad()
def _distance(model: nn.Module, batches: Sequence[Any], weights: Mapping[str, Tensor]) -> float:
    return sum(float(_difference(run(model, batch, weights), _truth(model, batch))) for batch in batches)
