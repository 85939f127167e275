"""softshare: from a trained PyTorch network to a file many times smaller that loads back.

    compressed = softshare.compress(model, train_loader, val_loader, loss=nn.CrossEntropyLoss())
    print(compressed.summary())
    softshare.save(compressed, "model.sws")
    softshare.load_into_(model, "model.sws")

The public names are those in `__all__`. Each is imported on first use, so `import softshare` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from softshare import integrations as integrations
    from softshare.api import compress, save
    from softshare.api import html_of as html_of  # for the methods of `Compressed`, as the next three
    from softshare.api import line_of as line_of
    from softshare.api import summary_of as summary_of
    from softshare.api import write_report_of as write_report_of
    from softshare.codec import inspect, load, load_into_
    from softshare.compressed import Compressed
    from softshare.compressed import quantize_prior as quantize_prior  # for `MixturePrior.quantize`
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
    )
    from softshare.datafree.compress_weights import FittedWeights, quantize
    from softshare.datafree.compress_weights import compress_weights as compress_weights  # another name of quantize
    from softshare.errors import SoftShareError
    from softshare.export import export_onnx, load_sparse
    from softshare.integrations.pretrained import from_pretrained, save_pretrained
    from softshare.loaders import task_from_loaders as task_from_loaders  # for `Task.from_loaders`
    from softshare.network.batchnorm import reestimate_batch_norm_
    from softshare.prior.mixture import Mixture
    from softshare.prior.prior import MixturePrior
    from softshare.report.quantized_page import write_quantized_report as write_quantized_report  # for `FittedWeights`
    from softshare.result import Result, measure
    from softshare.simplify.shrink import shrink
    from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, MaxMacs, Outcome, WithinNoise
    from softshare.task import Metric, Task
    from softshare.train.hard import hard_step
    from softshare.train.hooks import EpochRecord, Hook
    from softshare.train.progress import CsvLog, ProgressBar
    from softshare.train.resume import Checkpoint

_HOMES = {
    "softshare.api": ("compress", "html_of", "line_of", "save", "summary_of", "write_report_of"),
    "softshare.codec": ("inspect", "load", "load_into_"),
    "softshare.compressed": ("Compressed", "quantize_prior"),
    "softshare.config": (
        "Beta",
        "CompressConfig",
        "Dirichlet",
        "EncodeConfig",
        "Gamma",
        "MergeConfig",
        "PriorConfig",
        "RetrainConfig",
        "Rule",
    ),
    "softshare.datafree.compress_weights": ("FittedWeights", "compress_weights", "quantize"),
    "softshare.errors": ("SoftShareError",),
    "softshare.export": ("export_onnx", "load_sparse"),
    "softshare.integrations.pretrained": ("from_pretrained", "save_pretrained"),
    "softshare.loaders": ("task_from_loaders",),
    "softshare.network.batchnorm": ("reestimate_batch_norm_",),
    "softshare.prior.mixture": ("Mixture",),
    "softshare.prior.prior": ("MixturePrior",),
    "softshare.report.quantized_page": ("write_quantized_report",),
    "softshare.result": ("Result", "measure"),
    "softshare.simplify.shrink": ("shrink",),
    "softshare.target.limits": ("MaxBytes", "MaxError", "MaxErrorIncrease", "MaxMacs", "Outcome", "WithinNoise"),
    "softshare.task": ("Metric", "Task"),
    "softshare.train.hard": ("hard_step",),
    "softshare.train.hooks": ("EpochRecord", "Hook"),
    "softshare.train.progress": ("CsvLog", "ProgressBar"),
    "softshare.train.resume": ("Checkpoint",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Beta",
    "Checkpoint",
    "CompressConfig",
    "Compressed",
    "CsvLog",
    "Dirichlet",
    "EncodeConfig",
    "EpochRecord",
    "FittedWeights",
    "Gamma",
    "Hook",
    "MaxBytes",
    "MaxError",
    "MaxErrorIncrease",
    "MaxMacs",
    "MergeConfig",
    "Metric",
    "Mixture",
    "MixturePrior",
    "Outcome",
    "PriorConfig",
    "ProgressBar",
    "Result",
    "RetrainConfig",
    "Rule",
    "SoftShareError",
    "Task",
    "WithinNoise",
    "compress",
    "export_onnx",
    "from_pretrained",
    "hard_step",
    "inspect",
    "load",
    "load_into_",
    "load_sparse",
    "measure",
    "quantize",
    "reestimate_batch_norm_",
    "save",
    "save_pretrained",
    "shrink",
]


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return import_module("softshare.integrations")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'softshare' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
