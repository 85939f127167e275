"""What a file holds, by its headers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor. None stands for what only decoding would tell, and for names and shapes that a file omits."""

    name: str | None
    kind: Literal["shared", "rest"]
    shape: tuple[int, ...] | None
    n: int | None
    n_nonzero: int | None  # of a shared tensor
    n_components: int  # values of its codebook, zero included; 0 for the rest
    n_bytes: int

    @property
    def density(self) -> float | None:
        return self.n_nonzero / self.n if self.n and self.n_nonzero is not None else None

    @property
    def bits_per_weight(self) -> float | None:
        return 8 * self.n_bytes / self.n if self.n else None


@dataclass(frozen=True)
class FileInfo:
    version: int
    codec: str
    file_bytes: int
    tensors: tuple[TensorInfo, ...]
    base: str | None = None  # SHA-256 of the checkpoint that the file differs from, in hexadecimal digits
    tied: Mapping[str, str] = field(default_factory=dict)  # other names of stored tensors, each with the stored name

    @property
    def overhead_bytes(self) -> int:
        """Everything outside the tensors' own sections: magic, header, codebooks, checksum."""
        return self.file_bytes - sum(t.n_bytes for t in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        tensors = [
            dataclasses.asdict(t)
            | {"density": t.density, "bits_per_weight": t.bits_per_weight, "share": t.n_bytes / self.file_bytes}
            for t in self.tensors
        ]
        return dataclasses.asdict(self) | {"overhead_bytes": self.overhead_bytes, "tensors": tensors}
