"""The config objects of the baselines, built like those of `softshare.config.stages`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from softshare._util.schema import Versioned, require, require_types
from softshare.config import EncodeConfig, RetrainConfig, Rule
from softshare.config.fields import option
from softshare.config.settings import Schedule
from softshare.errors import ConfigError


@dataclass(frozen=True)
class LayerValue:
    """A setting of the layers whose module name matches the shell pattern: `LayerValue("fc*", 1.5)`."""

    pattern: str
    value: float

    def __post_init__(self) -> None:
        require_types(self)
        require(math.isfinite(self.value), f"value of {self.pattern!r}", "a finite number", self.value)


def require_matches(values: Sequence[LayerValue], layers: Sequence[str]) -> None:
    """Raise `ConfigError` for a pattern that matches no layer."""
    for v in values:
        if not any(fnmatchcase(layer, v.pattern) for layer in layers):
            raise ConfigError(f"{v}: no layer matches; the layers are {', '.join(layers)}")


def value_of(layer: str, values: Sequence[LayerValue], default: float) -> float:
    """The value of the first pattern that matches the layer."""
    return next((v.value for v in values if fnmatchcase(layer, v.pattern)), default)


@dataclass(frozen=True)
class TrainConfig:
    """What all phases of a baseline's training have in common."""

    lr_weights: float = option(1e-3)
    """Learning rate of Adam while pruning."""
    schedule: Schedule = option("cosine")
    """Learning rate of a phase: 'constant', or 'cosine', which falls to 0."""
    l2: float = option(0.0)
    """Weight of half the sum of squared weights in the loss (both papers decay by 5e-4, in SGD)."""
    seed: int = option(0)
    """Seed of everything random in the run."""
    capture: bool = option(False)
    """Capture the training steps into CUDA graphs; see RetrainConfig."""

    def __post_init__(self) -> None:
        require_types(self)
        require(0 <= self.l2 < math.inf, "l2", "a number of at least 0", self.l2)
        self.phase(1)  # the config of a phase checks the same fields

    def phase(self, epochs: int, lr: float | None = None) -> RetrainConfig:
        """The config of a phase: training without a prior."""
        return RetrainConfig(
            epochs=epochs,
            tau=0.0,
            lr_weights=self.lr_weights if lr is None else lr,
            schedule=self.schedule,
            seed=self.seed,
            capture=self.capture,
        )


@dataclass(frozen=True)
class PruneConfig:
    """Iterative magnitude pruning (Han et al. 2015). Layers without a value of their own take `quality`."""

    quality: float = option(1.5)
    """Prune a weight below this many standard deviations of its layer's weights."""
    qualities: tuple[LayerValue, ...] = option(())
    """The same for single layers, first match wins."""
    rounds: int = option(4)
    """Rounds of pruning and retraining; the quality rises to its value in equal steps."""
    round_epochs: int = option(10)
    """Passes over the training data after each pruning."""

    def __post_init__(self) -> None:
        require_types(self)
        for value in (self.quality, *(q.value for q in self.qualities)):
            require(0 <= value < math.inf, "quality", "a number of at least 0", value)
        for name in ("rounds", "round_epochs"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))


@dataclass(frozen=True)
class SurgeryConfig:
    """Dynamic network surgery (Guo et al. 2016). Layers without a value of their own take `c_rate`."""

    c_rate: float = option(1.0)
    """c in the threshold, mean + c * std of a layer's |w|."""
    c_rates: tuple[LayerValue, ...] = option(())
    """The same for single layers, first match wins."""
    margin: float = option(0.1)
    """Half of the gap between pruning and splicing, as a share of the threshold."""
    decay: float = option(1e-4)
    """gamma in the probability of surgery at an iteration, (1 + gamma * i)^-power."""
    power: float = option(1.0)
    """The power in that probability."""
    surgery_epochs: int = option(40)
    """Passes over the training data with surgery."""
    settle_epochs: int = option(10)
    """Passes after surgery, with fixed masks; 0: none."""

    def __post_init__(self) -> None:
        require_types(self)
        require(math.isfinite(self.c_rate), "c_rate", "a finite number", self.c_rate)
        require(0 <= self.margin < 1, "margin", "a share of at least 0 and below 1", self.margin)
        for name in ("decay", "power"):
            require(0 <= getattr(self, name) < math.inf, name, "a number of at least 0", getattr(self, name))
        require(self.surgery_epochs >= 1, "surgery_epochs", "at least 1", self.surgery_epochs)
        require(self.settle_epochs >= 0, "settle_epochs", "at least 0", self.settle_epochs)


@dataclass(frozen=True)
class ShareConfig:
    """k-means weight sharing (Han et al. 2016, section 3)."""

    conv_bits: int = option(8)
    """A convolution's weights share 2^bits values beside zero (published: 8)."""
    fc_bits: int = option(5)
    """The same for all other layers (published: 5, and 6 for LeNet-300-100)."""
    share_epochs: int = option(5)
    """Passes that fine-tune the centroids while the assignment is fixed; 0: none."""
    lr_centroids: float = option(1e-4)
    """Learning rate of the centroids, and of tensors that are not shared."""

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("conv_bits", "fc_bits"):
            require(1 <= getattr(self, name) <= 12, name, "1 to 12 bits", getattr(self, name))
        require(self.share_epochs >= 0, "share_epochs", "at least 0", self.share_epochs)
        require(0 < self.lr_centroids < math.inf, "lr_centroids", "a number above 0", self.lr_centroids)


@dataclass(frozen=True)
class _MethodConfig(Versioned):
    """What `softshare.measure` needs from a method's config."""

    train: TrainConfig = field(default_factory=TrainConfig)
    share: ShareConfig = field(default_factory=ShareConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    rules: tuple[Rule, ...] = option(())
    """Ordered name rules of the tensors to compress, first match wins."""

    def __post_init__(self) -> None:
        require_types(self)

    @property
    def seed(self) -> int:
        return self.train.seed


@dataclass(frozen=True)
class DeepCompressionConfig(_MethodConfig):
    """Deep Compression, stage by stage."""

    prune: PruneConfig = field(default_factory=PruneConfig)
    compress_biases: bool = option(False)
    """Prune and share biases like weights. The paper does neither, and its tables leave them out."""


@dataclass(frozen=True)
class DnsConfig(_MethodConfig):
    """Dynamic network surgery, then k-means sharing: the paper itself stops at the non-zero weights."""

    surgery: SurgeryConfig = field(default_factory=SurgeryConfig)
