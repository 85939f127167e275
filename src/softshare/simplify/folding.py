"""Fold batch norm: its statistics go into its weights and biases. The function in evaluation mode stays the same.

Batch norm computes (x - mean) / sqrt(variance + eps) * weight + bias. With weight / sqrt(variance + eps) and
bias - mean * weight / sqrt(variance + eps) in place of its weights and biases, all means are 0 and all variances 1,
which a file holds in a few bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softshare.network.chains import NORM_TENSORS, NORMS, foldable
from softshare.network.wrapped import unwrapped
from softshare.quantization.quantized import QuantizedWeights


def fold_norms(model: nn.Module, quantized: QuantizedWeights) -> tuple[QuantizedWeights, list[str], dict[str, str]]:
    """The network with its batch norms folded, their names, and the reasons why others are not. The model is read."""
    rest, folded, left = dict(quantized.rest), list[str](), dict[str, str]()
    for name, module in unwrapped(model).named_modules():
        if not isinstance(module, NORMS):
            continue
        problem = _problem(name, module, quantized)
        values = {} if problem else _folded(name, module.eps, quantized.rest)
        if not all(bool(t.isfinite().all()) for t in values.values()):
            problem = "the folded values would not be finite"
        if problem:
            left[name] = problem
            continue
        folded.append(name)
        rest |= values
    return dataclasses.replace(quantized, rest=rest), folded, left


def _problem(name: str, module: nn.Module, quantized: QuantizedWeights) -> str:
    if not foldable(module):
        return "it has no statistics, weights or biases, or is of a class of its own"
    tensors = [f"{name}.{own}" for own in NORM_TENSORS]
    tied = {*quantized.tied, *quantized.tied.values()}
    if tied.intersection(tensors):
        return "its tensors are tied"
    return "" if all(own in quantized.rest for own in tensors) else "its tensors are shared or dropped"


def _folded(name: str, eps: float, rest: Mapping[str, Tensor]) -> dict[str, Tensor]:
    weight, bias, mean, variance = (rest[f"{name}.{own}"].double() for own in NORM_TENSORS)
    factor = weight / (variance + eps).sqrt()
    values = {
        "weight": factor * (1 + eps) ** 0.5,  # since the variance is 1, and eps is added to it
        "bias": bias - mean * factor,
        "running_mean": torch.zeros_like(mean),
        "running_var": torch.ones_like(variance),
    }
    folded = {f"{name}.{own}": t.to(rest[f"{name}.{own}"].dtype) for own, t in values.items()}
    counter = f"{name}.num_batches_tracked"
    return folded | ({counter: torch.zeros_like(rest[counter])} if counter in rest else {})
