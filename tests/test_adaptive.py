"""The adaptive codec: exact on anything, with and without numba; noise costs its entropy, structure far less."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import softshare as ss
from softshare.codec import adaptive, container, han
from softshare.codec.logistic import LIMIT, ONE, SQUASH, STRETCH
from softshare.config import EncodeConfig
from softshare.errors import FormatError
from softshare.evaluate import entropy_bits
from softshare.quantize import QuantizedTensor, QuantizedWeights


def tensor(indices: torch.Tensor, n_values: int, shape: tuple[int, ...] | None = None) -> QuantizedTensor:
    codebook = torch.arange(n_values).float()
    return QuantizedTensor("w", shape or tuple(indices.shape), torch.float32, indices.reshape(-1).long(), codebook)


def noise(shape: tuple[int, ...], density: float, n_values: int, seed: int = 0) -> QuantizedTensor:
    g = torch.Generator().manual_seed(seed)
    values = torch.randint(1, max(2, n_values), shape, generator=g)
    return tensor(values * (torch.rand(shape, generator=g) < density), n_values)


def back(data: bytes, t: QuantizedTensor) -> QuantizedTensor:
    return adaptive.decode_tensor(data, t.name, t.shape, t.dtype, t.codebook, t.is_conv)


def entropy_bytes(t: QuantizedTensor) -> float:
    return entropy_bits(QuantizedWeights((t,), {}, {})) / 8


@given(
    st.lists(st.integers(0, 7), max_size=4).map(tuple),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.sampled_from([2, 3, 5, 17, 200]),
    st.integers(0, 100),
)
def test_round_trip(shape: tuple[int, ...], density: float, n_values: int, seed: int) -> None:
    t = noise(shape, density, n_values, seed)
    assert torch.equal(back(adaptive.encode_tensor(t), t).indices, t.indices)


@pytest.mark.parametrize(
    "t",
    [
        noise((64, 25), 0.3, 9),
        noise((30, 400), 0.05, 17),
        noise((8, 4, 3, 3), 0.5, 4),
        tensor(torch.arange(65536).reshape(256, 256), 65536),
        tensor(torch.full((40, 40), 3), 5),
        tensor(torch.zeros(1000, 300).index_fill(1, torch.tensor([299]), 1), 2),
        tensor(torch.zeros(50, 50).index_fill(0, torch.tensor([49]), 2), 3),
    ],
    ids=["square rows", "dense", "conv", "65,536 values", "one value", "last column", "last row"],
)
def test_round_trip_of_special_tensors(t: QuantizedTensor) -> None:
    assert torch.equal(back(adaptive.encode_tensor(t), t).indices, t.indices)


def test_carries_are_right() -> None:
    """Long runs of near-certain decisions, with rare surprises, are where a coder's carry runs far."""
    for seed in range(20):
        t = noise((100, 200), 0.0005 * (seed + 1), 2, seed)
        assert torch.equal(back(adaptive.encode_tensor(t), t).indices, t.indices)


def test_zeros_cost_nothing_and_few_weights_little() -> None:
    assert adaptive.encode_tensor(noise((1000, 1000), 0.0, 5)) == b""
    assert len(adaptive.encode_tensor(noise((10,), 0.5, 4))) <= 6  # 10 decisions, 5 values of 2 bits: 20 bits


@pytest.mark.parametrize(("density", "n_values"), [(0.02, 5), (0.05, 9), (0.2, 17), (0.5, 3)])
def test_noise_costs_its_entropy(density: float, n_values: int) -> None:
    """Nothing to model, nothing lost: within 2% of order-0 entropy."""
    t = noise((500, 1200), density, n_values)
    assert len(adaptive.encode_tensor(t)) <= 1.02 * entropy_bytes(t)


def test_structure_is_found() -> None:
    """Three quarters of the columns are dead: they must cost next to nothing, untold."""
    g = torch.Generator().manual_seed(0)
    live = torch.rand(784, generator=g) < 0.25
    t = tensor((torch.rand(300, 784, generator=g) < 0.2) * live, 2)
    known = 300 * int(live.sum()) * (-0.2 * math.log2(0.2) - 0.8 * math.log2(0.8)) / 8  # with the live columns known
    assert len(adaptive.encode_tensor(t)) <= 1.08 * known < 0.8 * entropy_bytes(t)
    assert len(adaptive.encode_tensor(t)) < 0.75 * len(han.encode_tensor(t))


def test_the_tables_are_the_logistic_function() -> None:
    x = np.arange(-LIMIT, LIMIT + 1)
    truth = ONE / (1 + np.exp(-x / 256))
    assert np.abs(SQUASH - truth.clip(1, ONE - 1)).max() <= 0.5 + 1e-6
    assert np.array_equal(SQUASH + SQUASH[::-1], np.full(len(x), ONE))
    p = np.arange(16, ONE - 16)
    assert np.abs(SQUASH[STRETCH[p] + LIMIT] - p).max() <= ONE / 4 / 256 + 1


PLAIN = """
import sys
sys.modules["numba"] = None  # as if it were not installed
sys.path.insert(0, sys.argv[1])
from test_adaptive import adaptive, back, noise, torch
assert not hasattr(adaptive._code_bit, "py_func")
for k, t in enumerate([noise((20, 49), 0.2, 6), noise((5, 4, 3, 3), 0.5, 40), noise((30,), 0.5, 2)]):
    print(adaptive.encode_tensor(t).hex())
    assert torch.equal(back(bytes.fromhex(sys.argv[2 + k]), t).indices, t.indices)
"""


def test_plain_python_writes_and_reads_the_same_bytes() -> None:
    pytest.importorskip("numba")
    tensors = [noise((20, 49), 0.2, 6), noise((5, 4, 3, 3), 0.5, 40), noise((30,), 0.5, 2)]
    compiled = [adaptive.encode_tensor(t).hex() for t in tensors]
    command = [sys.executable, "-c", PLAIN, str(Path(__file__).parent), *compiled]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == compiled


@given(st.binary(max_size=60), st.sampled_from([(3, 5), (2, 2, 3, 3), (7,), (0, 4)]), st.integers(1, 9))
def test_any_bytes_give_a_tensor_or_a_format_error(data: bytes, shape: tuple[int, ...], n_values: int) -> None:
    t = tensor(torch.zeros(shape), n_values)
    try:
        indices = back(data, t).indices
    except FormatError:
        return
    assert indices.shape == (math.prod(shape),)
    assert bool(((indices >= 0) & (indices < n_values)).all())


@pytest.mark.parametrize(
    ("data", "n_values", "message"),
    [
        (b"\x07\x00", 3, "expected a scan below 1, got 7"),
        (b"\x00" + bytes(range(60)), 3, "expected the data to end before byte 61"),
        (b"\x00\x01", 1, "can only be zero"),
    ],
)
def test_refuses_what_no_encoder_writes(data: bytes, n_values: int, message: str) -> None:
    with pytest.raises(FormatError, match=f"tensor 'w': .*{message}"):
        back(data, tensor(torch.zeros(2, 3), n_values))


def test_in_a_file(tmp_path: Path) -> None:
    weights = QuantizedWeights((noise((30, 49), 0.1, 6),), {"scale": torch.ones(3)}, {"again": "w"})
    container.save(weights, tmp_path / "model.sws", EncodeConfig(codec="adaptive"))
    loaded = ss.load(tmp_path / "model.sws")
    assert torch.equal(loaded["w"], weights.shared[0].dense())
    assert loaded["again"] is loaded["w"]
    info = ss.inspect(tmp_path / "model.sws")
    assert (info.codec, info.tensors[0].n_nonzero) == ("adaptive", weights.n_nonzero)
