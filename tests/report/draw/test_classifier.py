"""Which networks a page can run, and that the list of layers is the network."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from digits import digits
from report_runs import make_task
from softshare._util.schema import to_plain
from softshare.report.draw.classifier import Classifier, Layer, classifier_of, described, from_film, run
from softshare.task import Task
from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100

IMAGES = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(20) % 10


class Functional(nn.Module):
    """The same kinds of layers, called as functions; a stride, a padding, and a Dropout that evaluation skips."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, (5, 3), stride=2, padding=(2, 1), bias=False)
        self.conv2 = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4 * 6 * 6, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        out: Tensor = self.fc(F.dropout(x.view(x.size(0), -1), 0.5, self.training))
        return out


def build(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers)


POOLED = build(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(338, 3))


@pytest.mark.parametrize("model", [LeNet300100(), LeNet5Caffe(), Functional(), POOLED])
def test_the_layers_are_the_network(model: nn.Module) -> None:
    found = described(model, [(IMAGES, LABELS)])
    assert isinstance(found, Classifier)
    with torch.no_grad():
        expected = model.eval()(IMAGES)
        outputs, _ = run(found.layers, model.state_dict(), IMAGES)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)
    assert (found.shape, found.low, found.high) == ((1, 28, 28), 0.0, 1.0)
    assert found.classes == expected.shape[1]
    assert list(found.names) == list(model.state_dict())
    assert from_film({"classifier": to_plain(found)}) == found


def test_the_layers_of_lenet_5() -> None:
    found = described(LeNet5Caffe(), [(IMAGES, LABELS)])
    assert isinstance(found, Classifier)
    one, two = (1, 1), (2, 2)
    assert found.layers == (
        Layer("conv", "conv1.weight", "conv1.bias", stride=one, padding=(0, 0)),
        Layer("pool", size=two, stride=two, padding=(0, 0)),
        Layer("conv", "conv2.weight", "conv2.bias", stride=one, padding=(0, 0)),
        Layer("pool", size=two, stride=two, padding=(0, 0)),
        Layer("flatten"),
        Layer("linear", "fc1.weight", "fc1.bias"),
        Layer("relu"),
        Layer("linear", "fc2.weight", "fc2.bias"),
    )
    assert found.shapes[:2] == ("20x1x5x5", "20")
    assert base64.b64decode(found.examples["3"]) == (IMAGES[3] * 255).round().byte().numpy().tobytes()


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(784, 784), nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.b(x + self.a(x))
        return out


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x.flatten(1) if x.sum() > 0 else -x.flatten(1))
        return out


def hooked() -> nn.Module:
    """A trace does not see the hook, but the outputs do."""
    model = LeNet300100()
    model.get_submodule("fc1").register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return model


REFUSED: list[tuple[nn.Module, Any, str]] = [
    (WRN164(), (torch.rand(2, 3, 32, 32), LABELS), "3 x 32 x 32"),
    (build(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(784, 10)), (IMAGES, LABELS), "BatchNorm2d 0 is no Linear"),
    (Residual(), (IMAGES, LABELS), "no chain: add"),
    (Branching(), (IMAGES, LABELS), "cannot be traced"),
    (hooked(), (IMAGES, LABELS), "other outputs"),
    (build(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(1568, 2)), (IMAGES, LABELS), "Conv2d 0"),
    (build(nn.Conv2d(1, 2, 3, dilation=2), nn.Flatten(), nn.Linear(1152, 2)), (IMAGES, LABELS), "Conv2d 0"),
    (build(nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(100, 2)), (IMAGES, LABELS), "MaxPool2d 0"),
    (build(nn.Flatten(), nn.Linear(784, 1)), (IMAGES, LABELS), "1 outputs"),
    (build(nn.Linear(28, 2)), (IMAGES, LABELS), "run one after another|row of numbers"),
    (LeNet300100(), (IMAGES * 0, LABELS), "all of one value"),
    (LeNet300100(), (IMAGES.flatten(1), LABELS), "do not begin with images"),
    (LeNet300100(), {"images": IMAGES}, "do not begin with images"),
    (
        build(nn.Conv2d(1, 512, 9), nn.Conv2d(512, 64, 9), nn.Flatten(), nn.Linear(9216, 9)),
        (IMAGES, LABELS),
        "multiplic",
    ),
]


@pytest.mark.parametrize(
    ("model", "batch", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_other_networks_have_no_page_and_a_reason(model: nn.Module, batch: Any, reason: str) -> None:
    found = described(model, [batch])
    assert isinstance(found, str)
    assert any(part in found for part in reason.split("|")), found


def test_a_task_is_asked_for_its_batches_and_keeps_the_random_state() -> None:
    train, _, _ = digits(64, 8, 8)

    def batches() -> list[Any]:
        torch.rand(1)  # as a loader that shuffles
        return [train]

    class Loader:
        def __iter__(self) -> Any:
            return iter(batches())

    model, loss = LeNet300100(), lambda m, b: m(b.images).sum()
    task = Task(model=model, train=Loader(), loss=loss, evaluate=lambda m: 0.0, n_examples=64)
    before = torch.get_rng_state()
    found = classifier_of(task)
    assert isinstance(found, Classifier)
    assert torch.equal(torch.get_rng_state(), before)
    assert set(found.examples) == {str(int(label)) for label in train.labels}
    reason = classifier_of(make_task())  # images of 6 x 6 pixels
    assert isinstance(reason, str)
    assert "1 x 6 x 6" in reason


def test_pixels_that_are_standardized_keep_their_range() -> None:
    found = described(LeNet300100(), [((IMAGES - 0.1307) / 0.3081, LABELS)])
    assert isinstance(found, Classifier)
    assert found.low == pytest.approx((float(IMAGES.min()) - 0.1307) / 0.3081)
    assert found.high == pytest.approx((float(IMAGES.max()) - 0.1307) / 0.3081)


def test_what_a_film_says_is_checked() -> None:
    found = described(LeNet300100(), [(IMAGES, LABELS)])
    assert isinstance(found, Classifier)
    plain = to_plain(found)
    assert from_film({}) is None
    assert from_film({"classifier": "too large"}) == "too large"
    wrong: list[dict[str, Any]] = [
        {"shape": [3, 28, 28]}, {"shape": [1, 28, 4096]}, {"classes": 10**9}, {"high": -1.0}, {"low": None},
        {"layers": []}, {"layers": [{"kind": "eval"}]}, {"shapes": []}, {"extra": 1}, {"tied": [1]},
    ]  # fmt: skip
    for change in wrong:
        reason = from_film({"classifier": {**plain, **change}})
        assert isinstance(reason, str), change
        assert "does not describe its network" in reason
    assert dataclasses.is_dataclass(from_film({"classifier": plain}))
