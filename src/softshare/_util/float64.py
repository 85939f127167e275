"""Double precision on devices that may not have it."""

from __future__ import annotations

from torch import Tensor

WITHOUT = ("mps",)  # types of devices that have no float64


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64: on its own device, or on the CPU if that device has no float64."""
    return (tensor.cpu() if tensor.device.type in WITHOUT else tensor).double()
