"""The same function in fewer bytes: units without effect are removed, the others reordered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.codec import encode
from softshare.config import EncodeConfig
from softshare.network.chains import find_links
from softshare.network.weights import WeightView
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype
from softshare.simplify.symmetries import _best_order, _close, _open, _orders, _without_idle_units, simplify
from softshare.zoo.models import LeNet5Caffe, LeNet300100

CODEBOOK = torch.tensor([0.0, -0.125, 0.25, -0.5, 0.75])
IMAGES = (1, 28, 28)


class Functional(nn.Module):
    """It has a Sequential inside, functions between layers, and an average at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, padding=1))
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(F.relu(self.body(x)), 1)
        y: Tensor = self.fc2(F.relu(self.fc1(x.view(x.size(0), -1))))
        return y


class Residual(nn.Module):
    """Units inside a block may move. Those that a shortcut joins may not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = nn.Linear(16, 12), nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y: Tensor = self.head(x + self.b(F.relu(self.a(x))))
        return y


class Tied(nn.Module):
    """An autoencoder whose decoder is tied to its encoder, with a free layer between them."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid, self.dec = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.dec.weight = self.enc.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dec(F.relu(self.mid(F.relu(self.enc(x)))))
        return y


class Untraceable(nn.Module):
    """Its path depends on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x)) if x.sum() > 0 else self.a(x)
        return y


def averaging() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5, padding=2), nn.AvgPool2d(2, padding=1), nn.Tanh(), nn.Conv2d(10, 12, 3), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(432, 30), nn.GELU(), nn.Linear(30, 5),
    )  # fmt: skip


def without_biases() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 10, 5, bias=False), nn.MaxPool2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(360, 40, bias=False), nn.Sigmoid(), nn.Linear(40, 5, bias=False),
    )  # fmt: skip


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def quantized_of(model: nn.Module, density: float = 0.1, seed: int = 0) -> QuantizedWeights:
    """Random sparse weights for a model. Each matrix has some empty rows and columns, as after pruning."""
    view, generator = WeightView.of(model), torch.Generator().manual_seed(seed)
    shared = []
    for s in view.shared:
        shape, n = tuple(s.tensor.shape), s.tensor.numel()
        share = density * (1 if len(shape) > 1 else 5)
        indices = torch.randint(1, len(CODEBOOK), (n,), generator=generator)
        indices *= torch.rand(n, generator=generator) < share
        if len(shape) > 1:
            matrix = indices.view(shape[0], shape[1], -1)
            matrix[torch.rand(shape[0], generator=generator) < 0.2] = 0
            matrix[:, (torch.rand(shape[1], generator=generator) < 0.2) & (shape[1] > 1)] = 0
        shared.append(QuantizedTensor(s.name, shape, s.tensor.dtype, indices.to(index_dtype(len(CODEBOOK))), CODEBOOK))
    rest = {name: t.detach().clone() for name, t in view.rest.items()}
    return QuantizedWeights(tuple(shared), rest, dict(view.tied), view.order)


def same(a: QuantizedWeights, b: QuantizedWeights) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


def output(model: nn.Module, quantized: QuantizedWeights, shape: tuple[int, ...]) -> Tensor:
    model = copy.deepcopy(model).eval().double()  # so that the order of sums does not matter
    model.load_state_dict(quantized.state_dict())
    x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        y: Tensor = model(x)
    return y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "n_links", "density"),
    [
        pytest.param(LeNet300100(), IMAGES, 2, 0.03, id="lenet-300-100", marks=pytest.mark.slow),
        pytest.param(LeNet5Caffe(), IMAGES, 3, 0.02, id="lenet-5-caffe", marks=pytest.mark.slow),
        pytest.param(averaging(), IMAGES, 3, 0.05, id="averaging"),
        pytest.param(without_biases(), IMAGES, 2, 0.3, id="without biases"),
        pytest.param(Functional(), IMAGES, 3, 0.1, id="functional"),
        pytest.param(Residual(), (16,), 1, 0.3, id="residual"),
    ],
)
def test_same_function_and_fewer_bytes(model: nn.Module, shape: tuple[int, ...], n_links: int, density: float) -> None:
    state = copy.deepcopy(model.state_dict())
    before = quantized_of(model, density)
    kept = [t.indices.clone() for t in before.shared]
    after, messages, *_ = simplify(model, before)

    expected = output(model, before, shape)
    assert (expected[1:] != expected[0]).any()  # not a network of zeros
    torch.testing.assert_close(output(model, after, shape), expected, rtol=1e-9, atol=1e-9)
    assert len(encode(after)) < len(encode(before))
    assert messages[-1].endswith(f"; this saves {len(encode(before)) - len(encode(after)):,} bytes")
    assert messages[-1].partition(":")[0].count(" and ") == n_links  # all of them have changed
    # model and weights are unchanged
    assert model.training
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert all(torch.equal(t.indices, indices) for t, indices in zip(before.shared, kept, strict=True))


def test_the_same_every_time_and_nothing_left_to_remove() -> None:
    model = Functional()
    before = quantized_of(model)
    after, messages, *_ = simplify(model, before)
    once_more, same_messages, *_ = simplify(copy.deepcopy(model).eval(), before)
    assert same(after, once_more)
    assert messages == same_messages
    again, *_ = simplify(model, after)
    assert again.n_nonzero == after.n_nonzero < before.n_nonzero


def test_units_only_move() -> None:
    """If no unit is removed, every tensor keeps its values, in another order of rows and columns."""
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    before = quantized_of(model, 0.2)
    for t in before.shared:
        if len(t.shape) > 1:  # one more weight in every row and column
            t.indices.view(t.shape)[torch.arange(30) % t.shape[0], torch.arange(30) % t.shape[1]] = 2
    after, *_ = simplify(model, before)
    old, new = ({t.name: t.dense() for t in q.shared} for q in (before, after))
    units = [torch.cat([s["0.weight"], s["0.bias"][:, None], s["2.weight"].T], 1).tolist() for s in (old, new)]
    assert units[0] != units[1]
    assert sorted(units[0]) == sorted(units[1])
    assert torch.equal(old["2.bias"], new["2.bias"])


def test_the_smallest_file_of_all_orders_is_kept() -> None:
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 10))
    before = quantized_of(model, 0.15)
    (link,), _ = find_links(model)
    bare, _ = _without_idle_units(before, [link])
    sizes = []
    for order in _orders(_open(bare, [link])[1][0]):
        assert sorted(order.tolist()) == list(range(60))
        indices, (units,) = _open(bare, [link])
        units.permute_(torch.from_numpy(order))
        sizes.append(len(encode(_close(bare, indices))))
    assert len(set(sizes)) > 1
    best = _best_order(bare, link, EncodeConfig())
    assert best is not None
    assert len(encode(best[0])) == min(sizes) < len(encode(bare))
    assert len(encode(simplify(model, before)[0])) <= min(sizes)


def test_flattened_channels_move_as_blocks() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(24, 7))
    before = quantized_of(model, 0.4)
    after, *_ = simplify(model, before)
    blocks = [q.state_dict()["2.weight"].view(7, 6, 4).transpose(0, 1).flatten(1).tolist() for q in (before, after)]
    live = [block for block in blocks[1] if any(block)]
    assert live
    assert all(block in blocks[0] for block in live)
    assert blocks[0] != blocks[1]


def by_hand(*matrices: list[list[int]] | list[int]) -> tuple[QuantizedTensor, ...]:
    names = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
    return tuple(
        QuantizedTensor(name, tuple(t.shape), torch.float32, t.flatten(), CODEBOOK)
        for name, t in zip(names, (torch.tensor(m, dtype=torch.uint8) for m in matrices), strict=False)
    )


def test_units_without_effect_are_removed() -> None:
    """In the first layer, unit 0 feeds only a unit that feeds nothing. Unit 1 reads nothing, and its bias is negative.
    Unit 2 reads nothing, but its bias is positive. Unit 3 works. In the second layer, unit 0 feeds nothing, and unit 2
    reads only a dead unit.
    """
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    first = [[1, 1], [0, 0], [0, 0], [2, 2]], [1, 1, 2, 3]
    second = [[4, 0, 0, 4], [0, 3, 3, 0], [0, 4, 0, 0], [0, 1, 0, 2]], [2, 2, 1, 0]
    third = [[0, 4, 1, 1], [0, 2, 2, 2]], [1, 2]
    before = QuantizedWeights(by_hand(*first, *second, *third), {}, {})
    after, messages, *_ = simplify(model, before)
    assert torch.equal(output(model, after, (2,)), output(model, before, (2,)))
    counts = [t.n_nonzero for t in after.shared]
    assert counts == [2, 2, 2, 1, 4, 2]
    saved = len(encode(before)) - len(encode(after))
    (said,) = messages
    assert said.startswith("between 0 and 2, 2 and 4: 4 of 8 units did nothing and were removed")
    assert said.endswith(f"; this saves {saved} bytes")


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU()])
def test_a_constant_that_is_not_zero_stays(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2))
    before = QuantizedWeights(by_hand([[0, 0], [1, 2]], [1, 2], [[1, 2], [3, 4]], [0, 0]), {}, {})
    after, *_ = simplify(model, before)
    assert after.n_nonzero == before.n_nonzero


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Tied(), "it or the next layer is tied or used more than once"),
        (Untraceable(), "the model cannot be traced: TraceError"),
        (normalized(), "BatchNorm1d may mix its units"),
        (nn.Linear(4, 4), None),
    ],
    ids=["tied", "untraceable", "batch norm", "one layer"],
)
def test_what_cannot_be_simplified_is_unchanged(model: nn.Module, reason: str | None) -> None:
    before = quantized_of(model, 0.4)
    after, messages, *_ = simplify(model, before)
    assert same(after, before)
    assert any(reason in message for message in messages) if reason else messages == []


def test_tensors_that_are_not_shared_or_do_not_fit() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    before = quantized_of(model, 0.4)
    bias = next(t for t in before.shared if t.name == "0.bias")
    others = tuple(t for t in before.shared if t is not bias)
    plain = QuantizedWeights(others, {"0.bias": bias.dense()}, {})
    after, messages, *_ = simplify(model, plain)
    assert after is plain
    assert messages == ["0: units left as they are, because its bias is not shared"]
    wide = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4))
    after, messages, *_ = simplify(wide, before)
    assert after is before
    assert messages == ["0: units left as they are, because its weight has the shape (4, 4), and (4, 8) in the network"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "density"), [(EncodeConfig("han"), 0.05), (EncodeConfig(names="none"), 0.0), (EncodeConfig("han"), 1.0)]
)
def test_never_more_bytes(config: EncodeConfig, density: float) -> None:
    model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))
    for seed in range(3):
        before = quantized_of(model, density, seed)
        after, *_ = simplify(model, before, config)
        assert len(encode(after, config)) <= len(encode(before, config))
        torch.testing.assert_close(output(model, after, (6,)), output(model, before, (6,)))


def test_the_rest_and_the_order_of_tensors_stay() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7))
    before = quantized_of(model, 0.3)
    after, *_ = simplify(model, before)
    assert list(after.tensors) == list(before.tensors)
    assert all(after.rest[name] is t for name, t in before.rest.items())
    assert [(t.name, t.shape) for t in after.shared] == [(t.name, t.shape) for t in before.shared]
