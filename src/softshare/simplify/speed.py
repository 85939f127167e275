"""What a network costs to run: weights, multiply-adds and measured time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from softshare._util.schema import require, require_types
from softshare.network.wrapped import copied

MEASURED_SECONDS, MOST_RUNS = 0.5, 500  # for each network and batch
Inputs = tuple[Any, ...] | Mapping[str, Any]  # of one call, by position or by name


@dataclass(frozen=True)
class Cost:
    """Of one network. Times are medians."""

    n_weights: int
    multiply_adds: int  # for one example
    seconds_for_one: float  # a batch of one example
    seconds: float  # the whole batch
    batch_size: int


@dataclass(frozen=True)
class Timing:
    """Median seconds of the whole network and of the shrunk one, for the same batch."""

    device: str  # of the GPU, or "CPU" and its threads
    batch_size: int
    before: float
    after: float

    def __post_init__(self) -> None:
        require_types(self)
        require(self.batch_size > 0, "batch_size", "a number above 0", self.batch_size)
        for name in ("before", "after"):
            require(0 < getattr(self, name) < math.inf, name, "a time above 0", getattr(self, name))

    @property
    def times(self) -> float:
        """How many times faster the shrunk network is."""
        return self.before / self.after


@dataclass(frozen=True)
class Speed:
    """What shrinking a network saves."""

    weights_before: int
    weights_after: int
    macs_before: int  # multiply-adds for one example
    macs_after: int
    timings: tuple[Timing, ...]

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("weights_before", "macs_before"):
            require(getattr(self, name) > 0, name, "a number above 0", getattr(self, name))
        for name in ("weights_after", "macs_after"):
            require(getattr(self, name) >= 0, name, "a number of at least 0", getattr(self, name))

    @property
    def macs_ratio(self) -> float:
        return self.macs_after / self.macs_before


def speed_of(whole: nn.Module, shrunk: nn.Module, inputs: Inputs) -> Speed:
    """Both networks timed where they are, and on the CPU too if that is a GPU."""
    device, timings = next(whole.parameters()).device, list[Timing]()
    for there in dict.fromkeys((device, torch.device("cpu"))):
        given = tree_map(lambda leaf, to=there: leaf.to(to) if isinstance(leaf, Tensor) else leaf, inputs)
        before, after = costs([copied(network).to(there) for network in (whole, shrunk)], given)
        name = torch.cuda.get_device_name(there) if there.type == "cuda" else _cpu()
        timings.append(Timing(name, 1, before.seconds_for_one, after.seconds_for_one))
        if before.batch_size > 1:
            timings.append(Timing(name, before.batch_size, before.seconds, after.seconds))
    return Speed(before.n_weights, after.n_weights, before.multiply_adds, after.multiply_adds, tuple(timings))


def _cpu() -> str:
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''}"


@torch.inference_mode()
def costs(networks: Sequence[nn.Module], inputs: Inputs) -> list[Cost]:
    """In evaluation mode, on these inputs. The networks take turns, so that other load on the machine is shared."""
    networks = [copied(network).eval() for network in networks]
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf, inputs)
    of_one, of_all = (_medians(networks, given) for given in (one, inputs))
    weights = [sum(p.numel() for p in network.parameters()) for network in networks]
    macs = [multiply_adds(network, *_split(one)) for network in networks]
    return [Cost(*own, _size(inputs)) for own in zip(weights, macs, of_one, of_all, strict=True)]


def multiply_adds(network: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Of one call."""
    from torch.utils.flop_counter import FlopCounterMode  # loads triton, where it is installed

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(*args, **kwargs)
    return int(counter.get_total_flops()) // 2


def _medians(networks: Sequence[nn.Module], inputs: Inputs) -> list[float]:
    taken: list[list[float]] = [[] for _ in networks]
    for network in networks:
        _seconds(network, inputs)  # the first run prepares what others reuse
    until = time.perf_counter() + MEASURED_SECONDS * len(networks)
    while not taken[0] or (time.perf_counter() < until and len(taken[0]) < MOST_RUNS):
        for network, own in zip(networks, taken, strict=True):
            own.append(_seconds(network, inputs))
    return [statistics.median(own) for own in taken]


def _seconds(network: nn.Module, inputs: Inputs) -> float:
    start = time.perf_counter()
    result = _call(network, inputs)
    for leaf in tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.device.type == "cuda":
            torch.cuda.synchronize(leaf.device)
            break
    return time.perf_counter() - start


def _call(network: nn.Module, inputs: Inputs) -> Any:
    args, kwargs = _split(inputs)
    return network(*args, **kwargs)


def _split(inputs: Inputs) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})


def _size(inputs: Inputs) -> int:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return len(tensors[0]) if tensors else 1
