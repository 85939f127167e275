"""Cuts of a quantized network, and the searches over them, with simple sizes and errors."""

from __future__ import annotations

import pytest
import torch

from samples import shared
from softshare.codec import encode
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.symmetries import Simplified
from softshare.target.trim import Cuts, trim_to_bytes, trim_to_error
from softshare.train.zeroing import cost_and_bits

WEIGHTS = QuantizedWeights(
    (shared("a", (60, 50), seed=1), shared("b", (0, 3), seed=2), shared("c", (40,), seed=3)), {}, {}
)
CURVATURES = {t.name: torch.rand(t.shape, generator=torch.Generator().manual_seed(4)) for t in WEIGHTS.shared}


def size(quantized: QuantizedWeights) -> int:
    return len(encode(quantized))


def unchanged(quantized: QuantizedWeights) -> Simplified:
    return Simplified(quantized, ["unchanged"], {})


def test_the_cheapest_weights_are_zeroed_first_and_no_other_changes() -> None:
    cuts = Cuts(WEIGHTS, CURVATURES)
    cut = cuts.saving(0.3 * cuts.total)
    gone_prices, kept_prices, saved = [], [], 0.0
    for before, after in zip(WEIGHTS.shared, cut.shared, strict=True):
        gone = (before.indices != 0) & (after.indices == 0)
        assert torch.equal(before.indices[~gone], after.indices[~gone])
        if before.indices.numel():
            index = before.indices.long().view(before.shape)
            cost, bits = (t.flatten() for t in cost_and_bits(index, before.codebook, CURVATURES[before.name]))
            gone_prices.append((cost / bits)[gone])
            kept_prices.append((cost / bits)[(after.indices != 0)])
            saved += float(bits[gone].sum())
    assert float(torch.cat(gone_prices).max()) < float(torch.cat(kept_prices).min())
    assert saved == pytest.approx(0.3 * cuts.total, rel=0.01)
    assert cuts.saving(0) is WEIGHTS
    assert cuts.saving(cuts.total).n_nonzero == 0


@pytest.mark.parametrize("share", [0.3, 0.77, 0.99])
def test_trimmed_to_bytes_is_near_the_limit_and_never_above(share: float) -> None:
    limit = int(share * size(WEIGHTS))
    trimmed = trim_to_bytes(Cuts(WEIGHTS, CURVATURES), limit, unchanged, size)
    assert 0.98 * limit <= size(trimmed.simplified.quantized) <= limit
    assert trimmed.reached == size(trimmed.simplified.quantized)
    assert trimmed.simplified.messages == ["unchanged"]


def test_what_fits_is_unchanged_and_what_cannot_fit_is_as_small_as_possible() -> None:
    cuts = Cuts(WEIGHTS, CURVATURES)
    assert trim_to_bytes(cuts, size(WEIGHTS), unchanged, size).simplified.quantized is WEIGHTS
    smallest = trim_to_bytes(cuts, 10, unchanged, size)
    assert smallest.simplified.quantized.n_nonzero == 0
    assert smallest.reached > 10


def test_the_simplified_network_is_what_counts() -> None:
    """Here simplifying always takes half of the bytes."""
    limit = size(WEIGHTS) // 3
    trimmed = trim_to_bytes(Cuts(WEIGHTS, CURVATURES), limit, unchanged, lambda q: size(q) // 2)
    assert 0.98 * limit <= size(trimmed.simplified.quantized) // 2 <= limit


@pytest.mark.parametrize("limit", [0.001, 0.5, 1.0])
def test_trimmed_to_an_error_is_within_the_limit_and_uses_it(limit: float) -> None:
    """The error here is the share of weights that are zeroed."""
    whole = WEIGHTS.n_nonzero
    trimmed = trim_to_error(Cuts(WEIGHTS, CURVATURES), limit, unchanged, lambda q: 1 - q.n_nonzero / whole)
    assert limit - 0.05 <= trimmed.reached <= limit
    assert trimmed.reached == 1 - trimmed.simplified.quantized.n_nonzero / whole


def test_an_error_above_the_limit_from_the_start_is_reported_uncut() -> None:
    trimmed = trim_to_error(Cuts(WEIGHTS, CURVATURES), 1.0, unchanged, lambda q: 2.0)
    assert trimmed.simplified.quantized is WEIGHTS
    assert trimmed.reached == 2.0


def test_what_simplifying_lifts_above_the_limit_is_cut_less() -> None:
    whole = WEIGHTS.n_nonzero

    def error(quantized: QuantizedWeights) -> float:
        lifted = 0.01 if "lifted" in quantized.rest else 0.0
        return 1 - quantized.n_nonzero / whole + lifted

    def lift(quantized: QuantizedWeights) -> Simplified:
        return Simplified(QuantizedWeights(quantized.shared, {"lifted": torch.zeros(1)}, {}), [], {})

    trimmed = trim_to_error(Cuts(WEIGHTS, CURVATURES), 0.3, lift, error)
    assert 0.1 < trimmed.reached <= 0.3
