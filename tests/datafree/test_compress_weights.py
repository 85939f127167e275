"""Files from a checkpoint without data: targets, shared tensors, ties, refusals."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import softshare as ss
from networks import NETWORKS, Transformer
from softshare.codec import decode
from softshare.config import EncodeConfig
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.network.checkpoint import open_checkpoint


@pytest.fixture
def state() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "a.weight": 0.1 * torch.randn(96, 64, generator=g) * torch.randn(96, 1, generator=g).exp(),
        "a.bias": torch.randn(96, generator=g),
        "c.weight": torch.randn(16, 8, 3, 3, generator=g),
        "n": torch.tensor(3),
        "zeros": torch.zeros(5, 6),
    }


def relative_error(a: Tensor, b: Tensor) -> float:
    """The error of `a` against `b`, by root mean squares."""
    return float((a.double() - b.double()).square().mean().sqrt() / b.double().square().mean().sqrt())


@pytest.mark.parametrize("bits", [1.0, 4])
def test_bits_are_met_from_below(state: dict[str, Tensor], bits: float, tmp_path: Path) -> None:
    fitted = ss.compress_weights(state, bits=bits)
    size = fitted.save(tmp_path / "model.sws")
    n = sum(t.numel() for t in state.values())
    assert size == (tmp_path / "model.sws").stat().st_size
    assert fitted.bits_per_weight == pytest.approx(8 * size / n)
    assert 0.97 * bits <= 8 * size / n <= bits


def test_the_default_target_is_an_error_of_5_percent(state: dict[str, Tensor]) -> None:
    assert ss.compress_weights(state).data == ss.compress_weights(state, weight_error=0.05).data


@pytest.mark.parametrize("wanted", [0.5, 0.001])
def test_errors_are_met_from_below(state: dict[str, Tensor], wanted: float, tmp_path: Path) -> None:
    fitted = ss.compress_weights(state, weight_error=wanted)
    fitted.save(tmp_path / "model.sws")
    loaded = ss.load(tmp_path / "model.sws")
    for name in ("a.weight", "c.weight"):
        error = relative_error(loaded[name], state[name])
        assert error == pytest.approx(fitted.errors[name], rel=1e-4)
        assert 0.9 * wanted <= error <= wanted
    assert fitted.errors["zeros"] == 0


def test_the_error_is_that_of_the_bits(state: dict[str, Tensor]) -> None:
    fitted = ss.compress_weights(state, bits=3)
    loaded = decode(fitted.data).state_dict()
    for name in ("a.weight", "c.weight"):
        assert relative_error(loaded[name], state[name]) == pytest.approx(fitted.errors[name], rel=1e-4)
    step = (6144 / 1152) ** 0.25  # of one relative width, but for the size of the tensors
    assert fitted.errors["a.weight"] == pytest.approx(step * fitted.errors["c.weight"], rel=0.1)


def test_vectors_integers_and_what_rules_say_are_kept(state: dict[str, Tensor]) -> None:
    fitted = ss.compress_weights(state, weight_error=0.1)
    assert {t.name for t in fitted.quantized.shared} == {"a.weight", "c.weight", "zeros"}
    loaded = decode(fitted.data).state_dict()
    assert list(loaded) == list(state)
    for name in ("a.bias", "n", "zeros"):
        assert torch.equal(loaded[name], state[name])
    rules = (ss.Rule("a.bias", share=True), ss.Rule("a.*", share=True), ss.Rule("*", share=False))
    assert {t.name for t in ss.compress_weights(state, bits=16, rules=rules).quantized.shared} == {"a.weight", "a.bias"}


def test_a_file_gives_what_its_state_dict_gives(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(state, path)
    from_file, direct = ss.compress_weights(path, bits=4), ss.compress_weights(state, bits=4)
    loaded = decode(from_file.data).state_dict()
    assert set(loaded) == set(state)
    assert from_file.errors.keys() == direct.errors.keys()
    assert from_file.bits_per_weight == pytest.approx(direct.bits_per_weight, rel=0.02)


def test_a_file_is_opened_once(state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header grows with the number of tensors. Reading it for each tensor would take quadratic time."""
    kept = state | {"empty": torch.zeros(0, 3), "b": torch.tensor([True, False, True]), "h": torch.ones(3).bfloat16()}
    safetensors.torch.save_file(kept, tmp_path / "model.safetensors")
    safe_open = Mock(wraps=safetensors.safe_open)
    monkeypatch.setattr(safetensors, "safe_open", safe_open)
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    for name, tensor in kept.items():
        assert checkpoint[name].dtype == tensor.dtype
        assert torch.equal(checkpoint[name], tensor)
    assert set(checkpoint.tensors) == set(kept)
    assert safe_open.call_count == 1


def test_each_tensor_is_read_once_to_know_it(state: dict[str, Tensor]) -> None:
    class Counting(dict[str, Tensor]):
        def __getitem__(self, name: str) -> Tensor:
            read.append(name)
            return super().__getitem__(name)

    read: list[str] = []
    checkpoint = open_checkpoint(Counting(state))
    assert read == list(state)
    assert (checkpoint.shared, checkpoint.rest) == (("a.weight", "c.weight", "zeros"), ("a.bias", "n"))


def test_a_file_that_is_gone(state: dict[str, Tensor], tmp_path: Path) -> None:
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"cannot read .*model\.safetensors: No such file"):
        checkpoint["a.bias"]


@pytest.mark.slow
def test_tied_tensors_are_stored_once(tmp_path: Path) -> None:
    """The file has both names, as with `save_file` of copies, or one of them, as with `save_model`."""
    model = Transformer()
    both, once = tmp_path / "both.safetensors", tmp_path / "once.safetensors"
    safetensors.torch.save_file({n: t.clone() for n, t in model.state_dict().items()}, both)
    safetensors.torch.save_model(model, str(once))
    for source in (both, once, model.state_dict()):
        fitted = ss.compress_weights(source, weight_error=0.01)
        assert len(fitted.quantized.tied) == 1
        fitted.save(tmp_path / "model.sws")
        fresh = Transformer()
        ss.load_into_(fresh, tmp_path / "model.sws")
        assert fresh.head.weight is fresh.embedding.weight
        assert relative_error(fresh.head.weight.detach(), model.head.weight.detach()) <= 0.01
    tied_rule = [ss.Rule("head.*", share=False)]  # a rule may match any of its names
    for source in (both, once):
        kept = ss.compress_weights(source, weight_error=0.1, rules=tied_rule).quantized.rest
        assert {"embedding.weight", "head.weight"} & set(kept)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_kind_of_network(name: str, tmp_path: Path) -> None:
    """A network with close weights has close outputs. Only norms and biases are kept."""
    torch.manual_seed(0)
    make_model, make_data = NETWORKS[name]
    model = make_model().eval()
    fitted = ss.compress_weights(model.state_dict(), weight_error=0.01)
    assert all(len(t.shape) > 1 for t in fitted.quantized.shared)
    assert all(t.dim() < 2 for t in fitted.quantized.rest.values())
    fitted.save(tmp_path / "model.sws")
    fresh = make_model().eval()
    ss.load_into_(fresh, tmp_path / "model.sws")
    x, _ = make_data(64)
    with torch.no_grad():
        assert relative_error(fresh(x), model(x)) < 0.05


def test_matrices_that_are_not_weights() -> None:
    """Empty matrices, integers and masks do not change."""
    mask = torch.ones(8, 8).tril()
    others = {"empty": torch.zeros(0, 3), "ids": torch.arange(6).reshape(2, 3), "bools": mask > 0, "mask": mask}
    fitted = ss.compress_weights({"w": torch.randn(32, 32), **others}, weight_error=0.3)
    assert [t.name for t in fitted.quantized.shared] == ["w", "mask"]
    loaded = decode(fitted.data).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in others.items())


def test_half_precision(tmp_path: Path) -> None:
    w = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    fitted = ss.compress_weights({"w": w}, weight_error=0.01)
    loaded = decode(fitted.data).state_dict()["w"]
    assert loaded.dtype == torch.bfloat16
    assert relative_error(loaded, w) <= 0.01


def test_a_dtype_that_the_format_lacks(state: dict[str, Tensor]) -> None:
    state["a.weight"] = state["a.weight"].to(torch.float8_e4m3fn)
    for target in ({"bits": 4}, {"weight_error": 0.2}):
        with pytest.raises(
            ModelError, match=r"'a\.weight': cannot store torch\.float8_e4m3fn; expected one of float32"
        ):
            ss.compress_weights(state, **target)


def test_bits_are_met_with_hans_codec(state: dict[str, Tensor]) -> None:
    fitted = ss.compress_weights(state, bits=4, config=EncodeConfig(codec="han"))
    assert 3.8 <= fitted.bits_per_weight <= 4


def test_more_bits_than_the_weights_need() -> None:
    w = torch.tensor([-0.5, 0.0, 0.5])[torch.randint(3, (64, 64), generator=torch.Generator().manual_seed(0))]
    fitted = ss.compress_weights({"w": w}, bits=8)
    assert fitted.bits_per_weight < 2
    assert torch.equal(decode(fitted.data).state_dict()["w"], w)


def test_refusals(state: dict[str, Tensor]) -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"bits": 3, "weight_error": 0.1}, "got bits and weight_error; give one"),
        ({"bits": 0}, "bits: expected a number above 0"),
        (
            {"bit": 4},
            r"^quantize: got an unexpected keyword argument 'bit'; did you mean bits\? Call quantize\(model, ",
        ),
        ({"bits": "4"}, "bits: expected a number, got '4'"),
        ({"max_bytes": True}, "max_bytes: expected a number, got True"),
        (
            {"bits": 3, "calibrate": [torch.ones(2)]},
            "calibrate: expected a network and bits, max_bytes or loss_increase, got no network",
        ),
        ({"weight_error": 0.0001}, r"weight_error: expected a number from 0.001"),
        ({"weight_error": 1.0}, "to below 1, got 1.0"),
        ({"bits": 3, "config": EncodeConfig(names="none")}, "the order of the network's tensors; use names='keep'"),
        ({"bits": 3, "rules": [ss.Rule("b.*", True)]}, r"rule share:b\.\*: no tensor matches; the names are a.weight"),
        ({"bits": 0.1}, "unshared tensors take .* bits a weight by themselves, more than 0.1"),
    ]
    for changes, message in refused:
        with pytest.raises(ConfigError, match=message):
            ss.compress_weights(state, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "own"), [(torch.float32, 32), (torch.float16, 16), (torch.bfloat16, 16)])
def test_as_many_bits_as_the_weights_have_are_no_compression(dtype: torch.dtype, own: int) -> None:
    state = {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)}
    for bits in (own, 99, float("inf")):
        with pytest.raises(ConfigError, match=rf"^bits: .* above 0 and below {own}, .* got {bits}\. .* lossless=True$"):
            ss.quantize(state, bits=bits)
    assert ss.quantize(state, bits=own - 1).ratio > 1


def test_a_call_keeps_its_signature_and_its_name() -> None:
    """An editor shows them. `compress_weights` is the same function."""
    assert list(inspect.signature(ss.quantize).parameters)[:2] == ["source", "bits"]
    assert ss.quantize.__name__ == "quantize"
    assert ss.compress_weights is ss.quantize
    with pytest.raises(
        ConfigError, match=r"^quantize: too many positional arguments\. Call quantize\(model, bits=4\)$"
    ):
        ss.quantize(nn.Linear(4, 4), 4)  # type: ignore[call-arg]


def test_batches_that_are_none() -> None:
    with pytest.raises(ConfigError, match="calibrate: expected batches, such as a list of tensors, got int"):
        ss.quantize(nn.Linear(4, 4), bits=3, calibrate=5)  # type: ignore[arg-type]


def test_an_error_that_rounding_forbids() -> None:
    w = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match=r"tensor w has an error of .* more than 0.001, because the file rounds"):
        ss.compress_weights({"w": w}, weight_error=0.001, config=EncodeConfig(codebook_dtype="bfloat16"))
    assert ss.compress_weights({"w": w}, weight_error=0.001).errors["w"] <= 0.001
    assert ss.compress_weights({"w": 1e-9 * w}, weight_error=0.01).errors["w"] <= 0.01  # 'auto' takes float32


def test_weights_that_are_not_finite(state: dict[str, Tensor]) -> None:
    state["a.weight"][3, 4:6] = torch.tensor([float("nan"), float("inf")])
    with pytest.raises(
        ModelError, match=r"tensor a.weight: expected finite weights, but 2 of 6144 are NaN, infinite.*keep:a.weight"
    ):
        ss.compress_weights(state, bits=3)
    kept = ss.compress_weights(state, weight_error=0.1, rules=[ss.Rule("a.weight", share=False)])
    assert "a.weight" in kept.quantized.rest


def test_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a tensor to share, got none; all tensors are kept: b"):
        ss.compress_weights({"b": torch.ones(3)}, bits=3)
    with pytest.raises(ModelError, match=r"tensors.* not: x"):
        ss.compress_weights({"x": 3}, bits=3)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="cannot read"):
        ss.compress_weights(tmp_path / "nowhere", bits=3)
    (tmp_path / "model.txt").write_text("weights, but as text")
    with pytest.raises(FormatError, match=r"is not a safetensors file .* expected one of safetensors, or of torch"):
        ss.compress_weights(tmp_path / "model.txt", bits=3)


@pytest.mark.parametrize("target", [{"bits": 8}, {"weight_error": 0.1}])
def test_weights_below_float32_are_refused_and_not_called_exact(target: dict[str, Any]) -> None:
    """A tensor of 1e-300 became zeros, and its error was reported as 0."""
    state = {"a.weight": torch.full((4, 4), 1e-300, dtype=torch.float64), "b.weight": torch.randn(4, 4)}
    with pytest.raises(
        ModelError, match=r"a\.weight: expected weights that float32 can hold, but the largest is 1e-300"
    ):
        ss.compress_weights(state, **target)
    kept = ss.compress_weights(state, weight_error=0.1, rules=[ss.Rule("a.weight", share=False)])
    assert torch.equal(kept.quantized.rest["a.weight"], state["a.weight"])
