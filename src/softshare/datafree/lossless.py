"""A checkpoint bit for bit: every tensor is stored as it is, by the code of the rest."""

from __future__ import annotations

from torch import Tensor

from softshare._util.work_stages import QUIET, Stages
from softshare.codec import write_to
from softshare.config import EncodeConfig
from softshare.datafree.deltas import Delta
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.stored import FileBytes
from softshare.network.checkpoint import Checkpoint
from softshare.network.readers.lazy import LazyTensors
from softshare.quantization.quantized import QuantizedWeights


def whole(checkpoint: Checkpoint, delta: Delta | None, config: EncodeConfig, stages: Stages = QUIET) -> FittedWeights:
    """With a base, the tensors that are equal to its own take no bytes. The others are stored whole."""
    listed = checkpoint if delta is None else delta.changed(checkpoint)
    met: set[str] = set()

    def read(name: str) -> Tensor:
        """The writer asks for a tensor twice: for its dtype, and to code it."""
        if name in met:
            stages.done(listed.kinds[name].numel())
        met.add(name)
        return listed[name]

    rest = LazyTensors(listed.kinds, read)
    stages.start("store", "tensors", [kind.numel() for kind in listed.kinds.values() if kind.numel()])
    digest = b"" if delta is None else delta.base.digest
    file = FileBytes()
    write_to(file.file, QuantizedWeights((), rest, listed.tied, base=digest), config)
    kinds = checkpoint.kinds.values()
    n_bytes = sum(kind.numel() * kind.element_size() for kind in kinds)
    return FittedWeights({}, sum(kind.numel() for kind in kinds), 0, n_bytes, file)
