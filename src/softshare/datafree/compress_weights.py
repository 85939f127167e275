"""Compression without a task or data: a mixture fitted to each tensor's weights alone, and no weight trained.

The user says how many bits a weight may take in the file, or which error on the weights is allowed: 5% by default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from softshare._util.files import write_atomic
from softshare.codec import encode
from softshare.codec.shared_section import rounded_codebook
from softshare.config import EncodeConfig, Rule
from softshare.datafree.fit import Cells, Fit, cells_of, fit, quantized
from softshare.errors import ConfigError, ModelError
from softshare.network.checkpoint import Checkpoint, open_checkpoint
from softshare.prior.mixture import Mixture
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

WIDTHS = (2.0**-11, 4.0)  # of components, in root mean squares of their weights: the search is between these
ERROR = 0.05  # of a tensor, where the user asks for nothing else: on normal weights about 4.6 bits of each
LEAST_ERROR = 0.001  # of a tensor: twice that of the narrowest components, for the codebook is rounded too
HALVINGS = 16  # of that interval, on a logarithmic scale
MOST_TRIES = 8  # at a file of so many bits, or a tensor of such an error
NEAR = 0.98  # of the bits wanted: good enough, for coding takes the longest
SAFE = 0.997  # of the bits wanted: aimed at, as a file may exceed its entropy by a little
_CHUNK = 1 << 16  # weights at a time
_DEFAULTS = EncodeConfig()


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """A checkpoint as a file, with what led there."""

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # of each shared tensor that is not all zeros
    errors: Mapping[str, float]  # of each shared tensor: the root mean square of its error over that of its weights
    data: bytes = field(repr=False)  # the file

    @property
    def bits_per_weight(self) -> float:
        """Of the whole file, by all numbers that it holds."""
        n = self.quantized.n_shared + sum(t.numel() for t in self.quantized.rest.values())
        return 8 * len(self.data) / n

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all, and return its size in bytes."""
        return write_atomic(path, self.data)


def compress_weights(
    source: str | os.PathLike[str] | Mapping[str, Tensor],  # a safetensors file, or a state dict
    *,
    bits: float | None = None,  # per weight, of the whole file: met from below
    weight_error: float | None = None,  # of each shared tensor, relative to its weights' root mean square: likewise
    rules: Sequence[Rule] = (),
    config: EncodeConfig = _DEFAULTS,
) -> FittedWeights:
    """Quantize a checkpoint by mixtures fitted to its weights alone. Give `bits`, or a `weight_error`: by default 0.05.

    Shared are floating-point tensors of at least two dimensions, unless a rule says otherwise; the first that matches
    decides. A file is read tensor by tensor and never held whole.
    """
    if bits is not None and weight_error is not None:
        raise ConfigError("without data: expected bits a weight or an error on the weights, got both")
    if bits is not None and not 0 < bits < math.inf:
        raise ConfigError(f"bits: expected a number above 0, got {bits}")
    if weight_error is not None and not LEAST_ERROR <= weight_error < 1:
        raise ConfigError(f"weight_error: expected a number from {LEAST_ERROR} to below 1, got {weight_error}")
    if config.names == "none":
        raise ConfigError("names='none': a checkpoint does not say in which order the network has its tensors")
    checkpoint = open_checkpoint(source, rules)
    if not checkpoint.shared:
        kept = ", ".join(checkpoint.rest) or "none at all"
        raise ModelError(f"the checkpoint has no tensor to share; its tensors, all kept as they are: {kept}")
    work = _Work(checkpoint, config)
    return work.by_bits(bits) if bits is not None else work.by_error(ERROR if weight_error is None else weight_error)


class _Work:
    """A checkpoint, its shared tensors as cells, its rest as it is."""

    def __init__(self, checkpoint: Checkpoint, config: EncodeConfig) -> None:
        self.checkpoint, self.config = checkpoint, config
        self.cells = {name: self._cells(name) for name in checkpoint.shared}
        self.rest = {name: checkpoint[name].clone() for name in checkpoint.rest}

    def _cells(self, name: str) -> Cells:
        tensor = self.checkpoint[name]
        bad = sum(int((~part.float().isfinite()).sum()) for part in tensor.reshape(-1).split(_CHUNK))
        if bad:
            problem = f"{bad} of {tensor.numel()} weights are NaN, infinite or beyond float32"
            raise ModelError(f"tensor {name}: {problem}; the rule keep:{name} leaves it as it is")
        return cells_of(tensor)

    def by_error(self, wanted: float) -> FittedWeights:
        """Every tensor with the widest components that its error allows."""
        found = {name: self._by_error(name, wanted) for name in self.cells}
        return self._encoded({name: f for name, (f, _) in found.items()}, [t for _, t in found.values()])

    def _by_error(self, name: str, wanted: float) -> tuple[Fit, QuantizedTensor]:
        cells, aim, error = self.cells[name], wanted, math.inf
        for _ in range(MOST_TRIES):
            width, _ = _border(lambda width: fit(cells, width).error, aim)
            fitted = fit(cells, width)
            tensor = quantized(name, self.checkpoint[name], fitted)
            error = self._error(tensor)
            if error <= wanted:
                return fitted, tensor
            aim *= SAFE * wanted / error  # what rounding adds, of the codebook or in the tensor's own dtype
        raise ConfigError(
            f"weight_error: tensor {name} has an error of {error:.2g}, more than {wanted}, as its values are rounded "
            f"in the file; allow more, give codebook_dtype='float32', or leave it as it is by the rule keep:{name}"
        )

    def by_bits(self, wanted: float) -> FittedWeights:
        """All tensors with components of the same width, relative to their weights: the narrowest there is room for."""
        n = sum(cells.n for cells in self.cells.values()) + sum(t.numel() for t in self.rest.values())
        room = wanted * n / 8  # bytes
        fixed = len(self._bytes([self._zeros(name) for name in self.cells]))  # names, shapes and the rest
        if fixed > room:
            raise ConfigError(
                f"bits: names and the tensors kept as they are take {8 * fixed / n:.3g} bits a weight by themselves, "
                f"more than {wanted}; allow more, give rest_dtype='float16', or share more by rules"
            )
        aim, last, best = SAFE * (room - fixed), 0.0, None
        for _ in range(MOST_TRIES):
            _, width = _border(lambda width: -sum(fit(c, width).bits for c in self.cells.values()), -8 * aim)
            if width == last:  # no narrower one is of use
                break
            fits = {name: fit(cells, width) for name, cells in self.cells.items()}
            found = self._encoded(fits, [quantized(name, self.checkpoint[name], f) for name, f in fits.items()])
            size, last = len(found.data), width
            if size <= room and (best is None or size > len(best.data)):
                best = found
            if NEAR * room <= size <= room:
                break
            aim *= SAFE * (room - fixed) / max(1, size - fixed)
        if best is None:
            raise ConfigError(f"bits: no file was found of at most {wanted} bits a weight; allow more")
        return best

    def _zeros(self, name: str) -> QuantizedTensor:
        tensor = self.checkpoint[name]
        zeros = torch.zeros(1, dtype=torch.uint8).expand(tensor.numel())
        return QuantizedTensor(name, tuple(tensor.shape), tensor.dtype, zeros, torch.zeros(1))

    def _encoded(self, fits: Mapping[str, Fit], tensors: Sequence[QuantizedTensor]) -> FittedWeights:
        mixtures = {name: f.mixture() for name, f in fits.items() if f.rms}
        errors = {t.name: self._error(t) for t in tensors}
        return FittedWeights(self._weights(tensors), mixtures, errors, self._bytes(tensors))

    def _weights(self, tensors: Sequence[QuantizedTensor]) -> QuantizedWeights:
        order = tuple(n for n in self.checkpoint.tensors if n in self.cells or n in self.rest)
        return QuantizedWeights(tuple(tensors), self.rest, self.checkpoint.tied, order)

    def _bytes(self, tensors: Sequence[QuantizedTensor]) -> bytes:
        return encode(self._weights(tensors), self.config)

    def _error(self, tensor: QuantizedTensor) -> float:
        """Of the weights as the file decodes to them."""
        values = torch.from_numpy(rounded_codebook(tensor, self.config).values).to(tensor.dtype).double()
        square = 0.0
        weights = self.checkpoint[tensor.name].reshape(-1)
        for w, index in zip(weights.split(_CHUNK), tensor.indices.split(_CHUNK), strict=True):
            square += float((values[index.int()] - w.double()).square().sum())
        cells = self.cells[tensor.name]
        return math.sqrt(square / cells.n) / cells.rms if cells.rms else 0.0


def _border(rising: Callable[[float], float], limit: float) -> tuple[float, float]:
    """Two widths close to each other: the function is at most `limit` at the first, above it at the second, if ever."""
    below, above = WIDTHS
    for _ in range(HALVINGS):
        middle = math.sqrt(below * above)
        below, above = (middle, above) if rising(middle) <= limit else (below, middle)
    return below, above
