"""One frozen dataclass per stage, nested in `CompressConfig`. The command line's options come from these fields.

Field names are unique across the stages, so that `--tau` needs no prefix. A field's `help` is what `--help` prints.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from softshare._util.schema import Versioned, require, require_types
from softshare.config import Beta, Dirichlet, Gamma
from softshare.errors import ConfigError

WITHOUT_A_WIDTH = ("init_std", "zero_precision_prior", "free_precision_prior")  # fields that count there only


@dataclass(frozen=True)
class Range:
    """Where a search looks for a number: `low` to `high`, both included; evenly, or evenly in its logarithm.

    Whole numbers if the ends are.
    """

    low: float
    high: float
    log: bool = False


def option(default: Any, help: str, range: Range | dict[str, Range] | None = None) -> Any:
    """A field. What `softshare tune` may search has a range, a hyper-prior one for each of its two numbers."""
    return field(default=default, metadata={"help": help, "range": range})


_GAMMA_RANGE = {"std": Range(0.005, 0.1, log=True), "strength": Range(5.0, 500.0, log=True)}  # see `Gamma.from_std`
_BETA_RANGE = {"free": Range(1e-4, 0.1, log=True), "count": Range(1e3, 1e7, log=True)}  # see `Beta.from_mode`


@dataclass(frozen=True)
class Rule:
    """Tensors whose state-dict name matches the shell pattern are shared (`share=True`) or kept as they are."""

    pattern: str
    share: bool

    def __post_init__(self) -> None:
        require_types(self)

    def __str__(self) -> str:
        return f"{'share' if self.share else 'keep'}:{self.pattern}"


Mixtures = Literal["global", "layer"]
Init = Literal["range", "quantile"]
Schedule = Literal["constant", "cosine"]
Optimizer = Literal["adam", "sgd"]
Backend = Literal["auto", "triton", "numba", "torch"]
Method = Literal["auto", "exact", "table"]
Codec = Literal["han", "adaptive"]
CodebookDtype = Literal["auto", "float32", "float16", "bfloat16"]
RestDtype = Literal["float32", "float16", "bfloat16"]
Names = Literal["keep", "none"]


@dataclass(frozen=True)
class PriorConfig:
    """The mixture over the weights: its components, their start, their hyper-priors and their learning rates."""

    mixtures: Mixtures = option(
        "layer", "A mixture for each 'layer', or one 'global' one over all weights (the paper)."
    )
    components: int = option(
        4, "Free components of a mixture beside its zero component (paper 4.1: 16, global).", Range(2, 64, log=True)
    )
    init: Init = option("range", "Start means evenly over the weights' range, or at equal-probability quantiles (4.2).")
    width: float | None = option(
        0.45,
        "Hold every component's standard deviation at this times the root mean square of its weights before retraining "
        "('none': start at init_std and follow the precision priors, where they are set).",
        Range(0.25, 0.7, log=True),
    )
    init_std: float | None = option(
        None,
        "Without a width: start of every standard deviation; 'none': the spacing of means evenly over the range.",
        Range(0.02, 0.5, log=True),
    )
    zero_mixing: float = option(
        0.999, "Mixing of the zero component: fixed, or the start if a mixing prior is set (4.1)."
    )
    mixing_prior: Beta | Dirichlet | None = option(
        None,
        "Learn the zero mixing under 'alpha=A,beta=B' (Beta) or 'zero=A,free=B' (Dirichlet on all); else it is fixed.",
        _BETA_RANGE,
    )
    zero_precision_prior: Gamma | None = option(
        None,
        "Without a width: hyper-prior on the zero component's precision, 'alpha=A,beta=B', 'std=S,strength=K' or "
        "'none'.",
        _GAMMA_RANGE,
    )
    free_precision_prior: Gamma | None = option(None, "Likewise on the free components' precisions.", _GAMMA_RANGE)
    lr_means: float = option(3e-4, "Learning rate of the means (4.1).", Range(1e-4, 3e-3, log=True))
    lr_log_vars: float = option(3e-3, "Learning rate of the log-variances (4.1).", Range(3e-4, 1e-2, log=True))
    lr_mixing: float = option(5e-4, "Learning rate of the mixing logits (4.1).", Range(1e-4, 3e-3, log=True))
    backend: Backend = option(
        "auto",
        "What computes the prior: 'triton' (GPU), 'numba' (CPU), 'torch' (both); 'auto' takes the fastest here.",
    )
    method: Method = option(
        "auto",
        "The prior at each weight 'exact', or interpolated in a 'table' of it (docs/math.md bounds the error); "
        "'auto': by table where that is faster, if its grid resolves every component.",
    )
    sample_one_in: int = option(
        1, "Compute the prior in each training step on one weight in so many, scaled up (appendix C: I / K)."
    )
    rules: tuple[Rule, ...] = option(
        (), "Ordered name rules 'share:PATTERN' or 'keep:PATTERN', first match wins; may be repeated."
    )

    def __post_init__(self) -> None:
        require_types(self)
        require(self.components >= 1, "components", "at least 1 free component", self.components)
        require(self.sample_one_in >= 1, "sample_one_in", "at least 1", self.sample_one_in)
        require(0 < self.zero_mixing < 1, "zero_mixing", "a number between 0 and 1, both excluded", self.zero_mixing)
        for name in ("width", "init_std"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, "a number above 0", value)
        given = [name for name in WITHOUT_A_WIDTH if getattr(self, name) is not None]
        if self.width is not None and given:
            raise ConfigError(
                f"{', '.join(given)}: no effect while width is set, here to {self.width}. Set width to None ('none' on "
                "the command line) to use these, or leave them at None"
            )
        for name in ("lr_means", "lr_log_vars", "lr_mixing"):
            require(0 <= getattr(self, name) < math.inf, name, "a number of at least 0", getattr(self, name))


@dataclass(frozen=True)
class RetrainConfig:
    """Retraining under the prior."""

    epochs: int = option(30, "Passes over the training data.", Range(15, 60))
    tau: float = option(
        0.03,
        "Weight of the prior against the error, in the paper's meaning (4.1); any batch size.",
        Range(1e-3, 0.2, log=True),
    )
    tau_warmup: float = option(0.6, "Share of the run over which tau rises linearly from 0.", Range(0.0, 0.9))
    lr_weights: float = option(
        1e-3, "Learning rate of the weights (4.1: about that of pre-training).", Range(3e-4, 3e-3, log=True)
    )
    optimizer: Optimizer = option(
        "adam", "Of the network: 'adam', or 'sgd' with Nesterov momentum of 0.9. The mixture's is Adam."
    )
    weight_decay: float = option(0.0, "Weight of half the sum of squares of all parameters in the loss.")
    schedule: Schedule = option("cosine", "All learning rates stay 'constant' or fall to 0 by a 'cosine'.")
    hard_from: float = option(
        0.2, "Share of the run after which the network is trained on quantized weights (1: never).", Range(0.05, 0.5)
    )
    zeroing: float = option(
        0.3,
        "After each epoch on quantized weights, zero those whose loss (by curvature) is less than this times what tau "
        "asks for their bits (0: none).",
        Range(0.01, 10.0, log=True),
    )
    distill: float = option(
        0.0, "Share of the loss that is the divergence from the network before compression, its teacher (0: none)."
    )
    seed: int = option(0, "Seed of everything random in the run.")
    capture: bool = option(
        False,
        "Capture the training step into a CUDA graph: small networks train several times faster on a GPU. All batches "
        "of one shape must take the same path through the network.",
    )

    def __post_init__(self) -> None:
        require_types(self)
        require(self.epochs >= 1, "epochs", "at least 1", self.epochs)
        require(0 <= self.tau < math.inf, "tau", "a number of at least 0", self.tau)
        require(0 <= self.tau_warmup <= 1, "tau_warmup", "a share between 0 and 1", self.tau_warmup)
        for name in ("hard_from", "distill"):
            require(0 <= getattr(self, name) <= 1, name, "a share between 0 and 1", getattr(self, name))
        for name in ("zeroing", "weight_decay"):
            require(0 <= getattr(self, name) < math.inf, name, "a number of at least 0", getattr(self, name))
        require(0 < self.lr_weights < math.inf, "lr_weights", "a number above 0", self.lr_weights)
        require(-(2**63) <= self.seed < 2**64, "seed", "a whole number of 64 bits", self.seed)  # what torch takes

    def tau_at(self, progress: float) -> float:
        """Tau when this share of the run is done."""
        return self.tau * (min(1.0, progress / self.tau_warmup) if self.tau_warmup else 1.0)

    def decay_at(self, progress: float) -> float:
        """What all learning rates are then multiplied by."""
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0


@dataclass(frozen=True)
class MergeConfig:
    """Merging of components that have become alike."""

    merge_threshold: float = option(
        0.01, "Merge components whose symmetric KL divergence is below this, in nats (4.3)."
    )

    def __post_init__(self) -> None:
        require_types(self)
        require(0 <= self.merge_threshold < math.inf, "merge_threshold", "a number of at least 0", self.merge_threshold)


@dataclass(frozen=True)
class SimplifyConfig:
    """Other weights of the same function."""

    symmetries: bool = option(
        True, "Drop hidden units without effect and put the others into the order that makes the file smallest."
    )

    def __post_init__(self) -> None:
        require_types(self)


@dataclass(frozen=True)
class EncodeConfig:
    """What the file is written with."""

    codec: Codec = option(
        "adaptive",
        "Coder of the shared weights: 'adaptive' models where the non-zeros are; 'han' is appendix A of the paper.",
    )
    codebook_dtype: CodebookDtype = option(
        "auto", "Precision of the codebook; 'auto' is float16, or float32 where a value is outside its normal range."
    )
    rest_dtype: RestDtype = option(
        "float32", "Precision in which floating-point tensors that are not shared are stored."
    )
    names: Names = option(
        "keep", "Names and shapes in the file; 'none' leaves them out, for a receiver that has the network's code."
    )

    def __post_init__(self) -> None:
        require_types(self)


@dataclass(frozen=True)
class CompressConfig(Versioned):
    """The whole route, stage by stage. `CompressConfig()` is the best we know, `CompressConfig.paper()` the paper's.

    Where the defaults part from the paper: a mixture of few components for each layer, their widths held relative to
    the layer's own weights; learning rates that a cosine brings to 0; and after a fifth of the run a hard phase, on
    quantized weights, in which those not worth their bits are zeroed. docs/math.md says why.
    """

    VERSION = 3

    prior: PriorConfig = field(default_factory=PriorConfig)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    simplify: SimplifyConfig = field(default_factory=SimplifyConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)

    def __post_init__(self) -> None:
        require_types(self)

    @classmethod
    def paper(cls) -> CompressConfig:
        """The method of section 4, with a warm-up of tau; hyper-parameters found as in 6.2 (docs/tuning.md)."""
        return cls(
            prior=PriorConfig(
                mixtures="global",
                components=16,
                width=None,
                init_std=0.08,
                zero_mixing=0.999,
                mixing_prior=Beta(27_000, 17),
                zero_precision_prior=Gamma(1000, 9.9),
                free_precision_prior=Gamma(10_000, 11),
                lr_means=1e-4,
                lr_log_vars=6e-3,
                lr_mixing=2e-4,
            ),
            retrain=RetrainConfig(
                epochs=40, tau=0.08, tau_warmup=0.6, lr_weights=2e-3, schedule="constant", hard_from=1.0, zeroing=0.0
            ),
            simplify=SimplifyConfig(symmetries=False),
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CompressConfig:
        return super().from_dict(upgraded(values))

    @property
    def seed(self) -> int:
        return self.retrain.seed

    def override(self, **values: Any) -> CompressConfig:
        """A copy with the named fields of any stage replaced: `config.override(tau=0.01, epochs=20)`."""
        stages = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changes: dict[str, dict[str, Any]] = {stage: {} for stage in stages}  # of a stage, at once
        for name, value in values.items():
            owner = next((s for s, stage in stages.items() if name in stage.__dataclass_fields__), None)
            if owner is None:
                known = ", ".join(n for stage in stages.values() for n in stage.__dataclass_fields__)
                raise ConfigError(f"unknown option {name!r}; known are {known}")
            changes[owner][name] = value
        return CompressConfig(**{s: dataclasses.replace(stage, **changes[s]) for s, stage in stages.items()})


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Recorded settings of an earlier version as those of this one; others are left alone.

    Version 2 had a phase that trained codebooks and random samples of the prior. No kept result has used either.
    """
    if values.get("version") != 2 or not isinstance(values.get("prior"), dict):
        return values
    values = {**values, "version": 3, "prior": dict(values["prior"])}
    codebook, schedule = values.pop("codebook", {}), values["prior"].pop("sample_schedule", "block")
    used = [] if not codebook.get("codebook_epochs") else ["codebook_epochs"]
    used += [] if schedule == "block" or values["prior"].get("sample_one_in") == 1 else ["sample_schedule"]
    if used:
        raise ConfigError(f"{', '.join(used)}: these settings of version 2 no longer exist; leave them out")
    return values
