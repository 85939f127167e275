"""Merging components: the paper's equations, the threshold, and what merging preserves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from softshare.config import MergeConfig
from softshare.prior.mixture import Mixture
from softshare.quantization.merge import divergences, merge_groups, spread

LAW = settings(max_examples=50)
HUGE = MergeConfig(1e300)


def mixture(*components: tuple[float, float, float], dtype: torch.dtype = torch.float64) -> Mixture:
    """A mixture from rows of mixing, mean, variance."""
    mixing, mean, var = torch.tensor(components, dtype=torch.float64).T
    return Mixture(mixing.log().to(dtype), mean.to(dtype), var.log().to(dtype))


def rows(m: Mixture) -> list[tuple[float, float, float]]:
    return list(zip(m.mixing.tolist(), m.mean.tolist(), m.log_var.exp().tolist(), strict=True))


def assert_rows(m: Mixture, *expected: tuple[float, float, float], rel: float = 1e-12) -> None:
    assert len(m) == len(expected)
    for row, truth in zip(rows(m), expected, strict=True):
        assert row == pytest.approx(truth, rel=rel)


def symmetric_kl(m: Mixture) -> Tensor:
    """The truth, by torch."""
    std = torch.exp(0.5 * m.log_var)
    one, other = Normal(m.mean[:, None], std[:, None]), Normal(m.mean, std)
    return 0.5 * (kl_divergence(one, other) + kl_divergence(other, one))


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    n = draw(st.integers(1, 7))
    logits = torch.tensor(draw(st.lists(st.floats(-6, 6), min_size=n, max_size=n)), dtype=torch.float64)
    mean = torch.tensor([0.0, *draw(st.lists(st.floats(-2, 2), min_size=n - 1, max_size=n - 1))], dtype=torch.float64)
    log_var = torch.tensor(draw(st.lists(st.floats(-10, 2), min_size=n, max_size=n)), dtype=torch.float64)
    return Mixture(torch.log_softmax(logits, 0), mean, log_var)


# Divergences


@LAW
@given(mixtures())
def test_divergences_are_torchs(m: Mixture) -> None:
    torch.testing.assert_close(divergences(m), symmetric_kl(m), rtol=1e-8, atol=1e-12)


def test_divergences_by_hand() -> None:
    """N(0, 1) and N(1, 4): KL = (log 4 + (1 + 1)/4 - 1)/2 one way, (-log 4 + (4 + 1)/1 - 1)/2 the other."""
    table = divergences(mixture((0.5, 0, 1), (0.5, 1, 4)))
    torch.testing.assert_close(table, torch.tensor([[0, 0.875], [0.875, 0]], dtype=torch.float64))


# The paper's equations


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_mixing_adds_and_mean_and_variance_are_weighted_averages(order: tuple[int, ...]) -> None:
    """Averages of precisions, standard deviations or log-variances give 16/7, 49/16 and 4^(3/4) for the variance."""
    given_rows = ((0.6, 0.0, 1.0), (0.1, 10.0, 1.0), (0.3, 11.0, 4.0))
    merged = merge_groups(mixture(*(given_rows[k] for k in order)), MergeConfig(1.0))[0]
    assert_rows(merged, (0.6, 0.0, 1.0), (0.4, (0.1 * 10 + 0.3 * 11) / 0.4, (0.1 * 1 + 0.3 * 4) / 0.4))
    assert rows(merged)[1][2] == pytest.approx(3.25)


@pytest.mark.parametrize(("side", "zero"), [(-1, 0.7), (1, 0.2)])
def test_a_merge_with_zero_keeps_mean_0(side: int, zero: float) -> None:
    """On either side of zero, and whichever of the two components has more mixing."""
    merged = merge_groups(mixture((zero, 0.0, 0.01), (1 - zero, side * 0.05, 0.02)), MergeConfig(1.0))[0]
    assert merged.mean.tolist() == [0.0]
    assert_rows(merged, (1.0, 0.0, zero * 0.01 + (1 - zero) * 0.02))


def test_a_component_merged_before_may_merge_with_zero_after() -> None:
    """The free pair is the closer one. Its average is then close to zero."""
    m = mixture((0.5, 0.0, 1.0), (0.25, 0.5, 1.0), (0.25, -0.3, 1.0), (1e-6, 50.0, 1.0))
    assert_rows(merge_groups(m, MergeConfig(0.5))[0], (1.0, 0.0, 1.0), (1e-6, 50.0, 1.0))


def test_the_closest_pair_goes_first() -> None:
    """With variance 1 the divergence is distance^2 / 2: 0.005 (A, B), 0.01125 (B, C), and 0.02 from AB's mean to C.

    Merging B and C first would leave 1.0 and 1.175. Merging all pairs below the threshold at once would leave one.
    """
    m = mixture((0.7, 0.0, 1.0), (0.1, 1.0, 1.0), (0.1, 1.1, 1.0), (0.1, 1.25, 1.0))
    assert_rows(merge_groups(m, MergeConfig(0.015))[0], (0.7, 0.0, 1.0), (0.2, 1.05, 1.0), (0.1, 1.25, 1.0))


def test_the_first_merge_changes_what_the_next_sees() -> None:
    """A and C are too far apart. But AB's mean is within reach of C, because B's larger mixing pulls it there."""
    m = mixture((0.7, 0.0, 1.0), (0.01, 1.0, 1.0), (0.19, 1.1, 1.0), (0.1, 1.25, 1.0))
    mean = (0.01 * 1.0 + 0.19 * 1.1 + 0.1 * 1.25) / 0.3
    assert_rows(merge_groups(m, MergeConfig(0.015))[0], (0.7, 0.0, 1.0), (0.3, mean, 1.0))


# The threshold


def test_a_divergence_equal_to_the_threshold_does_not_merge() -> None:
    m = mixture((0.5, 0.0, 1.0), (0.5, 1.0, 1.0))
    assert len(merge_groups(m, MergeConfig(0.5))[0]) == 2
    assert len(merge_groups(m, MergeConfig(0.500001))[0]) == 1


def test_at_threshold_0_even_equal_components_stay() -> None:
    """A divergence of 0 is not below 0, so nothing merges. Quantizing turns equal means into one value anyway."""
    m = mixture((0.5, 0.0, 0.01), (0.3, 1.0, 0.04), (0.2, 1.0, 0.04))
    assert_rows(merge_groups(m, MergeConfig(0.0))[0], *rows(m))
    assert_rows(merge_groups(m, MergeConfig(1e-12))[0], (0.5, 0.0, 0.01), (0.5, 1.0, 0.04))


@LAW
@given(st.floats(-10, 2), st.integers(-9, 9))
def test_at_threshold_0_nearly_equal_components_stay(log_var: float, ulps: int) -> None:
    """Rounding makes no divergence negative."""
    both = torch.tensor([4.0, log_var, log_var * (1 + ulps * 2.0**-52)], dtype=torch.float64)
    m = Mixture(torch.tensor([0.5, 0.25, 0.25]).double().log(), torch.tensor([0.0, 1.0, 1.0]).double(), both)
    assert float(divergences(m).min()) >= 0
    assert len(merge_groups(m, MergeConfig(0.0))[0]) == 3


@LAW
@given(mixtures())
def test_all_merge_into_zero_below_a_huge_threshold(m: Mixture) -> None:
    merged = merge_groups(m, HUGE)[0]
    assert_rows(merged, (1.0, 0.0, float((m.mixing * m.log_var.exp()).sum())), rel=1e-9)


# Laws


@LAW
@given(mixtures(), st.sampled_from([1e-3, 0.01, 0.3, 5.0]))
def test_what_merging_preserves(m: Mixture, threshold: float) -> None:
    """Total mixing and mean variance stay. All pairs left are at or above the threshold. Zero is first."""
    merged = merge_groups(m, MergeConfig(threshold))[0]
    assert float(merged.mixing.sum()) == pytest.approx(1, rel=1e-9)
    before, after = (float((x.mixing * x.log_var.exp()).sum()) for x in (m, merged))
    assert after == pytest.approx(before, rel=1e-9)
    apart = symmetric_kl(merged)[~torch.eye(len(merged), dtype=torch.bool)]
    assert bool((apart >= threshold * (1 - 1e-6)).all())
    assert 1 <= len(merged) <= len(m)
    assert float(merged.mean[0]) == 0
    assert float(merged.mixing[0]) >= float(m.mixing[0]) * (1 - 1e-9)


@LAW
@given(mixtures(), st.floats(0, 10))
def test_groups_are_what_was_merged(m: Mixture, threshold: float) -> None:
    merged, groups = merge_groups(m, MergeConfig(threshold))
    assert sorted(k for group in groups for k in group) == list(range(len(m)))
    assert [min(group) for group in groups] == [group[0] for group in groups]
    sums = torch.stack([m.mixing[group].sum() for group in groups])
    torch.testing.assert_close(merged.mixing, sums)


@LAW
@given(mixtures())
def test_merging_twice_is_merging_once(m: Mixture) -> None:
    once = merge_groups(m, MergeConfig(0.1))[0]
    again = merge_groups(once, MergeConfig(0.1))[0]
    assert_rows(again, *rows(once), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_given_mixture_is_not_changed(dtype: torch.dtype) -> None:
    m = mixture((0.5, 0.0, 1.0), (0.2, 5.0, 1.0), (0.1, 5.1, 1.5), (0.2, 0.5, 1.0), dtype=dtype)
    before = [t.clone() for t in (m.log_mixing, m.mean, m.log_var)]
    merged = merge_groups(m, MergeConfig(0.5))[0]
    assert len(merged) == 2
    assert all(torch.equal(a, b) for a, b in zip(before, (m.log_mixing, m.mean, m.log_var), strict=True))
    assert {t.dtype for t in (merged.log_mixing, merged.mean, merged.log_var)} == {dtype}


def test_nothing_to_merge_gives_the_same_values_and_no_gradient() -> None:
    m = mixture((0.9, 0.0, 1e-4), (0.1, 1.0, 1e-4), dtype=torch.float32)
    for t in (m.log_mixing, m.mean, m.log_var):
        t.requires_grad_()
    merged = merge_groups(m)[0]
    assert not any(t.requires_grad for t in (merged.log_mixing, merged.mean, merged.log_var))
    torch.testing.assert_close(merged.log_mixing, m.log_mixing.detach())
    assert torch.equal(merged.mean, m.mean.detach())
    torch.testing.assert_close(merged.log_var, m.log_var.detach())


def test_components_of_hardly_any_mixing_merge() -> None:
    """exp(-200) is 0 in float32. The share of each in the pair is still one half."""
    m = Mixture(torch.tensor([0.0, -200.0, -200.0]), torch.tensor([0.0, 5.0, 6.0]), torch.tensor([0.0, 2.0, 2.0]))
    merged = merge_groups(m, MergeConfig(0.5))[0]
    torch.testing.assert_close(merged.mean, torch.tensor([0.0, 5.5]))
    torch.testing.assert_close(merged.log_var, torch.tensor([0.0, 2.0]))


def test_narrow_components_merge() -> None:
    """exp(-120) is 0 in float32, but the variances must not be lost."""
    m = Mixture(torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.0, 5.0, 5.0]), torch.tensor([0.0, -120, -120]))
    torch.testing.assert_close(merge_groups(m)[0].log_var, torch.tensor([0.0, -120.0]))


def test_each_component_gets_the_value_of_its_merged_one() -> None:
    values = torch.tensor([0.0, 2.0, -1.0])
    assert spread(values, [[0, 3], [1], [2, 5, 4]]).tolist() == [0.0, 2.0, -1.0, 0.0, -1.0, -1.0]
