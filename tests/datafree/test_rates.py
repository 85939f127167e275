"""Where bits go without data: scales of convolutions, and the last layer."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.datafree.rates import LAST_FINER, part_of, relatives
from softshare.errors import ModelError


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


@pytest.mark.parametrize("limit", [{"bits": 3}, {"bits": 0.5}, {"max_bytes": 100}, {"weight_error": 0.1}], ids=str)
@pytest.mark.parametrize("with_others", [True, False])
def test_a_matrix_of_zeros_has_no_bits_to_give(limit: dict[str, Any], with_others: bool) -> None:
    """As that of an adapter that nobody has trained yet. It is the last tensor, and no other one is finer for it."""
    state = {"a": torch.randn(20, 20)} if with_others else {}
    state["b"] = torch.zeros(20, 20)
    fitted = ss.quantize(state, **limit)
    decoded = ss.load(io.BytesIO(fitted.data))
    assert torch.equal(decoded["b"], state["b"])
    allowed = limit.get("max_bytes", limit.get("bits", 32) * 100)
    assert fitted.file_bytes <= allowed
    if with_others and limit == {"bits": 3}:
        assert fitted.file_bytes > 0.95 * allowed


@pytest.mark.parametrize("limit", [{"bits": 3}, {"lossless": True}, {}], ids=str)
@pytest.mark.parametrize("shape", [(20, 0), (0,)], ids=str)
def test_a_checkpoint_without_weights_is_refused(shape: tuple[int, ...], limit: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="expected a checkpoint with weights, got one without any"):
        ss.quantize({"a": torch.ones(shape)}, **limit)
