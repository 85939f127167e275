from __future__ import annotations

import csv
import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from softshare.config.stages import WITHOUT_A_WIDTH
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
    simplify=SimplifyConfig(symmetries=False),
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


def test_all_stages_have_defaults() -> None:
    config = CompressConfig()
    assert config == CompressConfig(PriorConfig(), RetrainConfig(), MergeConfig(), SimplifyConfig(), EncodeConfig())
    assert config != CompressConfig.paper()


def test_field_names_are_unique_over_the_stages() -> None:
    assert [f.name for f in dataclasses.fields(CompressConfig)] == list(STAGES)
    names = [f.name for stage in STAGES.values() for f in dataclasses.fields(stage)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("stage", STAGES.values())
def test_every_field_says_what_it_is(stage: type[Any]) -> None:
    for field in dataclasses.fields(stage):
        help = field.metadata["help"]
        assert help.endswith("."), field.name
        assert help[0].isupper(), field.name


def test_configs_are_frozen_and_hashable() -> None:
    config = CompressConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retrain.tau = 1.0  # type: ignore[misc]
    assert len({config, CompressConfig(), CompressConfig.paper()}) == 2


# To a dict and back


@pytest.mark.parametrize(
    "config",
    [
        CompressConfig(),
        CompressConfig.paper(),
        EVERY_OPTION,
        EVERY_OPTION.override(mixing_prior=Dirichlet(9, 2.5), free_precision_prior=None, init_std=None),
    ],
    ids=["default", "paper", "every option", "other options"],
)
def test_round_trip_through_json(config: CompressConfig) -> None:
    again = round_trip(config)
    assert again == config
    assert hash(again) == hash(config)
    assert again.to_dict() == config.to_dict()


positive = st.floats(min_value=1e-300, max_value=1e300)
shapes = st.builds(Gamma, positive, positive)
stages = st.builds(
    CompressConfig,
    st.builds(
        PriorConfig,
        mixtures=st.sampled_from(["global", "layer"]),
        components=st.integers(1, 1000),
        init=st.sampled_from(["range", "quantile"]),
        width=st.none(),
        init_std=st.none() | positive,
        zero_mixing=st.floats(0, 1, exclude_min=True, exclude_max=True),
        mixing_prior=st.none() | st.builds(Beta, positive, positive) | st.builds(Dirichlet, positive, positive),
        zero_precision_prior=st.none() | shapes,
        free_precision_prior=st.none() | shapes,
        lr_means=st.floats(0, 1e9),
        rules=st.lists(st.builds(Rule, st.text(), st.booleans())).map(tuple),
    ),
    st.builds(
        RetrainConfig,
        epochs=st.integers(1),
        tau=st.floats(0, 1e9),
        tau_warmup=st.floats(0, 1),
        lr_weights=positive,
        weight_decay=st.floats(0, 1e9),
        hard_from=st.floats(0, 1),
        zeroing=st.floats(0, 1e9),
        distill=st.floats(0, 1),
        schedule=st.sampled_from(["constant", "cosine"]),
        seed=st.integers(0, 2**63 - 1),
    ),
    st.builds(MergeConfig, st.floats(0, 1e9)),
    st.builds(SimplifyConfig, st.booleans()),
    st.builds(EncodeConfig, rest_dtype=st.sampled_from(["float32", "float16", "bfloat16"])),
)


@given(stages, st.none() | positive)
def test_round_trip_of_any_configuration(config: CompressConfig, width: float | None) -> None:
    """A width takes the place of a start and of the precisions' hyper-priors."""
    if width is not None:
        config = config.override(width=width, **dict.fromkeys(WITHOUT_A_WIDTH))
    assert round_trip(config) == config


def test_the_dict_is_plain_and_carries_its_version() -> None:
    values = EVERY_OPTION.to_dict()
    assert values["version"] == 3
    assert values["prior"]["mixing_prior"] == {"alpha": 900, "beta": 0.1}
    assert values["prior"]["zero_precision_prior"] is None
    assert json.loads(json.dumps(values))["prior"]["rules"] == [
        {"pattern": "*.bias", "share": False},
        {"pattern": "conv?.[ab]*", "share": True},
    ]


def test_what_a_dict_leaves_out_is_the_default() -> None:
    assert CompressConfig.from_dict(a_dict()) == CompressConfig()
    partial = a_dict(retrain={"tau": 0.5}, prior={"mixing_prior": {"zero": 3.0, "free": 2.0}})
    assert CompressConfig.from_dict(partial) == CompressConfig().override(tau=0.5, mixing_prior=Dirichlet(3, 2))


def test_from_dict_leaves_its_argument_as_it_is() -> None:
    values = EVERY_OPTION.to_dict()
    CompressConfig.from_dict(values)
    assert values == EVERY_OPTION.to_dict()


# Errors


@pytest.mark.parametrize("version", [0, 1, 4, "3", None])
def test_another_version_is_refused(version: Any) -> None:
    with pytest.raises(ConfigError, match=rf"version.*expected 3.*got {version!r}"):
        CompressConfig.from_dict({**CompressConfig().to_dict(), "version": version})


def test_settings_of_version_2_are_read_unless_they_use_what_is_gone() -> None:
    old = {**CompressConfig().to_dict(), "version": 2, "codebook": {"codebook_epochs": 0, "lr_codebook": 1e-4}}
    old["prior"] = {**old["prior"], "sample_schedule": "block"}
    assert CompressConfig.from_dict(old) == CompressConfig()
    with pytest.raises(ConfigError, match="codebook_epochs: these settings of version 2 no longer exist"):
        CompressConfig.from_dict({**old, "codebook": {"codebook_epochs": 3, "lr_codebook": 1e-4}})
    drawn = {**old["prior"], "sample_schedule": "random", "sample_one_in": 10}
    with pytest.raises(ConfigError, match="sample_schedule: these"):
        CompressConfig.from_dict({**old, "prior": drawn})


def test_a_missing_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="version"):
        CompressConfig.from_dict({"retrain": {"tau": 0.5}})


@pytest.mark.parametrize(
    ("values", "path", "name"),
    [
        (a_dict(training={}), "config", "training"),
        (a_dict(retrain={"Tau": 1.0}), "config.retrain", "Tau"),
        (a_dict(prior={"tau": 1.0}), "config.prior", "tau"),
        (a_dict(prior={"rules": [{"pattern": "*", "share": True, "x": 1}]}), "config.prior.rules[0]", "x"),
        (
            a_dict(prior={"zero_precision_prior": {"alpha": 1.0, "beta": 1.0, "x": 1}}),
            "config.prior.zero_precision_prior",
            "x",
        ),
        (a_dict(prior={"mixing_prior": {"alpha": 1.0, "free": 1.0}}), "config.prior.mixing_prior", "free"),
    ],
)
def test_an_unknown_field_is_refused_with_its_path(values: dict[str, Any], path: str, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        CompressConfig.from_dict(values)
    assert f"{path}: " in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (a_dict(prior=None), "config.prior"),
        (a_dict(prior=[]), "config.prior"),
        (a_dict(prior={"rules": "keep:*"}), "config.prior.rules"),
        (a_dict(prior={"rules": ["keep:*"]}), "config.prior.rules[0]"),
        (a_dict(prior={"rules": [{"pattern": "*"}]}), "config.prior.rules[0]"),
        (a_dict(prior={"rules": [{"pattern": 3, "share": True}]}), "config.prior.rules[0].pattern"),
        (a_dict(prior={"rules": [{"pattern": "*", "share": "no"}]}), "config.prior.rules[0].share"),
        (a_dict(prior={"zero_precision_prior": "none"}), "config.prior.zero_precision_prior"),
        (a_dict(prior={"zero_precision_prior": {"alpha": 1.0}}), "config.prior.zero_precision_prior"),
        (
            a_dict(prior={"zero_precision_prior": {"alpha": "1", "beta": 2.0}}),
            "config.prior.zero_precision_prior.alpha",
        ),
        (a_dict(prior={"components": "16"}), "config.prior.components"),
        (a_dict(prior={"components": 1.5}), "config.prior.components"),
        (a_dict(prior={"components": None}), "config.prior.components"),
        (a_dict(prior={"init_std": "0.1"}), "config.prior.init_std"),
        (a_dict(prior={"init": 1}), "init"),
        (a_dict(retrain={"tau": "0.1"}), "config.retrain.tau"),
        (a_dict(retrain={"epochs": 2.5}), "config.retrain.epochs"),
        (a_dict(retrain={"epochs": True}), "config.retrain.epochs"),
        (a_dict(retrain={"seed": "x"}), "config.retrain.seed"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_its_path(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        CompressConfig.from_dict(values)
    assert path in str(error.value)


BAD_VALUES: list[tuple[str, Any]] = [
    ("components", 0),
    ("components", -1),
    ("init", "random"),
    ("mixtures", "each"),
    ("width", 0.0),
    ("width", -0.1),
    ("width", math.inf),
    ("width", math.nan),
    ("init_std", 0.0),
    ("init_std", -0.1),
    ("init_std", math.inf),
    ("init_std", math.nan),
    ("zero_mixing", 0.0),
    ("zero_mixing", 1.0),
    ("zero_mixing", math.nan),
    ("lr_means", -1e-9),
    ("lr_log_vars", math.inf),
    ("lr_mixing", math.nan),
    ("epochs", 0),
    ("tau", -0.001),
    ("tau", math.nan),
    ("tau", math.inf),
    ("tau_warmup", -0.1),
    ("tau_warmup", 1.1),
    ("lr_weights", 0.0),
    ("lr_weights", math.nan),
    ("schedule", "linear"),
    ("optimizer", "rmsprop"),
    ("weight_decay", -1e-9),
    ("weight_decay", math.nan),
    ("hard_from", -0.1),
    ("hard_from", 1.1),
    ("hard_from", math.nan),
    ("zeroing", -0.1),
    ("zeroing", math.inf),
    ("zeroing", math.nan),
    ("distill", -0.1),
    ("distill", 1.1),
    ("distill", math.nan),
    ("symmetries", "yes"),
    ("seed", 2**64),
    ("seed", -(2**63) - 1),
    ("merge_threshold", -1.0),
    ("merge_threshold", math.inf),
    ("codec", "zip"),
    ("rest_dtype", "int8"),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_a_bad_value_is_refused_by_its_name(name: str, value: Any) -> None:
    stage = next(s for s, kind in STAGES.items() if name in {f.name for f in dataclasses.fields(kind)})
    for build in (
        lambda: CompressConfig().override(**{name: value}),
        lambda: STAGES[stage](**{name: value}),
        lambda: CompressConfig.from_dict(a_dict(**{stage: {name: value}})),
    ):
        with pytest.raises(ConfigError, match=rf"{name}: expected .*, got ") as error:
            build()
        assert repr(value) in str(error.value)


@pytest.mark.parametrize("field", ["zero_precision_prior", "free_precision_prior", "mixing_prior"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_bad_hyper_prior_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"beta.*{value}"):
        CompressConfig.from_dict(a_dict(prior={field: {"alpha": 1.0, "beta": value}}))


WITHOUT: dict[str, Any] = {
    "init_std": 0.1,
    "zero_precision_prior": Gamma(5000, 2),
    "free_precision_prior": Gamma(250, 0.1),
}


@pytest.mark.parametrize("names", [[name] for name in WITHOUT] + [["init_std", "free_precision_prior"], list(WITHOUT)])
def test_what_has_no_part_beside_a_width_is_refused(names: list[str]) -> None:
    """Each by its name, and with what to do; either way of doing it is taken."""
    given = {name: WITHOUT[name] for name in names}
    values = dataclasses.asdict(PriorConfig(width=None, **given)) | {"width": 0.3}
    for build in (
        lambda: PriorConfig(width=0.3, **given),
        lambda: CompressConfig().override(width=0.3, **given),
        lambda: CompressConfig.from_dict(a_dict(prior=values)),
    ):
        with pytest.raises(ConfigError) as error:
            build()
        assert f"{', '.join(names)}: no effect while width is set, here to 0.3." in str(error.value)
        assert "Set width to None ('none' on the command line)" in str(error.value)
    assert PriorConfig(width=None, **given).width is None
    nones: dict[str, Any] = dict.fromkeys(given)
    assert PriorConfig(width=0.3, **nones).width == 0.3


@pytest.mark.parametrize("name", WITHOUT)
def test_the_default_width_refuses_them_too(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: .*here to 0\.45\. Set width"):
        CompressConfig().override(**{name: WITHOUT[name]})


def test_by_default_a_width_holds_the_components_and_nothing_else() -> None:
    prior = PriorConfig()
    assert (prior.width, prior.init_std, prior.zero_precision_prior, prior.free_precision_prior) == (
        0.45, None, None, None,
    )  # fmt: skip


def test_a_width_beside_the_papers_settings_is_refused_until_they_are_taken_away() -> None:
    with pytest.raises(ConfigError, match=r"^init_std, zero_precision_prior, free_precision_prior: .*Set width"):
        CompressConfig.paper().override(width=0.3)
    prior = CompressConfig.paper().override(width=0.3, **dict.fromkeys(WITHOUT)).prior
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
    """A start is refused while there is a width, which by default there is."""
    first = CompressConfig().override(init_std=0.1, width=None)
    assert first == CompressConfig().override(width=None, init_std=0.1)
    assert first.prior == PriorConfig(width=None, init_std=0.1)


def test_override_refuses_an_unknown_name_and_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="'learning_rate'") as error:
        CompressConfig().override(learning_rate=0.1)
    for stage in STAGES.values():
        for field in dataclasses.fields(stage):
            assert field.name in str(error.value)


def test_a_rule_prints_as_it_is_given_on_the_command_line() -> None:
    assert str(Rule("fc*.weight", share=True)) == "share:fc*.weight"
    assert str(Rule("*", share=False)) == "keep:*"
