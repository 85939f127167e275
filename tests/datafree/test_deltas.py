"""Files of differences: what is put together, what it costs, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import fuzz
import softshare as ss
from by_hand import HAN_2X3, HAN_2X3_INDICES, NAMES, book, entry, head, listed, name, rest, seal, sizes
from golden.deltas import make as golden
from networks import Transformer
from softshare import codec
from softshare.codec.base import open_base, restored
from softshare.errors import ConfigError, FormatError, ModelError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights


def before() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(64, 48, generator=g),
        "a.bias": torch.randn(64, generator=g),
        "b.weight": torch.randn(40, 64, generator=g).bfloat16(),
        "c.weight": torch.randn(33, 35, generator=g).double(),
        "kept": torch.randn(100, 100, generator=g),
        "n": torch.tensor(3),
    }


def after() -> dict[str, Tensor]:
    """Small changes in half of the rows. One tensor is new, and two are as they were."""
    g = torch.Generator().manual_seed(1)
    state = {key: tensor.clone() for key, tensor in before().items()}
    for key in ("a.weight", "b.weight", "c.weight"):
        half = len(state[key]) // 2
        state[key][:half] += (0.05 * torch.randn(state[key][:half].shape, generator=g)).to(state[key].dtype)
    state["a.bias"] += 1
    state["new.weight"] = torch.randn(32, 32, generator=g)
    return state


def bits_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def relative_error(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).square().mean().sqrt() / b.double().square().mean().sqrt())


@pytest.mark.parametrize("how", [{"weight_error": 0.01}, {"bits": 2.0}, {"max_bytes": 6000}])
def test_a_delta_and_its_base_are_the_network(tmp_path: Path, how: dict[str, float]) -> None:
    fitted = ss.quantize(after(), base=before(), **how)  # type: ignore[arg-type]
    fitted.save(tmp_path / "delta.sws")
    found = ss.load(tmp_path / "delta.sws", base=before())
    assert list(found) == [*before(), "new.weight"]
    for key, tensor in after().items():
        assert found[key].dtype == tensor.dtype
        if key in ("a.bias", "kept", "n"):
            assert torch.allclose(found[key].float(), tensor.float(), atol=0, rtol=2**-11)
        else:
            assert relative_error(found[key], tensor) == pytest.approx(fitted.errors[key], rel=1e-6, abs=1e-9)
            assert fitted.errors[key] < 0.05
    assert bits_of(found["kept"]) == bits_of(before()["kept"])
    for key in ("a.weight", "b.weight", "c.weight"):  # rows that did not change have no bit changed
        half = len(found[key]) // 2
        assert bits_of(found[key][half:]) == bits_of(before()[key][half:])
    n = sum(t.numel() for t in after().values())
    assert fitted.bits_per_weight == pytest.approx(8 * (tmp_path / "delta.sws").stat().st_size / n)
    if "bits" in how:
        assert fitted.bits_per_weight <= 2
    if "max_bytes" in how:
        assert 5000 < fitted.file_bytes <= 6000


def test_nothing_changed_takes_almost_nothing(tmp_path: Path) -> None:
    fitted = ss.quantize(before(), base=before())
    assert fitted.save(tmp_path / "same.sws") < 50
    found = ss.load(tmp_path / "same.sws", base=before())
    assert {key: bits_of(tensor) for key, tensor in found.items()} == {k: bits_of(t) for k, t in before().items()}
    assert "No weight was quantized" in fitted.summary()


def test_a_delta_is_much_smaller_at_the_same_error() -> None:
    alone, delta = ss.quantize(after(), weight_error=0.01), ss.quantize(after(), base=before(), weight_error=0.01)
    assert delta.file_bytes < 0.6 * alone.file_bytes
    assert max(delta.errors.values()) <= 0.01


def test_zeros_stay_zeros_and_signs_stay_signs() -> None:
    """Also where the base has a zero with a sign, or a value that no sum of floats would keep."""
    of = torch.tensor([[0.0, -0.0, 1e-45, 3.0]], dtype=torch.float32)
    none = QuantizedTensor(
        "a", (1, 4), torch.float32, torch.tensor([0, 0, 0, 1], dtype=torch.uint8), torch.tensor([0, 0.5])
    )
    assert bits_of(restored(none, of)) == bits_of(torch.tensor([[0.0, -0.0, 1e-45, 3.5]]))
    half = dataclasses.replace(none, dtype=torch.bfloat16)
    assert restored(half, torch.tensor([[1.0, 2.0, 4.0, 256.0]]).bfloat16()).tolist() == [
        [1, 2, 4, 256]
    ]  # 256.5 is rounded
    wide = dataclasses.replace(none, dtype=torch.float64)
    assert restored(wide, torch.tensor([[1 / 3, 1 / 7, 0, 1 / 3]]).double())[0, 3] == torch.tensor(1 / 3).double() + 0.5


def test_other_shapes_and_new_tensors_stand_alone(tmp_path: Path) -> None:
    """A larger vocabulary, and a head that the base lacks."""
    old, new = {"embed": torch.randn(50, 40)}, {"embed": torch.randn(52, 40), "head": torch.randn(52, 40)}
    fitted = ss.quantize(new, base=old, weight_error=0.05)
    fitted.save(tmp_path / "a.sws")
    found = ss.load(tmp_path / "a.sws", base=old)
    assert all(relative_error(found[key], new[key]) <= 0.05 for key in new)


def test_a_tensor_that_the_base_is_far_from_stands_alone(tmp_path: Path) -> None:
    """It takes no more than without a base."""
    g = torch.Generator().manual_seed(5)
    state = before() | {"a.weight": torch.randn(64, 48, generator=g), "c.weight": after()["c.weight"]}
    fitted = ss.quantize(state, base=before(), weight_error=0.01)
    alone = ss.quantize({key: state[key] for key in ("a.weight", "c.weight")}, weight_error=0.01)
    assert fitted.file_bytes < alone.file_bytes
    fitted.save(tmp_path / "a.sws")
    found = ss.load(tmp_path / "a.sws", base=before())
    assert all(relative_error(found[key], state[key]) <= 0.01 for key in ("a.weight", "c.weight"))
    assert codec.encode(codec.decode(fitted.data)) == fitted.data


def test_any_container_of_the_same_tensors_is_the_base(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Transformer()
    safetensors.torch.save_model(model, str(tmp_path / "base.safetensors"))  # without the tied head
    torch.save(model.state_dict(), tmp_path / "base.pt")
    tuned = Transformer()
    tuned.load_state_dict(model.state_dict())
    with torch.no_grad():
        tuned.embedding.weight[3] += 1
    fitted = ss.quantize(tuned, base=tmp_path / "base.pt", weight_error=0.01)
    fitted.save(tmp_path / "delta.sws")
    found = [
        ss.load(tmp_path / "delta.sws", base=base)
        for base in (model, tmp_path / "base.safetensors", tmp_path / "base.pt")
    ]
    for state in found:
        assert {key: bits_of(t) for key, t in state.items()} == {key: bits_of(t) for key, t in found[0].items()}
    assert relative_error(found[0]["head.weight"], tuned.head.weight.detach()) < 0.01
    fresh = Transformer()
    ss.load_into_(fresh, tmp_path / "delta.sws", base=model)
    ss.load_into_(model, tmp_path / "delta.sws", base=model)  # in place
    for net in (fresh, model):
        assert all(torch.equal(net.state_dict()[key], tensor) for key, tensor in found[0].items())


def test_a_base_may_be_a_sws_file_and_bases_may_follow_one_another(tmp_path: Path) -> None:
    ss.quantize(before(), weight_error=0.05).save(tmp_path / "base.sws")
    ss.quantize(after(), base=tmp_path / "base.sws", weight_error=0.01).save(tmp_path / "1.sws")
    first = ss.load(tmp_path / "1.sws", base=tmp_path / "base.sws")
    assert relative_error(first["a.weight"], after()["a.weight"]) <= 0.01
    later = {key: tensor + 0.001 if tensor.dim() > 1 else tensor for key, tensor in first.items()}
    ss.quantize(later, base=first, lossless=True).save(tmp_path / "2.sws")
    second = ss.load(tmp_path / "2.sws", base=ss.load(tmp_path / "1.sws", base=tmp_path / "base.sws"))
    assert {key: bits_of(t) for key, t in second.items()} == {key: bits_of(t) for key, t in later.items()}


def test_the_wrong_base_is_refused_by_its_hash(tmp_path: Path) -> None:
    ss.quantize(after(), base=before(), weight_error=0.01).save(tmp_path / "delta.sws")
    ss.quantize(after(), weight_error=0.1).save(tmp_path / "alone.sws")
    wrong = before()
    wrong["n"] = torch.tensor(4)
    shape = before() | {"a.bias": before()["a.bias"].reshape(8, 8)}
    renamed = {key.replace("kept", "held"): tensor for key, tensor in before().items()}
    for base in (wrong, after(), shape, renamed, {}):
        with pytest.raises(ModelError, match="expected the checkpoint that the file was made from"):
            ss.load(tmp_path / "delta.sws", base=base)
    with pytest.raises(ConfigError, match=r"delta\.sws: the file holds differences from another checkpoint, .* --base"):
        ss.load(tmp_path / "delta.sws")
    with pytest.raises(ConfigError, match="the file stands alone"):
        ss.load(tmp_path / "alone.sws", base=before())
    with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module"):
        ss.load(tmp_path / "delta.sws", base=3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="these are differences"):
        ss.load_sparse(tmp_path / "delta.sws")
    model = nn.Linear(2, 2)
    with pytest.raises(ModelError, match="expected the checkpoint"):
        ss.load_into_(model, tmp_path / "delta.sws", base=model)


def test_a_checkpoint_that_is_no_later_one_of_its_base() -> None:
    with pytest.raises(ModelError, match=r"it has tensors that the checkpoint lacks \(kept\)"):
        ss.quantize({key: tensor for key, tensor in after().items() if key != "kept"}, base=before())
    with pytest.raises(ConfigError, match="a rule cannot drop"):
        ss.quantize(after(), base=before(), rules=[ss.Rule("kept", drop=True)])
    bad = after()
    bad["a.weight"][0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"tensor a\.weight: expected finite weights"):
        ss.quantize(bad, base=before())


def test_names_of_a_delta_can_be_chosen(tmp_path: Path) -> None:
    ss.quantize(after(), base=before(), weight_error=0.01).save(tmp_path / "delta.sws")
    found = ss.load(tmp_path / "delta.sws", ["kept", "a.weight"], base=before())
    assert list(found) == ["kept", "a.weight"]
    with pytest.raises(ConfigError, match="expected tensors of the file"):
        ss.load(tmp_path / "delta.sws", ["other"], base=before())


# The bytes


def canonical(state: dict[str, Tensor]) -> bytes:
    """By docs/format.md, for small networks of float32: 3.1."""
    data = b""
    for key in sorted(state):
        t = state[key]
        data += bytes([len(key)]) + key.encode() + b"\0" + bytes([t.dim(), *t.shape])
        data += struct.pack(f"<{t.numel()}f", *t.flatten().tolist())
    return hashlib.sha256(data).digest()


ODD = 9.1234  # no byte of it is zero
BASE = {"b": torch.tensor([7.0]), "a": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}


def by_hand(
    digest: bytes, flags: int = NAMES | 4, version: int = 2, sections: bytes | None = None, alone: bytes = b"\0"
) -> bytes:
    """The tensor of 2 x 3 that the tests of Han's codec have, as differences, and one of the rest."""
    entries = [entry(len(HAN_2X3), None, name("a"), sizes(2, 3)), entry(4, rest(0), name("r"), sizes(1))]
    body = head(flags, version) + digest + listed([book(-0.25, 0.5)]) + listed(entries) + listed([]) + alone
    return seal(body + (HAN_2X3 + struct.pack("<f", ODD) if sections is None else sections))


def test_the_bytes_are_those_of_the_specification(tmp_path: Path) -> None:
    data = by_hand(canonical(BASE))
    indices = torch.tensor(HAN_2X3_INDICES, dtype=torch.uint8)
    tensor = QuantizedTensor("a", (2, 3), torch.float32, indices, torch.tensor([0.0, -0.25, 0.5]))
    weights = QuantizedWeights((tensor,), {"r": torch.tensor([ODD])}, {}, base=open_base(BASE).digest)
    assert codec.encode(weights, ss.EncodeConfig("han")) == data
    (tmp_path / "a.sws").write_bytes(data)
    found = ss.load(tmp_path / "a.sws", base=BASE)
    assert {key: t.tolist() for key, t in found.items()} == {
        "b": [7.0], "a": [[1.0, 2.5, 3.5], [4.0, 5.5, 6.0]], "r": torch.tensor([ODD]).tolist(),
    }  # fmt: skip
    info = codec.inspect(data)
    assert (info.version, info.base) == (2, canonical(BASE).hex())
    (tmp_path / "a.sws").write_bytes(by_hand(canonical(BASE), alone=b"\1\0"))
    assert ss.load(tmp_path / "a.sws", base=BASE)["a"].tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 0.0]]


def test_a_reader_refuses_flags_that_do_not_fit() -> None:
    digest = canonical(BASE)
    for data in (
        by_hand(digest, version=1),
        by_hand(digest, flags=4),  # without names
        by_hand(digest, flags=NAMES | 4 | 8),
        by_hand(digest[:20]),
        by_hand(digest, alone=b"\1\1"),  # of the rest
        by_hand(digest, alone=b"\1\2"),
        by_hand(digest, alone=b"\2\0\0"),
        by_hand(digest, alone=b""),
        by_hand(b"", flags=NAMES, alone=b""),  # nothing that needs version 2
    ):
        with pytest.raises(FormatError) as error:
            codec.decode(data)
        assert error.value.section
        with pytest.raises(FormatError):
            codec.inspect(data)


def test_mutated_deltas_are_refused_or_put_together(tmp_path: Path) -> None:
    whole = ss.quantize(after(), base=before(), weight_error=0.03).data
    base, rng, path, read = open_base(before()), np.random.default_rng(0), tmp_path / "a.sws", 0
    for k in range(200):
        data = fuzz.mutate(whole, [fuzz.Seed(whole, ss.EncodeConfig())], k % 2 == 0, rng)
        path.write_bytes(data[:-4] + struct.pack("<I", zlib.crc32(data[:-4])))
        try:
            found = ss.load(path, base=base, max_bytes=1 << 20)
        except (FormatError, ModelError, ConfigError):
            continue
        read += 1
        assert set(found) >= set(before())
    assert read


@pytest.mark.parametrize("stem", golden.FILES)
def test_a_golden_file_decodes_for_ever(stem: str) -> None:
    """And writing it again gives the same bytes."""
    path, base = golden.FOLDER / f"{stem}.sws", golden.base() if stem == "delta" else golden.wide_base()
    found, wanted = ss.load(path, base=base), golden.expected(stem)
    assert found.keys() == wanted.keys()
    for text, tensor in wanted.items():
        assert found[text].dtype == tensor.dtype
        assert torch.equal(found[text], tensor), text
    assert golden.encoded(stem) == path.read_bytes()


def test_the_golden_files_are_of_differences_to_the_last_bit() -> None:
    """Their values, by hand."""
    base = golden.base()
    found = ss.load(golden.FOLDER / "delta.sws", base=base)
    wanted = base["a"].clone()
    wanted[1], wanted[4, 3] = base["a"][1] + 0.25, base["a"][4, 3] - 0.5
    assert torch.equal(found["a"], wanted)
    assert found["b"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.5]
    assert torch.equal(found["h"], (base["h"].float() + 0.75 * torch.eye(4, 6)).bfloat16())
    wide = ss.load(golden.FOLDER / "alone.sws", base=golden.wide_base())["wide"]
    assert golden.wide_base()["wide"][0, 5] == 1 + 5 * 2.0**-11 + 5 * 2.0**-40  # past the middle of two halves
    assert wide[0, 5] == 1 + 2.0**-9  # but in the middle after it was rounded to float32
