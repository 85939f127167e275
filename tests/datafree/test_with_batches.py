"""A loss on batches that did not calibrate, a limit on its increase, and training of what is not an index."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.calibrate.judged import parted
from softshare.codec import decode
from softshare.config import Rule
from softshare.datafree.by_loss import by_loss
from softshare.datafree.fitted import FittedWeights
from softshare.errors import ConfigError

Batches = list[tuple[Tensor, Tensor]]


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(32, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5)
    )


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Sequential, Batches]:
    g = torch.manual_seed(0)
    model, x = net(), torch.randn(2048, 32)
    y = (x @ torch.randn(32, 5)).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert g
    return model, list(zip(x.split(256), y.split(256), strict=True))


def loaded(fitted: FittedWeights) -> nn.Sequential:
    fresh = net()
    fresh.load_state_dict(decode(fitted.data).state_dict())
    return fresh.eval()


@torch.no_grad()
def loss_of(model: nn.Module, batches: Batches) -> float:
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return float(F.cross_entropy(model(x), y))


@pytest.mark.parametrize(("n", "held"), [(2, [1]), (3, [2]), (4, [3]), (9, [3, 7])])
def test_every_fourth_batch_measures_and_at_least_one(n: int, held: list[int]) -> None:
    assert parted(range(n)) == ([k for k in range(n) if k not in held], held)


def test_the_loss_is_that_of_the_file_on_batches_that_did_not_calibrate(
    trained: tuple[nn.Sequential, Batches],
) -> None:
    model, batches = trained
    fitted = ss.quantize(model, bits=3, calibrate=batches, loss=nn.CrossEntropyLoss())
    assert fitted.loss is not None
    held = batches[3::4]
    assert fitted.loss == pytest.approx((loss_of(model, held), loss_of(loaded(fitted), held)), rel=1e-4)
    others = [(x, y) if k % 4 < 3 else (100 * x, y) for k, (x, y) in enumerate(batches)]
    assert ss.quantize(model, bits=3, calibrate=others, loss=nn.CrossEntropyLoss()).data == fitted.data
    assert "3 -> " not in fitted.summary()
    assert f"{fitted.loss[0]:.4g} -> {fitted.loss[1]:.4g}" in fitted.summary()


def test_the_smallest_file_within_an_increase_of_the_loss(trained: tuple[nn.Sequential, Batches]) -> None:
    model, batches = trained
    found = {}
    for increase in (0.005, 0.1):
        fitted = ss.quantize(model, loss_increase=increase, calibrate=batches, loss=nn.CrossEntropyLoss())
        assert fitted.loss is not None
        rise = fitted.loss[1] - fitted.loss[0]
        assert rise == pytest.approx(loss_of(loaded(fitted), batches[3::4]) - loss_of(model, batches[3::4]), abs=1e-4)
        assert rise <= increase
        found[increase] = fitted.bits_per_weight
    assert found[0.1] < found[0.005] - 0.25


def test_the_search_brackets_a_loss_that_is_not_smooth(trained: tuple[nn.Sequential, Batches]) -> None:
    """Losses that fall, jump or are no number: the result is within the limit, and nearly the smallest."""
    model, _ = trained
    tried: list[float] = []

    def fit(bits: float) -> FittedWeights:
        tried.append(bits)
        fitted = ss.quantize(model, bits=bits)
        rose = float("nan") if bits < 3.2 else -0.01 if bits > 5 else 2.0 ** (-2 * bits) + (0.1 if bits < 3.7 else 0)
        object.__setattr__(fitted, "loss", (1.0, 1.0 + rose))
        return fitted

    assert 3.7 <= by_loss(fit, 0.05).bits_per_weight + 0.02 < 4.1
    assert len(tried) <= 6
    with pytest.raises(ConfigError, match="allow more"):
        by_loss(lambda bits: fit(2.0), 0.05)


def test_refining_brings_the_outputs_back_and_keeps_the_limit(
    trained: tuple[nn.Sequential, Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the same file before it is trained."""
    model, batches = trained
    inputs = [x for x, _ in batches]
    new = torch.randn(2048, 32, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        truth = model(new)
        fitted = ss.quantize(model, bits=2, calibrate=inputs, refine=300)
        monkeypatch.setattr("softshare.datafree.refined.RATE", 0.0)
        plain = ss.quantize(model, bits=2, calibrate=inputs, refine=1)
        was, now = ((loaded(f)(new) - truth).square().mean() for f in (plain, fitted))
        known = torch.cat(inputs[:4])
        error = (loaded(fitted)(known) - model(known)).square().sum() / model(known).square().sum()
    assert plain.steps == 0
    assert now < 0.95 * was
    assert fitted.bits_per_weight <= 2
    assert fitted.output_error == pytest.approx(float(error) ** 0.5, rel=1e-3)
    assert "Refined for 300 steps" in fitted.summary()
    before, after = ({t.name: t for t in f.quantized.shared} for f in (plain, fitted))
    assert all(torch.equal(t.dense().sign(), after[name].dense().sign()) for name, t in before.items())
    assert not any(torch.equal(t.codebook, after[name].codebook) for name, t in before.items())


def test_refining_trains_norms_and_biases_but_nothing_that_a_rule_keeps(
    trained: tuple[nn.Sequential, Batches],
) -> None:
    model, batches = trained
    rules = [Rule("1.weight", share=False)]
    inputs = [x for x, _ in batches]
    fitted = ss.quantize(model, bits=4, calibrate=inputs, refine=20, rules=rules)
    state = decode(fitted.data).state_dict()
    assert torch.equal(state["1.weight"], model.state_dict()["1.weight"])
    assert not torch.equal(state["1.bias"], model.state_dict()["1.bias"].half().float())
    assert torch.equal(state["1.bias"], state["1.bias"].half().float())


def test_training_that_does_not_help_leaves_the_file_as_it_was(
    trained: tuple[nn.Sequential, Batches], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batches = trained
    monkeypatch.setattr("softshare.datafree.refined.RATE", 1e3)
    fitted = ss.quantize(model, bits=3, calibrate=[x for x, _ in batches], refine=3)
    assert fitted.steps == 0
