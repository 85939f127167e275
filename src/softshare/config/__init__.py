"""Settings: one frozen dataclass per stage of the route, the hyper-priors, and their form in files."""

from softshare.config.fields import Range
from softshare.config.hyperpriors import Beta, Dirichlet, Gamma
from softshare.config.settings import Rule
from softshare.config.stages import (
    CompressConfig,
    EncodeConfig,
    MergeConfig,
    PriorConfig,
    RetrainConfig,
    SimplifyConfig,
)

__all__ = [
    "Beta",
    "CompressConfig",
    "Dirichlet",
    "EncodeConfig",
    "Gamma",
    "MergeConfig",
    "PriorConfig",
    "Range",
    "RetrainConfig",
    "Rule",
    "SimplifyConfig",
]
