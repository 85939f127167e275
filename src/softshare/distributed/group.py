"""A group of processes that hold one network together. A process alone is a group too, and its messages cost nothing.

All processes of a group must make the same calls in the same order.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from softshare.errors import ConfigError


class Group:
    """A process group of `torch.distributed`, or this process alone."""

    def __init__(self, processes: Any = None) -> None:
        self._processes = processes
        self.rank = 0 if processes is None else dist.get_rank(processes)
        self.size = 1 if processes is None else dist.get_world_size(processes)
        self.first_rank = 0 if processes is None else dist.get_global_rank(processes, 0)
        self.n_sent = 0  # bytes of the messages so far, each counted once

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place: the same bits in each."""
        return self._reduce_(values, dist.ReduceOp.SUM)

    def highest_(self, values: Tensor) -> Tensor:
        return self._reduce_(values, dist.ReduceOp.MAX)

    def _reduce_(self, values: Tensor, operation: Any) -> Tensor:
        if self.size > 1:
            sent = values.to(self._device_for(values)).contiguous()
            self.n_sent += sent.nbytes
            dist.all_reduce(sent, operation, group=self._processes)
            if sent is not values:
                values.copy_(sent)
        return values

    def total(self, value: float) -> float:
        return float(self.sum_(torch.tensor(value, dtype=torch.float64))) if self.size > 1 else value

    def mean(self, value: float) -> float:
        return self.total(value) / self.size

    def send_(self, values: Tensor, source: int) -> Tensor:
        """The values of one process for all, in place."""
        if self.size > 1 and values.numel():
            sent = values.detach().to(self._device_for(values)).contiguous()
            self.n_sent += sent.nbytes
            dist.broadcast(sent.reshape(-1).view(torch.uint8), group=self._processes, group_src=source)
            if sent.data_ptr() != values.data_ptr():
                values.copy_(sent)
        return values

    def collect_(self, values: Tensor, owner: int) -> Tensor:
        """The sum over all processes for one of them, in place. The values of the others are undefined afterwards."""
        if self.size > 1:
            sent = values.to(self._device_for(values)).contiguous()
            self.n_sent += sent.nbytes
            dist.reduce(sent, group=self._processes, group_dst=owner)
            if sent is not values:
                values.copy_(sent)
        return values

    def first(self, value: Any, source: int = 0) -> Any:
        """What one process has, plain values and tensors, for all. By default it is that of the first."""
        if self.size == 1:
            return value
        data = self.first_bytes(_packed(value) if self.rank == source else b"", source)
        return value if self.rank == source else _unpacked(data)

    def first_bytes(self, data: bytes, source: int = 0) -> bytes:
        if self.size == 1:
            return data
        n_bytes = int(self.send_(torch.tensor(len(data)), source))
        buffer = as_tensor(data) if self.rank == source else torch.empty(n_bytes, dtype=torch.uint8)
        self.send_(buffer, source)
        return data if self.rank == source else buffer.numpy().tobytes()

    def each(self, value: Any) -> list[Any]:
        """What each process has, plain values and tensors, for all."""
        return [self.first(value, source) for source in range(self.size)]

    def require_same(self, what: str, value: Any) -> None:
        """Raise unless all processes have an equal value."""
        found = self.each(value)
        if any(other != found[0] for other in found):
            raise ConfigError(f"{what}: expected the same on each of {self.size} processes, got {found}")

    def _device_for(self, values: Tensor) -> torch.device:
        """A backend such as NCCL sends from a GPU alone."""
        if values.device.type == "cpu" and "cpu:" not in str(dist.get_backend_config(self._processes)):
            return torch.device("cuda", torch.cuda.current_device())
        return values.device


ALONE = Group()


def world() -> Group:
    """All processes that torchrun has started, once `torch.distributed` is initialized; else this one alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return ALONE
    return Group(dist.group.WORLD)


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def shared_out(sizes: Sequence[int], n: int) -> list[int]:
    """Which of n processes works on each of some tensors, so that all have about the same work: the largest first."""
    load, owners = [0] * n, [0] * len(sizes)
    for k in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        owners[k] = load.index(min(load))
        load[owners[k]] += max(1, sizes[k])
    return owners
