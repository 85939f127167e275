"""The names and types of all settings, for `CompressConfig.override` and for editors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypedDict

from softshare._util.schema import require, require_types
from softshare.config.hyperpriors import Beta, Dirichlet, Gamma

Mixtures = Literal["global", "layer"]
Init = Literal["range", "quantile"]
Schedule = Literal["constant", "cosine"]
Optimizer = Literal["adam", "sgd"]
Scaling = Literal["auto", "paper"]
Backend = Literal["auto", "triton", "numba", "torch"]
Method = Literal["auto", "exact", "table"]
Codec = Literal["han", "adaptive"]
CodebookDtype = Literal["auto", "float32", "float16", "bfloat16"]
RestDtype = Literal["float32", "float16", "bfloat16"]
Names = Literal["keep", "none"]
Speed = Literal["smallest", "balanced", "fastest"]


@dataclass(frozen=True)
class Rule:
    """Whether the tensors whose state-dict name matches the shell pattern are shared, kept unchanged, or dropped.

        softshare.quantize(model, bits=4, rules=[softshare.Rule("head.*")])  # keeps the head unchanged

    The first rule that matches decides. A dropped tensor is left out of the file. It must be frozen, and whoever loads
    the file must have it already.
    """

    pattern: str
    share: bool = False
    drop: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require(not (self.share and self.drop), "rule", "share or drop", f"both for {self.pattern}")

    def __str__(self) -> str:
        return f"{'share' if self.share else 'drop' if self.drop else 'keep'}:{self.pattern}"

    def matches(self, names: Iterable[str]) -> bool:
        """Whether the pattern fits one of the names of a tensor.

        Args:
            names: under which the state dict has the tensor.

        Returns:
            Whether one fits.
        """
        return any(fnmatchcase(name, self.pattern) for name in names)


class Settings(TypedDict, total=False):
    """Any of the fields of the stages, which explain them."""

    mixtures: Mixtures
    components: int
    init: Init
    width: float | None
    init_std: float | None
    zero_mixing: float
    mixing_prior: Beta | Dirichlet | None
    zero_precision_prior: Gamma | None
    free_precision_prior: Gamma | None
    units: float
    lr_means: float
    lr_log_vars: float
    lr_mixing: float
    backend: Backend
    method: Method
    sample_one_in: int
    rules: tuple[Rule, ...]
    steps: int
    epochs: int | None
    tau: float
    scaling: Scaling
    tau_warmup: float
    lr_weights: float
    optimizer: Optimizer
    weight_decay: float
    schedule: Schedule
    hard_from: float
    zeroing: float
    distill: float
    seed: int
    capture: bool
    merge_threshold: float
    symmetries: bool
    fold_batchnorm: bool
    codec: Codec
    codebook_dtype: CodebookDtype
    rest_dtype: RestDtype
    names: Names
    speed: Speed
    compact: bool
