"""Which implementation of the sweep runs: by device, by what is installed, or by request."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from softshare.errors import NotAvailableError
from softshare.prior.kernels.sweep import Sweep, sweep_torch
from softshare.prior.kernels.table import tabulated


def available_backends(
    mean: Tensor,  # (J,)
) -> list[str]:
    """The backends that can compute a mixture of this device and dtype here, fastest first."""
    fits = {
        "triton": mean.device.type == "cuda" and mean.dtype == torch.float32 and _installed("triton"),
        "numba": mean.device.type == "cpu" and mean.dtype == torch.float32 and _installed("numba"),
        "torch": True,
    }
    return [name for name, fit in fits.items() if fit]


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


def find_sweep(
    mean: Tensor,  # (J,)
    backend: str = "auto",
    reach: float | None = None,
) -> Sweep:
    """The exact sweep, or the sweep by table if there is a `reach` (`table.reach_of` the largest weight)."""
    available = available_backends(mean)
    if reach is not None:
        available.remove("torch")  # a table in plain torch would be slower than the exact sweep
    if backend not in ("auto", *available) or not available:
        what = f"a {mean.dtype} mixture on {mean.device.type}{'' if reach is None else ' by table'}"
        raise NotAvailableError(
            f"backend {backend!r} cannot compute {what.replace('torch.', '')} here; "
            f"expected 'auto' or one of the available: {', '.join(available) or 'none'}"
        )
    name = available[0] if backend == "auto" else backend
    exact: Sweep = sweep_torch if name == "torch" else import_module(f"softshare.prior.kernels.sweep_{name}").sweep
    if reach is None:
        return exact
    table = import_module(f"softshare.prior.kernels.table_{name}")
    return tabulated(exact, table.make_grid, table.look_up, reach)
