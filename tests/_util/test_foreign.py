"""Files that someone else wrote are read within limits, or refused with a ValueError."""

from __future__ import annotations

import io
import time
import zipfile
from typing import Any

import numpy as np
import pytest

from softshare._util.foreign import MAX_JSON, MAX_TEXT, read_arrays, read_json


def test_json_is_what_the_standard_library_reads() -> None:
    assert read_json(b'{"a": [1, 2.5, null, "x"], "b": {"c": true}}') == {"a": [1, 2.5, None, "x"], "b": {"c": True}}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"[" * 100_000, "levels", id="deep"),
        pytest.param(b"[" * 40 + b"]" * 40, "at most 32 levels", id="deeper than any result"),
        pytest.param(b"1" + b"0" * 30, "whole numbers", id="large number"),
        pytest.param(b'{"a": -9223372036854775808}', "whole numbers", id="large negative number"),
        pytest.param(b"1" * 5000, "digits", id="more digits than Python reads"),
        pytest.param(b'["' + b"x" * (MAX_TEXT + 1) + b'"]', "characters", id="long text"),
        pytest.param(b" " * (MAX_JSON + 1), "bytes of JSON", id="long file"),
        pytest.param(b"\xff", "utf-8", id="no text"),
        pytest.param(b"{", ".", id="no JSON"),
    ],
)
def test_json_beyond_the_limits_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_json(data)


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(f"{name}.npy", data)
    return file.getvalue()


def npy(head: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + len(head).to_bytes(2, "little") + head.encode() + data


def header(descr: str = "<f8", shape: str = "(1,)", fortran: bool = False) -> str:
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n"


def test_arrays_are_what_numpy_saved() -> None:
    wanted: dict[str, Any] = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.zeros((3, 0)),
        "filters/x": np.ones((2, 2), np.float16),
        "t": np.array("text"),
    }
    file = io.BytesIO()
    np.savez_compressed(file, **wanted)
    found = read_arrays(file.getvalue(), 1 << 20)
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"", "not a zip file", id="empty"),
        pytest.param(archive(a=bytes(1 << 24)), "at most 1,048,576 bytes of arrays, got 16,777,216", id="bomb"),
        pytest.param(
            archive(a=npy(header(shape="(1099511627776,)"), bytes(8))), "expected the bytes of", id="terabytes"
        ),
        pytest.param(archive(a=npy(header("|O"), bytes(8))), "arrays of numbers", id="pickle"),
        pytest.param(archive(a=npy(header(shape="(-1,)"), bytes(8))), ".", id="negative"),
        pytest.param(archive(a=npy(header(shape="(" * 3000), bytes(8))), ".", id="nested header"),
        pytest.param(archive(a=npy(header(fortran=True), bytes(8))), "arrays of numbers", id="order"),
        pytest.param(archive(a=npy(header(), bytes(8), b"\x03\x00")), "as numpy.savez writes", id="version"),
        pytest.param(archive(a=npy("{}", bytes(8))), ".", id="no header"),
        pytest.param(archive(a=b"text"), ".", id="no array"),
        pytest.param(archive(a=npy(header(), bytes(8)))[:-30], ".", id="cut short"),
    ],
)
def test_arrays_beyond_the_limits_are_refused(data: bytes, problem: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=problem):
        read_arrays(data, 1 << 20)
    assert time.perf_counter() - start < 2
