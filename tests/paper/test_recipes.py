from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

import pytest

from softshare.config import CompressConfig
from softshare.errors import ConfigError
from softshare.paper import recipes
from softshare.paper.baselines import DeepCompressionConfig, DnsConfig
from softshare.paper.baselines.rival_config import value_of
from softshare.paper.recipes import RECIPES, get_recipe, methods
from softshare.zoo.experiments import EXPERIMENTS

BASELINES = ["deep-compression", "dns"]
METHODS = {
    "lenet-300-100": [
        "paper",
        "paper-no-hyperpriors",
        "softshare-default",
        "softshare",
        "softshare-from-scratch",
        "softshare-augmented",
        "softshare-small-augmented",
        *BASELINES,
    ],
    "lenet-5-caffe": [
        "paper",
        "softshare-default",
        "softshare",
        "softshare-small",
        "softshare-augmented",
        "softshare-small-augmented",
        *BASELINES,
    ],
    "wrn-16-4": [
        "paper",
        "softshare-default",
        "softshare",
        "softshare-medium",
        "softshare-small",
        "softshare-smallest",
    ],
    "mobile-100k": [],
}


def test_the_methods_of_every_experiment() -> None:
    assert {name: list(methods(name)) for name in EXPERIMENTS} == METHODS
    assert len({(r.experiment, r.method) for r in RECIPES}) == len(RECIPES)
    for r in RECIPES:
        assert get_recipe(r.experiment, r.method) is r


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"unknown method 'dns' for wrn-16-4; expected one of paper, .*-smallest$"):
        get_recipe("wrn-16-4", "dns")
    for ask in (methods, lambda name: get_recipe(name, "paper")):
        with pytest.raises(ConfigError, match="unknown experiment 'lenet-7'"):
            ask("lenet-7")


def test_the_papers_are_the_papers() -> None:
    for name in ("lenet-300-100", "lenet-5-caffe"):
        assert get_recipe(name, "paper").config == CompressConfig.paper()
    assert get_recipe("wrn-16-4", "paper").config == CompressConfig.paper().override(
        components=64, rest_dtype="float16"
    )
    config = get_recipe("lenet-300-100", "paper-no-hyperpriors").config
    assert isinstance(config, CompressConfig)
    prior = config.prior
    assert (prior.zero_precision_prior, prior.free_precision_prior, prior.mixing_prior) == (None, None, None)
    assert config.retrain.epochs == 100  # "previously 100" (6.2)


def test_the_default_is_what_the_command_line_does() -> None:
    for name, experiment in EXPERIMENTS.items():
        if not METHODS[name]:
            continue
        recipe = get_recipe(name, "softshare-default")
        assert (recipe.config, recipe.pretrain) == (experiment.compress, experiment.pretrain)
        assert recipe.task.label_smoothing == experiment.label_smoothing
        before = CompressConfig().override(epochs=30, scaling="paper", zeroing=0.3)  # the defaults of the kept results
        assert recipe.config in (before, before.override(units=2.0), before.override(rest_dtype="float16"))


def test_the_name_tells_augmentation_and_training_from_scratch() -> None:
    for r in RECIPES:
        assert r.task.augment == r.method.endswith("-augmented")
        assert (r.pretrain is None) == r.method.endswith("-from-scratch")


def test_small_has_units_and_otherwise_differs_in_zeroing_alone() -> None:
    """One is longer, too."""
    longer = {("lenet-300-100", "softshare-small-augmented"): 90}
    pairs = [("lenet-5-caffe", "softshare", "softshare-small")]
    pairs += [(name, "softshare-augmented", "softshare-small-augmented") for name in ("lenet-300-100", "lenet-5-caffe")]
    for experiment, method, smaller in pairs:
        ours, small = (get_recipe(experiment, name) for name in (method, smaller))
        assert isinstance(ours.config, CompressConfig)
        assert isinstance(small.config, CompressConfig)
        assert small.config.prior.units > ours.config.prior.units == 0
        epochs = longer.get((experiment, smaller), ours.config.retrain.epochs)
        zeroing, units = small.config.retrain.zeroing, small.config.prior.units
        same = ours.config.override(zeroing=zeroing, units=units, epochs=epochs)
        assert dataclasses.replace(ours, method=smaller, config=same) == small


def test_every_layer_of_a_baseline_has_its_own_setting() -> None:
    """Every setting has a layer, too: a mistyped name would leave a layer at the default unnoticed."""
    for recipe in (r for r in RECIPES if r.method in BASELINES):
        config = recipe.config
        assert isinstance(config, DeepCompressionConfig | DnsConfig)
        values = config.prune.qualities if isinstance(config, DeepCompressionConfig) else config.surgery.c_rates
        model = EXPERIMENTS[recipe.experiment].make_model()
        layers = [name for name, module in model.named_children() if list(module.parameters())]
        assert all(value_of(layer, values, -1.0) > 0 for layer in layers), recipe
        assert all(any(fnmatchcase(layer, value.pattern) for layer in layers) for value in values), recipe


def test_a_seed_reaches_pre_training_and_method_and_changes_nothing_else() -> None:
    for recipe in RECIPES:
        seeded, captured = recipe.seeded(7), recipe.seeded(7, capture=True)
        assert seeded.config.seed == 7
        assert seeded.seeded(0) == recipe.seeded(0)
        assert (seeded.task, seeded.method) == (recipe.task, recipe.method)
        assert captured.seeded(7) == seeded
        assert captured.config != seeded.config
        if recipe.pretrain is None:
            assert seeded.pretrain is None
        else:
            assert seeded.pretrain is not None
            assert captured.pretrain is not None
            assert (seeded.pretrain.seed, seeded.pretrain.capture, captured.pretrain.capture) == (7, False, True)


def test_settings_are_those_of_the_experiments() -> None:
    for r in recipes.RECIPES:
        if r.pretrain and not r.task.augment:
            assert r.pretrain == EXPERIMENTS[r.experiment].pretrain
