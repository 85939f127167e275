"""The page of a quantized checkpoint: its numbers are those of the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import softshare as ss
from softshare.codec import inspect, load
from softshare.datafree.fitted import FittedWeights
from softshare.report.figures.rates import rates_data


@pytest.fixture(scope="module")
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))


@pytest.fixture(scope="module")
def fitted(network: nn.Sequential) -> FittedWeights:
    batches = [(torch.randn(128, 32), torch.randint(40, (128,))) for _ in range(4)]
    return ss.quantize(network, bits=4, calibrate=batches, loss=nn.CrossEntropyLoss())


def test_points_are_the_bits_and_errors_of_the_file(
    network: nn.Sequential, fitted: FittedWeights, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "a.sws")
    state = load(tmp_path / "a.sws")
    sizes = {t.name: t.n_bytes for t in inspect(tmp_path / "a.sws").tensors}
    weights, outputs = rates_data(fitted)
    assert {name for name, *_ in weights.points} == {"0.weight", "2.weight", "4.weight"}
    for name, n, bits, error in weights.points:
        own = network.state_dict()[name]
        assert n == own.numel()
        assert bits == pytest.approx(8 * sizes[name] / n)
        assert error == pytest.approx(float((state[name] - own).norm() / own.norm()), rel=1e-3)
    assert {(name, error) for name, _, _, error in outputs.points} == set(fitted.layer_errors.items())


def test_the_page_has_the_table_the_figures_and_the_loss(fitted: FittedWeights, tmp_path: Path) -> None:
    page = fitted.report(tmp_path / "report").read_text()
    assert {p.name for p in (tmp_path / "report" / "figures").iterdir()} == {
        f"rates-{k}.{kind}" for k in (1, 2) for kind in ("svg", "png")
    }
    for cost in fitted.costs():
        row = re.search(rf'<tr><td data-value="{re.escape(cost.name)}">.*?</tr>', page, re.DOTALL)
        assert row
        for text in (f"{cost.n:,}", f"{cost.n_bytes:,}", f"{cost.bits:.3f}", f"{100 * cost.error:.3g}"):
            assert f">{text}</td>" in row[0]
    assert fitted.loss is not None
    assert f"<b>{fitted.loss[0]:.4g} → {fitted.loss[1]:.4g}</b>" in page


def test_without_data_there_is_one_figure_and_no_loss(network: nn.Sequential, tmp_path: Path) -> None:
    page = ss.quantize(network, bits=4).report(tmp_path / "report").read_text()
    assert "Nothing was measured" in page
    assert [p.name for p in (tmp_path / "report" / "figures").glob("*.svg")] == ["rates-1.svg"]


def test_a_file_without_quantized_weights_has_a_page_too(network: nn.Sequential, tmp_path: Path) -> None:
    page = ss.quantize(network, lossless=True).report(tmp_path / "report").read_text()
    assert "No weight was quantized" in page
