from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from paths import ROOT
from softshare.config import Beta, CompressConfig, Dirichlet, Gamma, Range
from softshare.errors import ConfigError
from softshare.tune.space import require_inside, search_space, values_in, with_values

OURS = [
    "components",
    "width",
    "lr_means",
    "lr_log_vars",
    "lr_mixing",
    "steps",
    "tau",
    "tau_warmup",
    "lr_weights",
    "hard_from",
    "zeroing",
]
PAPER = [
    "components",
    "init_std",
    "mixing_prior.free",
    "mixing_prior.count",
    "zero_precision_prior.std",
    "zero_precision_prior.strength",
    "free_precision_prior.std",
    "free_precision_prior.strength",
    "lr_means",
    "lr_log_vars",
    "lr_mixing",
    "epochs",
    "tau",
    "tau_warmup",
    "lr_weights",
]
BASES = [CompressConfig(), CompressConfig.paper()]


def test_ours_and_the_papers_settings() -> None:
    assert list(search_space(CompressConfig())) == OURS
    assert list(search_space(CompressConfig.paper())) == PAPER


def test_the_papers_13_are_left_where_warm_up_and_epochs_are_held() -> None:
    assert len(search_space(CompressConfig.paper(), held=["tau_warmup", "epochs"])) == 13


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"width": None}, {"width"}),
        ({"hard_from": 1.0}, {"hard_from", "zeroing"}),
        ({"zeroing": 0.0}, {"zeroing"}),
        ({"epochs": 30}, {"steps"}),
    ],
    ids=["width", "hard_from", "zeroing", "steps"],
)
def test_what_is_switched_off_is_not_searched(changes: dict[str, Any], gone: set[str]) -> None:
    assert set(OURS) - set(search_space(CompressConfig().override(**changes))) == gone


def test_what_is_held_is_not_searched() -> None:
    assert set(search_space(CompressConfig(), held=["tau", "width", "seed"])) == set(OURS) - {"tau", "width"}
    assert "mixing_prior.free" not in search_space(CompressConfig.paper(), held=["mixing_prior"])


@pytest.mark.parametrize("base", BASES, ids=["ours", "paper"])
def test_a_bases_own_point_is_in_the_space_and_gives_the_base(base: CompressConfig) -> None:
    space = search_space(base)
    point = values_in(base, space)
    for name, range in space.items():
        assert range.low <= point[name] <= range.high, name
    again = with_values(base, point)
    for name in ("zero_precision_prior", "free_precision_prior", "mixing_prior"):
        ours, theirs = getattr(again.prior, name), getattr(base.prior, name)
        if theirs is not None:
            assert dataclasses.astuple(ours) == pytest.approx(dataclasses.astuple(theirs))
            again = again.override(**{name: theirs})
    assert again == base


@pytest.mark.parametrize("base", BASES, ids=["ours", "paper"])
@pytest.mark.parametrize("end", ["low", "high"])
def test_both_ends_of_every_range_are_valid(base: CompressConfig, end: str) -> None:
    space = search_space(base)
    point = {name: getattr(range, end) for name, range in space.items()}
    config = with_values(base, point)
    assert values_in(config, space) == pytest.approx(point)
    assert isinstance(config.prior.components, int)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (CompressConfig().override(epochs=5), r"\(epochs: expected 15 to 60, got 5\); hold epochs, or"),
        (CompressConfig().override(epochs=61, tau=0.0), r"epochs: .* got 61; tau: .* got 0\); hold epochs, tau, or"),
        (
            CompressConfig.paper().override(zero_precision_prior=Gamma(1, 1)),
            r"zero_precision_prior.std: expected 0.005 to 0.1, got inf; .*; hold zero_precision_prior, or",
        ),
    ],
    ids=["one", "two", "hyper-prior"],
)
def test_a_base_outside_the_ranges_is_refused_unless_that_is_held(base: CompressConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_inside(base, search_space(base))
    require_inside(base, search_space(base, held=["epochs", "tau", "zero_precision_prior"]))


@pytest.mark.parametrize("base", BASES, ids=["ours", "paper"])
@pytest.mark.parametrize("end", ["low", "high"])
def test_the_ends_of_the_ranges_are_inside(base: CompressConfig, end: str) -> None:
    space = {name: range for name, range in search_space(base).items() if "." not in name}
    require_inside(with_values(base, {name: getattr(range, end) for name, range in space.items()}), space)


def test_of_priors_on_the_mixing_a_beta_alone_is_searched() -> None:
    base = CompressConfig().override(mixing_prior=Dirichlet(2.0, 1.0))
    with pytest.raises(ConfigError, match=r"mixing_prior: a search expects a Beta, got Dirichlet.*hold it"):
        search_space(base)
    assert list(search_space(base, held=["mixing_prior"])) == OURS


def test_the_two_numbers_of_a_hyper_prior() -> None:
    values = {"free_precision_prior.std": 0.05, "free_precision_prior.strength": 20.0}
    values |= {"mixing_prior.free": 0.02, "mixing_prior.count": 1002.0}
    prior = with_values(CompressConfig.paper(), values).prior
    assert prior.free_precision_prior == Gamma.from_std(0.05, 20.0)
    assert prior.mixing_prior == Beta(alpha=981.0, beta=21.0)
    assert (
        prior.zero_precision_prior == CompressConfig.paper().prior.zero_precision_prior
    )  # not among the values: as it was


def test_the_documented_ranges_are_the_fields_own() -> None:
    page = (ROOT / "docs" / "tuning.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (\S+) \| (\S+) \| (\w+) \|", page, re.MULTILINE)
    documented = {name: Range(float(low), float(high), log=scale == "logarithmic") for name, low, high, scale in rows}
    assert documented == search_space(CompressConfig.paper()) | search_space(CompressConfig())
