"""At home in other tools: logs for W&B, MLflow and TensorBoard, and callbacks in `lightning` and `huggingface`.

    softshare.compress(task, hooks=[softshare.integrations.WandbLog(project="small")])

Each module is imported on first use, and says which package it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softshare.integrations import huggingface as huggingface
    from softshare.integrations import lightning as lightning
    from softshare.integrations.mlflow import MlflowLog
    from softshare.integrations.tensorboard import TensorBoardLog
    from softshare.integrations.wandb import WandbLog

__all__ = ["MlflowLog", "TensorBoardLog", "WandbLog"]

_HOMES = {"MlflowLog": "mlflow", "TensorBoardLog": "tensorboard", "WandbLog": "wandb"}


def __getattr__(name: str) -> Any:
    if name in ("huggingface", "lightning"):
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
