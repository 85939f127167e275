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
    assert 0.98 * limit <= size(trimmed.quantized) <= limit
    assert trimmed.messages == ["unchanged"]


def test_what_fits_is_unchanged_and_what_cannot_fit_is_as_small_as_possible() -> None:
    cuts = Cuts(WEIGHTS, CURVATURES)
    assert trim_to_bytes(cuts, size(WEIGHTS), unchanged, size).quantized is WEIGHTS
    assert trim_to_bytes(cuts, 10, unchanged, size).quantized.n_nonzero == 0


def test_the_simplified_network_is_what_counts() -> None:
    """Here simplifying always takes half of the bytes."""
    limit = size(WEIGHTS) // 3
    trimmed = trim_to_bytes(Cuts(WEIGHTS, CURVATURES), limit, unchanged, lambda q: size(q) // 2)
    assert 0.98 * limit <= size(trimmed.quantized) // 2 <= limit


def error(quantized: QuantizedWeights) -> float:
    """The share of weights that are zeroed."""
    return 1 - quantized.n_nonzero / WEIGHTS.n_nonzero


@pytest.mark.parametrize("limit", [0.001, 0.5, 1.0])
def test_trimmed_to_an_error_is_within_the_limit_and_uses_it(limit: float) -> None:
    trimmed = trim_to_error(Cuts(WEIGHTS, CURVATURES), lambda q: error(q) <= limit, unchanged)
    assert limit - 0.05 <= error(trimmed.quantized) <= limit
    assert trimmed.messages == ["unchanged"]


def test_what_does_not_fit_from_the_start_is_not_cut() -> None:
    assert trim_to_error(Cuts(WEIGHTS, CURVATURES), lambda q: False, unchanged).quantized is WEIGHTS


def test_what_simplifying_lifts_above_the_limit_is_cut_less() -> None:
    def fits(quantized: QuantizedWeights) -> bool:
        return error(quantized) + (0.01 if "lifted" in quantized.rest else 0.0) <= 0.3

    def lift(quantized: QuantizedWeights) -> Simplified:
        return Simplified(QuantizedWeights(quantized.shared, {"lifted": torch.zeros(1)}, {}), [], {})

    trimmed = trim_to_error(Cuts(WEIGHTS, CURVATURES), fits, lift)
    assert fits(trimmed.quantized)
    assert error(trimmed.quantized) > 0.1


def test_weights_of_infinite_curvature_are_never_cut() -> None:
    """Nothing is known about a weight that is not trained."""
    curvatures = {**CURVATURES, "c": torch.full((40,), torch.inf)}
    cuts = Cuts(WEIGHTS, curvatures)
    left = cuts.saving(cuts.total)
    assert [t.n_nonzero for t in left.shared] == [0, 0, WEIGHTS.shared[2].n_nonzero]
