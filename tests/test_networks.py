"""Five kinds of network go through the whole route: train, compress, save, load, measure, export."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from networks import NETWORKS, make_task
from softshare.codec import decode
from softshare.network.weights import load_state_
from softshare.simplify.shrink import shrink
from softshare.train.hard import quantized
from softshare.train.hooks import EpochRecord, Hook

CONFIG = ss.CompressConfig().override(epochs=8, lr_weights=3e-3, tau=0.003, zeroing=0.1, zero_mixing=0.9)
NORMS = {  # what is not shared
    "transformer": {"position", *(f"block.norm{k}.{p}" for k in (1, 2) for p in ("weight", "bias"))}
    | {"norm.weight", "norm.bias"},
    "batch-norm": {
        f"{k}.{p}" for k in (1, 5) for p in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    },
    "chain": set(),
    "lstm": set(),
    "conv-1d": set(),
}


class LastLoss(Hook):
    """The loss on one batch of the network that is trained, with its quantized weights, after each epoch."""

    def __init__(self, task: ss.Task) -> None:
        self.batch, self._loss, self.loss = next(iter(task.train)), task.loss, math.nan
        self._seen: list[nn.Module] = []

    def watched(self, model: nn.Module, batch: Any) -> Tensor:
        self._seen[:] = [model]
        return self._loss(model, batch)

    def on_prior(self, prior: ss.MixturePrior | None) -> None:
        assert prior is not None
        self._prior = prior

    def on_epoch(self, record: EpochRecord) -> None:
        if record.epoch and self._seen:
            with quantized(self._prior):
                self.loss = loss_of(self._loss, self._seen[0], self.batch)


@torch.no_grad()
def loss_of(loss: Any, model: nn.Module, batch: Any) -> float:
    return float(loss(model.eval(), batch))


@pytest.mark.parametrize("name", NETWORKS)
class TestTheFileIsTheTrainedNetwork:
    """Its loss is that of the network which was trained on quantized weights, at every step from there to a model."""

    CONFIG = ss.CompressConfig().override(
        epochs=2,
        hard_from=0.0,
        lr_weights=3e-3,
        tau=0.003,
        zero_mixing=0.9,
        merge_threshold=0.0,
        codebook_dtype="float32",
    )

    @pytest.fixture
    def run(self, name: str) -> tuple[ss.Task, ss.Compressed, LastLoss]:
        task = make_task(name, epochs=1, n=128)
        last = LastLoss(task)
        compressed = ss.compress(dataclasses.replace(task, loss=last.watched), self.CONFIG, [last], target=None)
        assert bool(compressed.moved) == (name == "chain")
        return task, compressed, last

    def test_the_quantized_weights(self, run: tuple[ss.Task, ss.Compressed, LastLoss]) -> None:
        task, compressed, last = run
        load_state_(task.model, compressed.quantized.state_dict(), "simplified")
        assert loss_of(task.loss, task.model, last.batch) == pytest.approx(last.loss, rel=1e-5)

    def test_the_units_put_back(self, run: tuple[ss.Task, ss.Compressed, LastLoss]) -> None:
        task, compressed, last = run
        shared = {t.name: compressed.in_place(t.name) for t in compressed.quantized.shared}
        state = compressed.quantized.state_dict() | shared
        tied = {alias: state[name] for alias, name in compressed.quantized.tied.items()}
        load_state_(task.model, state | tied, "in place")
        assert loss_of(task.loss, task.model, last.batch) == pytest.approx(last.loss, rel=1e-5)

    def test_the_decoded_bytes(self, run: tuple[ss.Task, ss.Compressed, LastLoss]) -> None:
        task, compressed, last = run
        load_state_(task.model, decode(compressed.to_bytes()).state_dict(), "decoded")
        assert loss_of(task.loss, task.model, last.batch) == pytest.approx(last.loss, rel=1e-5)

    def test_the_file(self, run: tuple[ss.Task, ss.Compressed, LastLoss], name: str, tmp_path: Path) -> None:
        task, compressed, last = run
        compressed.save(tmp_path / "model.sws")
        fresh = make_task(name).model
        ss.load_into_(fresh, tmp_path / "model.sws")
        assert loss_of(task.loss, fresh, last.batch) == pytest.approx(last.loss, rel=1e-5)

    def test_the_smaller_network(self, run: tuple[ss.Task, ss.Compressed, LastLoss]) -> None:
        task, compressed, last = run
        small = shrink(task.model, compressed.quantized)
        assert loss_of(task.loss, small, last.batch) == pytest.approx(last.loss, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_route(name: str, tmp_path: Path) -> None:
    task = make_task(name, epochs=6)
    before = task.judge(task.model)
    compressed = ss.compress(task, CONFIG, target=None)
    size = compressed.save(tmp_path / "model.sws")
    decoded = decode((tmp_path / "model.sws").read_bytes())
    assert set(decoded.rest) == NORMS[name]
    assert decoded.tied == ({"head.weight": "embedding.weight"} if name == "transformer" else {})

    fresh = make_task(name).model
    ss.load_into_(fresh, tmp_path / "model.sws")
    assert task.judge(fresh) <= before + 5
    result = ss.measure(task, compressed, CONFIG, model=fresh)
    assert result.file_bytes == size
    assert result.error_after == task.evaluate(fresh)
    assert result.n_nonzero < 0.5 * result.n_weights
    for tensor in decoded.shared:
        values = fresh.state_dict()[tensor.name].unique()
        assert len(values) <= CONFIG.prior.components + 1
        assert torch.isin(values, tensor.codebook).all()
    inputs = next(iter(task.train))[0]
    assert ss.export_onnx(fresh, (inputs,), tmp_path / "model.onnx") < 1e-5  # between onnxruntime and torch
