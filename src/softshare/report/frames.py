"""The film of a run: the mixtures at every epoch or look, with a sample and a histogram of the weights.

A hook records it. The film does not grow with the network, except for a few numbers per mixture.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softshare._util.files import read_bytes, write_atomic
from softshare._util.foreign import read_arrays, read_json
from softshare._util.printable import shorten
from softshare.errors import FormatError
from softshare.network.weights import WeightView
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.task import Metric
from softshare.train.hooks import EpochRecord, Hook

Array = npt.NDArray[Any]
MOST_FRAMES = 60  # a longer run keeps every second or third epoch, and the last
MOST_SHOWN = 8  # mixtures whose weights are sampled: those with the most weights
SAMPLE = 8192  # weights followed through the run, over all shown mixtures
BINS = 128
MAX_BYTES = 1 << 28  # of the arrays in a film; that of a large network takes a few MB
MAX_POINTS = 1 << 20  # frames x mixtures shown x components
MAX_PIXELS = 1 << 24  # of the filters of a layer
_MOST = 1 << 62
_CHUNK = 1 << 20  # weights at a time
_FILTER = "filters/"  # followed by the name of a tensor: an array of the file
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True, eq=False)
class Frames:
    """E frames of P mixtures, each with J free components and zero, and the weights of the Q mixtures shown."""

    about: dict[str, Any]  # what the figures need to know of the prior (see `_about`), the metric, what is counted
    epochs: Array  # (E,)
    log_mixing: Array  # (E, P, J + 1)
    mean: Array  # (E, P, J + 1)
    log_var: Array  # (E, P, J + 1)
    counts: Array  # (E, P, J + 1) weights for which each component is the most responsible
    shown: Array  # (Q,) the indices of the mixtures shown
    ends: Array  # (E, Q, 2) the smallest and the largest of their weights
    histograms: Array  # (E, Q, BINS) of all their weights, between the ends
    owner: Array  # (S,) which of the Q a sampled weight belongs to
    sample: Array  # (E, S)
    merged: Array  # (3, P, J + 1) log-mixing, mean, log-variance after merging, filled with NaN; before it, (3, P, 0)
    filters: dict[str, Array] = field(default_factory=dict)  # by tensor, with the values of the file

    @property
    def parts(self) -> list[str]:
        return [shorten(part, 60) for part in self.about["parts"]]

    def of(self, name: str) -> int:
        """The index of a tensor's mixture."""
        return next(k for k, names in enumerate(self.about["tensors"]) if name in names)

    def final(self, part: int) -> Mixture | None:
        """The merged mixture, which quantizes; None until the run is over."""
        there = ~np.isnan(self.merged[0, part])
        return Mixture(*(torch.from_numpy(v[part][there]) for v in self.merged)) if there.any() else None

    def edges(self, frame: int, q: int) -> Array:  # (BINS + 1,)
        """The edges of a histogram's bins."""
        low, high = self.ends[frame, q]
        if not low < high:
            low, high = low - 0.5, high + 0.5
        return np.linspace(low, high, self.histograms.shape[2] + 1)

    def _require_consistent(self) -> None:
        """Raise `ValueError` unless the arrays fit each other and hold what a run writes."""
        (e, p, k), (q,), (s,) = (_shape(self.mean, 3), _shape(self.shown, 1), _shape(self.owner, 1))
        bins = _shape(self.histograms, 3)[2]
        shapes = {
            "epochs": (e,),
            "log_mixing": (e, p, k),
            "log_var": (e, p, k),
            "counts": (e, p, k),
            "ends": (e, q, 2),
            "histograms": (e, q, bins),
            "sample": (e, s),
            "merged": (3, p, _shape(self.merged, 3)[2]),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name}: expected the shape {shape}, got {getattr(self, name).shape}")
        if not (min(e, p, k, bins) > 0 and e * max(1, q) * k <= MAX_POINTS and self.merged.shape[2] in (0, k)):
            raise ValueError(f"expected {MAX_POINTS:,} points of a film at most, got {e} frames of {q} x {k}")
        for name, most in {
            "shown": p,
            "owner": max(1, q),
            "counts": _MOST,
            "histograms": _MOST,
            "epochs": _MOST,
        }.items():
            values = getattr(self, name)
            if values.dtype.kind not in "iu" or (values.size and not 0 <= values.min() <= values.max() < most):
                raise ValueError(f"{name}: expected whole numbers from 0 to {most - 1}")
        limits = {"mean": 1e30, "ends": 1e30, "log_var": 200.0, "sample": 1e30}
        for name, largest in limits.items():
            values = getattr(self, name)
            if values.dtype.kind != "f" or not (np.abs(values.astype(np.float64)) <= largest).all():
                raise ValueError(f"{name}: expected numbers from -{largest:g} to {largest:g}")
        if self.log_mixing.dtype.kind != "f" or not (self.log_mixing <= 1).all() or self.merged.dtype.kind != "f":
            raise ValueError("log_mixing: expected logarithms of numbers up to 1")
        if (np.abs(self.merged[1:]) > 1e30).any():
            raise ValueError("merged: expected numbers up to 1e+30")
        for name, values in self.filters.items():
            if values.ndim != 4 or values.dtype.kind != "f" or not np.isfinite(values).all() or not values.size:
                raise ValueError(f"the filters of {name!r}: expected finite numbers in four dimensions")
            if values.size > MAX_PIXELS:
                raise ValueError(
                    f"the filters of {name!r}: expected at most {MAX_PIXELS:,} numbers, got {values.size:,}"
                )
        _require_about(self.about, p)

    def save(self, path: str | os.PathLike[str]) -> None:
        arrays = {name: getattr(self, name) for name in _arrays()}
        arrays |= {_FILTER + name: values for name, values in self.filters.items()}
        file = io.BytesIO()
        np.savez_compressed(file, about=np.array(json.dumps(self.about)), **arrays)
        write_atomic(path, file.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Frames:
        data = read_bytes(path)
        try:
            file = read_arrays(data, MAX_BYTES)
            values = {name: file[name] for name in _arrays()}
            filters = {name.removeprefix(_FILTER): file[name] for name in file if name.startswith(_FILTER)}
            film = cls(read_json(str(file["about"])), **values, filters=filters)
            film._require_consistent()
            return film
        except (ValueError, KeyError) as problem:
            raise FormatError(f"{os.fspath(path)} is not the film of a run ({problem}); compress again") from None


def _shape(values: Array, dims: int) -> tuple[int, ...]:
    if values.ndim != dims:
        raise ValueError(f"expected an array of {dims} dimensions, got {values.ndim}")
    return values.shape


def _require_about(about: Any, parts: int) -> None:
    """Raise `ValueError` unless it describes this many mixtures (see `_about`)."""
    if not isinstance(about, dict):
        raise ValueError("about: expected a JSON object")
    kinds = {"parts": str, "tensors": list, "sizes": int}
    for name, kind in kinds.items():
        values = about.get(name)
        if not (isinstance(values, list) and len(values) == parts and all(type(value) is kind for value in values)):
            raise ValueError(f"about.{name}: expected a list of {parts}, one for each mixture")
    if not all(names and all(isinstance(name, str) for name in names) for names in about["tensors"]):
        raise ValueError("about.tensors: expected names of tensors for each mixture")
    priors = about.get("precision_priors")
    if not (isinstance(priors, list) and len(priors) == 2) or "width" not in about or "mixing_prior" not in about:
        raise ValueError("about: expected width, mixing_prior and two precision_priors")
    if not all(prior is None or isinstance(prior, dict) for prior in (*priors, about["mixing_prior"])):
        raise ValueError("about: expected hyper-priors as JSON objects")


def _arrays() -> list[str]:
    """The fields of `Frames` that are arrays."""
    return [f.name for f in dataclasses.fields(Frames) if f.name not in ("about", "filters")]


class FrameLog(Hook):
    """Takes a frame after each epoch under the prior, or look at it, and writes the film so far.

    There is no film of sharded weights.

    Of the runs of a search, the film shows the one that is under way, and in the end the one that is taken. The film
    also keeps the metric of the task and what is counted, epochs or looks, for a report of a run that has no result.
    """

    def __init__(self, path: str | os.PathLike[str], metric: Metric | None = None, counted: str = "epoch") -> None:
        self.path, self.metric, self.counted = Path(path), metric or Metric(), counted
        self._frames: Frames | None = None
        self._prior: MixturePrior | None = None
        self._films: list[Frames] = []  # of the runs of a search before
        self._goes_on = False

    def on_prior(self, prior: MixturePrior | None) -> None:
        if self._frames is not None and not self._goes_on:
            self._films.append(self._frames)
            self._frames = None
        self._prior, self._goes_on = prior, False
        if prior is not None and prior.view.group.size > 1:
            self._prior = prior = None  # one process alone cannot see sharded weights
        if prior is None:
            return
        sizes = [part.n_weights for part in prior.parts]
        self._shown = sorted(sorted(range(len(sizes)), key=lambda k: -sizes[k])[:MOST_SHOWN])
        self._parts = [prior.parts[k] for k in self._shown]
        self._places = [_places(part, SAMPLE // len(self._shown)) for part in self._parts]

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self._every = math.ceil(epochs / MOST_FRAMES)

    def on_epoch(self, record: EpochRecord) -> None:
        if self._prior is None:  # training without a prior has no mixture to show
            return
        frame = self._take(self._prior, record.epoch)
        if self._frames is not None and record.epoch > 0:
            keeps_last = int(self._frames.epochs[-1]) % self._every == 0
            frame = _join(self._frames, frame, len(self._frames.epochs) - (not keeps_last))
        self._frames = frame
        self._frames.save(self.path)

    def on_return(self, epoch: int) -> None:
        """End the film with the network that the target takes."""
        film = next((film for film in self._films if film.epochs[-1] >= epoch), None)
        if self._prior is None or film is None:
            return
        before = int(np.searchsorted(film.epochs, epoch))
        self._frames = _join(film, self._take(self._prior, epoch), before)
        self._frames.save(self.path)

    def state_dict(self) -> dict[str, Any]:
        return {"films": [_plain(film) for film in self._films], "frames": self._frames and _plain(self._frames)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._films = [_from_plain(film) for film in state["films"]]
        self._frames = state["frames"] and _from_plain(state["frames"])
        self._goes_on = True

    def finish(
        self,
        mixtures: Mapping[str, Mixture],
        filters: Mapping[str, Tensor] | None = None,
        classifier: Any = None,  # for the page to draw on, as JSON values: what it is, or why there is none
    ) -> None:
        """Add the mixtures that quantized the tensors, and the filters with the values of the file."""
        if self._frames is None:
            return
        merged = np.full((3, *self._frames.mean.shape[1:]), np.nan, np.float32)
        for part, names in enumerate(self._frames.about["tensors"]):
            mixture = mixtures[names[0]]
            for row, values in enumerate((mixture.log_mixing, mixture.mean, mixture.log_var)):
                merged[row, part, : len(mixture)] = values.detach().float().cpu()
        own = {name: values.float().numpy() for name, values in (filters or {}).items()}
        about = {**self._frames.about, "classifier": classifier}
        self._frames = dataclasses.replace(self._frames, about=about, merged=merged, filters=own)
        self._frames.save(self.path)

    @torch.no_grad()
    def _take(self, prior: MixturePrior, epoch: int) -> Frames:
        mixtures = prior.mixtures()
        counts = [
            sum(m.assign(t).bincount(minlength=len(m)) for t in part.tensors)
            for part, m in zip(prior.parts, mixtures, strict=True)
        ]
        sample = [
            part.tensors[k].reshape(-1)[places].float().cpu().numpy()
            for part, chosen in zip(self._parts, self._places, strict=True)
            for k, places in chosen
        ]
        sizes = [sum(len(places) for _, places in chosen) for chosen in self._places]
        ends = [part.range() for part in self._parts]
        return Frames(
            about={**_about(prior), "metric": dataclasses.asdict(self.metric), "counted": self.counted},
            epochs=np.array([epoch]),
            log_mixing=_stack([m.log_mixing for m in mixtures]),
            mean=_stack([m.mean for m in mixtures]),
            log_var=_stack([m.log_var for m in mixtures]),
            counts=torch.stack([torch.as_tensor(c) for c in counts]).cpu().numpy()[None],
            shown=np.array(self._shown),
            ends=np.array(ends)[None],
            histograms=np.stack([_histogram(p, *e) for p, e in zip(self._parts, ends, strict=True)])[None],
            owner=np.repeat(np.arange(len(sizes)), sizes),
            sample=np.clip(np.concatenate(sample), -_LARGEST, _LARGEST).astype(np.float16)[None],
            merged=np.empty((3, len(mixtures), 0), np.float32),
        )


def _plain(film: Frames) -> dict[str, Any]:
    return {"about": film.about, **{name: torch.from_numpy(getattr(film, name)) for name in _arrays()}}


def _from_plain(film: Mapping[str, Any]) -> Frames:
    return Frames(film["about"], **{name: film[name].numpy() for name in _arrays()})


def _join(film: Frames, frame: Frames, kept: int) -> Frames:
    """The first `kept` frames of the film, then this frame."""
    names = ("epochs", "log_mixing", "mean", "log_var", "counts", "ends", "histograms", "sample")
    joined: Any = {n: np.concatenate([getattr(film, n)[:kept], getattr(frame, n)]) for n in names}
    return dataclasses.replace(film, **joined)


def _stack(values: Sequence[Tensor]) -> Array:  # (1, P, J + 1)
    return torch.stack(list(values)).float().cpu().numpy()[None]


def _about(prior: MixturePrior) -> dict[str, Any]:
    """What the figures need to know of the prior, as JSON values."""
    names = [[s.name for s in part.shared] for part in prior.parts]
    config = prior.config
    return {
        "parts": [n[0].rpartition(".")[0] or n[0] for n in names] if config.mixtures == "layer" else ["all weights"],
        "tensors": names,
        "sizes": [part.n_weights for part in prior.parts],
        "width": config.width,
        "precision_priors": [g and dataclasses.asdict(g) for g in prior.precision_priors],
        "mixing_prior": config.mixing_prior and dataclasses.asdict(config.mixing_prior),
    }


def _places(part: WeightView, n: int) -> list[tuple[int, Tensor]]:
    """Draw at most n weights at random. Each pair is the index of a tensor and places in it."""
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.choice(part.n_weights, min(n, part.n_weights), replace=False, shuffle=False))
    starts = np.cumsum([0, *(t.numel() for t in part.tensors)])
    found = []
    for k, tensor in enumerate(part.tensors):
        own = drawn[(drawn >= starts[k]) & (drawn < starts[k + 1])] - starts[k]
        found.append((k, torch.from_numpy(own).to(tensor.device)))
    return found


def _histogram(part: WeightView, low: float, high: float) -> Array:  # (BINS,)
    if not low < high:
        low, high = low - 0.5, high + 0.5  # as torch.histc does
    counts = torch.zeros(BINS, dtype=torch.float64)
    for tensor in part.tensors:
        for piece in tensor.detach().reshape(-1).split(_CHUNK):
            counts += torch.histc(piece.float(), BINS, low, high).cpu()
    return counts.numpy().astype(np.int64)
