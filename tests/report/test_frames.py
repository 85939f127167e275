from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from report_runs import make_task
from softshare.config import CompressConfig, RetrainConfig
from softshare.config.settings import Mixtures
from softshare.errors import ConfigError, FormatError
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.quantization.merge import merge_groups
from softshare.report import frames as module
from softshare.report.frames import BINS, FrameLog, Frames
from softshare.route import compress
from softshare.target.limits import MaxError
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.retrain import retrain_


class Copies(Hook):
    """Copies everything after every epoch, as the truth."""

    def __init__(self) -> None:
        self.weights: list[list[torch.Tensor]] = []
        self.mixtures: list[list[Mixture]] = []

    def on_prior(self, prior: MixturePrior | None) -> None:
        self.prior = prior

    def on_epoch(self, record: EpochRecord) -> None:
        if self.prior:
            self.weights.append([part.gather().clone() for part in self.prior.parts])
            self.mixtures.append([m.detach() for m in self.prior.mixtures()])


@pytest.mark.parametrize("mixtures", ["layer", "global"])
def test_frames_show_each_epoch(tmp_path: Path, mixtures: Mixtures) -> None:
    log, copies = FrameLog(tmp_path / "frames.npz"), Copies()
    config = CompressConfig().override(epochs=2, mixtures=mixtures)
    compressed = compress(make_task(), config, [log, copies], target=None)
    log.finish(compressed.mixtures)
    frames = Frames.load(tmp_path / "frames.npz")
    parts = ["conv", "hidden", "<b>head"] if mixtures == "layer" else ["all weights"]
    assert frames.parts == parts
    assert frames.epochs.tolist() == [0, 1, 2]
    for e, (weights, of_parts) in enumerate(zip(copies.weights, copies.mixtures, strict=True)):
        for k, (w, m) in enumerate(zip(weights, of_parts, strict=True)):
            for name in ("log_mixing", "mean", "log_var"):
                assert np.array_equal(getattr(frames, name)[e, k], getattr(m, name).numpy()), name
            assert frames.counts[e, k].tolist() == m.assign(w).bincount(minlength=len(m)).tolist()
            truth, _ = np.histogram(w.numpy(), bins=frames.edges(e, k))
            assert frames.histograms[e, k].sum() == len(w)
            assert np.abs(frames.histograms[e, k] - truth).sum() <= 4  # a weight on an edge may fall to either side
            sample = frames.sample[e, frames.owner == k]
            assert np.array_equal(sample, w.numpy().astype(np.float16))  # it holds all of these few weights
    for name in (name for names in frames.about["tensors"] for name in names):
        final, used = frames.final(frames.of(name)), compressed.mixtures[name]
        assert final is not None
        assert torch.equal(final.mean, used.mean)
        assert torch.equal(final.log_mixing, used.log_mixing)


class Good(Hook):
    """An error that is low at one look of the second run, and at no other time."""

    def __init__(self, at: int) -> None:
        self.at, self.epoch = at, 0

    def on_step(self, epoch: int, step: int) -> None:
        self.epoch = epoch

    def error(self, model: nn.Module) -> float:
        return 10.0 if self.epoch == self.at else 90.0


def test_the_film_of_a_search_is_of_the_run_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FRAMES", 3)  # so that the frame of that look was not kept
    log, good = FrameLog(tmp_path / "frames.npz", counted="look"), Good(at=11)
    config = CompressConfig().override(epochs=6)
    task = dataclasses.replace(make_task(), evaluate=good.error)
    compressed = compress(task, config, [log, good], target=MaxError(20.0))
    assert [r.epoch for r in compressed.history][:9] == [0, 1, 2, 3, 4, 5, 6, 6, 7]
    assert [r.epoch for r in compressed.history if r.validation_error == 10] == [11]
    log.finish(compressed.mixtures)
    frames = Frames.load(tmp_path / "frames.npz")
    assert frames.epochs.tolist() == [6, 8, 10, 11]
    assert frames.about["counted"] == "look"
    for k, names in enumerate(frames.about["tensors"]):
        weights = torch.cat([compressed.retrained[name].reshape(-1) for name in names])
        assert np.array_equal(frames.sample[-1, frames.owner == k], weights.numpy().astype(np.float16))
        last = Mixture(*(torch.from_numpy(v[-1, k]) for v in (frames.log_mixing, frames.mean, frames.log_var)))
        assert frames.counts[-1, k].tolist() == last.assign(weights).bincount(minlength=len(last)).tolist()
        assert torch.equal(merge_groups(last, config.merge)[0].log_mixing, compressed.mixtures[names[0]].log_mixing)


def test_a_film_changes_nothing_in_the_training(tmp_path: Path) -> None:
    config = CompressConfig().override(epochs=2)
    plain = compress(make_task(), config, target=None)
    filmed = compress(make_task(), config, [FrameLog(tmp_path / "frames.npz")], target=None)
    assert plain.to_bytes() == filmed.to_bytes()
    still = [dataclasses.replace(r, seconds=0.0) for r in plain.history]
    assert str(still) == str([dataclasses.replace(r, seconds=0.0) for r in filmed.history])


def test_a_large_network_has_a_sample_of_weights_and_its_largest_mixtures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE", 100)
    monkeypatch.setattr(module, "MOST_SHOWN", 2)
    task, log, copies = make_task(), FrameLog(tmp_path / "frames.npz"), Copies()
    retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=1), [log, copies])
    frames = Frames.load(tmp_path / "frames.npz")
    assert frames.shown.tolist() == [1, 2]  # hidden and head, in their order
    assert frames.histograms.shape == (2, 2, BINS)
    for q, part in enumerate(frames.shown):
        sample = frames.sample[:, frames.owner == q]
        assert sample.shape[1] == 50
        first, last = (copies.weights[e][part].numpy().astype(np.float16) for e in (0, 1))
        pairs = set(zip(first.tolist(), last.tolist(), strict=True))
        assert set(zip(*sample.tolist(), strict=True)) <= pairs  # the same weights at both epochs


def test_a_long_run_keeps_some_frames_and_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FRAMES", 3)
    task, log = make_task(), FrameLog(tmp_path / "frames.npz")
    retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=5), [log])
    assert Frames.load(tmp_path / "frames.npz").epochs.tolist() == [0, 2, 4, 5]


def test_equal_weights_have_a_histogram(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 1)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

    log = FrameLog(tmp_path / "frames.npz")
    log.on_prior(MixturePrior(Two()))
    log.on_start(1, None)
    log.on_epoch(EpochRecord(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0))
    frames = Frames.load(tmp_path / "frames.npz")
    assert frames.histograms[0, 1].sum() == 3
    assert frames.edges(0, 1)[[0, -1]].tolist() == [-0.5, 0.5]


def test_training_without_a_prior_leaves_no_film(tmp_path: Path) -> None:
    task, log = make_task(), FrameLog(tmp_path / "frames.npz")
    retrain_(task, None, RetrainConfig(epochs=1), [log])
    log.finish({})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_film_is_refused(tmp_path: Path) -> None:
    """Other bytes, an archive with missing parts, and one that would unpickle."""
    for content in (b"", b"PK\x03\x04 no archive", b"text"):
        (tmp_path / "frames.npz").write_bytes(content)
        with pytest.raises(FormatError, match=r"frames\.npz is not the film of a run"):
            Frames.load(tmp_path / "frames.npz")
    np.savez(tmp_path / "a.npz", about=np.array("{}"))
    np.savez(tmp_path / "b.npz", about=np.array([{}], dtype=object))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(FormatError, match="is not the film of a run"):
            Frames.load(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot read"):
        Frames.load(tmp_path / "missing.npz")
