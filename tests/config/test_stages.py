from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import typing
from typing import Any

import pytest
from hypothesis import given, settings

from configs import configs
from paths import ROOT
from softshare.config import (
    Beta,
    CompressConfig,
    Dirichlet,
    EncodeConfig,
    Gamma,
    MergeConfig,
    PriorConfig,
    RetrainConfig,
    Rule,
    SimplifyConfig,
)
from softshare.config.fields import help_of
from softshare.config.settings import Settings
from softshare.errors import ConfigError
from softshare.tune.space import search_space, values_in

STAGES = {
    "prior": PriorConfig,
    "retrain": RetrainConfig,
    "merge": MergeConfig,
    "simplify": SimplifyConfig,
    "encode": EncodeConfig,
}

EVERY_OPTION = CompressConfig(
    prior=PriorConfig(
        mixtures="global",
        components=3,
        init="quantile",
        width=None,
        init_std=0.125,
        zero_mixing=0.5,
        mixing_prior=Beta(900, 0.1),
        zero_precision_prior=None,
        free_precision_prior=Gamma.from_std(0.01, 7),
        lr_means=0.0,
        lr_log_vars=1e-7,
        lr_mixing=3,
        rules=(Rule("*.bias", share=False), Rule("conv?.[ab]*", share=True)),
    ),
    retrain=RetrainConfig(
        epochs=2,
        tau=0.0,
        tau_warmup=1.0,
        lr_weights=1e-9,
        optimizer="sgd",
        weight_decay=1e-4,
        schedule="constant",
        hard_from=0.5,
        zeroing=0.0,
        distill=0.25,
        seed=-5,
    ),
    merge=MergeConfig(merge_threshold=0.0),
    simplify=SimplifyConfig(symmetries=False, fold_batchnorm=True),
    encode=EncodeConfig(codec="han", rest_dtype="bfloat16"),
)


def round_trip(config: CompressConfig) -> CompressConfig:
    return CompressConfig.from_dict(json.loads(json.dumps(config.to_dict())))


def a_dict(**stages: Any) -> dict[str, Any]:
    return {"version": CompressConfig.VERSION, **stages}


# The values


def test_the_paper_configuration_holds_the_papers_values() -> None:
    paper = CompressConfig.paper()
    assert paper.prior.components == 16  # 4.1
    assert paper.prior.init == "range"  # 4.2
    assert paper.retrain.epochs == 40  # 6.2
    assert isinstance(paper.prior.mixing_prior, Beta)  # 6.2, as are the two below
    assert isinstance(paper.prior.zero_precision_prior, Gamma)
    assert isinstance(paper.prior.free_precision_prior, Gamma)
    assert paper.retrain.schedule == "constant"


def test_the_papers_hyperparameters_are_of_the_studys_front() -> None:
    """Trial 22 of docs/tuning/paper, rounded."""
    with (ROOT / "docs/tuning/paper/summary.csv").open(newline="") as file:
        trial = next(row for row in csv.DictReader(file) if row["trial"] == "22")
    assert trial["on_front"] == "True"
    paper = CompressConfig.paper()
    space = search_space(paper, held=["components", "epochs"])  # 16, as in the paper; 40
    for name, value in values_in(paper, space).items():
        assert value == pytest.approx(float(trial[name]), rel=0.13), name


def test_the_paper_configuration_has_nothing_past_the_paper_but_a_warm_up() -> None:
    paper = CompressConfig.paper()
    assert (paper.prior.mixtures, paper.prior.width, paper.prior.init_std) == ("global", None, 0.08)
    assert (paper.prior.sample_one_in, paper.prior.rules) == (1, ())
    assert (paper.retrain.hard_from, paper.retrain.zeroing, paper.retrain.distill) == (1, 0, 0)
    assert paper.retrain.tau_warmup == 0.6
    assert (paper.retrain.optimizer, paper.retrain.weight_decay) == ("adam", 0)
    assert not paper.simplify.symmetries
    assert not paper.simplify.fold_batchnorm


def test_all_stages_have_defaults() -> None:
    config = CompressConfig()
    assert config == CompressConfig(PriorConfig(), RetrainConfig(), MergeConfig(), SimplifyConfig(), EncodeConfig())
    assert config != CompressConfig.paper()


def test_field_names_are_unique_over_the_stages() -> None:
    assert [f.name for f in dataclasses.fields(CompressConfig)] == list(STAGES)
    names = [f.name for stage in STAGES.values() for f in dataclasses.fields(stage)]
    assert len(set(names)) == len(names)


def test_the_names_and_types_for_editors_are_those_of_the_stages() -> None:
    hints = {n: h for stage in STAGES.values() for n, h in typing.get_type_hints(stage).items()}
    assert typing.get_type_hints(Settings) == hints


def test_every_field_says_what_it_is() -> None:
    for stage in STAGES.values():
        for field in dataclasses.fields(stage):
            help = help_of(stage)[field.name]
            assert help.endswith("."), field.name
            assert help[0].isupper(), field.name


def test_configs_are_frozen_and_hashable() -> None:
    config = CompressConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retrain.tau = 1.0  # type: ignore[misc]
    assert len({config, CompressConfig(), CompressConfig.paper()}) == 2


# To a dict and back


def test_round_trip_through_json() -> None:
    other = EVERY_OPTION.override(mixing_prior=Dirichlet(9, 2.5), free_precision_prior=None, init_std=None)
    for config in (CompressConfig(), CompressConfig.paper(), EVERY_OPTION, other):
        again = round_trip(config)
        assert again == config
        assert hash(again) == hash(config)
        assert again.to_dict() == config.to_dict()


@settings(max_examples=40)
@given(configs)
def test_round_trip_of_any_configuration(config: CompressConfig) -> None:
    assert round_trip(config) == config


def test_the_dict_is_plain_and_carries_its_version() -> None:
    values = EVERY_OPTION.to_dict()
    assert values["version"] == 4
    assert values["prior"]["mixing_prior"] == {"alpha": 900, "beta": 0.1}
    assert values["prior"]["zero_precision_prior"] is None
    assert json.loads(json.dumps(values))["prior"]["rules"] == [
        {"pattern": "*.bias", "share": False, "drop": False},
        {"pattern": "conv?.[ab]*", "share": True, "drop": False},
    ]


def test_rules_that_were_recorded_before_drop_still_load() -> None:
    values = a_dict(prior={"rules": [{"pattern": "a", "share": True}, {"pattern": "b", "share": False}]})
    assert CompressConfig.from_dict(values).prior.rules == (Rule("a", share=True), Rule("b", share=False))
    dropping = CompressConfig().override(rules=(Rule("b", drop=True),))
    assert CompressConfig.from_dict(dropping.to_dict()) == dropping


def test_a_rule_shares_or_drops() -> None:
    with pytest.raises(ConfigError, match="rule: expected share or drop, got 'both for a'"):
        Rule("a", share=True, drop=True)


def test_what_a_dict_leaves_out_is_the_default() -> None:
    assert CompressConfig.from_dict(a_dict()) == CompressConfig()
    partial = a_dict(retrain={"tau": 0.5}, prior={"mixing_prior": {"zero": 3.0, "free": 2.0}})
    assert CompressConfig.from_dict(partial) == CompressConfig().override(tau=0.5, mixing_prior=Dirichlet(3, 2))


def test_from_dict_leaves_its_argument_as_it_is() -> None:
    values = EVERY_OPTION.to_dict()
    CompressConfig.from_dict(values)
    assert values == EVERY_OPTION.to_dict()


# Errors


def test_another_version_or_none_is_refused() -> None:
    for version in (1, 5, "4", None):
        with pytest.raises(ConfigError, match=rf"version.*expected 4.*got {version!r}"):
            CompressConfig.from_dict({**CompressConfig().to_dict(), "version": version})
    with pytest.raises(ConfigError, match="version"):
        CompressConfig.from_dict({"retrain": {"tau": 0.5}})


def test_settings_of_version_2_are_read_unless_they_use_what_is_gone() -> None:
    old = {**CompressConfig().to_dict(), "version": 2, "codebook": {"codebook_epochs": 0, "lr_codebook": 1e-4}}
    old["prior"] = {**old["prior"], "sample_schedule": "block"}
    assert CompressConfig.from_dict(old) == CompressConfig()
    with pytest.raises(ConfigError, match="codebook_epochs: these settings of version 2 no longer exist"):
        CompressConfig.from_dict({**old, "codebook": {"codebook_epochs": 3, "lr_codebook": 1e-4}})
    drawn = {**old["prior"], "sample_schedule": "random", "sample_one_in": 10}
    with pytest.raises(ConfigError, match="sample_schedule: these"):
        CompressConfig.from_dict({**old, "prior": drawn})


def test_settings_of_version_3_count_epochs_and_weigh_tau_as_the_paper() -> None:
    paper = CompressConfig.paper().to_dict()
    retrain = {name: value for name, value in paper["retrain"].items() if name not in ("steps", "scaling")}
    assert CompressConfig.from_dict({**paper, "version": 3, "retrain": retrain}) == CompressConfig.paper()


def test_a_result_from_before_the_compact_form_means_a_file_without_it() -> None:
    """So that a run from the recorded settings writes the bytes that are recorded beside them."""
    recorded = CompressConfig().to_dict()
    encode = {name: value for name, value in recorded["encode"].items() if name not in ("speed", "compact")}
    assert CompressConfig.from_dict({**recorded, "encode": encode}) == CompressConfig().override(compact=False)
    assert CompressConfig.from_dict(recorded).encode.compact


# The length of a run, and what tau is divided by


@pytest.mark.parametrize(
    ("steps", "looks"), [(1, 1), (9, 9), (10, 10), (500, 10), (2199, 10), (2200, 11), (6000, 30), (10**6, 30)]
)
def test_a_run_in_steps_is_looked_at_every_200_of_them(steps: int, looks: int) -> None:
    """But 10 times at least, if it has as many steps, and 30 times at most."""
    assert RetrainConfig(steps=steps).looks == looks


def test_a_run_in_epochs_is_looked_at_after_each() -> None:
    assert RetrainConfig(epochs=7).looks == 7
    assert RetrainConfig(steps=3, epochs=400).looks == 400


def test_of_steps_and_epochs_the_one_named_replaces_the_other() -> None:
    in_epochs = CompressConfig().override(epochs=7)
    assert (in_epochs.retrain.epochs, in_epochs.retrain.looks) == (7, 7)
    in_steps = in_epochs.override(steps=50)
    assert (in_steps.retrain.epochs, in_steps.retrain.steps) == (None, 50)
    assert in_steps.override(steps=60, epochs=None).retrain.steps == 60
    assert in_epochs.override(tau=1.0).retrain.epochs == 7
    with pytest.raises(ConfigError, match="expected steps or epochs, got both: 50 and 7"):
        CompressConfig().override(steps=50, epochs=7)
    with pytest.raises(ConfigError, match="steps: expected at least 1, got 0"):
        CompressConfig().override(steps=0)
    with pytest.raises(ConfigError, match="epochs: expected at least 1, got 0"):
        CompressConfig().override(epochs=0)


def test_tau_is_divided_by_the_examples_of_mnist_or_of_the_task() -> None:
    assert RetrainConfig().counted(512) == RetrainConfig().counted(10**9) == 60_000
    assert RetrainConfig(scaling="paper").counted(512) == 512


UNKNOWN: list[tuple[dict[str, Any], str, str]] = [
    (a_dict(training={}), "config", "training"),
    (a_dict(prior={"tau": 1.0}), "config.prior", "tau"),
    (a_dict(prior={"rules": [{"pattern": "*", "share": True, "x": 1}]}), "config.prior.rules[0]", "x"),
    (a_dict(prior={"zero_precision_prior": {"alpha": 1, "beta": 1, "x": 1}}), "config.prior.zero_precision_prior", "x"),
    (a_dict(prior={"mixing_prior": {"alpha": 1.0, "free": 1.0}}), "config.prior.mixing_prior", "free"),
]


def test_an_unknown_setting_gets_the_name_that_was_meant() -> None:
    settings: Any = CompressConfig()
    with pytest.raises(ConfigError, match=r"^unknown setting 'taux'; did you mean tau\?$"):
        settings.override(taux=1)
    with pytest.raises(ConfigError, match=r"^unknown setting 'learning_rate'; known are mixtures, .* compact$"):
        settings.override(learning_rate=1)


def test_an_unknown_field_is_refused_with_its_path() -> None:
    for values, path, name in UNKNOWN:
        with pytest.raises(ConfigError) as error:
            CompressConfig.from_dict(values)
        assert f"{path}: " in str(error.value)
        assert name in str(error.value)


WRONG_KIND: list[tuple[dict[str, Any], str]] = [
    (a_dict(prior=None), "config.prior"),
    (a_dict(prior={"rules": ["keep:*"]}), "config.prior.rules[0]"),
    (a_dict(prior={"rules": [{"pattern": "*", "share": "no"}]}), "config.prior.rules[0].share"),
    (a_dict(prior={"zero_precision_prior": "none"}), "config.prior.zero_precision_prior"),
    (a_dict(prior={"zero_precision_prior": {"alpha": "1", "beta": 2.0}}), "config.prior.zero_precision_prior.alpha"),
    (a_dict(prior={"components": None}), "config.prior.components"),
    (a_dict(prior={"init_std": "0.1"}), "config.prior.init_std"),
    (a_dict(prior={"init": 1}), "config.prior.init"),
    (a_dict(retrain={"epochs": 2.5}), "config.retrain.epochs"),
    (a_dict(retrain={"epochs": True}), "config.retrain.epochs"),
]


def test_a_value_of_the_wrong_kind_is_refused_with_its_path() -> None:
    for values, path in WRONG_KIND:
        with pytest.raises(ConfigError) as error:
            CompressConfig.from_dict(values)
        assert f"{path}: expected" in str(error.value), values


BAD_VALUES: list[tuple[str, Any]] = [
    ("components", 0),
    ("init", "random"),
    ("mixtures", "each"),
    ("width", 0.0),
    ("width", math.inf),
    ("init_std", -0.1),
    ("init_std", math.nan),
    ("zero_mixing", 0.0),
    ("zero_mixing", 1.0),
    ("lr_means", -1e-9),
    ("lr_log_vars", math.inf),
    ("lr_mixing", math.nan),
    ("sample_one_in", 0),
    ("epochs", 0),
    ("tau", -0.001),
    ("tau", math.nan),
    ("tau_warmup", 1.1),
    ("lr_weights", 0.0),
    ("schedule", "linear"),
    ("optimizer", "rmsprop"),
    ("weight_decay", -1e-9),
    ("hard_from", -0.1),
    ("hard_from", math.nan),
    ("zeroing", math.inf),
    ("distill", 1.1),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("merge_threshold", -1.0),
    ("merge_threshold", math.inf),
    ("symmetries", "yes"),
    ("codec", "zip"),
    ("rest_dtype", "int8"),
]


@pytest.mark.parametrize("stage", STAGES)
def test_a_bad_value_is_refused_by_its_name(stage: str) -> None:
    fields = {f.name for f in dataclasses.fields(STAGES[stage])}
    for name, value in BAD_VALUES:
        if name not in fields:
            continue
        message = rf"{name}: expected .*, got {re.escape(repr(value))}"
        with pytest.raises(ConfigError, match=message):
            CompressConfig().override(**{name: value})
        with pytest.raises(ConfigError, match=message):
            STAGES[stage](**{name: value})
        with pytest.raises(ConfigError, match=message):
            CompressConfig.from_dict(a_dict(**{stage: {name: value}}))


def test_a_bad_hyper_prior_is_refused() -> None:
    for name, value in (("zero_precision_prior", 0), ("free_precision_prior", math.inf), ("mixing_prior", math.nan)):
        with pytest.raises(ConfigError, match=f"{name}: .*beta.*{value}"):
            CompressConfig.from_dict(a_dict(prior={name: {"alpha": 1.0, "beta": value}}))


WITHOUT: dict[str, Any] = {
    "init_std": 0.1,
    "zero_precision_prior": Gamma(5000, 2),
    "free_precision_prior": Gamma(250, 0.1),
}


def test_settings_without_effect_beside_a_width_are_refused() -> None:
    """The message names each of them, and says what to do. Both ways out work."""
    for names in (["init_std"], ["zero_precision_prior"], ["free_precision_prior"], list(WITHOUT)):
        given = {name: WITHOUT[name] for name in names}
        values = dataclasses.asdict(PriorConfig(width=None, **given)) | {"width": 0.3}
        message = rf"{', '.join(names)}: no effect while width is set, here to 0\.3\. To use these, set width to None"
        with pytest.raises(ConfigError, match=message):
            PriorConfig(width=0.3, **given)
        with pytest.raises(ConfigError, match=message):
            CompressConfig().override(width=0.3, **given)
        with pytest.raises(ConfigError, match=message):
            CompressConfig.from_dict(a_dict(prior=values))
        with pytest.raises(ConfigError, match=r"here to 0\.45\. To use"):
            CompressConfig().override(**given)  # the default width
        assert PriorConfig(width=None, **given).width is None
        nones: dict[str, Any] = dict.fromkeys(given)
        assert PriorConfig(width=0.3, **nones).width == 0.3


def test_by_default_a_width_holds_the_components_and_nothing_else() -> None:
    prior = PriorConfig()
    assert (prior.width, prior.init_std, prior.zero_precision_prior, prior.free_precision_prior) == (
        0.45, None, None, None,
    )  # fmt: skip


def test_a_width_beside_the_papers_settings_is_refused_until_they_are_none() -> None:
    none: dict[str, Any] = dict.fromkeys(WITHOUT)
    with pytest.raises(ConfigError, match=r"^init_std, zero_precision_prior, free_precision_prior: no effect"):
        CompressConfig.paper().override(width=0.3)
    prior = CompressConfig.paper().override(**{"width": 0.3, **none}).prior
    assert (prior.width, prior.components, prior.mixtures) == (0.3, 16, "global")


# Override


def test_override_replaces_fields_of_any_stage_and_nothing_else() -> None:
    base = CompressConfig.paper()
    rules = (Rule("*.bias", share=False),)
    new = base.override(
        tau=0.5, components=4, merge_threshold=2.0, rest_dtype="float16", rules=rules, zero_precision_prior=None
    )
    assert new == CompressConfig(
        prior=dataclasses.replace(base.prior, components=4, rules=rules, zero_precision_prior=None),
        retrain=dataclasses.replace(base.retrain, tau=0.5),
        merge=MergeConfig(2.0),
        simplify=base.simplify,
        encode=EncodeConfig(rest_dtype="float16"),
    )
    assert base == CompressConfig.paper()
    assert base.override() == base


def test_overrides_that_need_each_other_may_come_in_any_order() -> None:
    """init_std is refused while width is set, and by default it is."""
    first = CompressConfig().override(init_std=0.1, width=None)
    assert first == CompressConfig().override(width=None, init_std=0.1)
    assert first.prior == PriorConfig(width=None, init_std=0.1)


def test_override_refuses_an_unknown_name_and_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'learning_rate'") as error:
        CompressConfig().override(learning_rate=0.1)  # type: ignore[call-arg]
    for stage in STAGES.values():
        for field in dataclasses.fields(stage):
            assert field.name in str(error.value)


def test_a_rule_prints_as_it_is_given_on_the_command_line() -> None:
    assert str(Rule("fc*.weight", share=True)) == "share:fc*.weight"
    assert str(Rule("*", share=False)) == "keep:*"
