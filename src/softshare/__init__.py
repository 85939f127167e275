"""softshare: from a trained PyTorch network to a file many times smaller that loads back.

    task = softshare.Task(model=model, train=loader, loss=loss_fn, evaluate=error_fn, n_examples=60_000)
    compressed = softshare.compress(task)
    compressed.save("model.sws")
    softshare.load_into_(model, "model.sws")

The names below are all that is public. They are imported on first use, so that `import softshare` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from softshare.batchnorm import reestimate_batch_norm_
    from softshare.codec import inspect, load, load_into_
    from softshare.config import CompressConfig, EncodeConfig, MergeConfig, PriorConfig, RetrainConfig, Rule
    from softshare.datafree import FittedWeights, compress_weights
    from softshare.errors import SoftShareError
    from softshare.evaluate import Result, measure
    from softshare.export import export_onnx, load_sparse
    from softshare.hard import hard_step
    from softshare.hyperpriors import Beta, Dirichlet, Gamma
    from softshare.prior import Mixture, MixturePrior
    from softshare.route import Compressed, compress
    from softshare.target import MaxBytes, MaxError, MaxErrorIncrease, Outcome
    from softshare.task import Task

_HOMES = {
    "softshare.batchnorm": ("reestimate_batch_norm_",),
    "softshare.codec": ("inspect", "load", "load_into_"),
    "softshare.route": ("Compressed", "compress"),
    "softshare.config": ("CompressConfig", "EncodeConfig", "MergeConfig", "PriorConfig", "RetrainConfig", "Rule"),
    "softshare.datafree": ("FittedWeights", "compress_weights"),
    "softshare.errors": ("SoftShareError",),
    "softshare.evaluate": ("Result", "measure"),
    "softshare.export": ("export_onnx", "load_sparse"),
    "softshare.hard": ("hard_step",),
    "softshare.hyperpriors": ("Beta", "Dirichlet", "Gamma"),
    "softshare.prior": ("Mixture", "MixturePrior"),
    "softshare.target": ("MaxBytes", "MaxError", "MaxErrorIncrease", "Outcome"),
    "softshare.task": ("Task",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Beta",
    "CompressConfig",
    "Compressed",
    "Dirichlet",
    "EncodeConfig",
    "FittedWeights",
    "Gamma",
    "MaxBytes",
    "MaxError",
    "MaxErrorIncrease",
    "MergeConfig",
    "Mixture",
    "MixturePrior",
    "Outcome",
    "PriorConfig",
    "Result",
    "RetrainConfig",
    "Rule",
    "SoftShareError",
    "Task",
    "compress",
    "compress_weights",
    "export_onnx",
    "hard_step",
    "inspect",
    "load",
    "load_into_",
    "load_sparse",
    "measure",
    "reestimate_batch_norm_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'softshare' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
