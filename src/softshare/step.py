"""One training step, as it is or captured into a CUDA graph: a small network's steps are bound by launches."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from softshare.config import RetrainConfig
from softshare.errors import ConfigError
from softshare.hard import hard_step
from softshare.prior import MixturePrior
from softshare.rate import Curvature
from softshare.task import Task

SIDE_BY_SIDE = 2**24  # weights up to which the prior has a gradient of its own, computed while the network runs
MOST_GRAPHS = 16
WARM_UP = 3  # steps before a capture: libraries must have made their choices and their memory


class Latent:
    """What the optimizer trains in place of the network's parameters, and how these follow from it.

    This one is the identity: the optimizer trains the parameters themselves. Another may hold some of them to a mask or
    to a codebook. What it does in a step may be captured, so it must not wait for the GPU, and keeps its tensors.
    """

    def parameters(self, model: nn.Module) -> list[Tensor]:
        return list(model.parameters())

    def pull_(self) -> None:
        """From the gradients of the network's parameters, those of the latent ones; before the optimizer's step."""

    def push_(self) -> None:
        """From the latent parameters, the network's own; before training and after each of the optimizer's steps."""


class Step:
    """Gradients of the task loss and of the prior, and the optimizer's step.

    No GPU has to wait, but in the first one and where the prior looks at its method.
    """

    _captured = False

    def __init__(
        self, task: Task, prior: MixturePrior | None, config: RetrainConfig, latent: Latent | None = None
    ) -> None:
        self.task, self.prior, self.latent, self.config = task, prior, latent or Latent(), config
        self._scale = torch.zeros((), device=_device(task), dtype=prior.means.dtype if prior else None)
        parameters = self.latent.parameters(task.model)
        network = [{"params": parameters, "lr": config.lr_weights, "weight_decay": config.weight_decay}]
        self.optimizers = self._make_optimizers(network, prior.param_groups() if prior else [])
        self._groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._base_rates = [float(group["lr"]) for group in self._groups]
        self.sums = torch.zeros(2, device=_device(task))  # of the losses that the steps return, until set to 0
        self._first = True
        self.hard = False  # whether the network runs on quantized weights
        self.curvature = Curvature(prior) if prior and config.zeroing and config.hard_from < 1 else None

    def _make_optimizers(
        self, network: list[dict[str, Any]], mixture: list[dict[str, Any]]
    ) -> list[torch.optim.Optimizer]:
        """The mixture's is Adam always: a component's gradients grow with the number of its weights."""
        fused = _device(self.task).type in ("cpu", "cuda")
        if self.config.optimizer == "adam":
            return [torch.optim.Adam(network + mixture, fused=fused, capturable=self._captured)]
        sgd = torch.optim.SGD(network, momentum=0.9, nesterov=True, fused=fused)
        return [sgd, torch.optim.Adam(mixture, fused=fused, capturable=self._captured)] if mixture else [sgd]

    def set(self, tau: float, decay: float) -> None:
        """The prior's weight, and what all learning rates are multiplied by, from now on."""
        self._scale.fill_(tau / self.task.n_examples)
        self._set_rates([base * decay for base in self._base_rates])

    def _set_rates(self, rates: list[float]) -> None:
        for group, rate in zip(self._groups, rates, strict=True):
            group["lr"] = rate

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:  # 0-d each, detached
        """The task loss, and that of task and prior."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.task.model.zero_grad()  # of parameters, too, that the optimizer does not have
        if self.hard and self.prior:
            with hard_step(self.prior):
                task_loss = self._task_gradients(batch)
            if self.curvature:
                self.curvature.note_()
        else:
            self._start_prior()
            task_loss = self._task_gradients(batch)
        loss = task_loss = task_loss.detach()
        if self.prior:
            loss = task_loss + self._add_prior(self.prior)
        self.latent.pull_()
        for optimizer in self.optimizers:
            optimizer.step()
        self.latent.push_()
        self.sums += torch.stack([task_loss, loss])
        return task_loss, loss

    def _task_gradients(self, batch: Any) -> Tensor:
        task_loss = self.task.loss(self.task.model, batch)
        self._check(task_loss)
        task_loss.backward()
        return task_loss

    def _start_prior(self) -> None:
        """What of the prior can be done beside the network."""

    def _add_prior(self, prior: MixturePrior) -> Tensor:
        return prior.add_scaled_gradients_(self._scale)

    def _check(self, task_loss: Tensor) -> None:
        if not isinstance(task_loss, Tensor) or task_loss.dim() != 0:
            # backward would sum a vector, and the task would weigh its batch size times too much
            came = f"shape {tuple(task_loss.shape)}" if isinstance(task_loss, Tensor) else type(task_loss).__name__
            raise ConfigError(f"Task.loss must return the mean loss over the batch as a 0-d tensor, got {came}")
        if self._first and not math.isfinite(value := float(task_loss.detach())):
            raise ConfigError(f"Task.loss returned {value} on the first batch, before any training")
        self._first = False


def _device(task: Task) -> torch.device:
    return next(task.model.parameters()).device


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
        self._stream, self._side = torch.cuda.Stream(_device(task)), torch.cuda.Stream(_device(task))
        self._side_by_side = prior is not None and prior.view.n_weights <= SIDE_BY_SIDE
        self._own_grads: list[Tensor] = []
        self._graphs: dict[Any, _Graph] = {}
        self._runs: Counter[Any] = Counter()  # of each shape of batch, before it is captured
        self._way = (list(prior.reaches) if prior else None, self.hard)

    def _make_optimizers(
        self, network: list[dict[str, Any]], mixture: list[dict[str, Any]]
    ) -> list[torch.optim.Optimizer]:
        self._rates = torch.tensor([g["lr"] for g in network + mixture], device=_device(self.task))
        rates = iter(self._rates)
        return super()._make_optimizers(*([{**g, "lr": next(rates)} for g in gs] for gs in (network, mixture)))

    def _set_rates(self, rates: list[float]) -> None:
        self._rates.copy_(torch.tensor(rates), non_blocking=True)  # one copy: a launch takes as long as a small kernel

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        """What it returns is overwritten by the next call."""
        way = (list(self.prior.reaches) if self.prior else None, self.hard)
        if way != self._way:  # another step now
            self._graphs.clear()
            self._runs.clear()
            self._way = way
        key = _key(batch)
        with torch.cuda.device(_device(self.task)):
            if self._runs[key] < WARM_UP:
                self._runs[key] += 1
                return self._run_aside(batch)
            if key not in self._graphs:
                if len(self._graphs) == MOST_GRAPHS:
                    raise ConfigError(
                        f"capture: batches of more than {MOST_GRAPHS} shapes, each of which takes a graph and its "
                        "memory; pad them to fewer, or train without capture"
                    )
                self._graphs[key] = _Graph(super().__call__, batch, self._stream)
            return self._graphs[key].replay(_tensors(batch))

    def _start_prior(self) -> None:
        if self.prior and self._side_by_side:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                self._own_grads = [torch.zeros_like(w) for w in self.prior.view.tensors]
                self._prior_loss = self.prior.add_scaled_gradients_(self._scale, self._own_grads)

    def _add_prior(self, prior: MixturePrior) -> Tensor:
        if self.hard or not self._side_by_side:
            return super()._add_prior(prior)
        torch.cuda.current_stream().wait_stream(self._side)
        present, added = [], []
        for w, own in zip(prior.view.tensors, self._own_grads, strict=True):
            if w.grad is not None:
                present.append(w.grad)
                added.append(own)
            elif w.requires_grad:
                w.grad = own
        if present:
            torch._foreach_add_(present, added)
        return self._prior_loss

    def _run_aside(self, batch: Any) -> tuple[Tensor, Tensor]:
        """On another stream, as what will be captured must have been."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            out = super().__call__(batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return out


class _Graph:
    def __init__(self, step: Callable[[Any], tuple[Tensor, Tensor]], batch: Any, stream: torch.cuda.Stream) -> None:
        self._batch = _map(torch.clone, batch)
        self._graph = torch.cuda.CUDAGraph()
        cause: Exception | None = None
        try:
            # "thread_local": what other threads do, as those that load data, is their own affair
            with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
                try:
                    self._out = step(self._batch)
                except Exception as problem:  # ending the capture will raise another one over it
                    cause = problem
                    raise
        except RuntimeError as problem:
            cause = cause or problem
            if isinstance(cause, torch.OutOfMemoryError) or not isinstance(cause, RuntimeError):
                raise cause from None
            raise ConfigError(
                "capture: Task.loss cannot be captured into a CUDA graph; it must not wait for the GPU (.item(), "
                f"printing, a branch on a tensor) nor copy from the CPU. Train without capture. The cause: {cause}"
            ) from cause

    def replay(self, tensors: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
        for own, new in zip(_tensors(self._batch), tensors, strict=True):
            own.copy_(new)
        self._graph.replay()
        return self._out


def _key(batch: Any) -> Any:
    """Shapes and dtypes, with the names and the order of what a batch holds."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.dtype
    if isinstance(batch, dict):
        return tuple((name, _key(value)) for name, value in batch.items())
    if isinstance(batch, list | tuple):
        return (type(batch), *(_key(value) for value in batch))
    if dataclasses.is_dataclass(batch):
        return (type(batch), *(_key(getattr(batch, f.name)) for f in dataclasses.fields(batch)))
    return None  # which `_map` refuses


def _tensors(batch: Any) -> Iterator[Tensor]:
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    _map(note, batch)
    return iter(found)


def _map(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """The same batch with every tensor in it replaced."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: _map(function, value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        items = [_map(function, value) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        values = {f.name: _map(function, getattr(batch, f.name)) for f in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **values)
    raise ConfigError(
        "capture: expected batches of tensors, in tuples, lists, dicts or dataclasses, but one holds a "
        f"{type(batch).__name__}"
    )
