"""Float64 on a device without it. No such device is here, so a kind of tensor stands for one on it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softshare._util import float64
from softshare._util.float64 import in_float64
from softshare.config import MergeConfig
from softshare.network.weights import SharedTensor, WeightView
from softshare.prior.mixture import Mixture
from softshare.quantization import merge
from softshare.quantization.merge import merge_groups
from softshare.simplify.shrink import shrink


class OnMps(Tensor):
    """Refuses float64, as torch does on that device, until it is moved to the CPU."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.device.__get__:
            return torch.device("mps")
        if func is Tensor.cpu:
            return args[0].as_subclass(Tensor)
        if func is Tensor.double:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def on_mps(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnMps)


def test_the_helper_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.tensor([0.1, 0.2])
    assert in_float64(values).dtype == torch.float64
    assert torch.equal(in_float64(on_mps(values)), values.double())
    assert in_float64(values).device == values.device
    monkeypatch.setattr(float64, "WITHOUT", ())
    with pytest.raises(TypeError, match="doesn't support float64"):
        in_float64(on_mps(values))


def test_merging_and_ranges_work_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_as", lambda values, like: values.to(like.dtype))  # it would move them back
    parameters = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.1, 0.2, 0.2]).log()
    expected, groups = merge_groups(Mixture(*parameters), MergeConfig())
    found, same = merge_groups(Mixture(*map(on_mps, parameters)), MergeConfig())
    assert groups == same == [[0], [1, 2]]
    for name in ("log_mixing", "mean", "log_var"):
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name))
        assert getattr(found, name).dtype == torch.float32
    weights = on_mps(torch.tensor([[-0.5, 0.25]]))
    assert WeightView((SharedTensor("w", weights),), {}, {}).range() == (-0.5, 0.25)


def test_shrinking_asks_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit without inputs is folded into the next biases, summed in float64."""
    asked: list[Tensor] = []

    def ask(tensor: Tensor) -> Tensor:
        asked.append(tensor)
        return tensor.double()

    monkeypatch.setattr("softshare.simplify.shrink.in_float64", ask)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model.get_parameter("0.weight")[1] = 0
        model.get_parameter("0.bias")[1] = 1
    x = torch.randn(5, 3)
    torch.testing.assert_close(shrink(model)(x), model(x))
    assert asked
