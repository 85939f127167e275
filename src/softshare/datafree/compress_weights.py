"""Compress a checkpoint without a task or data: fit a mixture to each tensor's weights, and train nothing.

The user gives the bits per weight of the file, or the error that is allowed on the weights (default: 5%).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from softshare._util.files import write_atomic
from softshare._util.printable import printable
from softshare._util.words import times
from softshare.codec import encode, header
from softshare.codec.shared_section import rounded_codebook
from softshare.config import EncodeConfig, Rule
from softshare.datafree.fit import Cells, Fit, cells_of, fit, quantized, with_norms
from softshare.errors import ConfigError, ModelError
from softshare.network.checkpoint import Checkpoint, magnitudes_of, open_checkpoint
from softshare.network.wrapped import unwrapped
from softshare.prior.mixture import Mixture
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

WIDTHS = (2.0**-11, 4.0)  # range of the search for a width, in root mean squares of a tensor's weights
ERROR = 0.05  # default error of a tensor: about 4.6 bits per weight if weights are normal
LEAST_ERROR = 0.001  # twice the error of the narrowest components, because the codebook is rounded too
HALVINGS = 16  # of the range of widths, on a logarithmic scale
MOST_TRIES = 8  # attempts to meet the bits or the error
NEAR = 0.98  # share of the wanted bits that is good enough, because coding takes the longest
SAFE = 0.997  # share of the wanted bits to aim at, because a file may exceed its entropy a little
_CHUNK = 1 << 16  # weights at a time
_DEFAULTS = EncodeConfig()


@dataclass(frozen=True, eq=False)
class FittedWeights:
    """A quantized checkpoint and its file, with the mixtures and errors of its tensors."""

    quantized: QuantizedWeights
    mixtures: Mapping[str, Mixture] = field(repr=False)  # one for each shared tensor that is not all zeros
    errors: Mapping[str, float]  # of each shared tensor: root mean square of the error over that of the weights
    data: bytes = field(repr=False)  # the file

    @property
    def n_weights(self) -> int:
        """Values in the file. A tied tensor counts once."""
        return self.quantized.n_shared + sum(t.numel() for t in self.quantized.rest.values())

    @property
    def bits_per_weight(self) -> float:
        """The bits of the whole file over the number of values in it."""
        return 8 * len(self.data) / self.n_weights

    @property
    def original_bytes(self) -> int:
        """The size of the same tensors before, each in its own precision."""
        shared = sum(t.indices.numel() * t.dtype.itemsize for t in self.quantized.shared)
        return shared + sum(t.numel() * t.element_size() for t in self.quantized.rest.values())

    @property
    def ratio(self) -> float:
        """How many times smaller the file is."""
        return self.original_bytes / len(self.data)

    def __repr__(self) -> str:
        return f"<FittedWeights: {self._sizes()}>"

    def _sizes(self) -> str:
        how = times(self.original_bytes, len(self.data))
        return f"{len(self.data):,} bytes, {how}, {self.bits_per_weight:.2f} bits a weight"

    def summary(self) -> str:
        """The sizes, and the tensor with the largest error:

            print(softshare.quantize(model, bits=4).summary())

        Returns:
            A few lines of text.
        """
        worst = max(self.errors, key=lambda name: self.errors[name])
        n_kept = sum(t.numel() for t in self.quantized.rest.values())
        return "\n".join(
            [
                f"{self._sizes()}. Nothing was trained, and no data were seen: try it before you use it.",
                f"  before   {self.original_bytes:,} bytes, {self.n_weights:,} weights",
                f"  shared   {self.quantized.n_shared:,} weights in {len(self.errors)} tensors",
                f"  kept     {n_kept:,} weights as they were",
                f"  error    at most {100 * self.errors[worst]:.2g}% of the weights' root mean square, in "
                f"{printable(worst)}",
            ]
        )

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the file, whole or not at all, and return its size in bytes."""
        return write_atomic(path, self.data)


def quantize(
    source: str | os.PathLike[str] | Mapping[str, Tensor] | nn.Module,
    *,
    bits: float | None = None,
    weight_error: float | None = None,
    rules: Sequence[Rule] = (),
    config: EncodeConfig = _DEFAULTS,
) -> FittedWeights:
    """Quantize a network by mixtures fitted to its weights alone, without data:

        softshare.quantize(model, bits=4).save("model.sws")

    Floating-point tensors of at least two dimensions are shared, unless a rule says otherwise. A file is read tensor by
    tensor and is never in memory as a whole. `compress_weights` is another name of this function.

    Args:
        source: a network, its state dict, or a file of safetensors or `torch.save`.
        bits: per weight, at most, over the whole file.
        weight_error: at most, of each shared tensor, relative to the root mean square of its weights. Give this or
            `bits`; the default is 0.05.
        rules: which tensors are shared or kept. The first that matches decides.
        config: how the file is written.

    Returns:
        The quantized weights and their file, with `save` and `summary`.
    """
    if isinstance(source, nn.Module):
        source = unwrapped(source).state_dict()
    elif not isinstance(source, str | os.PathLike | Mapping):
        kind = type(source).__name__
        raise ConfigError(f"quantize: expected a torch.nn.Module, a state dict or the path of a file, got {kind}")
    if bits is not None and weight_error is not None:
        raise ConfigError("expected bits or weight_error, got both; give one of them")
    if bits is not None and not 0 < bits < math.inf:
        raise ConfigError(f"bits: expected a number above 0, got {bits}")
    if weight_error is not None and not LEAST_ERROR <= weight_error < 1:
        raise ConfigError(f"weight_error: expected a number from {LEAST_ERROR} to below 1, got {weight_error}")
    if config.names == "none":
        raise ConfigError(
            "names='none': a checkpoint does not give the order of the network's tensors; use names='keep'"
        )
    checkpoint = open_checkpoint(source, rules, header.MAX_ENTRIES)
    if not checkpoint.shared:
        kept = ", ".join(checkpoint.rest) or "none at all"
        raise ModelError(
            f"expected a tensor to share, got none; all tensors are kept: {kept}. Share one by the rule share:NAME"
        )
    header.check_names([*checkpoint.shared, *checkpoint.rest], checkpoint.tied)  # fitting takes long
    work = _Work(checkpoint, config)
    return work.by_bits(bits) if bits is not None else work.by_error(ERROR if weight_error is None else weight_error)


compress_weights = quantize


class _Work:
    """A checkpoint: its shared tensors as cells, and copies of the others."""

    def __init__(self, checkpoint: Checkpoint, config: EncodeConfig) -> None:
        self.checkpoint, self.config = checkpoint, config
        self.cells = {name: self._cells(name) for name in checkpoint.shared}
        self.rest = {name: checkpoint[name].clone() for name in checkpoint.rest}

    def _cells(self, name: str) -> Cells:
        tensor = self.checkpoint[name]
        parts = tensor.reshape(-1).split(_CHUNK)
        bad = sum(int((~part.float().isfinite()).sum()) for part in parts)
        if bad:
            problem = f"expected finite weights, but {bad} of {tensor.numel()} are NaN, infinite or beyond float32"
            raise ModelError(f"tensor {name}: {problem}; to store it unchanged, give the rule keep:{name}")
        largest = max(float(part.double().abs().max()) for part in parts)
        if largest and not torch.tensor(largest, dtype=torch.float32):
            problem = f"expected weights that float32 can hold, but the largest is {largest:g}"
            raise ModelError(f"tensor {name}: {problem}; to store it unchanged, give the rule keep:{name}")
        return cells_of(tensor)

    def by_error(self, wanted: float) -> FittedWeights:
        """Give every tensor the widest components that its error allows."""
        found = {name: self._by_error(name, wanted) for name in self.cells}
        return self._encoded({name: f for name, (f, _) in found.items()}, [t for _, t in found.values()])

    def _by_error(self, name: str, wanted: float) -> tuple[Fit, QuantizedTensor]:
        cells, aim, error = self.cells[name], wanted, math.inf
        for _ in range(MOST_TRIES):
            width, _ = _border(lambda width: fit(cells, width).error, aim)
            fitted = fit(cells, width)
            tensor = self._quantized(name, fitted)
            error = self._error(tensor)
            if error <= wanted:
                return fitted, tensor
            aim *= SAFE * wanted / error  # make room for rounding: of the codebook, and to the tensor's dtype
        raise ConfigError(
            f"weight_error: tensor {name} has an error of {error:.2g}, more than {wanted}, because the file rounds its "
            f"values; allow more, give codebook_dtype='float32', or store it unchanged by the rule keep:{name}"
        )

    def by_bits(self, wanted: float) -> FittedWeights:
        """Give all tensors components of one width, relative to their weights: the narrowest that the bits allow."""
        n = sum(cells.n for cells in self.cells.values()) + sum(t.numel() for t in self.rest.values())
        room = wanted * n / 8  # bytes
        fixed = len(self._bytes([self._zeros(name) for name in self.cells]))  # names, shapes and the rest
        if fixed > room:
            raise ConfigError(
                f"bits: names and unshared tensors take {8 * fixed / n:.3g} bits a weight by themselves, more than "
                f"{wanted}; allow more, give rest_dtype='float16', or share more tensors by rules"
            )
        aim, last, best = SAFE * (room - fixed), 0.0, None
        for _ in range(MOST_TRIES):
            _, width = _border(lambda width: -sum(fit(c, width).bits for c in self.cells.values()), -8 * aim)
            if width == last:  # the next file would be the same
                break
            fits = {name: fit(cells, width) for name, cells in self.cells.items()}
            found = self._encoded(fits, [self._quantized(name, f) for name, f in fits.items()])
            size, last = len(found.data), width
            if size <= room and (best is None or size > len(best.data)):
                best = found
            if NEAR * room <= size <= room:
                break
            aim *= SAFE * (room - fixed) / max(1, size - fixed)
        if best is None:
            raise ConfigError(f"bits: found no file of at most {wanted} bits a weight; allow more")
        return best

    def _quantized(self, name: str, fitted: Fit) -> QuantizedTensor:
        weights = self.checkpoint[name]
        tensor, other = quantized(name, weights, fitted), magnitudes_of(name, self.checkpoint.tensors)
        return tensor if other is None else with_norms(tensor, weights, self.checkpoint[other].shape)

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
        return QuantizedWeights(tuple(tensors), self.rest, self.checkpoint.tied, order, self.checkpoint.dropped)

    def _bytes(self, tensors: Sequence[QuantizedTensor]) -> bytes:
        return encode(self._weights(tensors), self.config)

    def _error(self, tensor: QuantizedTensor) -> float:
        """The relative error of the weights that the file decodes to."""
        values = torch.from_numpy(rounded_codebook(tensor, self.config).values).to(tensor.dtype).double()
        square = 0.0
        weights = self.checkpoint[tensor.name].reshape(-1)
        for w, index in zip(weights.split(_CHUNK), tensor.indices.split(_CHUNK), strict=True):
            square += float((values[index.int()] - w.double()).square().sum())
        cells = self.cells[tensor.name]
        return math.sqrt(square / cells.n) / cells.rms if cells.rms else 0.0


def _border(rising: Callable[[float], float], limit: float) -> tuple[float, float]:
    """Two widths close together: the function is at most `limit` at the first and above it at the second, if ever."""
    below, above = WIDTHS
    for _ in range(HALVINGS):
        middle = math.sqrt(below * above)
        below, above = (middle, above) if rising(middle) <= limit else (below, middle)
    return below, above
