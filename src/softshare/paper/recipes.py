"""The recipes of all kept results: what is trained, on which data, and with which settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from softshare.config import CompressConfig, RetrainConfig
from softshare.errors import ConfigError
from softshare.paper.baselines import (
    DeepCompressionConfig,
    DnsConfig,
    LayerValue,
    PruneConfig,
    ShareConfig,
    SurgeryConfig,
)
from softshare.paper.baselines.rival_config import TrainConfig
from softshare.zoo.experiments import EXPERIMENTS, TaskConfig, get_experiment

MethodConfig = CompressConfig | DeepCompressionConfig | DnsConfig


@dataclass(frozen=True)
class Recipe:
    """One method on one experiment. The seed is given when it runs."""

    experiment: str
    method: str
    pretrain: RetrainConfig | None  # None: from scratch, under the prior from the first step
    task: TaskConfig
    config: MethodConfig

    def seeded(self, seed: int, capture: bool = False) -> Recipe:
        """The recipe with this seed, and with captured steps or not, in both pre-training and method."""
        changes: dict[str, Any] = {"seed": seed, "capture": capture}
        pretrain = self.pretrain and dataclasses.replace(self.pretrain, **changes)
        config = self.config
        if isinstance(config, CompressConfig):
            config = config.override(**changes)
        else:
            config = dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))
        return dataclasses.replace(self, pretrain=pretrain, config=config)


def _recipe(
    experiment: str,
    method: str,
    config: MethodConfig,
    task: TaskConfig | None = None,
    pretrain_epochs: int | None = None,
) -> Recipe:
    pretrain = EXPERIMENTS[experiment].pretrain
    pretrain = dataclasses.replace(pretrain, epochs=pretrain_epochs or pretrain.epochs)
    return Recipe(experiment, method, pretrain, task or TaskConfig(), config)


def _by_layer(**values: float) -> tuple[LayerValue, ...]:
    return tuple(LayerValue(layer, value) for layer, value in values.items())


def _deep_compression(qualities: tuple[LayerValue, ...], share: ShareConfig) -> DeepCompressionConfig:
    prune = PruneConfig(qualities=qualities, rounds=4, round_epochs=15)
    return DeepCompressionConfig(train=TrainConfig(l2=3e-5), prune=prune, share=share)


def _dns(c_rates: tuple[LayerValue, ...], l2: float) -> DnsConfig:
    surgery = SurgeryConfig(c_rates=c_rates, decay=1e-3, surgery_epochs=60, settle_epochs=20)
    return DnsConfig(train=TrainConfig(l2=l2), surgery=surgery)


_PAPER = CompressConfig.paper()
# Section 6.1, with the values of section 4.1, the initial values of the authors' code, and the 100 epochs of 6.2.
_NO_HYPERPRIORS = _PAPER.override(
    init_std=0.25,
    mixing_prior=None,
    zero_precision_prior=None,
    free_precision_prior=None,
    lr_weights=5e-4,
    lr_means=5e-4,
    lr_log_vars=5e-4,
    lr_mixing=5e-4,
    tau=0.005,
    tau_warmup=0.0,
    epochs=100,
)
_SMOOTHED, _AUGMENTED = TaskConfig(label_smoothing=0.05), TaskConfig(augment=True)
_OURS = EXPERIMENTS["lenet-300-100"].compress.override(components=4, width=0.45, tau=0.05)
_L300_OURS = _OURS.override(components=3, tau=0.02, zeroing=0.3, units=3.0, epochs=80)
_L5_OURS = _OURS.override(components=2, width=0.55, epochs=120)
_L300, _L5, _WRN = "lenet-300-100", "lenet-5-caffe", "wrn-16-4"
_WRN_OURS = EXPERIMENTS[_WRN].compress.override(optimizer="sgd", lr_weights=0.01, epochs=40, distill=0.5)

RECIPES = (
    _recipe(_L300, "paper", _PAPER),
    _recipe(_L300, "paper-no-hyperpriors", _NO_HYPERPRIORS),
    _recipe(_L300, "softshare-default", EXPERIMENTS[_L300].compress, _SMOOTHED),
    _recipe(_L300, "softshare", _L300_OURS, _SMOOTHED),
    dataclasses.replace(
        _recipe(_L300, "softshare-from-scratch", _OURS.override(zeroing=0.15, epochs=80), _SMOOTHED), pretrain=None
    ),
    _recipe(_L300, "softshare-augmented", _OURS.override(zeroing=4.0, epochs=60), _AUGMENTED, pretrain_epochs=45),
    _recipe(
        _L300,
        "softshare-small-augmented",
        _OURS.override(zeroing=2.0, units=2.0, epochs=90),
        _AUGMENTED,
        pretrain_epochs=45,
    ),
    _recipe(
        _L300,
        "deep-compression",
        _deep_compression(_by_layer(fc1=0.7, fc2=1.1, fc3=0.9), ShareConfig(fc_bits=6, share_epochs=10)),
    ),
    _recipe(_L300, "dns", _dns(_by_layer(fc1=2.6, fc2=3.2, fc3=2.2), l2=5e-4)),
    _recipe(_L5, "paper", _PAPER),
    _recipe(_L5, "softshare-default", EXPERIMENTS[_L5].compress, _SMOOTHED),
    _recipe(_L5, "softshare", _L5_OURS.override(zeroing=2.0), _SMOOTHED),
    _recipe(_L5, "softshare-small", _L5_OURS.override(zeroing=2.0, units=1.5), _SMOOTHED),
    _recipe(_L5, "softshare-augmented", _L5_OURS.override(zeroing=10.0), _AUGMENTED, pretrain_epochs=30),
    _recipe(
        _L5,
        "softshare-small-augmented",
        _L5_OURS.override(zeroing=8.0, units=1.5),
        _AUGMENTED,
        pretrain_epochs=30,
    ),
    _recipe(
        _L5,
        "deep-compression",
        _deep_compression(_by_layer(conv1=0.4, conv2=1.1, fc1=0.9, fc2=1.1), ShareConfig(conv_bits=8, fc_bits=5)),
    ),
    _recipe(_L5, "dns", _dns(_by_layer(conv1=0.7, conv2=3.0, fc1=5.0, fc2=3.0), l2=1e-3)),
    # The paper augments CIFAR-10 too, by flips and shifts (section 5). The experiment always does; it is no switch.
    _recipe(_WRN, "paper", _PAPER.override(components=64, rest_dtype="float16")),
    _recipe(_WRN, "softshare-default", EXPERIMENTS[_WRN].compress),
    _recipe(_WRN, "softshare", _WRN_OURS.override(lr_weights=0.02, tau=0.015, zeroing=0.1, distill=0.9, epochs=60)),
    _recipe(_WRN, "softshare-medium", _WRN_OURS.override(lr_weights=0.02, zeroing=0.1)),
    _recipe(_WRN, "softshare-small", _WRN_OURS.override(zeroing=1.2)),
    _recipe(_WRN, "softshare-smallest", _WRN_OURS.override(zeroing=4.0)),
)


def methods(experiment: str) -> tuple[str, ...]:
    """The methods that have a recipe for the experiment."""
    get_experiment(experiment)
    return tuple(r.method for r in RECIPES if r.experiment == experiment)


def get_recipe(experiment: str, method: str) -> Recipe:
    known = methods(experiment)
    if method not in known:
        raise ConfigError(f"unknown method {method!r} for {experiment}; expected one of {', '.join(known)}")
    return next(r for r in RECIPES if (r.experiment, r.method) == (experiment, method))
