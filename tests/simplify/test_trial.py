"""Symmetries of `forward` that are none of the task are left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.quantization.quantized import QuantizedWeights
from softshare.simplify.changes import Changes
from softshare.simplify.trial import allowed, allowed_by_outputs
from softshare.target.files import Files

Batch = tuple[Tensor, Tensor]
KEPT = (ss.Rule("second.*", share=False),)  # no loss trains it in some of the tests
CONFIG = ss.CompressConfig().override(epochs=3, tau=1e-6, zero_mixing=0.5, lr_weights=1e-3, rules=KEPT)


class TwoHeads(nn.Module):
    """`value` reads the hidden units that `forward` reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.second = nn.Linear(6, 12), nn.Linear(12, 2), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.hidden(x)))
        return logits

    def value(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(torch.relu(self.hidden(x)))
        return logits


def make_task(loss_uses: str, evaluation_uses: str) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (x[:, 0] > x[:, 1]).long()

    def loss(model: Any, batch: Batch) -> Tensor:
        heads = [model(batch[0])] + ([model.value(batch[0])] if loss_uses == "both" else [])
        return torch.stack([F.cross_entropy(logits, batch[1]) for logits in heads]).sum()

    def error(model: Any) -> float:
        logits = model.value(x) if evaluation_uses == "value" else model(x)
        return 100 * float((logits.argmax(1) != y).double().mean())

    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + F.cross_entropy(model.value(x), y)).backward()
        optimizer.step()
    return ss.Task(model, list(zip(x.split(64), y.split(64), strict=True)), loss, error, 256)


@pytest.mark.parametrize(
    ("loss_uses", "evaluation_uses", "reason"),
    [("both", "forward", "the loss is"), ("forward", "value", "the evaluation gives"), ("forward", "forward", "")],
)
@pytest.mark.parametrize("target", [None, ss.MaxBytes(5_000)], ids=["plain", "steered"])
def test_the_file_is_the_network_that_was_judged(
    loss_uses: str, evaluation_uses: str, reason: str, target: ss.MaxBytes | None
) -> None:
    task = make_task(loss_uses, evaluation_uses)
    compressed = ss.compress(task, CONFIG, target=target)
    left = [text for text in compressed.messages if text.startswith("hidden: units left as they are")]
    assert bool(left) == bool(reason)
    assert all(reason in text for text in left)
    task.model.load_state_dict(compressed.state_dict())
    assert task.evaluate(task.model) == pytest.approx(compressed.history[-1].validation_error, abs=1.0)


class Shuffled(list[Any]):
    """Draws from the global random state, as a DataLoader does."""

    def __iter__(self) -> Iterator[Any]:
        return (self[int(k)] for k in torch.randperm(len(self)))


def test_the_model_is_only_read() -> None:
    task = make_task("both", "forward")
    quantized = ss.MixturePrior(task.model, CONFIG.prior).quantize().quantized
    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    random = torch.get_rng_state()
    task_in_disorder = dataclasses.replace(task, train=Shuffled(list(task.train)))
    assert list(allowed(task_in_disorder, Changes(), quantized).broken) == ["hidden"]
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, before[name]) for name, t in task.model.state_dict().items())


def unbatched_task() -> ss.Task:
    """The loss gives the network one image of shape (C, H, W). Flattening from dimension 1 then keeps the channels
    apart, and the next layer's 16 inputs are places, though 4 channels divide them.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(64, 1, 6, 6)
    y = (x.mean((1, 2, 3)) > 0).long()

    def logits(model: nn.Module, images: Tensor) -> Tensor:
        return torch.stack([model(image)[0] - model(image)[1] for image in images])  # (images, 2)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(logits(model, batch[0]), batch[1])

    def error(model: nn.Module) -> float:
        return float(loss(model, (x, y)))

    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        loss(model, (x, y)).backward()
        optimizer.step()
    batches = list(zip(x.split(16), y.split(16), strict=True))
    return ss.Task(model, batches, loss, error, 64, metric=ss.Metric("loss", ""))


def test_units_of_a_convolution_without_a_batch_dimension_stay() -> None:
    task = unbatched_task()
    config = CONFIG.override(rules=(), codebook_dtype="float32")
    compressed = ss.compress(task, config, target=None)
    assert any(
        "0: units left as they are, because with its units in another order the loss is" in text
        for text in compressed.messages
    )
    assert "0.weight" not in compressed.moved
    plain = ss.compress(task, config.override(symmetries=False), target=None)
    for name in ("0.weight", "0.bias"):
        assert torch.equal(compressed.state_dict()[name], plain.state_dict()[name])
    task.model.load_state_dict(compressed.state_dict())
    assert task.judge(task.model) == pytest.approx(compressed.history[-1].validation_error, rel=1e-4)


def test_without_a_task_the_outputs_decide() -> None:
    task = unbatched_task()
    model, image = task.model, next(iter(task.train))[0][0]
    quantized = ss.MixturePrior(model, CONFIG.override(rules=()).prior).quantize().quantized
    reason = {"0": "with its units in another order the network has other outputs"}
    assert allowed_by_outputs(model, [((image,), {})], Changes(), quantized).broken == reason
    assert list(allowed_by_outputs(model, [], Changes(), quantized).broken) == ["0", "3"]  # nothing to compare
    assert list(allowed_by_outputs(model, [((image[:, :2],), {})], Changes(), quantized).broken) == [
        "0",
        "3",
    ]  # it raises
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    quantized = ss.MixturePrior(model, CONFIG.override(rules=()).prior).quantize().quantized
    before = {name: t.clone() for name, t in model.state_dict().items()}
    assert allowed_by_outputs(model, [((), {"input": torch.randn(3, 4)})], Changes(), quantized).broken == {}
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


# The file at the end


def quantized_of(task: ss.Task) -> QuantizedWeights:
    return ss.MixturePrior(task.model, ss.PriorConfig(components=16, zero_mixing=0.05)).quantize().quantized


def test_what_changed_the_loss_is_undone_and_said() -> None:
    """Here the symmetries are made without asking the task."""
    task = make_task("both", "forward")
    files, quantized = Files(task, CONFIG), quantized_of(task)
    simplified = files.simplify(quantized)
    assert simplified.moved
    verified = files.verified(simplified, gain=0.0)
    assert verified.quantized is quantized
    assert not verified.moved
    (said,) = verified.messages
    assert said.startswith("nothing is simplified, because in the file the loss would be ")


def test_what_keeps_the_loss_is_kept() -> None:
    task = make_task("forward", "forward")
    files = Files(task, CONFIG)
    simplified = files.simplify(quantized_of(task))
    assert simplified.moved
    assert files.verified(simplified, gain=0.0) is simplified


def test_what_encoding_changes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("forward", "forward")
    files = Files(task, CONFIG)
    simplified = files.simplify(quantized_of(task))
    decoded = files.decoded

    def lossy(quantized: QuantizedWeights) -> nn.Module:
        network = decoded(quantized)
        with torch.no_grad():
            network.get_parameter("head.weight").zero_()
        return network

    monkeypatch.setattr(files, "decoded", lossy)
    verified = files.verified(simplified, gain=0.0)
    assert verified.quantized is simplified.quantized
    assert verified.messages[-1].startswith("the file's network has another loss than the one that was trained: ")


def test_a_slight_change_of_a_tiny_loss_is_rounding() -> None:
    task = make_task("both", "forward")
    files = Files(task, CONFIG)
    simplified = files.simplify(quantized_of(task))
    assert files.verified(simplified, gain=1e6) is simplified


def test_a_loss_that_cannot_be_asked_undoes_nothing() -> None:
    def fails(model: nn.Module, batch: Batch) -> Tensor:
        raise ValueError("only in training mode")

    task = dataclasses.replace(make_task("forward", "forward"), loss=fails)
    files = Files(task, CONFIG)
    simplified = files.simplify(quantized_of(task))
    assert files.verified(simplified, gain=0.0) is simplified
