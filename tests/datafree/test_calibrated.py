"""Quantizing with batches: smaller errors at the outputs for the same bits, on any module, which is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.codec import decode
from softshare.errors import ConfigError, ModelError, TaskError


class Net(nn.Module):
    """An embedding, a convolution, attention, a tied head and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.norm = nn.LayerNorm(32)
        self.unused = nn.Linear(32, 40)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embedding(tokens)
        x = x + self.conv(x.mT).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return {"logits": self.head(self.norm(x + self.narrow(self.wide(x).relu())))}


def tokens(n: int, seed: int) -> Tensor:
    """Few of all tokens, so that inputs are alike."""
    return torch.randint(12, (n, 16), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


def error_of(model: nn.Module, fitted: ss.FittedWeights, tokens: Tensor) -> float:
    fresh = Net().eval()
    fresh.load_state_dict(decode(fitted.data).state_dict())
    with torch.no_grad():
        truth = model.eval()(tokens)["logits"]
        return float((fresh(tokens)["logits"] - truth).square().mean() / truth.square().mean())


@pytest.mark.parametrize("bits", [2.5, 4])
def test_errors_move_to_where_inputs_feel_them_least(model: Net, bits: float) -> None:
    before = {name: t.clone() for name, t in model.state_dict().items()}
    batches = [{"tokens": tokens(32, seed), "labels": None} for seed in range(3)]
    model.train()
    fitted = ss.quantize(model, bits=bits, calibrate=batches)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert 0.95 * bits <= fitted.bits_per_weight <= bits
    assert fitted.quantized.tied == {"head.weight": "embedding.weight"}
    others = tokens(64, seed=9)
    free = ss.quantize(model, bits=bits)
    assert error_of(model, fitted, others) < 0.8 * error_of(model, free, others)
    unused = next(t for t in fitted.quantized.shared if t.name == "unused.weight")
    assert unused.n_nonzero > 0.3 * unused.indices.numel()


def test_the_file_is_what_was_fitted(model: Net) -> None:
    fitted = ss.quantize(model, bits=3, calibrate=[(tokens(8, 0),)])
    loaded = decode(fitted.data).state_dict()
    for name, tensor in fitted.quantized.state_dict().items():
        assert torch.allclose(loaded[name], tensor, rtol=1e-3)
    assert ss.quantize(model, bits=3, calibrate=[(tokens(8, 0),)]).data == fitted.data


def test_errors_are_those_of_the_file(model: Net) -> None:
    fitted = ss.quantize(model, bits=3, calibrate=[tokens(8, 0)])
    loaded = decode(fitted.data).state_dict()
    for name, error in fitted.errors.items():
        weights = model.state_dict()[name]
        assert float((loaded[name] - weights).square().mean() / weights.square().mean()) == pytest.approx(
            error**2, rel=1e-4
        )


def test_what_it_cost(model: Net) -> None:
    """The error of the outputs, before against after, by hand; and a row for each tensor."""
    x = tokens(8, 0)
    fitted = ss.quantize(model, bits=3, calibrate=[x])
    assert fitted.output_error is not None
    assert fitted.output_error**2 == pytest.approx(error_of(model, fitted, x), rel=1e-3)
    assert f"off by {100 * fitted.output_error:.2g}% of their" in fitted.summary()
    assert set(fitted.layer_errors) == set(fitted.errors) - {"embedding.weight", "unused.weight"}
    with torch.no_grad():  # the first layer has the same inputs in the quantized network, but for their embedding
        state = fitted.quantized.state_dict()
        inputs = state["embedding.weight"][x].mT
        new, old = (nn.functional.conv1d(inputs, w, padding=1) for w in (state["conv.weight"], model.conv.weight))
    assert fitted.layer_errors["conv.weight"] ** 2 == pytest.approx(
        float((new - old).square().sum() / old.square().sum()), rel=1e-3
    )
    header, *rows = fitted.table().splitlines()
    assert header.split() == ["weights", "bits", "error", "outputs", "tensor"]
    assert {row.split()[-1] for row in rows} == set(fitted.errors)
    assert sum(int(r.split()[0].replace(",", "")) * float(r.split()[1]) for r in rows) < 8 * fitted.file_bytes
    without = ss.quantize(model, bits=3)
    assert without.output_error is None
    assert without.table().split()[:4] == ["weights", "bits", "error", "tensor"]


def test_refusals(model: Net) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (model, {"calibrate": [tokens(2, 0)]}, "expected a network and bits, max_bytes or loss_increase, got no"),
        (model.state_dict(), {"bits": 3, "calibrate": [tokens(2, 0)]}, "got no network"),
        (model, {"bits": 3, "calibrate": []}, "expected at least one batch, got none"),
        (model, {"loss_increase": 0.1}, "loss_increase: expected batches to measure it on"),
        (model, {"bits": 3, "loss": nn.CrossEntropyLoss()}, "loss: expected batches to measure it on"),
        (model, {"bits": 3, "refine": 10}, "refine: expected batches to train on"),
        (model, {"bits": 3, "refine": -1, "calibrate": [tokens(2, 0)]}, "refine: expected a number of steps, got -1"),
        (model, {"bits": 3, "loss_increase": 0.1, "calibrate": [tokens(2, 0)]}, "got bits and loss_increase"),
        (model, {"loss_increase": 0.1, "calibrate": [tokens(2, 0)]}, "expected at least two batches with a loss"),
        (model, {"loss_increase": -1.0, "calibrate": [tokens(2, 0)]}, "expected a number above 0, got -1"),
        (nn.Conv2d(8, 64, 5, groups=8), {"bits": 8, "calibrate": [torch.ones(1, 8, 5, 5)]}, "saw none"),
    ]
    for source, options, message in refused:
        with pytest.raises(ConfigError, match=message):
            ss.quantize(source, **options)


def test_a_batch_that_fails_leaves_the_network_as_it_was(model: Net) -> None:
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(TaskError, match="the model failed in batch 2 of calibrate"):
        ss.quantize(model, bits=3, calibrate=[tokens(2, 0), torch.full((1, 2), 99)])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    model.unused.weight.data[0, 0] = torch.nan
    with pytest.raises(ModelError, match=r"unused\.weight: expected finite weights"):
        ss.quantize(model, bits=3, calibrate=[tokens(2, 0)])
