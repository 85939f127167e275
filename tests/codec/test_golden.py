"""Files of version 1 decode forever, and writing them again gives the same bytes (docs/format.md 12)."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch

from golden.make import EXPECTED, FILES, FOLDER, Net, decoded, digest, recipe
from softshare import codec
from softshare.quantization.quantized import QuantizedWeights


@cache
def weights() -> QuantizedWeights:
    return recipe()


def test_every_golden_file_is_tested() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.sws")) == sorted(FILES)
    assert set(json.loads(EXPECTED.read_text(encoding="utf-8"))) == set(FILES)
    assert sum(path.stat().st_size for path in FOLDER.glob("*.sws")) < 20_000


@pytest.mark.parametrize("stem", FILES)
def test_decodes_to_the_recorded_values(stem: str) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))[stem]
    state = codec.load(FOLDER / f"{stem}.sws", like=Net())
    assert {name: digest(tensor) for name, tensor in state.items()} == expected
    model = Net()
    codec.load_into_(model, FOLDER / f"{stem}.sws")
    for name, tensor in model.state_dict().items():
        assert digest(tensor) == expected[name]


@pytest.mark.parametrize("stem", FILES)
def test_writing_gives_the_same_bytes(stem: str) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))[stem]
    assert {name: digest(tensor) for name, tensor in decoded(weights(), FILES[stem]).items()} == expected
    assert codec.encode(weights(), FILES[stem]) == (FOLDER / f"{stem}.sws").read_bytes()


def test_the_files_cover_the_format() -> None:
    """Both codecs, both models, with and without names, every dtype, small and large codebooks."""
    infos = {stem: codec.inspect(FOLDER / f"{stem}.sws") for stem in FILES}
    assert [info.codec for info in infos.values()] == ["han", "adaptive", "adaptive"]
    assert [t.name is None for t in infos["adaptive-none"].tensors] == [True] * len(weights().tensors)
    assert {t.n_components for t in infos["han"].tensors} >= {0, 3, 17}
    assert max(t.n_components for t in infos["han"].tensors) > 256
    assert max(t.n or 0 for t in infos["han"].tensors) > 1 << 20
    dtypes = {tensor.dtype for tensor in codec.load(FOLDER / "han.sws").values()}
    assert len(dtypes) == 10
    assert torch.float64 in dtypes
