"""What a network costs to run: weights, multiply-adds and measured time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

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


@torch.inference_mode()
def costs(networks: Sequence[nn.Module], inputs: Inputs) -> list[Cost]:
    """In evaluation mode, on these inputs. The networks take turns, so that other load on the machine is shared."""
    networks = [copied(network).eval() for network in networks]
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf, inputs)
    of_one, of_all = (_medians(networks, given) for given in (one, inputs))
    return [
        Cost(sum(p.numel() for p in network.parameters()), _multiply_adds(network, one), alone, whole, _size(inputs))
        for network, alone, whole in zip(networks, of_one, of_all, strict=True)
    ]


def _multiply_adds(network: nn.Module, inputs: Inputs) -> int:
    with FlopCounterMode(display=False) as counter:
        _call(network, inputs)
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
    return network(**inputs) if isinstance(inputs, Mapping) else network(*inputs)


def _size(inputs: Inputs) -> int:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return len(tensors[0]) if tensors else 1
