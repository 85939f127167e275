"""Targets in multiply-adds: counted by hand, trimmed against brute force, and met by a search."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from test_targets import CONFIG, error_of, users_task
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError
from softshare.network.groups import find_groups
from softshare.prior.prior import MixturePrior
from softshare.quantization.quantized import QuantizedWeights
from softshare.route import compress
from softshare.target.macs import Macs, UnitCuts
from softshare.train.first_look import FirstLook, look


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10), nn.ReLU(), nn.Linear(10, 3)
    )


def by_hand(channels: int, units: int) -> int:
    """Of one image of 6 x 6: a kernel of 3 x 3 at 16 places, then two matrices."""
    return 9 * 16 * channels + 16 * channels * units + 3 * units


IMAGES = torch.zeros(8, 1, 6, 6)


def first_of(model: nn.Module, *args: Any) -> FirstLook:
    groups, alone = find_groups(model, args, {})
    return FirstLook(1.0, 0.1, groups=groups, alone=alone, call=(args, {}))


def quantized_of(model: nn.Module) -> QuantizedWeights:
    return MixturePrior(model, ss.PriorConfig(components=8, zero_mixing=0.001)).quantize().quantized


def macs_of(model: nn.Module, ratio: float) -> Macs:
    return Macs(model, first_of(model, IMAGES), ss.MaxMacs(ratio), quantized_of(model))


def cuts_of(model: nn.Module, macs: Macs) -> UnitCuts:
    curvatures = {t.name: torch.ones(t.shape) for t in quantized_of(model).shared}
    return UnitCuts(quantized_of(model), curvatures, first_of(model, IMAGES).groups, macs.uses)


def test_multiply_adds_are_those_of_the_shrunk_network() -> None:
    model = network()
    macs, weights = macs_of(model, 0.5), quantized_of(model)
    assert macs.ratio(weights) == 1
    assert macs.uses == {"0.weight": 2 * 16, "4.weight": 2, "6.weight": 2}  # two images
    for t in weights.shared:
        if t.name == "4.weight":
            t.indices.view(10, 6, 16)[:, [1, 3]] = 0
        if t.name == "6.weight":
            t.indices.view(3, 10)[:, :4] = 0
    assert macs.ratio(weights) == pytest.approx(by_hand(4, 6) / by_hand(6, 10))


def test_the_cheapest_units_go_first_and_one_of_each_group_stays() -> None:
    """Cheap is a small sum of squares of the weights that read a unit, for the multiply-adds that it saves."""
    model = network()
    macs = macs_of(model, 0.5)
    cuts = cuts_of(model, macs)
    before = quantized_of(model).state_dict()
    prices = [(float(before["4.weight"].view(10, 6, 16)[:, k].square().sum()) / 2 / (9 * 32 + 160 * 2), "channel", k)
              for k in range(6)]  # fmt: skip
    prices += [(float(before["6.weight"][:, k].square().sum()) / 2 / (96 * 2 + 3 * 2), "unit", k) for k in range(10)]
    kept = {max(p for p in prices if p[1] == kind) for kind in ("channel", "unit")}
    order = [p for p in sorted(prices) if p not in kept]
    assert len(cuts) == len(order) == 14
    for n in (1, 5, 14):
        state = cuts.without(n).state_dict()
        gone = {(kind, k) for _, kind, k in order[:n]}
        channels = {("channel", k) for k in range(6) if not state["0.weight"][k].any()}
        units = {("unit", k) for k in range(10) if not state["4.weight"][k].any()}
        assert channels | units == gone
        for _, k in channels:
            assert not state["4.weight"].view(10, 6, 16)[:, k].any()
            assert not state["1.weight"][k]
    assert macs.ratio(cuts.without(14)) == pytest.approx(by_hand(1, 1) / by_hand(6, 10))


@pytest.mark.parametrize("limit", [0.9, 0.3])
def test_as_few_units_go_as_it_takes(limit: float) -> None:
    model = network()
    macs = macs_of(model, limit)
    cuts = cuts_of(model, macs)
    fewest = next(n for n in range(15) if macs.ratio(cuts.without(n)) <= limit)
    found, expected = macs.trim(cuts).state_dict(), cuts.without(fewest).state_dict()
    assert fewest > 0
    assert all(torch.equal(t, expected[name]) for name, t in found.items())


def test_what_fits_already_stays() -> None:
    model = network()
    macs = macs_of(model, 0.5)
    cuts = cuts_of(model, macs)
    small = UnitCuts(cuts.without(10), {t.name: torch.ones(t.shape) for t in cuts.quantized.shared}, [], macs.uses)
    assert macs.trim(small) is small.quantized


def test_what_cannot_be_met_is_refused() -> None:
    model = network()
    least = by_hand(1, 1) / by_hand(6, 10)
    macs_of(model, least + 1e-6)
    with pytest.raises(ConfigError, match=r"expected a share of at least 0\.0"):
        macs_of(model, least - 1e-3)
    alone = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="expected a network with units that can be removed, found none"):
        Macs(alone, first_of(alone, torch.zeros(2, 4)), ss.MaxMacs(0.5), quantized_of(alone))
    with pytest.raises(ConfigError, match="its loss or its evaluation does not call it"):
        Macs(model, FirstLook(1.0, 0.1), ss.MaxMacs(0.5), quantized_of(model))


def test_the_look_keeps_a_call_only_if_units_are_needed() -> None:
    task = users_task()
    prior = MixturePrior(copy.deepcopy(task.model), CONFIG.prior)
    assert look(task, prior, 0).call is None
    found = look(task, prior, 0, needs_groups=True)
    assert found.call is not None
    assert isinstance(found.call[0][0], Tensor)
    assert found.groups


def task_with_a_test(task: ss.Task) -> ss.Task:
    return dataclasses.replace(task, test=task.evaluate)


@pytest.mark.parametrize("share", [pytest.param(0.6, marks=pytest.mark.slow), 0.25])
def test_a_share_of_the_multiply_adds_is_met(share: float, tmp_path: Path) -> None:
    task = users_task()
    compressed = compress(task, CONFIG.override(epochs=4), target=ss.MaxMacs(share))
    outcome = compressed.outcome
    assert outcome is not None
    assert outcome.macs_ratio is not None
    assert outcome.met
    assert outcome.reached == outcome.macs_ratio <= share
    assert outcome.after == error_of(task, compressed, tmp_path)
    model = copy.deepcopy(task.model)
    ss.load_into_(model, tmp_path / "model.sws")
    result = ss.measure(task_with_a_test(task), compressed, CONFIG.override(epochs=4))
    assert result.speed is not None
    assert result.speed.macs_ratio == pytest.approx(outcome.macs_ratio)
    assert {timing.batch_size for timing in result.speed.timings} == {1, 32}
    small = ss.shrink(model, inputs=(torch.zeros(2, 1, 8, 8),))
    channels, units = small.get_parameter("0.weight").shape[0], small.get_parameter("4.weight").shape[0]
    needs = 9 * 36 * channels + 36 * channels * units + 3 * units  # at 36 places
    assert needs / (9 * 36 * 8 + 36 * 8 * 32 + 3 * 32) == pytest.approx(outcome.macs_ratio)


def test_a_network_that_is_not_called_is_refused_before_training() -> None:
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()

    def error(model: Any) -> float:
        return 100 * float((model["body"](x).argmax(1) != y).double().mean())

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model["body"](batch[0]), batch[1])

    task = ss.Task(nn.ModuleDict({"body": nn.Linear(6, 2)}), [(x, y)], loss, error, 64)
    with pytest.raises(ConfigError, match="MaxMacs: expected a network with units"):
        compress(task, CONFIG, target=ss.MaxMacs(0.5))
