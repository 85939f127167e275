"""One frozen dataclass per stage, nested in `CompressConfig`. The options of the command line come from these fields.

Field names are unique across the stages, so `--tau` needs no prefix. `--help` prints the text below a field.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Unpack

from softshare._util.calls import meant
from softshare._util.schema import Versioned, require, require_types
from softshare.config.fields import Range, option
from softshare.config.hyperpriors import Beta, Dirichlet, Gamma
from softshare.config.settings import (
    Backend,
    CodebookDtype,
    Codec,
    Init,
    Method,
    Mixtures,
    Names,
    Optimizer,
    RestDtype,
    Rule,
    Scaling,
    Schedule,
    Settings,
    Speed,
)
from softshare.errors import ConfigError

MOST_LOOKS, FEWEST_LOOKS, STEPS_PER_LOOK = 30, 10, 200  # at a run whose length is in steps
COUNTED = 60_000  # examples that the prior is weighed against, whatever the size of the data set
WITHOUT_A_WIDTH = (
    "init_std",
    "zero_precision_prior",
    "free_precision_prior",
)  # no effect while width is set


_GAMMA_RANGE = {"std": Range(0.005, 0.1, log=True), "strength": Range(5.0, 500.0, log=True)}  # see `Gamma.from_std`
_BETA_RANGE = {"free": Range(1e-4, 0.1, log=True), "count": Range(1e3, 1e7, log=True)}  # see `Beta.from_mode`


@dataclass(frozen=True)
class PriorConfig:
    """The mixture over the weights: components, initial values, hyper-priors and learning rates.

        config = softshare.CompressConfig(prior=softshare.PriorConfig(components=8))

    `CompressConfig.override` sets the same fields by name.
    """

    mixtures: Mixtures = option("layer")
    """Use one mixture for each layer, or one for all weights, as in the paper."""
    components: int = option(4, Range(2, 64, log=True))
    """Free components of a mixture, in addition to its zero component. The paper's one mixture has 16 (4.1)."""
    init: Init = option("range")
    """Initial means: evenly over the range of the weights, or at quantiles of equal probability (paper, 4.2)."""
    width: float | None = option(0.45, Range(0.25, 0.7, log=True))
    """Fixed standard deviation of every component, as a multiple of the root mean square of its weights before
    retraining. With 'none' it is learned: it starts at init_std and follows the precision priors that are set."""
    init_std: float | None = option(None, Range(0.02, 0.5, log=True))
    """Initial standard deviation of every component, if width is 'none'. With 'none' it is the distance between means
    that are spread evenly over the range of the weights."""
    zero_mixing: float = option(0.999)
    """Mixing of the zero component (paper, 4.1). It is fixed, or the initial value if mixing_prior is set."""
    mixing_prior: Beta | Dirichlet | None = option(None, _BETA_RANGE)
    """Hyper-prior under which the mixing is learned: 'alpha=A,beta=B' (a Beta on the zero component) or 'zero=A,free=B'
    (a Dirichlet on all components). With 'none' the zero mixing is fixed."""
    zero_precision_prior: Gamma | None = option(None, _GAMMA_RANGE)
    """Gamma hyper-prior on the precision of the zero component, if width is 'none': 'alpha=A,beta=B',
    'std=S,strength=K' or 'none'."""
    free_precision_prior: Gamma | None = option(None, _GAMMA_RANGE)
    """Gamma hyper-prior on the precisions of the free components, in the same forms."""
    units: float = option(0.0)
    """Weight of the prior over whole units (neurons, channels, attention heads), relative to that over weights. Units
    that it empties cost nothing in the file, and can be removed from the network. 0 uses none."""
    lr_means: float = option(3e-4, Range(1e-4, 3e-3, log=True))
    """Learning rate of the means (paper, 4.1)."""
    lr_log_vars: float = option(3e-3, Range(3e-4, 1e-2, log=True))
    """Learning rate of the log-variances (paper, 4.1)."""
    lr_mixing: float = option(5e-4, Range(1e-4, 3e-3, log=True))
    """Learning rate of the mixing logits (paper, 4.1)."""
    backend: Backend = option("auto")
    """What computes the prior: 'triton' on a GPU, 'numba' on a CPU, 'torch' on both. 'auto' selects the fastest."""
    method: Method = option("auto")
    """How the prior is computed: exactly for each weight, or by interpolation in a table (docs/math.md bounds the
    error). 'auto' uses a table if that is faster and its grid resolves every component."""
    sample_one_in: int = option(1)
    """Compute the prior in each training step on one weight in this many, and scale it up (paper, appendix C)."""
    rules: tuple[Rule, ...] = option(())
    """Which tensors are shared, by name: any number of 'share:PATTERN', 'keep:PATTERN' and 'drop:PATTERN'. The first
    match decides. A dropped tensor is left out of the file; it must be frozen."""

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
                f"{', '.join(given)}: no effect while width is set, here to {self.width}. To use these, set width to "
                "None ('none' on the command line)"
            )
        for name in ("units", "lr_means", "lr_log_vars", "lr_mixing"):
            require(0 <= getattr(self, name) < math.inf, name, "a number of at least 0", getattr(self, name))


@dataclass(frozen=True)
class RetrainConfig:
    """Retraining under the prior.

        config = softshare.CompressConfig(retrain=softshare.RetrainConfig(epochs=20))

    `CompressConfig.override` sets the same fields by name.
    """

    steps: int = option(6000, Range(3000, 12000))
    """Length of the run in optimizer steps, over as many passes as that takes or a part of one."""
    epochs: int | None = option(None, Range(15, 60))
    """Length of the run in passes over the training data, in place of steps."""
    tau: float = option(0.03, Range(1e-3, 0.2, log=True))
    """Weight of the prior in the loss (paper, 4.1). It does not depend on the batch size."""
    scaling: Scaling = option("auto")
    """What tau is relative to. 'auto': the loss in units that the task itself gives, so that one tau suits any data
    set, loss and network. 'paper': the loss in nats, summed over all training examples (4.1)."""
    tau_warmup: float = option(0.6, Range(0.0, 0.9))
    """Share of the run over which tau rises linearly from 0."""
    lr_weights: float = option(1e-3, Range(3e-4, 3e-3, log=True))
    """Learning rate of the weights. The paper takes about that of the pre-training (4.1)."""
    optimizer: Optimizer = option("adam")
    """Optimizer of the network. 'sgd' has a Nesterov momentum of 0.9. The mixtures always use Adam."""
    weight_decay: float = option(0.0)
    """Weight in the loss of half the sum of squares of all parameters."""
    schedule: Schedule = option("cosine")
    """Whether all learning rates stay constant, or fall to 0 along a cosine."""
    hard_from: float = option(0.2, Range(0.05, 0.5))
    """Share of the run after which the network trains on quantized weights. With 1 it never does."""
    zeroing: float = option(1.0, Range(0.01, 10.0, log=True))
    """After each epoch or look on quantized weights, zero a weight if it adds less to the loss (by curvature) than this
    times what tau charges for its bits. With 0 no weight is zeroed."""
    distill: float = option(0.0)
    """Share of the loss that is the divergence from a teacher, the network before compression. 0 uses no teacher."""
    seed: int = option(0)
    """Seed of everything random in the run."""
    capture: bool = option(False)
    """Replay training steps from a CUDA graph. Small networks then train several times faster on a GPU. All batches of
    one shape must take the same path through the network."""

    def __post_init__(self) -> None:
        require_types(self)
        require(self.steps >= 1, "steps", "at least 1", self.steps)
        require(self.epochs is None or self.epochs >= 1, "epochs", "at least 1", self.epochs)
        require(0 <= self.tau < math.inf, "tau", "a number of at least 0", self.tau)
        require(0 <= self.tau_warmup <= 1, "tau_warmup", "a share between 0 and 1", self.tau_warmup)
        for name in ("hard_from", "distill"):
            require(0 <= getattr(self, name) <= 1, name, "a share between 0 and 1", getattr(self, name))
        for name in ("zeroing", "weight_decay"):
            require(0 <= getattr(self, name) < math.inf, name, "a number of at least 0", getattr(self, name))
        require(0 < self.lr_weights < math.inf, "lr_weights", "a number above 0", self.lr_weights)
        require(-(2**63) <= self.seed < 2**64, "seed", "a whole number of 64 bits", self.seed)  # what torch takes

    @property
    def looks(self) -> int:
        """How often the run is looked at: records, validation and zeroing come after each epoch, or so many times."""
        return self.epochs or min(MOST_LOOKS, max(FEWEST_LOOKS, self.steps // STEPS_PER_LOOK), self.steps)

    def counted(self, n_examples: int) -> int:
        """The examples that tau is divided by.

        Args:
            n_examples: of the task.

        Returns:
            Their number, or a fixed one with the scaling 'auto'.
        """
        return n_examples if self.scaling == "paper" else COUNTED

    @property
    def relative(self) -> bool:
        """Whether learning rates are relative to the weights of a layer. The steps of SGD have the gradient's size."""
        return self.scaling == "auto" and self.optimizer == "adam"

    def tau_at(self, progress: float) -> float:
        """Tau in the course of the run.

        Args:
            progress: the share of the run that is done.

        Returns:
            Tau at that time.
        """
        return self.tau * (min(1.0, progress / self.tau_warmup) if self.tau_warmup else 1.0)

    def decay_at(self, progress: float) -> float:
        """The factor of all learning rates in the course of the run.

        Args:
            progress: the share of the run that is done.

        Returns:
            The factor at that time.
        """
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0


@dataclass(frozen=True)
class MergeConfig:
    """Merging of components that have become similar.

        config = softshare.CompressConfig(merge=softshare.MergeConfig(merge_threshold=0.02))

    `CompressConfig.override` sets the same fields by name.
    """

    merge_threshold: float = option(0.01)
    """Merge components whose symmetric KL divergence is below this, in nats (paper, 4.3)."""

    def __post_init__(self) -> None:
        require_types(self)
        require(0 <= self.merge_threshold < math.inf, "merge_threshold", "a number of at least 0", self.merge_threshold)


@dataclass(frozen=True)
class SimplifyConfig:
    """Changes to the weights that keep the function of the network."""

    symmetries: bool = option(True)
    """Drop hidden units that have no effect, and reorder the others to make the file as small as possible."""
    fold_batchnorm: bool = option(False)
    """Put the statistics of batch norm into its weights and biases, and drop and reorder units through it too. In
    evaluation mode the network is the same, in a smaller file. It cannot be trained further from that file."""

    def __post_init__(self) -> None:
        require_types(self)


@dataclass(frozen=True)
class EncodeConfig:
    """How the file is written.

        softshare.quantize(model, bits=4, config=softshare.EncodeConfig(speed="smallest"))

    `CompressConfig.override` sets the same fields by name.
    """

    codec: Codec = option("adaptive")
    """Coder of the shared weights. 'adaptive' learns where the non-zero weights are. 'han' is the paper's format
    (appendix A)."""
    codebook_dtype: CodebookDtype = option("auto")
    """Precision of the codebook. 'auto' is float16, or float32 if a value is outside the normal range of float16."""
    rest_dtype: RestDtype = option("float32")
    """Precision in which the floating-point tensors that are not shared are stored. A tensor with a value that would
    become 0 keeps its own."""
    names: Names = option("keep")
    """Whether the file has names and shapes. 'none' leaves them out, for a receiver who has the network's code."""
    speed: Speed = option("balanced")
    """What counts beside bytes. 'balanced': a second of decoding is worth 30,000 bytes. It gives large dense tensors
    a code that decodes 50 times as fast, and very large sparse ones to all processors. 'smallest': bytes alone.
    'fastest': decoding alone, best on a GPU, for about 1% more bytes, and more where few weights are left."""
    compact: bool = option(True)
    """Whether a small file has the compact form where that is smaller: one code for the header and all tensors, 1 to 4%
    less below 5 kB. Set it to False for a receiver whose reader knows version 1 alone."""

    def __post_init__(self) -> None:
        require_types(self)


@dataclass(frozen=True)
class CompressConfig(Versioned):
    """The settings of the whole route, stage by stage. The defaults are the best we know.

        config = softshare.CompressConfig().override(tau=0.01, steps=3000)
        softshare.compress(task, config)

    The defaults differ from `CompressConfig.paper()`, the paper's own settings. Each layer has its own mixture of few
    components, with widths relative to the weights of the layer. The learning rates fall to 0 along a cosine. After a
    fifth of the run comes a hard phase on quantized weights, which zeroes those that are not worth their bits.
    docs/math.md gives the reasons.
    """

    VERSION = 4

    prior: PriorConfig = field(default_factory=PriorConfig)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    simplify: SimplifyConfig = field(default_factory=SimplifyConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)

    def __post_init__(self) -> None:
        require_types(self)

    @classmethod
    def paper(cls) -> CompressConfig:
        """The method of the paper's section 4, with a warm-up of tau and numbers from a search (docs/tuning.md).

        Returns:
            The settings, which `override` changes.
        """
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
                epochs=40,
                scaling="paper",
                tau=0.08,
                tau_warmup=0.6,
                lr_weights=2e-3,
                schedule="constant",
                hard_from=1.0,
                zeroing=0.0,
            ),
            simplify=SimplifyConfig(symmetries=False),
        )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CompressConfig:
        """Settings from plain values, such as those in `result.json`, also of older versions.

        Args:
            values: by stage and name, with their version, as `to_dict` gives them.

        Returns:
            The settings.
        """
        return super().from_dict(upgraded(values))

    @property
    def seed(self) -> int:
        """Of everything random in the run."""
        return self.retrain.seed

    def override(self, **settings: Unpack[Settings]) -> CompressConfig:
        """A copy with the named fields of any stage replaced:

            config = softshare.CompressConfig().override(tau=0.01, epochs=20)

        Of the two ways to say the length of the run, the one named replaces the other.

        Args:
            settings: any of the fields of the stages, by name. `softshare config` prints them all.

        Returns:
            The new settings.
        """
        values: dict[str, Any] = {**settings}
        if values.get("epochs") is not None and "steps" in values:
            raise ConfigError(f"expected steps or epochs, got both: {values['steps']} and {values['epochs']}")
        if "steps" in values:
            values = {**values, "epochs": None}
        stages = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        changes: dict[str, dict[str, Any]] = {stage: {} for stage in stages}  # each stage is replaced once
        for name, value in values.items():
            owner = next((s for s, stage in stages.items() if name in stage.__dataclass_fields__), None)
            if owner is None:
                known = (n for stage in stages.values() for n in stage.__dataclass_fields__)
                raise ConfigError(f"unknown setting {name!r}; {meant(name, known)}")
            changes[owner][name] = value
        return CompressConfig(**{s: dataclasses.replace(stage, **changes[s]) for s, stage in stages.items()})


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """Recorded settings of earlier versions as settings of this version. All others are returned unchanged.

    Version 4 had no prior over units at first, did not fold batch norm, and wrote files in one way, never compact.
    Version 3 had epochs alone, and the paper's tau. Version 2 could also train codebooks after quantizing, and compute
    the prior on random samples. No kept result uses either.
    """
    if isinstance(values.get("encode"), dict):  # rivals have this stage too
        values = {**values, "encode": {**dataclasses.asdict(EncodeConfig(compact=False)), **values["encode"]}}
    if values.get("version") not in (2, 3, 4) or not all(isinstance(values.get(s), dict) for s in ("prior", "retrain")):
        return values
    values = {**values, "prior": {"units": 0.0, **values["prior"]}}
    if isinstance(values.get("simplify"), dict):
        values["simplify"] = {"fold_batchnorm": False, **values["simplify"]}
    if values["version"] == 4:
        return values
    retrain = {"steps": RetrainConfig.steps, "scaling": "paper", **values["retrain"]}
    values = {**values, "version": 4, "retrain": retrain}
    codebook, schedule = values.pop("codebook", None) or {}, values["prior"].pop("sample_schedule", "block")
    used = [] if not codebook.get("codebook_epochs") else ["codebook_epochs"]
    used += [] if schedule == "block" or values["prior"].get("sample_one_in") == 1 else ["sample_schedule"]
    if used:
        raise ConfigError(f"{', '.join(used)}: these settings of version 2 no longer exist. Leave them out")
    return values
