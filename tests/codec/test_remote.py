"""Rows of one tensor over HTTP: a real server answers ranges, and few bytes of the file travel."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paths import ROOT
from servers_of_files import Served, served
from softshare import codec
from softshare.codec.reading import BLOCK
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights


@pytest.fixture(scope="module")
def remote() -> Any:
    """The class that docs/own-network.md prints."""
    text = (ROOT / "docs/own-network.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n([^`]*?class Remote:.*?)^```", text, re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    return namespace["Remote"]


def drawn(name: str, rows: int, cols: int, density: float) -> QuantizedTensor:
    rng = np.random.default_rng(rows)
    indices = rng.integers(1, 9, rows * cols) * (rng.random(rows * cols) < density)
    book = torch.tensor([0.0, -0.5, 0.5, -1.0, 1.0, -1.5, 1.5, -2.0, 2.0])
    return QuantizedTensor(name, (rows, cols), torch.float32, torch.from_numpy(indices.astype(np.uint8)), book)


def got(server: Served, source: Any, name: str, rows: range) -> tuple[torch.Tensor, int]:
    """These rows, and the bytes that the server sent for them. Each answer is a part of the file."""
    server.sent.clear()
    part = codec.load(source, [name], rows=rows)[name]
    assert {status for status, _ in server.sent} == {206}
    return part, sum(n for _, n in server.sent)


def test_rows_of_a_tensor_take_few_bytes(remote: Any, tmp_path: Path) -> None:
    """Static code: the blocks that hold the rows, fetched in parts of 16 KiB."""
    wide, other = drawn("wide", 3000, 400, 0.9), drawn("other", 2000, 400, 0.9)
    path = tmp_path / "a.sws"
    codec.save(QuantizedWeights((wide, other), {}, {}), path, EncodeConfig(speed="fastest"))
    size = path.stat().st_size
    assert size > 700_000
    with served(tmp_path) as server:
        source = remote(f"{server.address}/a.sws")
        for tensor in (wide, other):
            for rows in (range(2), range(1500, 1510), range(tensor.shape[0] - 1, tensor.shape[0])):
                part, n_bytes = got(server, source, tensor.name, rows)
                assert torch.equal(part, tensor.dense()[rows.start : rows.stop])
                assert n_bytes < 0.2 * size
        part, n_bytes = got(server, source, "wide", range(3000))
        assert torch.equal(part, wide.dense())
        assert 0.5 * size < n_bytes < 0.7 * size  # the other tensor stays there


@pytest.mark.slow
def test_rows_of_a_large_sparse_tensor_take_their_bands(remote: Any, tmp_path: Path) -> None:
    sparse, path = drawn("sparse", 4096, 2304, 0.02), tmp_path / "b.sws"
    codec.save(QuantizedWeights((sparse,), {}, {}), path)
    with served(tmp_path) as server:
        part, n_bytes = got(server, remote(f"{server.address}/b.sws"), "sparse", range(600, 620))
        assert torch.equal(part, sparse.dense()[600:620])
        assert n_bytes < 1.2 * path.stat().st_size / 8 + 3 * BLOCK  # one band of eight, and the header


def test_a_file_that_is_not_there_is_an_error(remote: Any, tmp_path: Path) -> None:
    with served(tmp_path) as server, pytest.raises(OSError, match="404"):
        remote(f"{server.address}/none.sws")
