"""Parametrized layers and parameters of the user's own: what is shared, what is kept, and never a NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import softshare as ss
from softshare.errors import ConfigError
from softshare.network.weights import WeightView, kept_message

SPARSE = ss.CompressConfig().override(epochs=4, tau=0.5, zeroing=3.0, lr_weights=1e-2)
NORMS: dict[str, tuple[Any, str]] = {  # what may not become 0, by what divides it by its norm
    "weight_norm": (parametrizations.weight_norm, "0.parametrizations.weight.original1"),
    "spectral_norm": (parametrizations.spectral_norm, "0.parametrizations.weight.original"),
    "old weight_norm": (nn.utils.weight_norm, "0.weight_v"),
    "old spectral_norm": (nn.utils.spectral_norm, "0.weight_orig"),
}
old_warns = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


def net(norm: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(norm(nn.Linear(8, 64)), nn.ReLU(), nn.Linear(64, 2))


def make_task(model: nn.Module) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] > x[:, 1]).long()
    return ss.Task(
        model=model,
        train=list(zip(x.split(32), y.split(32), strict=True)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: float(F.cross_entropy(model(x), y)),
        n_examples=256,
        metric=ss.Metric("loss", ""),
    )


@old_warns
@pytest.mark.parametrize("kind", NORMS)
def test_what_is_divided_by_its_norm_is_kept_with_the_reason(kind: str) -> None:
    norm, name = NORMS[kind]
    model = net(norm)
    view = WeightView.of(model)
    assert {s.name for s in view.shared} == {"0.bias", "2.weight", "2.bias"}
    assert view.normed == (name,)
    (line,) = kept_message(view)
    assert line.startswith(f"{100 * (1 - view.n_weights / sum(p.numel() for p in model.parameters())):.0f}% of the")
    assert f"{name} is divided by its norm, so it may not become 0. Remove weight_norm or spectral_norm first" in line
    with pytest.raises(ConfigError, match=r"rule share:0\.\*: .* is divided by its norm, .* gives NaN\. Remove"):
        WeightView.of(model, [ss.Rule("0.*", share=True)])
    WeightView.of(model, [ss.Rule(name, share=False), ss.Rule("0.*", share=True)])  # magnitudes may become 0


@old_warns
@pytest.mark.parametrize("kind", NORMS)
def test_a_sparse_network_with_a_norm_gives_no_nan(kind: str, tmp_path: Path) -> None:
    model = net(NORMS[kind][0])
    task = make_task(model)
    compressed = ss.compress(task, SPARSE)
    compressed.save(tmp_path / "model.sws")
    ss.load_into_(model, tmp_path / "model.sws")
    assert model.eval()(torch.randn(16, 8)).isfinite().all()


def test_without_the_parametrization_all_is_shared() -> None:
    model = net(parametrizations.weight_norm)
    parametrize.remove_parametrizations(model[0], "weight")  # type: ignore[index]
    assert WeightView.of(model).rest == {}
    assert kept_message(WeightView.of(model)) == []


def test_an_orthogonal_layer_is_kept() -> None:
    """It is finite for all values, but one of zeros is as far from the trained one as any other."""
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(32, 32)), nn.ReLU(), nn.Linear(32, 2))
    view = WeightView.of(model)
    assert [s.name for s in view.shared] == ["0.bias", "2.weight", "2.bias"]
    assert kept_message(view)[0].endswith("Remove the parametrization first, to compress it")


def test_a_parametrization_of_the_users_own_is_kept_unless_a_rule_shares_it() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log()

    layer = nn.Linear(32, 32)
    with torch.no_grad():
        layer.weight.abs_()
    parametrize.register_parametrization(layer, "weight", Log(), unsafe=True)
    name = "parametrizations.weight.original"
    view = WeightView.of(layer)
    assert list(view.rest) == [name]
    assert f"a weight is computed from {name}." in kept_message(view)[0]
    assert [s.name for s in WeightView.of(layer, [ss.Rule(name, share=True)]).shared] == ["bias", name]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 16, 16))
        self.small = nn.Parameter(torch.randn(4, 4))
        self.token = nn.Parameter(torch.randn(1, 1, 2048))
        self.frozen = nn.Parameter(torch.randn(64, 64), requires_grad=False)
        self.norm = nn.LayerNorm((64, 64))
        self.head = nn.Linear(2, 2)
        self.register_buffer("table", torch.randn(64, 64))


def test_large_matrices_of_any_module_are_shared() -> None:
    """Not vectors, small ones, scales of a normalization, frozen ones or buffers."""
    view = WeightView.of(Own())
    assert [s.name for s in view.shared] == ["experts", "head.weight", "head.bias"]
    assert view.layers() == [("experts",), ("head.weight", "head.bias")]  # it has a mixture by itself
    assert "experts" in WeightView.of(Own(), [ss.Rule("experts")]).rest


# Without data


@old_warns
@pytest.mark.parametrize("kind", ["weight_norm", "old weight_norm"])
@pytest.mark.parametrize("dim", [0, 1, None])
def test_a_checkpoint_with_a_small_direction_gives_no_nan(kind: str, dim: int | None, tmp_path: Path) -> None:
    """One row, column or matrix is far smaller than the rest, so the fit rounds all of it to 0."""
    norm, name = NORMS[kind]
    model = net(lambda layer: norm(layer, dim=dim))
    with torch.no_grad():
        direction = model.get_parameter(name)
        direction.select(dim or 0, 3).mul_(1e-6)
    fitted = ss.compress_weights(model.state_dict(), weight_error=0.3)
    assert fitted.errors[name] <= 0.3
    fitted.save(tmp_path / "model.sws")
    before = model(torch.eye(8)).detach()
    ss.load_into_(model, tmp_path / "model.sws")
    assert model(torch.eye(8)).isfinite().all()
    if dim == 0:
        kept = direction[3].count_nonzero()
        assert kept == 1
        assert direction[3].abs().argmax() == net(norm).get_parameter(name)[3].abs().argmax()
    assert before.isfinite().all()
