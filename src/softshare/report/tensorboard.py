"""The log for TensorBoard is in `softshare.integrations`. The command line still asks for it here."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("softshare.integrations.tensorboard"), name)
