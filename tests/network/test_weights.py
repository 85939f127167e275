from __future__ import annotations

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softshare.codec.header import MAX_ENTRIES
from softshare.config import Rule
from softshare.errors import ConfigError, ModelError
from softshare.network.weights import MAX_TENSORS, SharedTensor, WeightView, check_fits, layout, load_state_

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def shared_names(model: nn.Module, *rules: Rule) -> list[str]:
    return [s.name for s in WeightView.of(model, rules).shared]


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in model.state_dict().items()}


def assert_same_state(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert torch.equal(ours[name], theirs[name]), name


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embed.weight


class Block(nn.Module):
    """Everything at once: a convolution, its batch norm, a nested block, a parameter of the user's own."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.scale = nn.Parameter(torch.ones(3))
        if depth:
            self.inner = nn.Sequential(Block(depth - 1), nn.Linear(3, 2))


# Which tensors are shared


SHARED: list[tuple[nn.Module, list[str]]] = [
    (nn.Linear(3, 2), ["weight", "bias"]),
    (nn.Linear(3, 2, bias=False), ["weight"]),
    (nn.Bilinear(2, 3, 4), ["weight", "bias"]),
    (nn.Conv1d(2, 3, 2), ["weight", "bias"]),
    (nn.ConvTranspose3d(2, 3, 2), ["weight", "bias"]),
    (nn.Embedding(5, 3), ["weight"]),
    (nn.EmbeddingBag(5, 3), ["weight"]),
    (nn.MultiheadAttention(4, 2), ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]),
    (
        nn.MultiheadAttention(4, 2, kdim=3, vdim=5, bias=False),
        ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"],
    ),
    (nn.LSTM(3, 2), ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]),
    (nn.GRUCell(3, 2, bias=False), ["weight_ih", "weight_hh"]),
]


def test_weights_and_biases_are_shared_by_default() -> None:
    for module, expected in SHARED:
        view = WeightView.of(module)
        assert [s.name for s in view.shared] == expected, module
        assert view.rest == {}
        assert view.n_weights == sum(p.numel() for p in module.parameters())
        assert all(s.tensor is module.get_parameter(s.name) for s in view.shared)


def test_normalization_is_the_rest() -> None:
    for module in (nn.BatchNorm1d(3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, affine=True)):
        view = WeightView.of(module)
        assert view.shared == (), module
        assert list(view.rest) == list(module.state_dict())


def test_modules_inside_modules() -> None:
    view = WeightView.of(Block())
    assert [s.name for s in view.shared] == [
        "conv.weight",
        "conv.bias",
        "inner.0.conv.weight",
        "inner.0.conv.bias",
        "inner.1.weight",
        "inner.1.bias",
    ]
    norm = ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert list(view.rest) == ["scale", *norm, "inner.0.scale", *(f"inner.0.{name}" for name in norm)]
    assert view.n_weights == 2 * (3 * 2 * 9 + 3) + 3 * 2 + 2


def test_a_transformer_layer_shares_all_but_its_layer_norms() -> None:
    view = WeightView.of(nn.TransformerEncoderLayer(4, 2, 8))
    assert [s.name for s in view.shared] == [
        "self_attn.in_proj_weight",
        "self_attn.in_proj_bias",
        "self_attn.out_proj.weight",
        "self_attn.out_proj.bias",
        "linear1.weight",
        "linear1.bias",
        "linear2.weight",
        "linear2.bias",
    ]
    assert list(view.rest) == ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]


def test_every_tensor_appears_once_in_the_order_of_the_state_dict() -> None:
    for model in (Block(2), TiedLanguageModel(), nn.TransformerDecoderLayer(4, 2, 8)):
        view = WeightView.of(model)
        names = [s.name for s in view.shared] + list(view.rest)
        assert sorted([*names, *view.tied]) == sorted(model.state_dict())
        assert list(view.order) == [name for name in model.state_dict() if name not in view.tied]
        assert sorted(view.order) == sorted(names)


# Tied tensors


def test_a_tied_tensor_stands_once_under_its_first_name() -> None:
    model = TiedLanguageModel()
    view = WeightView.of(model)
    assert [s.name for s in view.shared] == ["embed.weight", "body.weight", "body.bias", "head.bias"]
    assert view.tied == {"head.weight": "embed.weight"}
    assert view.n_weights == 7 * 4 + 4 * 4 + 4 + 7 == sum(p.numel() for p in model.parameters())


def test_a_module_under_two_names_is_tied_as_a_whole() -> None:
    layer = nn.Conv1d(2, 2, 1)
    view = WeightView.of(nn.Sequential(layer, nn.ReLU(), layer))
    assert [s.name for s in view.shared] == ["0.weight", "0.bias"]
    assert view.tied == {"2.weight": "0.weight", "2.bias": "0.bias"}


def test_a_tensor_tied_to_a_module_that_shares_is_shared() -> None:
    model = nn.Module()
    model.first = nn.Parameter(torch.randn(3, 2))  # alone, it would be kept
    model.layer = nn.Linear(2, 3)
    model.layer.weight = model.first
    view = WeightView.of(model)
    assert [s.name for s in view.shared] == ["first", "layer.bias"]
    assert view.tied == {"layer.weight": "first"}


def test_a_tied_buffer_is_kept_once() -> None:
    model, buffer = nn.Module(), torch.arange(3.0)
    model.register_buffer("first", buffer)
    model.register_buffer("second", buffer)
    view = WeightView.of(model)
    assert list(view.rest) == ["first"]
    assert view.tied == {"second": "first"}


def test_a_rule_may_use_any_name_of_a_tied_tensor() -> None:
    for pattern in ("embed.weight", "head.w*", "*.weight"):
        view = WeightView.of(TiedLanguageModel(), [Rule(pattern, share=False)])
        assert "embed.weight" not in [s.name for s in view.shared]
        assert "embed.weight" in view.rest
        assert view.tied == {"head.weight": "embed.weight"}


# Rules


def test_the_first_rule_that_matches_decides() -> None:
    model = Block()
    keep, share = Rule("inner.*", share=False), Rule("*.weight", share=True)
    outer = ["conv.weight", "conv.bias", "norm.weight"]
    assert shared_names(model, keep, share) == outer
    assert shared_names(model, share, keep) == [
        *outer,
        "inner.0.conv.weight",
        "inner.0.norm.weight",
        "inner.1.weight",
    ]


def test_a_rule_can_share_parameters_of_any_module_but_neither_buffers_nor_integers() -> None:
    model = Block(0)
    model.register_parameter("count", nn.Parameter(torch.arange(3), requires_grad=False))
    assert shared_names(model, Rule("*", share=True)) == [
        "scale",
        "conv.weight",
        "conv.bias",
        "norm.weight",
        "norm.bias",
    ]


def test_patterns_are_case_sensitive_shell_patterns() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert shared_names(model, Rule("[!0].*", share=False)) == ["0.weight", "0.bias"]
    assert shared_names(model, Rule("?.bias", share=False)) == ["0.weight", "1.weight"]
    with pytest.raises(ConfigError, match="WEIGHT"):
        shared_names(model, Rule("*.WEIGHT", share=False))


def test_a_rule_that_matches_nothing_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"keep:fc\*.*0\.weight, 0\.bias"):
        WeightView.of(nn.Sequential(nn.Linear(2, 2)), [Rule("0.bias", share=True), Rule("fc*", share=False)])


def test_frozen_parameters_are_kept_unless_a_rule_shares_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert shared_names(model) == ["1.weight", "1.bias"]
    assert list(WeightView.of(model).rest) == ["0.weight", "0.bias"]
    assert shared_names(model, Rule("0.weight", share=True)) == ["0.weight", "1.weight", "1.bias"]


# Models that cannot be viewed


def test_a_lazy_module_is_an_error_that_names_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))
    with pytest.raises(ModelError, match=r"1\.weight, 1\.bias"):
        WeightView.of(model)
    model(torch.zeros(1, 2))
    assert shared_names(model) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_state_that_is_no_tensor_is_an_error_that_names_it() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

    with pytest.raises(ModelError, match=r"0\._extra_state"):
        WeightView.of(nn.Sequential(Extra(2, 2)))


def test_check_passes_a_model_that_can_be_shared() -> None:
    WeightView.of(Block()).check()
    WeightView.of(Block().to(torch.bfloat16)).check()


def test_check_no_parameter_to_share() -> None:
    keep = Rule("*", share=False)
    for model, rules, named in (
        (nn.Sequential(nn.BatchNorm1d(2)), [], r"0\.weight.*0\.running_mean"),
        (nn.Sequential(nn.ReLU()), [], "none at all"),
        (nn.Linear(2, 2), [keep], "weight, bias"),
    ):
        with pytest.raises(ModelError, match=f"no parameter to share.*{named}"):
            WeightView.of(model, rules).check()


def test_check_refuses_more_tensors_than_a_file_can_hold_at_once() -> None:
    assert MAX_TENSORS == MAX_ENTRIES
    state = {f"{i}.weight": nn.Parameter(torch.ones(1)) for i in range(100_000)}
    view = WeightView(tuple(SharedTensor(name, tensor) for name, tensor in state.items()), {}, {})
    start = time.perf_counter()
    with pytest.raises(ModelError, match="at most 65,536 tensors, as a file can hold, got 100,000"):
        view.check()
    assert len(view.layers()) == 100_000  # in linear time: it took minutes
    assert time.perf_counter() - start < 10


def test_a_module_without_weights_joins_the_first_with_some() -> None:
    names = {"a.weight": 0, "b.weight": 6, "b.bias": 3, "c.weight": 0, "d.weight": 2}
    view = WeightView(tuple(SharedTensor(name, torch.zeros(n)) for name, n in names.items()), {}, {})
    assert view.layers() == [("b.weight", "b.bias", "a.weight", "c.weight"), ("d.weight",)]


def test_check_values_that_are_not_finite() -> None:
    for value, dtype in ((math.nan, torch.float16), (math.inf, torch.bfloat16), (-math.inf, torch.float64)):
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(dtype)
        with torch.no_grad():
            model.get_parameter("1.weight")[0] = value
        with pytest.raises(ModelError, match=r"1\.weight: expected finite weights, but 2 of 4 are NaN"):
            WeightView.of(model).check()


def test_check_looks_at_parameters_that_are_kept_but_not_at_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        model.get_buffer("1.running_mean").fill_(-math.inf)
        WeightView.of(model).check()
        model.get_parameter("1.weight")[1] = math.nan
    with pytest.raises(ModelError, match=r"tensor 1\.weight: .* 1 of 2 are NaN"):
        WeightView.of(model).check()


def test_check_all_weights_equal() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    with pytest.raises(ModelError, match=r"all 14 .*equal 0\.25") as error:
        WeightView.of(model).check()
    assert "0.weight" in str(error.value)
    with torch.no_grad():
        model.get_parameter("1.bias")[1] = 0.5  # one weight that differs is enough
    view = WeightView.of(model)
    view.check()
    assert view.range() == (0.25, 0.5)


def test_a_range_with_nan_in_any_tensor_is_nan() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[1] = math.nan
    assert all(math.isnan(end) for end in WeightView.of(model).range())


# Gather


@st.composite
def parameters(draw: st.DrawFn) -> nn.Parameter:
    """A parameter of any shape and dtype, in memory as it comes, transposed, or with holes; large and small values."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    values = torch.randn(*reversed(shape), 2, generator=generator, dtype=torch.float64)
    values *= 10.0 ** torch.randint(-9, 5, values.shape, generator=generator)
    with_holes = values.to(dtype)[..., 0]
    turned = tuple(reversed(range(len(shape))))
    match draw(st.sampled_from(["contiguous", "transposed", "with holes"])):
        case "contiguous":
            return nn.Parameter(with_holes.permute(turned).contiguous())
        case "transposed":
            return nn.Parameter(with_holes.contiguous().permute(turned))
        case _:
            return nn.Parameter(with_holes.permute(turned))


def model_of(tensors: list[nn.Parameter]) -> nn.Module:
    model = nn.Module()
    for i, tensor in enumerate(tensors):
        model.register_parameter(f"t{i}", tensor)
    return model


@given(st.lists(parameters(), min_size=1, max_size=5))
def test_gather_is_an_exact_copy_in_order(tensors: list[nn.Parameter]) -> None:
    model = model_of(tensors)
    view = WeightView.of(model, [Rule("*", share=True)])
    flat = view.gather()
    # The truth, value by value in row-major order: Python floats hold every one of these dtypes exactly.
    values = [float(v) for t in tensors for v in t.detach().contiguous().view(-1)]
    assert flat.tolist() == values
    assert flat.shape == (view.n_weights,)
    assert flat.dtype == (torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32)
    assert not flat.requires_grad

    with torch.no_grad():
        for t in tensors:
            t.fill_(7)
    assert flat.tolist() == values  # a copy, not a view


def test_state_dict_is_a_copy_of_the_whole_state() -> None:
    model = TiedLanguageModel()
    model.norm = nn.BatchNorm1d(4)
    view = WeightView.of(model)
    state, before = view.state_dict(), snapshot(model)
    assert_same_state(dict(sorted(state.items())), dict(sorted(before.items())))
    assert state["head.weight"] is state["embed.weight"]
    assert not any(t.requires_grad for t in state.values())
    with torch.no_grad():
        model.embed.weight.zero_()
        model.get_buffer("norm.running_mean").fill_(3)
    assert torch.equal(state["embed.weight"], before["embed.weight"])
    assert torch.equal(state["norm.running_mean"], before["norm.running_mean"])
    assert torch.equal(view.state_dict()["embed.weight"], torch.zeros(7, 4))  # the view reads the live model


def test_repr_counts() -> None:
    assert repr(WeightView.of(Block(0))) == "WeightView(57 weights shared in 2 tensors, 16 values kept)"


# Loading a state dict


def test_load_state_copies_in_place_into_each_tensors_own_dtype() -> None:
    torch.manual_seed(0)
    source, target = TiedLanguageModel(), TiedLanguageModel().to(torch.bfloat16)
    embed = target.embed.weight
    load_state_(target, source.state_dict(), "a.safetensors")
    assert_same_state(snapshot(target), {n: t.to(torch.bfloat16) for n, t in source.state_dict().items()})
    assert target.embed.weight is embed is target.head.weight


def test_load_state_copies_buffers_and_frozen_parameters() -> None:
    torch.manual_seed(0)
    source, target = Block(), Block().requires_grad_(False)
    source.get_buffer("norm.num_batches_tracked").fill_(5)
    load_state_(target, source.state_dict(), "a")
    assert_same_state(snapshot(target), snapshot(source))


def test_load_state_lists_every_misfit_at_once_and_changes_nothing() -> None:
    model = Block(0)
    before = snapshot(model)
    state = {name: torch.full_like(t, 9) for name, t in model.state_dict().items()}
    del state["conv.bias"], state["norm.running_var"]
    state["conv.weight"] = torch.zeros(3, 2, 3)
    state["scale"] = torch.zeros(3, dtype=torch.int64)
    state["conv.extra"] = torch.zeros(1)
    state["head.weight"] = torch.zeros(1)
    with pytest.raises(ModelError) as error:
        load_state_(model, state, "runs/a.safetensors")
    source, *lines = str(error.value).splitlines()
    assert "runs/a.safetensors" in source
    assert sorted(line.strip() for line in lines) == [
        "conv.weight: shape (3, 2, 3) in the file, (3, 2, 3, 3) in the model",
        "missing from the file: conv.bias",
        "missing from the file: norm.running_var",
        "not in the model: conv.extra",
        "not in the model: head.weight",
        "scale: torch.int64 in the file, torch.float32 in the model",
    ]
    assert_same_state(snapshot(model), before)


def test_load_state_into_a_model_without_memory_is_an_error() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(ModelError, match="weight: on the meta device"):
        load_state_(model, nn.Linear(2, 2).state_dict(), "a")


def test_load_state_into_a_lazy_module_is_an_error_that_names_its_tensors() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ModelError, match=r"0\.weight"):
        load_state_(model, {"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(2)}, "a")


# Layout


def test_layout_has_every_tensor_once_under_its_first_name() -> None:
    model = TiedLanguageModel()
    tensors, tied = layout(model)
    assert list(tensors) == ["embed.weight", "body.weight", "body.bias", "head.bias"]
    assert tied == {"head.weight": "embed.weight"}
    assert all(tensors[name] is model.get_parameter(name) for name in tensors)
    view = WeightView.of(Block())
    assert tuple(layout(Block())[0]) == view.order


class WithState(nn.Linear):
    """A module whose state dict holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"step": 3}


def test_layout_leaves_out_what_is_no_tensor() -> None:
    assert list(layout(WithState(2, 2))[0]) == ["weight", "bias"]


def test_check_fits_needs_shapes_and_kinds_only() -> None:
    """What is compared may be on the meta device, and nothing is copied."""
    model = TiedLanguageModel()
    before = snapshot(model)
    state = {name: torch.empty(t.shape, dtype=torch.bfloat16, device="meta") for name, t in before.items()}
    target = check_fits(model, state, "m.sws")
    assert list(target) == list(before)
    assert target["body.weight"].data_ptr() == model.body.weight.data_ptr()
    assert_same_state(snapshot(model), before)
    state["body.bias"] = torch.empty(4, dtype=torch.int64, device="meta")
    state["embed.weight"] = torch.empty(7, 5, device="meta")
    state["more"] = state.pop("head.bias")
    with pytest.raises(ModelError) as caught:
        check_fits(model, state, "m.sws")
    assert str(caught.value).splitlines() == [
        "m.sws does not fit the model:",
        "  missing from the file: head.bias",
        "  not in the model: more",
        "  embed.weight: shape (7, 5) in the file, (7, 4) in the model",
        "  body.bias: torch.int64 in the file, torch.float32 in the model",
    ]
