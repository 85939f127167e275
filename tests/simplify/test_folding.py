"""Batch norm in a file: folded, cleared where nothing reads it, and no obstacle for units that change places."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from test_symmetries import quantized_of, same
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.config.settings import RestDtype
from softshare.errors import ModelError
from softshare.network.chains import find_links
from softshare.network.groups import find_groups
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.changes import Changes, changed, reduced
from softshare.simplify.folding import fold_norms
from softshare.simplify.symmetries import _without_idle_units, permuted
from softshare.simplify.trial import allowed, allowed_by_outputs
from softshare.simplify.unread import without_unread
from softshare.zoo.models import WRN164
from unit_networks import IMAGES, Residual, prepared

KEPT = Path(__file__).parents[2] / "results/wrn-16-4/softshare-smallest/seed-0/model.sws"
Batch = tuple[Tensor, Tensor]


def chain() -> nn.Module:
    """A link through two batch norms, and one behind the last layer that is in no link."""
    return prepared(
        nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.BatchNorm2d(8, eps=0.1), nn.Conv2d(8, 5, 3),
            nn.BatchNorm2d(5), nn.Flatten(),
        )
    )  # fmt: skip


def scattered(model: nn.Module) -> nn.Module:
    """With weights and biases of batch norm that are as different as those of training."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(-2, 2)
    return model


def output(model: nn.Module, quantized: QuantizedWeights, x: Tensor = IMAGES) -> Tensor:
    model = copy.deepcopy(model).eval()
    model.load_state_dict(quantized.state_dict())
    with torch.no_grad():
        y: Tensor = model(x)
    return y


def test_folded_batch_norm_is_the_same_function() -> None:
    model = scattered(chain())
    before = quantized_of(model, 0.5)
    after, names, left = fold_norms(model, before)
    assert (names, left) == (["1", "3", "5"], {})
    expected = output(model, before)
    assert (expected[1:] != expected[0]).any()
    torch.testing.assert_close(output(model, after), expected, rtol=1e-12, atol=1e-12)
    for name in names:
        assert not after.rest[f"{name}.running_mean"].any()
        assert (after.rest[f"{name}.running_var"] == 1).all()
    factor = before.rest["3.weight"] / (before.rest["3.running_var"] + 0.1) ** 0.5  # by hand, with its own eps
    torch.testing.assert_close(after.rest["3.weight"], factor * 1.1**0.5)
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in before.rest.items())
    again, *_ = fold_norms(model, after)
    assert all(torch.allclose(again.rest[name], t, rtol=1e-12) for name, t in after.rest.items())


class OwnNorm(nn.BatchNorm1d):
    pass


def test_what_cannot_be_folded_stays() -> None:
    norms = [nn.BatchNorm1d(6, affine=False), nn.BatchNorm1d(6, track_running_stats=False), OwnNorm(6)]
    norms += [nn.BatchNorm1d(6) for _ in range(4)]
    norms[4].weight = norms[3].weight
    norms[5].running_var.fill_(-1)  # type: ignore[union-attr]
    model = nn.Sequential(nn.Linear(6, 6), *norms)
    before = quantized_of(model)
    rest = {name: t for name, t in before.rest.items() if not name.startswith("7.bias")}
    after, names, left = fold_norms(model, dataclasses.replace(before, rest=rest))
    assert (names, list(after.rest)) == ([], list(rest))
    unusual = "it has no statistics, weights or biases, or is of a class of its own"
    tied, infinite = "its tensors are tied", "the folded values would not be finite"
    reasons = [unusual] * 3 + [tied] * 2 + [infinite, "its tensors are shared or dropped"]
    assert left == {str(k): reason for k, reason in enumerate(reasons, 1)}


@pytest.mark.parametrize("seed", range(3))
def test_units_move_through_batch_norm(seed: int) -> None:
    model = scattered(chain())
    before = quantized_of(model, 0.6, seed)
    assert find_links(model)[0] == []
    (link,), _ = find_links(model, through_norms=True)
    assert (link.source, link.target, len(link.norms)) == ("0", "4", 8)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    moved = permuted(before, {link: order})
    assert torch.equal(moved.rest["3.running_var"], before.rest["3.running_var"][order])
    torch.testing.assert_close(output(model, moved), output(model, before), rtol=1e-12, atol=1e-12)


def test_a_batch_norm_that_counts_something_else_ends_a_link() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 2))
    links, reasons = find_links(model, through_norms=True)
    assert (links, reasons["0"]) == ([], "a batch norm between them has another number of units")


@pytest.mark.parametrize(("bias", "stays"), [(-0.5, False), (0.5, True)])
def test_a_constant_behind_batch_norm_is_idle_if_it_arrives_as_zero(bias: float, stays: bool) -> None:
    """Unit 0 reads nothing. Its batch norm makes `bias` of it, which ReLU lets through or not."""
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)).eval()
    before = quantized_of(model, 1.0)
    before.shared[0].indices.view(4, 3)[:] = torch.tensor([[0] * 3, [1] * 3, [2] * 3, [3] * 3])
    before.shared[1].indices.view(2, 4)[:] = 4
    before.rest["1.bias"][0], before.rest["1.running_mean"][0] = bias, 0.0
    after, removed = _without_idle_units(before, find_links(model, through_norms=True)[0])
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(output(model, after, x), output(model, before, x))
    assert {t.name: t.n_nonzero for t in after.shared}["3.weight"] == (8 if stays else 6)
    assert removed == {"0": 0 if stays else 1}
    assert after.rest["1.bias"][0] == (bias if stays else 0)


def dying(model: nn.Module, names: list[str], units: list[int]) -> QuantizedWeights:
    """Random weights of a network in which these inputs of these layers are not read."""
    quantized = quantized_of(model, 0.9)
    for t in quantized.shared:
        if t.name in names:
            t.indices.view(t.shape)[:, units] = 0
    return quantized


def test_unread_channels_of_a_residual_stream_lose_all_they_have() -> None:
    """Compared with each channel alone, by brute force: what is changed there changes no output."""
    model = scattered(prepared(Residual()))
    readers = ["wide.0.weight", "wide.1.weight", "gate.weight"]
    before = dying(model, readers, [1, 4])
    head = next(t for t in before.shared if t.name == "head.weight")
    head.indices.view(3, 6, 4)[:, [1, 4]] = 0
    groups, _ = find_groups(model, (IMAGES,), {})
    bare, n_dead, n_units = without_unread(before, groups)
    assert n_dead >= 2
    assert n_units == 6 + 2 * 9
    torch.testing.assert_close(output(model, bare), output(model, before), rtol=1e-12, atol=1e-12)
    tensors = bare.state_dict()
    for name in ("stem.weight", "stem.bias", "norms.0.weight", "norms.1.bias", "narrow.1.weight", "gate.bias"):
        assert not tensors[name][[1, 4]].any()
        assert tensors[name].any()
    assert (tensors["norms.0.running_var"][[1, 4]] == 1).all()
    for t in before.shared:  # what is gone had no effect, one by one; what stays in the stream has one
        for unit in range(6) if t.name == "stem.weight" else ():
            shape = t.indices.view(t.shape)
            kept = shape[unit].clone()
            shape[unit] = 0
            silent = torch.equal(output(model, before), output(model, bare))
            shape[unit] = kept
            assert silent == (not tensors["stem.weight"][unit].any())


def test_all_changes_together_keep_the_function_and_save_bytes() -> None:
    model = scattered(prepared(Residual()))
    before = dying(model, ["narrow.0.weight", "narrow.1.weight"], [0, 3])
    changes = Changes(norms=True, groups=find_groups(model, (IMAGES,), {})[0])
    config = EncodeConfig(rest_dtype="float16")
    kept = copy.deepcopy(before)
    after = changed(model, before, config, changes)
    plain = changed(model, before, config, Changes())
    torch.testing.assert_close(output(model, after.quantized), output(model, before), rtol=1e-9, atol=1e-9)
    assert len(encode(after.quantized, config)) < len(encode(plain.quantized, config))
    assert any("batch norm folded; this saves" in text for text in after.messages)
    assert any("units are read by no layer and were cleared; this saves" in text for text in after.messages)
    assert same(before, kept)


@pytest.mark.parametrize(
    ("symmetries", "dtype", "n_bytes"),
    [
        (False, "float16", 53_635),
        pytest.param(True, "float16", 52_307, marks=pytest.mark.slow),
        pytest.param(True, "bfloat16", 51_219, marks=pytest.mark.slow),
    ],
)
def test_a_kept_network_becomes_smaller(symmetries: bool, dtype: RestDtype, n_bytes: int) -> None:
    """The bytes that docs/route.md gives."""
    model, config = WRN164(), EncodeConfig(rest_dtype=dtype)
    groups = find_groups(model, (torch.zeros(2, 3, 32, 32),), {})[0] if symmetries else ()
    after = changed(model, decode(KEPT.read_bytes()), config, Changes(symmetries, True, groups))
    assert (KEPT.stat().st_size, len(encode(after.quantized, config))) == (58_823, n_bytes)


# The task decides


def make_task(reestimates: bool = False, trains: bool = False) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(256, 6) * 3 + 1
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        if trains:
            model.train()
        return F.cross_entropy(model(batch[0]), batch[1])

    def error(model: nn.Module) -> float:
        if reestimates:
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.train()
        return 100 * float((model(x).argmax(1) != y).double().mean())

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ss.Task(model, list(zip(x.split(64), y.split(64), strict=True)), loss, error, 256)


CONFIG = ss.CompressConfig().override(epochs=4, tau=1e-3, zero_mixing=0.5, lr_weights=1e-3, fold_batchnorm=True)


@pytest.mark.parametrize("target", [None, ss.MaxBytes(1_200)], ids=["plain", "steered"])
def test_the_file_is_the_network_that_was_judged(target: ss.MaxBytes | None, tmp_path: Path) -> None:
    task = make_task()
    compressed = ss.compress(task, CONFIG, target=target, quiet=True)
    assert any("1: batch norm folded; this saves" in text for text in compressed.messages)
    compressed.save(tmp_path / "model.sws")
    ss.load_into_(task.model, tmp_path / "model.sws")
    assert compressed.outcome is not None
    assert task.judge(task.model) == compressed.outcome.after
    if target is None:
        plain = ss.compress(make_task(), CONFIG.override(fold_batchnorm=False), target=None, quiet=True)
        assert (tmp_path / "model.sws").stat().st_size < len(plain.to_bytes())
        assert plain.outcome is not None
        assert compressed.outcome.after == pytest.approx(plain.outcome.after, abs=0.5)
    with pytest.raises(ModelError, match="those of 1 of 1 batch norms are folded into their weights"):
        ss.reestimate_batch_norm_(task.model, task.train, task.loss)


def test_refused_where_the_task_estimates_statistics_again() -> None:
    task = make_task(reestimates=True)
    compressed = ss.compress(task, CONFIG, target=None, quiet=True)
    (said,) = [text for text in compressed.messages if text.startswith("batch norm left as it is, because")]
    assert "with its statistics in its weights the" in said
    state = compressed.state_dict()
    assert state["1.running_mean"].any()
    assert (state["1.running_var"] != 1).any()
    task.model.load_state_dict(state)
    assert compressed.outcome is not None
    assert task.judge(task.model) == compressed.outcome.after


def test_refused_without_a_task_if_outputs_differ_or_are_unknown() -> None:
    model = scattered(chain())
    quantized = quantized_of(model, 0.5)
    call: Any = ((IMAGES,), {})
    changes = Changes(norms=True)
    assert allowed_by_outputs(model, [call], changes, quantized) == changes
    unknown = allowed_by_outputs(model, [], changes, quantized)
    assert not unknown.norms
    assert unknown.refused == (
        "batch norm left as it is, because no output of the network is known that could be compared",
    )
    assert same(reduced(model, quantized, unknown), quantized)


def test_units_that_a_task_reads_elsewhere_are_not_cleared() -> None:
    """The evaluation uses a hidden layer, which `forward` does not read any more."""
    task = make_task()
    quantized = quantized_of(task.model, 1.0)
    quantized.shared[2].indices.zero_()
    x = next(iter(task.train))[0]

    def hidden(model: Any) -> float:
        return float(model[1](model[0](x)).abs().mean())

    groups, _ = find_groups(task.model, (x,), {})
    wanted = Changes(groups=groups)
    found = allowed(dataclasses.replace(task, evaluate=hidden), wanted, quantized)
    assert found.groups == ()
    assert found.refused[0].startswith("units that seem unread are not cleared, because without them the evaluation")
    assert allowed(task, wanted, quantized).groups == groups
