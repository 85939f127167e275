"""What `inspect` reports of a file."""

from __future__ import annotations

import json

import pytest
from torch import nn

import softshare as ss
from softshare.codec import FileInfo, TensorInfo

NAMED = FileInfo(
    1,
    "han",
    200,
    (
        TensorInfo("a", "shared", (4, 10), 40, 10, 3, 50),
        TensorInfo("b", "rest", (), 1, None, 0, 8),
        TensorInfo("c", "shared", (0, 4), 0, 0, 3, 0),
    ),
)
UNNAMED = FileInfo(
    1,
    "adaptive",
    60,
    (TensorInfo(None, "shared", None, None, 7, 3, 20), TensorInfo(None, "rest", None, None, None, 0, 4)),
)


def test_density_and_bits() -> None:
    assert [t.density for t in NAMED.tensors] == [0.25, None, None]
    assert [t.bits_per_weight for t in NAMED.tensors] == [10.0, 64.0, None]
    assert [(t.density, t.bits_per_weight) for t in UNNAMED.tensors] == [(None, None)] * 2


def test_overhead_is_what_no_section_holds() -> None:
    assert (NAMED.overhead_bytes, UNNAMED.overhead_bytes) == (142, 36)


def test_to_dict() -> None:
    assert json.loads(json.dumps(NAMED.to_dict())) == {
        "version": 1,
        "codec": "han",
        "file_bytes": 200,
        "base": None,
        "tied": {},
        "overhead_bytes": 142,
        "tensors": [
            {
                "name": "a", "kind": "shared", "shape": [4, 10], "n": 40, "n_nonzero": 10, "n_components": 3,
                "n_bytes": 50, "density": 0.25, "bits_per_weight": 10.0, "share": 0.25,
            },
            {
                "name": "b", "kind": "rest", "shape": [], "n": 1, "n_nonzero": None, "n_components": 0,
                "n_bytes": 8, "density": None, "bits_per_weight": 64.0, "share": 0.04,
            },
            {
                "name": "c", "kind": "shared", "shape": [0, 4], "n": 0, "n_nonzero": 0, "n_components": 3,
                "n_bytes": 0, "density": None, "bits_per_weight": None, "share": 0.0,
            },
        ],
    }  # fmt: skip


@pytest.mark.parametrize("info", [NAMED, UNNAMED])
def test_the_shares_and_the_overhead_are_the_whole(info: FileInfo) -> None:
    values = info.to_dict()
    assert sum(t["share"] for t in values["tensors"]) + info.overhead_bytes / info.file_bytes == pytest.approx(1)


def test_what_is_not_known_is_none() -> None:
    first = UNNAMED.to_dict()["tensors"][0]
    assert [first[key] for key in ("name", "shape", "n", "density", "bits_per_weight")] == [None] * 5
    assert (first["n_nonzero"], first["n_bytes"]) == (7, 20)


def test_tied_names_of_a_network() -> None:
    network = nn.ModuleDict({"embedding": nn.Embedding(64, 32), "head": nn.Linear(32, 64, bias=False)})
    network["head"].weight = network["embedding"].weight
    info = ss.inspect(ss.quantize(network).data)
    assert [t.name for t in info.tensors] == ["embedding.weight"]
    assert info.tied == info.to_dict()["tied"] == {"head.weight": "embedding.weight"}
