"""A training step captured into a CUDA graph: the steps of a small network are bound by launches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, register_pytree_node, tree_flatten, tree_unflatten

from softshare.config import RetrainConfig
from softshare.errors import ConfigError, TaskError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.curvature import Curvature
from softshare.train.prior_step import SMALL, PriorStep
from softshare.train.replayed import WARM_UP, capture, run_aside, silenced
from softshare.train.step import Latent, Step, _device

MOST_GRAPHS = 16


class CapturedStep(Step):
    """The same step: the first few as they are, then replayed from one graph for every shape of batch."""

    _captured = True

    def __init__(
        self, task: Task, prior: MixturePrior | None, config: RetrainConfig, latent: Latent | None = None
    ) -> None:
        if _device(task).type != "cuda":
            raise ConfigError(f"capture: the network must be on a CUDA GPU, but it is on {_device(task)}")
        if prior and prior.config.sample_one_in > 1:
            raise ConfigError("capture: a captured step would draw the same sample again; leave sample_one_in at 1")
        super().__init__(task, prior, config, latent)
        self._stream = torch.cuda.Stream(_device(task))
        self._graphs: dict[_Key, _Graph] = {}
        self._runs: Counter[_Key] = Counter()  # of each shape of batch, before it is captured
        self._way = (list(prior.reaches) if prior else None, self.hard)

    def _make_prior_step(self, prior: MixturePrior) -> PriorStep:
        return (_SideBySide if prior.view.n_weights <= SMALL else PriorStep)(prior, self.curvature)

    def _make_optimizers(
        self, network: list[dict[str, Any]], mixture: list[dict[str, Any]]
    ) -> list[torch.optim.Optimizer]:
        self._rates = torch.tensor([g["lr"] for g in network + mixture], device=_device(self.task))
        rates = iter(self._rates)
        rated = ([{**g, "lr": next(rates)} for g in gs] for gs in (network, mixture))
        return [silenced(optimizer) for optimizer in super()._make_optimizers(*rated)]

    def _set_rates(self, rates: list[float]) -> None:
        self._rates.copy_(torch.tensor(rates), non_blocking=True)  # one copy: a launch takes as long as a small kernel

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        """What it returns is overwritten by the next call."""
        way = (list(self.prior.reaches) if self.prior else None, self.hard)
        if way != self._way:  # another step now
            self._graphs.clear()
            self._runs.clear()
            self._way = way
        flat = _flatten(batch)
        key = flat.key
        with torch.cuda.device(_device(self.task)):
            if self._runs[key] < WARM_UP:
                self._runs[key] += 1
                return run_aside(lambda: super(CapturedStep, self).__call__(batch), self._stream)
            if key not in self._graphs:
                if len(self._graphs) == MOST_GRAPHS:
                    raise ConfigError(
                        f"capture: the batches have more than {MOST_GRAPHS} shapes, and each takes a graph and its "
                        "memory; pad them to fewer, or train without capture"
                    )
                self._graphs[key] = _Graph(super().__call__, flat, self._stream)
            return self._graphs[key].replay(flat)


class _SideBySide(PriorStep):
    """The same. In a soft step the prior's gradients are computed on another stream, while the network runs."""

    def __init__(self, prior: MixturePrior, curvature: Curvature | None) -> None:
        super().__init__(prior, curvature)
        self._side = torch.cuda.Stream(prior.means.device)
        self._own_grads: list[Tensor] = []

    def before_(self, hard: bool) -> None:
        super().before_(hard)
        if not hard:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                self._own_grads = [torch.zeros_like(w) for w in self._prior.view.tensors]
                self._loss = self._prior.add_scaled_gradients_(self._scale, self._own_grads)

    def _add_prior(self) -> Tensor:
        if self._hard:
            return super()._add_prior()
        torch.cuda.current_stream().wait_stream(self._side)
        present, added = [], []
        for w, own in zip(self._prior.view.tensors, self._own_grads, strict=True):
            if w.grad is not None:
                present.append(w.grad)
                added.append(own)
            elif w.requires_grad:
                w.grad = own
        if present:
            torch._foreach_add_(present, added)
        return self._loss


class _Graph:
    def __init__(self, step: Callable[[Any], tuple[Tensor, Tensor]], batch: _Batch, stream: torch.cuda.Stream) -> None:
        self._batch = _Batch([t.clone() for t in batch.tensors], batch.form)
        cause: Exception | None = None

        def on_own_batch() -> tuple[Tensor, Tensor]:
            nonlocal cause
            try:
                return step(tree_unflatten(self._batch.tensors, self._batch.form))
            except Exception as problem:  # ending the capture will raise another one over it
                cause = problem
                raise

        try:
            self._graph, self._out = capture(on_own_batch, stream)
        except (RuntimeError, TaskError) as problem:
            cause = cause or problem
            origin = cause.__cause__ if isinstance(cause, TaskError) else cause
            if isinstance(origin, torch.OutOfMemoryError) or not isinstance(origin, RuntimeError):
                raise cause from cause.__cause__
            raise ConfigError(
                "capture: Task.loss cannot be captured into a CUDA graph; it must not wait for the GPU (.item(), "
                f"printing, a branch on a tensor) nor copy from the CPU. Train without capture. The cause: {origin}"
            ) from origin

    def replay(self, batch: _Batch) -> tuple[Tensor, Tensor]:
        for own, new in zip(self._batch.tensors, batch.tensors, strict=True):
            own.copy_(new)
        self._graph.replay()
        return self._out


class _Key(NamedTuple):
    """Equal for batches that one graph can replay."""

    form: TreeSpec
    shapes: tuple[tuple[torch.Size, torch.dtype], ...]

    def __hash__(self) -> int:
        return hash(self.shapes)  # a form has no hash in torch 2.7


class _Batch(NamedTuple):
    """A batch as its tensors and the form that holds them: which containers, with which names, in which order."""

    tensors: list[Tensor]
    form: TreeSpec

    @property
    def key(self) -> _Key:
        return _Key(self.form, tuple((t.shape, t.dtype) for t in self.tensors))


def _flatten(batch: Any) -> _Batch:
    leaves, form = tree_flatten(batch)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            _register(type(leaf))
            return _flatten(batch)  # torch now sees what is in it
    return _Batch(leaves, form)


def _register(kind: type) -> None:
    """Make a container known to torch, which by itself knows plain ones and named tuples; for the whole process."""
    if issubclass(kind, dict):
        register_pytree_node(
            kind,
            lambda held: (list(held.values()), list(held)),
            lambda values, names: kind(dict(zip(names, values, strict=True))),
        )
    elif issubclass(kind, list | tuple):
        make = getattr(kind, "_make", kind)  # torch 2.7 does not know subclasses of named tuples
        register_pytree_node(kind, lambda held: (list(held), None), lambda values, _: make(values))
    elif dataclasses.is_dataclass(kind):
        # Not torch's `register_dataclass`: it takes a field that is None for a part of the form.
        names = [f.name for f in dataclasses.fields(kind) if f.init]
        register_pytree_node(
            kind,
            lambda held: ([getattr(held, name) for name in names], None),
            lambda values, _: kind(**dict(zip(names, values, strict=True))),
        )
    else:
        raise ConfigError(
            "capture: expected batches of tensors, in tuples, lists, dicts or dataclasses, but one holds a "
            f"{kind.__name__}"
        )
