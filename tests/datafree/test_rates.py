"""Where bits go without data: scales of convolutions, and the last layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.datafree.rates import LAST_FINER, part_of, relatives


def test_convolutions_beside_batch_norm_have_no_scales() -> None:
    weight = torch.randn(64, 32, 3, 3) * torch.rand(64, 32, 3, 3)
    alone, normed = part_of("w", weight), part_of("w", weight, normed=True)
    assert alone.rows is not None
    assert alone.columns is not None
    assert normed.rows is normed.columns is None
    assert normed.scalable
    assert part_of("w", weight[:, :, :1, :1], normed=True).rows is not None  # one tap: a matrix
    net = nn.Sequential(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.Flatten(), nn.Linear(64, 64))
    shared = {t.name: t for t in ss.quantize(net, bits=4).quantized.shared}
    assert shared["0.weight"].row_scales is shared["0.weight"].column_scales is None
    assert shared["3.weight"].row_scales is not None


def test_a_small_last_layer_is_finer() -> None:
    sizes = {"a": 40_000, "b": 40_000, "c": 4_000}
    plain = {name: n**0.25 for name, n in sizes.items()}
    assert relatives(sizes, 1.0)["c"] == pytest.approx(plain["c"] / LAST_FINER)
    assert relatives(sizes | {"c": 40_000}, 1.0)["c"] == pytest.approx(40_000**0.25)  # too large
    assert relatives({"b": 40_000, "c": 4_000, "embedding": 90_000}, 1.0)["c"] < plain["c"] / 2  # a table is no layer
