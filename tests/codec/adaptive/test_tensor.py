"""The adaptive codec: exact on any tensor, with and without numba. Noise costs its entropy, structure far less."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paths import TESTS
from softshare.codec.adaptive import tensor as adaptive
from softshare.codec.adaptive.tensor import decode_tensor, encode_tensor
from softshare.codec.symbols import Indices, index_dtype
from softshare.errors import FormatError

Shape = tuple[int, ...]
Case = tuple[Indices, Shape, int]  # indices, shape, size of the codebook
both = pytest.mark.parametrize("fast", [False, True], ids=["full", "fast"])


@contextmanager
def model(fast: bool) -> Iterator[None]:
    with patch.object(adaptive, "FAST_ABOVE", -1 if fast else 1 << 30):
        yield


def noise(shape: Shape, density: float, n_values: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    n = math.prod(shape)
    mask = rng.random(n) < density
    return (rng.integers(1, n_values, n) * mask).astype(index_dtype(n_values)), shape, n_values


def lit(shape: Shape, at: Any, index: int = 1, n_values: int = 2) -> Case:
    x = np.zeros(shape, index_dtype(n_values))
    x[at] = index
    return x.reshape(-1), shape, n_values


def encode(case: Case) -> bytes:
    indices, shape, n_values = case
    return encode_tensor(indices, shape, n_values, int(np.count_nonzero(indices)))


def returns(case: Case, data: bytes | memoryview) -> bool:
    indices, shape, n_values = case
    back = decode_tensor(data, shape, n_values, int(np.count_nonzero(indices)))
    return back.dtype == index_dtype(n_values) and np.array_equal(back, indices)


def entropy_bytes(case: Case) -> float:
    counts = np.bincount(case[0])
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum() / 8)


@both
@given(
    st.lists(st.integers(1, 7), max_size=4).map(tuple),
    st.sampled_from([0.02, 0.3, 1.0]),
    st.sampled_from([2, 3, 5, 17, 200, 300]),
    st.integers(0, 100),
)
def test_round_trip(fast: bool, shape: Shape, density: float, n_values: int, seed: int) -> None:
    case = noise(shape, density, n_values, seed)
    case[0][seed % len(case[0])] = n_values - 1
    with model(fast):
        assert returns(case, memoryview(encode(case)))


SPECIAL = {
    "square rows": noise((64, 25), 0.3, 9),
    "dense": noise((30, 400), 0.05, 17),
    "conv": noise((8, 4, 3, 3), 0.5, 4),
    "65,536 values": (np.arange(1, 65537, dtype=np.int32), (256, 256), 65537),
    "300 values": (np.arange(300, dtype=np.int16), (3, 100), 300),
    "one value": lit((40, 40), ..., 3, 5),
    "no zero, two values": lit((40, 40), ...),
    "one of one": lit((), ...),
    "last column": lit((1000, 300), (slice(None), 299)),
    "last row": lit((50, 50), (49, slice(None)), 2, 3),
    "only the last": lit((700, 700), (699, 699)),
    "only the first": lit((700, 700), (0, 0)),
    "row of 100,000": noise((100_000,), 0.001, 5),
    "column of 50,000": noise((50_000, 1), 0.01, 5),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SPECIAL.values(), ids=SPECIAL.keys())
def test_round_trip_of_special_tensors(case: Case) -> None:
    for fast in (False, True):
        with model(fast):
            assert returns(case, encode(case))


@both
def test_round_trip_with_rare_surprises(fast: bool) -> None:
    """A carry runs far in a long run of near-certain decisions."""
    with model(fast):
        for seed in range(20):
            case = noise((100, 200), 0.0005 * (seed + 1), 2, seed)
            assert returns(case, encode(case))


def test_large_tensors_take_the_fast_model() -> None:
    for shape, first in (((1024, 1024), 0), ((1024, 1025), adaptive.FAST)):
        data = encode(lit(shape, (3, 3)))
        assert data[0] == first
        assert len(data) <= 5
        assert returns(lit(shape, (3, 3)), data)


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (lit((500,), 77), 4),  # log2(500) bits, and the first byte
        (lit((1000, 1000), (700, slice(None))), 8),
        (lit((1000, 1000), (slice(None), 700)), 8),
        (lit((40, 40), ...), 1),
        (noise((10,), 0.5, 4), 5),
        (noise((300,), 0.1, 9), 33),  # entropy 29.6
    ],
    ids=["one of 500", "one dense row", "one dense column", "nothing to say", "10 weights", "300 weights"],
)
def test_little_costs_little(case: Case, most: int) -> None:
    assert len(encode(case)) <= most


@pytest.mark.parametrize(("density", "n_values"), [(0.002, 2), (0.02, 5), (0.2, 17), (0.2, 2)])
def test_noise_costs_its_entropy(density: float, n_values: int) -> None:
    """There is nothing to model and nothing to lose: it stays within 2% of order-0 entropy."""
    case = noise((300, 784), density, n_values)
    assert len(encode(case)) <= 1.02 * entropy_bytes(case) + 10


@pytest.mark.parametrize("density", [0.002, 0.02, 0.2])
def test_noise_costs_its_entropy_in_the_fast_model(density: float) -> None:
    case = noise((1100, 1024), density, 9)
    assert len(encode(case)) <= 1.02 * entropy_bytes(case) + 10


@both
def test_structure_is_found(fast: bool) -> None:
    """Three quarters of the columns are dead. They must cost almost nothing, though nobody tells the coder."""
    rng = np.random.default_rng(0)
    live = rng.random(784) < 0.25
    case = ((rng.random((300, 784)) < 0.2) & live).astype(np.uint8).reshape(-1), (300, 784), 2
    known = 300 * int(live.sum()) * (-0.2 * math.log2(0.2) - 0.8 * math.log2(0.8)) / 8  # with the live columns known
    with model(fast):
        assert len(encode(case)) <= 1.06 * known < 0.8 * entropy_bytes(case)


def test_a_period_is_found() -> None:
    """Rows are images with lines of 20 and blobs. Only the lag of 20 shows it; the shape does not."""
    rng = np.random.default_rng(0)
    images = np.zeros((200, 30, 20), np.uint8)
    for image, y, x in zip(images, rng.integers(0, 25, 200), rng.integers(0, 15, 200), strict=True):
        image[y : y + 5, x : x + 5] = 1
    case = images.reshape(-1), (200, 600), 2
    data = encode(case)
    assert data[0] == 20
    with patch.object(adaptive, "_periods", lambda *_: [0]):
        assert len(data) < 0.8 * len(encode(case))


def scrambled(shape: Shape, percent: int, n_values: int) -> Case:
    """Noise that is the same in every version of numpy."""
    k = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(33)
    values = 1 + (k >> np.uint64(12)) % np.uint64(n_values - 1)
    return (values * (k % np.uint64(100) < percent)).astype(index_dtype(n_values)), shape, n_values


FIXED = [
    scrambled((20, 49), 20, 6),
    scrambled((5, 4, 3, 3), 50, 40),
    scrambled((30,), 50, 2),
    scrambled((12, 25), 30, 500),
    (np.tile(np.arange(30, dtype=np.uint8) // 25, 40), (40, 30), 2),
]


@both
def test_the_bytes_are_pinned(fast: bool) -> None:
    """Files written today must be readable forever. A change here is a new format."""
    with model(fast):
        digest = hashlib.sha256(b"".join(encode(case) for case in FIXED)).hexdigest()
    assert digest[:16] == ("92678e677d26fec8" if fast else "fde8304824ca6b4d")


def test_room_is_made_within_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast model stops where the data may have no room, in the middle of a row, and goes on with more."""
    case = scrambled((9, 3000), 40, 60)
    found = set()
    for first in (1, 1 << 12, 1 << 20):
        monkeypatch.setattr(adaptive, "FIRST_BUFFER", first)
        with model(fast=True):
            found.add(encode(case))
    (data,) = found
    assert len(data) > 1 << 12
    with model(fast=True):
        assert returns(case, data)


PLAIN = """
import sys
sys.modules["numba"] = None  # as if it were not installed
sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/codec/adaptive"]
from test_tensor import FIXED, adaptive, encode, model, returns
from softshare.codec.adaptive import full
assert not hasattr(full.code_full, "py_func")
with model(sys.argv[2] == "fast"):
    for k, case in enumerate(FIXED):
        print(encode(case).hex())
        assert returns(case, bytes.fromhex(sys.argv[3 + k]))
"""


@pytest.mark.slow
@both
def test_plain_python_writes_and_reads_the_same_bytes(fast: bool) -> None:
    pytest.importorskip("numba", reason="needs numba")
    with model(fast):
        compiled = [encode(case).hex() for case in FIXED]
    name = "fast" if fast else "full"
    command = [sys.executable, "-W", "error", "-c", PLAIN, str(TESTS), name, *compiled]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == compiled


def check_any(data: bytes, shape: Shape, n_values: int, n_nonzero: int) -> None:
    try:
        indices = decode_tensor(data, shape, n_values, n_nonzero)
    except FormatError:
        return
    assert indices.shape == (math.prod(shape),)
    assert np.count_nonzero(indices) == n_nonzero
    assert 0 <= indices.min() <= indices.max() < n_values


@both
@given(
    st.binary(max_size=60),
    st.sampled_from([(3, 5), (2, 2, 3, 3), (7,), (0, 4), (), (40, 30)]),
    st.integers(0, 9),
    st.integers(0, 40),
)
def test_any_bytes_give_a_tensor_or_a_format_error(
    fast: bool, data: bytes, shape: Shape, n_values: int, n_nonzero: int
) -> None:
    with model(fast):
        check_any(data, shape, n_values, n_nonzero)
        check_any(bytes([adaptive.FAST if fast else 0]) + data, shape, n_values, n_nonzero)


@both
@given(st.sampled_from(FIXED), st.integers(0, 10**6), st.integers(0, 255), st.integers(-2, 2))
def test_a_change_gives_a_tensor_or_a_format_error(fast: bool, case: Case, at: int, value: int, more: int) -> None:
    with model(fast):
        data = bytearray(encode(case))
        data[at % len(data)] = value
        check_any(bytes(data), case[1], case[2], int(np.count_nonzero(case[0])) + more)
        check_any(bytes(data[: at % len(data)]), case[1], case[2], int(np.count_nonzero(case[0])))


@both
def test_trailing_bytes_are_refused(fast: bool) -> None:
    with model(fast):
        for case in FIXED:
            for extra in (b"\0", b"\1", b"\xff" * 7):
                with pytest.raises(FormatError, match=r"bytes of code|shortest code"):
                    returns(case, encode(case) + extra)


@pytest.mark.parametrize(
    ("data", "n_values", "n_nonzero", "message"),
    [
        (b"", 3, 1, "expected a first byte .* got no data"),
        (b"\x80", 3, 1, "expected a period of 0 or 2 to 4, got 128"),
        (b"\x01", 3, 1, "expected a period of 0 or 2 to 4, got 1"),
        (b"\x05", 3, 1, "expected a period of 0 or 2 to 4, got 5"),
        (b"\x00", 1, 1, "expected a codebook of 2 to 65537 values, got 1"),
        (b"\x00", 3, 0, "expected 1 to 10 non-zeros .* got 0"),
        (b"\x00", 3, 11, "expected 1 to 10 non-zeros .* got 11"),
        (b"\x00" + bytes(range(1, 60)), 3, 5, "bytes of code, got 59"),
    ],
)
def test_refuses_what_no_encoder_writes(data: bytes, n_values: int, n_nonzero: int, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode_tensor(data, (2, 5), n_values, n_nonzero)


def test_refuses_the_full_model_for_a_large_tensor() -> None:
    with pytest.raises(FormatError, match="expected a first byte of 128 for 2097152 weights, got 0"):
        decode_tensor(b"\0", (2048, 1024), 3, 5)
