"""Faults of other public implementations. Each test fails if this package has the fault of its name."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.errors import ConfigError
from softshare.network.weights import WeightView
from softshare.prior.mixture import Mixture
from softshare.quantization.assignment import quantize
from softshare.quantization.merge import merge_groups
from softshare.train.retrain import retrain_


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def blobs(n: int = 64) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 2
    return torch.randn(n, 4, generator=g) + 2 * labels[:, None], labels


def task(reduction: str = "mean") -> ss.Task:
    x, y = blobs()
    return ss.Task(
        model=two_layers(),
        train=list(zip(x.split(16), y.split(16), strict=True)),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1], reduction=reduction),
        evaluate=lambda model: 100 * float((model(x).argmax(1) != y).float().mean()),
        n_examples=64,
    )


def test_loss_that_is_a_vector() -> None:
    """A vector over weights or examples, once summed, multiplies the task loss by its length."""
    prior = ss.MixturePrior(two_layers(), ss.PriorConfig(components=3))
    assert prior.loss(tau=0.1, n_examples=64).dim() == 0
    assert prior.neg_log_prior().dim() == 0
    with pytest.raises(ConfigError, match="mean loss over the batch as a 0-d tensor, got shape \\(16,\\)"):
        retrain_(task(reduction="none"), None, ss.RetrainConfig(epochs=1))


def test_loss_that_is_complex() -> None:
    plain = task()
    odd = dataclasses.replace(plain, loss=lambda model, batch: 1j * plain.loss(model, batch))
    with pytest.raises(ConfigError, match=r"Task\.loss in epoch 1, batch 1: expected the mean loss.*complex64"):
        retrain_(odd, None, ss.RetrainConfig(epochs=1))


def test_return_inside_the_layer_loop() -> None:
    """Only the first tensor quantized."""
    model = two_layers()
    state = ss.MixturePrior(model, ss.PriorConfig(mixtures="global", components=3)).quantize().state_dict()
    assert set(state) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    values = {name: set(t.flatten().tolist()) for name, t in state.items()}
    codebook = set.union(*values.values())
    assert len(codebook) <= 4
    for name, parameter in model.state_dict().items():
        assert not torch.equal(state[name], parameter), name


def _assigned(w: float, mixing: list[float], mean: list[float], std: list[float]) -> float:
    """The value that a weight of `w` in a network takes."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(w)
    mixture = Mixture(torch.tensor(mixing).log(), torch.tensor(mean), 2 * torch.tensor(std).log())
    return float(quantize(WeightView.of(model), {"weight": mixture}).state_dict()["weight"])


def test_assignment_by_distance_alone() -> None:
    # 0.06 is nearer to 0.1 than to 0, but the densities at distances 0.06 and 0.04 differ by a factor of only
    # exp((0.6^2 - 0.4^2) / 2) = 1.1, against 9 in the mixing.
    assert _assigned(0.06, [0.9, 0.1], [0.0, 0.1], [0.1, 0.1]) == 0
    assert _assigned(0.06, [0.1, 0.9], [0.0, 0.1], [0.1, 0.1]) == pytest.approx(0.1)
    # Equal mixings: at 0.06 the narrow component at 0.1 is 4 standard deviations away, the broad one at 0 less than 1.
    assert _assigned(0.06, [0.5, 0.5], [0.0, 0.1], [0.1, 0.01]) == 0


def test_training_with_normalized_but_quantizing_with_raw_mixings() -> None:
    """A constant added to the mixing logits does not change the mixture, so no assignment may change."""
    prior = ss.MixturePrior(two_layers(), ss.PriorConfig(components=3, zero_mixing=0.5))
    loss, state = float(prior.neg_log_prior().detach()), prior.quantize().state_dict()
    with torch.no_grad():
        prior.mixing_logits.add_(30.0)
    assert float(prior.neg_log_prior().detach()) == pytest.approx(loss, rel=1e-5)
    for name, tensor in prior.quantize().state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert any((t == 0).any() for t in state.values())


def test_shifting_by_the_minimum_before_exp() -> None:
    """exp(largest - smallest) overflows: a component far away would make the loss infinite."""
    mixture = Mixture(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.0, 1.0]), torch.tensor([1e-4, 1e-4]).log())
    no_hyper_priors = ss.PriorConfig(
        mixtures="global", components=1, width=None, zero_precision_prior=None, free_precision_prior=None
    )
    prior = ss.MixturePrior(two_layers(), no_hyper_priors)
    with torch.no_grad():
        prior.means.copy_(mixture.mean[1:])
        prior.log_vars.copy_(mixture.log_var)
        prior.zero_logit.zero_()
        for tensor in prior.view.tensors:
            tensor.fill_(0.005)
    n = prior.view.n_weights
    expected = -n * (math.log(0.5) - 0.5 * math.log(2 * math.pi * 1e-4) - 0.5 * 0.005**2 / 1e-4)
    assert float(prior.neg_log_prior().detach()) == pytest.approx(expected, rel=1e-5)


def test_merging_precisions_instead_of_variances() -> None:
    mixture = Mixture(
        torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.0, 1.0, 1.0]), torch.tensor([0.01, 0.04, 0.16]).log()
    )
    merged = merge_groups(mixture, ss.MergeConfig(merge_threshold=2.0))[0]
    assert merged.mean.tolist() == pytest.approx([0.0, 1.0])
    assert float(merged.log_var[1].exp()) == pytest.approx((0.3 * 0.04 + 0.2 * 0.16) / 0.5)  # 0.088; precisions: 0.0556


def test_ratio_that_no_file_holds(tmp_path: Path) -> None:
    """The ratio is that of a whole file on the disk, and the error is that of the network it decodes to."""
    config = ss.CompressConfig().override(components=3, epochs=1)
    t = task()
    compressed = ss.compress(t, config, target=None)
    result = ss.measure(t, compressed, config)
    size = compressed.save(tmp_path / "model.sws")
    assert size == (tmp_path / "model.sws").stat().st_size == result.file_bytes
    n_parameters = 4 * 8 + 8 + 8 * 2 + 2
    assert result.ratio == 4 * n_parameters / size
    fresh = two_layers()
    ss.load_into_(fresh, tmp_path / "model.sws")
    assert t.evaluate(fresh) == result.error_after
