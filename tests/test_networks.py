"""Four kinds of network go through the whole route: train, compress, save, load, measure, export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import softshare as ss
from networks import NETWORKS, make_task
from softshare.codec import decode

CONFIG = ss.CompressConfig().override(epochs=8, lr_weights=3e-3, tau=0.003, zeroing=0.1, zero_mixing=0.9)
NORMS = {  # what is not shared
    "transformer": {"position", *(f"block.norm{k}.{p}" for k in (1, 2) for p in ("weight", "bias"))}
    | {"norm.weight", "norm.bias"},
    "batch-norm": {
        f"{k}.{p}" for k in (1, 5) for p in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    },
    "lstm": set(),
    "conv-1d": set(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_route(name: str, tmp_path: Path) -> None:
    task = make_task(name, epochs=6)
    before = task.judge(task.model)
    compressed = ss.compress(task, CONFIG)
    size = compressed.save(tmp_path / "model.sws")
    quantized = decode((tmp_path / "model.sws").read_bytes())
    assert set(quantized.rest) == NORMS[name]
    assert quantized.tied == ({"head.weight": "embedding.weight"} if name == "transformer" else {})

    fresh = make_task(name).model
    ss.load_into_(fresh, tmp_path / "model.sws")
    assert task.judge(fresh) <= before + 5
    result = ss.measure(task, compressed, CONFIG, model=fresh)
    assert result.file_bytes == size
    assert result.error_after == task.evaluate(fresh)
    assert result.n_nonzero < 0.5 * result.n_weights
    for tensor in quantized.shared:
        values = fresh.state_dict()[tensor.name].unique()
        assert len(values) <= CONFIG.prior.components + 1
        assert torch.isin(values, tensor.codebook).all()
    inputs = next(iter(task.train))[0]
    assert ss.export_onnx(fresh, (inputs,), tmp_path / "model.onnx") < 1e-5  # between onnxruntime and torch
