"""A checkpoint that is being quantized: its weights, checked, and the file that its tensors become."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from softshare._util.work_stages import QUIET, Stages
from softshare.codec import shared_section, write_to
from softshare.codec.base import restored
from softshare.codec.shared_section import Section, rounded_codebook
from softshare.config import EncodeConfig
from softshare.datafree.deltas import Delta
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.stored import FileBytes, Sections, without_indices
from softshare.errors import ModelError
from softshare.network.checkpoint import Checkpoint, magnitudes_of
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

_CHUNK = 1 << 20  # weights at a time


class CodedTensor(NamedTuple):
    """A tensor whose section is coded: without its indices, so that it takes no memory."""

    tensor: QuantizedTensor
    bits: int  # of its section
    error: float  # of the weights that it decodes to, relative to their root mean square


class Source:
    """Shared tensors are read each time that they are asked for. The rest is copied.

    If the file is to describe differences from a base, the weights of a tensor are its differences.
    """

    def __init__(
        self, checkpoint: Checkpoint, config: EncodeConfig, delta: Delta | None = None, stages: Stages = QUIET
    ) -> None:
        self.delta, self.config, self.stages = delta, config, stages
        self.whole = checkpoint
        self.checkpoint = checkpoint if delta is None else delta.changed(checkpoint)
        self.rest = {name: self.checkpoint[name].clone() for name in self.checkpoint.rest}

    @property
    def n_weights(self) -> int:
        """Values of all tensors of the checkpoint."""
        return sum(kind.numel() for kind in self.whole.kinds.values())

    def start(self, stage: str, names: Iterable[str]) -> None:
        """A stage of the work that takes each of these tensors once."""
        self.stages.start(stage, "tensors", [self.whole.kinds[name].numel() for name in names])

    def checked(self, name: str) -> Tensor:
        """A shared tensor, if float32 can hold its weights."""
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
        return tensor

    def is_difference(self, name: str) -> bool:
        return self.delta is not None and name in self.delta.differing

    def magnitudes(self, name: str) -> str | None:
        """As `magnitudes_of`. A difference may be 0: the norm divides the sum."""
        return None if self.is_difference(name) else magnitudes_of(name, self.whole.tensors)

    def scale(self, name: str) -> Tensor:
        """The weights that an error in this tensor counts against: its own, or those that it is a difference of."""
        return self.whole[name] if self.is_difference(name) else self.checked(name)

    def zeros(self, name: str) -> QuantizedTensor:
        kind = self.whole.kinds[name]
        zeros = torch.zeros(1, dtype=torch.uint8).expand(kind.numel())
        return QuantizedTensor(name, tuple(kind.shape), kind.dtype, zeros, torch.zeros(1))

    def code(self, tensor: QuantizedTensor, sections: Sections, error: float | None = None) -> CodedTensor:
        """Code the tensor's section, and add it to the others."""
        section = shared_section.encode(tensor, self.config)
        sections.put(tensor.name, section)
        self.stages.done(tensor.indices.numel())
        return CodedTensor(without_indices(tensor), 8 * len(section), self.error(tensor) if error is None else error)

    def encoded(
        self,
        tensors: Sequence[QuantizedTensor],
        rest: Mapping[str, Tensor] | None = None,  # by default, the tensors that are not shared
        coded: Mapping[str, Section] = MappingProxyType({}),  # sections that are encoded already
    ) -> FileBytes:
        file = FileBytes()
        write_to(file.file, self._weights(tensors, rest), self.config, coded)
        return file

    def fitted(self, coded: Sequence[CodedTensor], file: FileBytes) -> FittedWeights:
        kinds = self.whole.kinds
        return FittedWeights(
            {c.tensor.name: c.error for c in coded},
            self.n_weights,
            sum(kinds[c.tensor.name].numel() for c in coded),
            sum(kind.numel() * kind.element_size() for kind in kinds.values()),
            file,
        )

    def _weights(self, tensors: Sequence[QuantizedTensor], rest: Mapping[str, Tensor] | None) -> QuantizedWeights:
        kept = self.rest if rest is None else rest
        names = {t.name for t in tensors} | kept.keys()
        order = tuple(n for n in self.checkpoint.tensors if n in names)
        own = tuple(dataclasses.replace(t, dtype=self.whole.kinds[t.name].dtype) for t in tensors)
        digest = b"" if self.delta is None else self.delta.base.digest
        alone = () if self.delta is None else tuple(t.name for t in tensors if t.name in self.delta.alone)
        return QuantizedWeights(own, kept, self.checkpoint.tied, order, self.checkpoint.dropped, digest, alone)

    def error(self, tensor: QuantizedTensor) -> float:
        """The error of the weights that the file decodes to, relative to their root mean square."""
        name, dtype = tensor.name, self.whole.kinds[tensor.name].dtype
        values = torch.from_numpy(rounded_codebook(tensor, self.config).values)
        rounded = dataclasses.replace(tensor, codebook=values, dtype=dtype)
        dense = restored(rounded, self.delta.base[name]) if self.delta and self.is_difference(name) else rounded.dense()
        square = whole = 0.0
        for decoded, weights in zip(
            dense.reshape(-1).split(_CHUNK), self.whole[name].reshape(-1).split(_CHUNK), strict=True
        ):
            square += float((decoded.double() - weights.double()).square().sum())
            whole += float(weights.double().square().sum())
        return math.sqrt(square / whole) if whole else 0.0
