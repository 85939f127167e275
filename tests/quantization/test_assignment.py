"""Assigning weights to components: the arg-max, the codebook, and the quantized weights."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from softshare.network.weights import WeightView
from softshare.prior.mixture import Mixture
from softshare.quantization import quantized as quantize_module
from softshare.quantization.assignment import quantize
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

LAW = settings(max_examples=50)


def mixture(*components: tuple[float, float, float], dtype: torch.dtype = torch.float32) -> Mixture:
    """A mixture from rows of mixing, mean, standard deviation."""
    mixing, mean, std = torch.tensor(components, dtype=torch.float64).T
    return Mixture(mixing.log().to(dtype), mean.to(dtype), 2 * std.log().to(dtype))


class Holder(nn.Module):
    """A Linear with the given weights and no bias."""

    def __init__(self, values: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.fc = nn.Linear(len(values), 1, bias=False)
        self.fc.weight = nn.Parameter(torch.tensor([values], dtype=dtype))


def with_one(model: nn.Module, m: Mixture) -> QuantizedWeights:
    """Quantized with one mixture for all tensors."""
    view = WeightView.of(model)
    return quantize(view, {s.name: m for s in view.shared})


def quantized(values: list[float], m: Mixture, dtype: torch.dtype = torch.float32) -> QuantizedTensor:
    (tensor,) = with_one(Holder(values, dtype), m).shared
    return tensor


class Net(nn.Module):
    """A convolution, a normalization with buffers, a tied pair, and two dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6)
        self.head.weight = self.embed.weight
        self.low = nn.Linear(5, 4).to(torch.bfloat16)


def net() -> Net:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape))
    return model


NET_MIXTURE = mixture((0.6, 0.0, 0.5), (0.1, -1.5, 0.3), (0.1, 0.75, 0.2), (0.1, 1.0, 0.4), (0.1, 90.0, 0.1))
SHARED = ["conv.weight", "conv.bias", "embed.weight", "head.bias", "low.weight", "low.bias"]


def joint_density(w: Tensor, m: Mixture) -> Tensor:
    """The truth: log(mixing * N(w)) of every component, by torch's Normal, in float64."""
    normal: Distribution = Normal(m.mean.double()[:, None], torch.exp(0.5 * m.log_var.double())[:, None])
    return m.log_mixing.double()[:, None] + normal.log_prob(w.detach().double().reshape(-1))


def most_responsible(w: Tensor, m: Mixture) -> Tensor:
    return joint_density(w, m).argmax(0)


# Assignment


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    n = draw(st.integers(1, 6))
    numbers = [draw(st.lists(st.floats(*bounds), min_size=n, max_size=n)) for bounds in ((-6, 6), (-2, 2), (-12, 2))]
    logits, mean, log_var = (torch.tensor(x, dtype=torch.float64) for x in numbers)
    mean[0] = 0
    return Mixture(torch.log_softmax(logits, 0), mean, log_var)


@LAW
@given(mixtures(), st.lists(st.floats(-3, 3), min_size=1, max_size=30))
def test_assignment_is_the_brute_force_arg_max(m: Mixture, values: list[float]) -> None:
    """The comparison is by density, because components may tie."""
    w = torch.tensor(values, dtype=torch.float64)
    joint = joint_density(w, m)
    assigned = m.assign(w)
    assert (assigned.shape, assigned.dtype) == ((len(values),), torch.int64)
    torch.testing.assert_close(joint.gather(0, assigned[None])[0], joint.amax(0), rtol=1e-9, atol=1e-9)
    in_range = joint.amax(0) > -600  # exp of less is 0, and this plain division then 0 / 0
    plain = joint.exp() / joint.exp().sum(0)
    torch.testing.assert_close(m.responsibilities(w)[:, in_range], plain[:, in_range])


def test_mixing_matters() -> None:
    """0.6 is nearer to 1, but log(0.98 / 0.02) = 3.9 outweighs (0.6^2 - 0.4^2) / 2 = 0.1."""
    assert quantized([0.6], mixture((0.98, 0.0, 1.0), (0.02, 1.0, 1.0))).dense().tolist() == [[0.0]]
    assert quantized([0.6], mixture((0.5, 0.0, 1.0), (0.5, 1.0, 1.0))).dense().tolist() == [[1.0]]


def test_variance_matters() -> None:
    """0.2 is nearer to 0, but 20 of that component's standard deviations away. The same holds for 0.6 and 1."""
    assert quantized([0.2], mixture((0.5, 0.0, 0.01), (0.5, 1.0, 1.0))).dense().tolist() == [[1.0]]
    assert quantized([0.6], mixture((0.5, 0.0, 1.0), (0.5, 1.0, 0.01))).dense().tolist() == [[0.0]]


def test_the_normalizing_log_variance_matters() -> None:
    """In standard deviations 0.21 is nearer to 1 (1.975 against 2.1), but the narrow density is 4 times as high."""
    assert quantized([0.21], mixture((0.5, 0.0, 0.1), (0.5, 1.0, 0.4))).dense().tolist() == [[0.0]]


# The model


def test_every_shared_tensor_is_quantized() -> None:
    model = net()
    out = with_one(model, NET_MIXTURE)
    assert [t.name for t in out.shared] == SHARED
    state = model.state_dict()
    for t in out.shared:
        expected = NET_MIXTURE.mean[most_responsible(state[t.name], NET_MIXTURE)].reshape(state[t.name].shape)
        assert t.dtype == state[t.name].dtype
        assert torch.equal(t.dense(), expected.to(t.dtype))
        assert not torch.equal(t.dense(), state[t.name])
    assert all(t.indices.dtype == torch.uint8 for t in out.shared)
    assert out.n_shared == 3 * 9 + 3 + 24 + 6 + 20 + 4
    values = torch.cat([t.dense().reshape(-1).float() for t in out.shared])
    assert out.n_nonzero == int((values != 0).sum()) > 0


def test_bfloat16_weights_take_the_rounded_mean() -> None:
    """The codebook stays float32. The decoded tensor is bfloat16, where 0.3 is 0.30078125."""
    t = quantized([0.28125, 0.015625, -0.5], mixture((0.9, 0.0, 0.05), (0.1, 0.3, 0.05)), torch.bfloat16)
    assert t.codebook.tolist() == [0.0, torch.tensor(0.3).item()]
    assert t.codebook.dtype == torch.float32
    assert t.dense().dtype == torch.bfloat16
    assert t.dense().float().tolist() == [[0.30078125, 0.0, 0.0]]


def test_float64_weights_are_assigned_in_float64() -> None:
    """float32 cannot tell these two means apart, though they are 100 standard deviations apart."""
    m = mixture((0.5, 0.0, 1e-3), (0.25, 1.0, 1e-11), (0.25, 1.0 + 1e-9, 1e-11), dtype=torch.float64)
    assert m.assign(torch.tensor([1.0, 1.0 + 1e-9], dtype=torch.float64)).tolist() == [1, 2]
    t = quantized([1.0, 1.0 + 1e-9, 0.0], m, torch.float64)
    assert t.codebook.tolist() == [0.0, 1.0]  # one value in float32, so one entry
    assert t.indices.tolist() == [1, 1, 0]
    assert t.dense().dtype == torch.float64


def test_the_rest_is_copied_unchanged() -> None:
    model = net()
    before = {name: t.clone() for name, t in model.state_dict().items() if name.startswith("norm.")}
    out = with_one(model, NET_MIXTURE)
    assert list(out.rest) == list(before)
    with torch.no_grad():
        model.norm.weight.add_(1)
    model.norm.running_mean.add_(1)  # type: ignore[union-attr]
    for name, t in before.items():
        assert out.rest[name].dtype == t.dtype
        assert not out.rest[name].requires_grad
        assert torch.equal(out.rest[name], t)
    out.state_dict()["norm.weight"].add_(1)
    assert torch.equal(out.rest["norm.weight"], before["norm.weight"])


def test_tied_names_come_back() -> None:
    out = with_one(net(), NET_MIXTURE)
    assert out.tied == {"head.weight": "embed.weight"}
    assert sum(t.name in ("embed.weight", "head.weight") for t in out.shared) == 1
    state = out.state_dict()
    assert torch.equal(state["head.weight"], state["embed.weight"])
    fresh = Net()
    fresh.load_state_dict(state)  # strict: every name is there
    assert torch.equal(fresh.embed.weight, state["embed.weight"])
    assert fresh.head.weight is fresh.embed.weight


def test_the_model_is_not_changed() -> None:
    model = net()
    before = copy.deepcopy(model.state_dict())
    with_one(model, NET_MIXTURE).state_dict()
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


# The codebook


def test_the_codebook_holds_the_used_values_by_magnitude() -> None:
    """No weight is near 90; -1.5 comes after 1.0."""
    out = with_one(net(), NET_MIXTURE)
    for t in out.shared:
        assert t.codebook.tolist() == [0.0, 0.75, 1.0, -1.5]
    assert out.n_components == 4


@LAW
@given(mixtures(), st.lists(st.floats(-3, 3), min_size=1, max_size=30))
def test_codebook_laws(m: Mixture, values: list[float]) -> None:
    t = quantized(values, m, torch.float64)
    codebook = t.codebook.tolist()
    assert codebook[0] == 0.0
    assert len(set(codebook)) == len(codebook)
    assert [abs(v) for v in codebook] == sorted(abs(v) for v in codebook)
    assert set(t.indices.tolist()) | {0} == set(range(len(codebook)))
    means = set(m.mean[most_responsible(torch.tensor(values).double(), m)].float().tolist())
    if len({float(v) for v in m.mean.float()}) == len(m):  # where means are equal, either may be the arg-max
        assert set(codebook) == means | {0.0}
    assert t.n_nonzero == sum(v != 0 for v in t.dense().float().reshape(-1).tolist())


def test_zero_stays_first_where_no_weight_is_pruned() -> None:
    t = quantized([1.0, 1.1, 0.9], mixture((0.5, 0.0, 0.1), (0.5, 1.0, 0.1)))
    assert t.codebook.tolist() == [0.0, 1.0]
    assert t.indices.tolist() == [1, 1, 1]
    assert t.n_nonzero == 3


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_free_component_of_mean_0_is_the_zero_component(zero: float) -> None:
    """The wide component at 0 takes 0.5 and -0.5. They are pruned just like those of the narrow one."""
    m = mixture((0.5, 0.0, 0.01), (0.25, zero, 0.5), (0.25, 2.0, 0.1))
    assert m.assign(torch.tensor([0.001, 0.5, -0.5, 2.0])).tolist() == [0, 1, 1, 2]
    t = quantized([0.001, 0.5, -0.5, 2.0], m)
    assert t.codebook.tolist() == [0.0, 2.0]
    assert t.indices.tolist() == [0, 0, 0, 1]
    assert not bool(t.dense().signbit().any())


def test_components_of_one_mean_share_an_index() -> None:
    m = mixture((0.5, 0.0, 0.01), (0.25, 1.0, 0.01), (0.25, 1.0, 0.5))
    assert m.assign(torch.tensor([1.0, 0.5, 0.0])).tolist() == [1, 2, 0]
    t = quantized([1.0, 0.5, 0.0], m)
    assert t.codebook.tolist() == [0.0, 1.0]
    assert t.indices.tolist() == [1, 1, 0]


def test_values_of_opposite_sign_are_distinct() -> None:
    t = quantized([1.0, -1.0, 0.0], mixture((0.5, 0.0, 0.1), (0.25, 1.0, 0.1), (0.25, -1.0, 0.1)))
    assert sorted(t.codebook.tolist()) == [-1.0, 0.0, 1.0]
    assert t.dense().tolist() == [[1.0, -1.0, 0.0]]


def test_dense_by_hand() -> None:
    codebook = torch.tensor([0.0, 0.5, -2.0])
    indices = torch.tensor([0, 1, 2, 2, 0, 1], dtype=torch.uint8)
    t = QuantizedTensor("w", (2, 3), torch.float32, indices, codebook)
    assert t.dense().tolist() == [[0.0, 0.5, -2.0], [-2.0, 0.0, 0.5]]
    assert t.n_nonzero == 4
    assert t.counts().tolist() == [2, 2, 2]
    empty = QuantizedTensor("e", (0, 3), torch.float32, torch.zeros(0, dtype=torch.uint8), codebook)
    assert empty.counts().tolist() == [0, 0, 0]
    assert empty.dense().shape == (0, 3)


def test_components_of_different_codebooks_add() -> None:
    a, b = torch.tensor([0.0, 0.5]), torch.tensor([0.0, 1.0, 2.0])
    index = torch.zeros(1, dtype=torch.uint8)
    tensors = [QuantizedTensor(n, (1,), torch.float32, index, c) for n, c in (("x", a), ("y", b), ("z", a.clone()))]
    assert QuantizedWeights(tuple(tensors), {}, {}).n_components == 5


# Narrow indices


@pytest.mark.parametrize(("n", "dtype"), [(256, torch.uint8), (257, torch.int16)])
def test_indices_are_as_narrow_as_the_codebook_lets_them(n: int, dtype: torch.dtype) -> None:
    """Each of n components takes the weight at its mean."""
    assert index_dtype(n) == dtype
    assert index_dtype(32_769) == torch.int32
    means = [0.0, *(k / 8 for k in range(1, n))]
    t = quantized(means[::-1], mixture(*((1 / n, mean, 0.01) for mean in means)))
    assert t.indices.dtype == dtype
    assert t.indices.tolist() == list(range(n))[::-1]
    assert t.dense().tolist() == [means[::-1]]


def test_widening_by_parts_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    codebook = torch.arange(5.0)
    indices = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    t = QuantizedTensor("w", (4, 10), torch.bfloat16, indices, codebook)
    for n in (1, 7, 40):
        monkeypatch.setattr(quantize_module, "_CHUNK", n)
        assert torch.equal(t.dense(), codebook.to(torch.bfloat16)[indices.long()].reshape(4, 10))
        assert t.counts().tolist() == [indices.tolist().count(k) for k in range(5)]


def test_the_order_is_the_networks() -> None:
    model = net()
    out = with_one(model, NET_MIXTURE)
    assert list(out.order) == [name for name in model.state_dict() if name != "head.weight"]
    assert list(out.tensors) == list(out.order)
    assert list(out.state_dict()) == [*out.order, "head.weight"]
    assert list(QuantizedWeights(out.shared, out.rest, {}).tensors) == [*(t.name for t in out.shared), *out.rest]
