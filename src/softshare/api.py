"""What a user calls: the route in one line, with progress, a measured result and a report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, overload

from rich.console import Console
from torch import Tensor, nn

from softshare import route
from softshare._util.calls import check_call
from softshare._util.printable import printable
from softshare._util.run_folder import FRAMES, HISTORY, MODEL, PRETRAINED, RESULT
from softshare._util.work_stages import shows_progress
from softshare.compressed import Compressed, dead_messages
from softshare.config import CompressConfig
from softshare.datafree.compress_weights import FittedWeights
from softshare.distributed.group import world
from softshare.errors import ConfigError
from softshare.network.checkpoint import save_checkpoint
from softshare.report.draw.classifier import kept_classifier
from softshare.report.figures.filters import kept_filters
from softshare.report.frames import FrameLog
from softshare.report.write import write_report
from softshare.result import Result, measure
from softshare.summary import as_html, as_text, in_a_line
from softshare.target.limits import Target
from softshare.task import Task
from softshare.train.hooks import Hook
from softshare.train.progress import CsvLog, ProgressBar
from softshare.train.resume import Checkpoint
from softshare.train.spared import Spared, spared

USAGE = "compress(task) or compress(model, train_loader, val_loader, loss=...)"


@dataclass(frozen=True, eq=False)
class Record:
    """What is known of a finished run beside its network."""

    result: Result
    film: bytes  # the file that a `FrameLog` writes; empty if it could not
    filters: dict[str, Tensor]  # of the network before, by the names of those in the film


@overload
def compress(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = route.DEFAULT,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    distributed: route.Distributed | None = None,
    quiet: bool = False,
) -> Compressed: ...


@overload
def compress(
    model: nn.Module,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any],
    loss: Callable[[Any, Any], Tensor] | None = None,
    metric: Any = None,
    *,
    test_loader: Iterable[Any] | None = None,
    higher_is_better: bool | None = None,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    target: Target | None = route.DEFAULT,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    distributed: route.Distributed | None = None,
    quiet: bool = False,
) -> Compressed: ...


def compress(*args: Any, **kwargs: Any) -> Compressed:
    """Retrain a copy of a network under the prior, merge and quantize. The network itself does not change.

    Give a task, or a network with two loaders and a loss:

        compressed = softshare.compress(model, train_loader, val_loader, loss=nn.CrossEntropyLoss())
        compressed.save("model.sws")

    By default the result is the smallest file found whose network is as good as before, within the noise of the
    evaluation. Another target takes its place. With None, the network is trained once, as the settings say, whatever
    it loses. `Compressed.outcome` says what was lost and whether the target is met; if it is not, the nearest network
    is returned.

    With `checkpoint`, the run is kept in that file while it is under way. If the file exists, the run goes on from
    there and ends with the same bytes. A first Ctrl-C or SIGTERM then stops between two steps, with `StoppedError`.

    Args:
        task: what to compress, and how it is trained and judged.
        model: the network, in place of a task. The next six are for it alone.
        train_loader: batches of training data, as `Task.from_loaders` takes them.
        val_loader: held-out training data, which judges the network.
        loss: a function of outputs and targets, such as `nn.CrossEntropyLoss()`.
        metric: what judges the network, such as 'accuracy' (see `Task.from_loaders`).
        test_loader: data for the final figures alone.
        higher_is_better: of a metric that is a function.
        config: the settings. Few networks need other than the defaults.
        hooks: what to do during training.
        target: `MaxBytes`, `MaxError`, `MaxErrorIncrease`, `MaxMacs`, `WithinNoise` or None.
        checkpoint: a file for a run that may be stopped.
        distributed: for a script that torchrun starts: 'replicate' trains by DDP, 'shard' by FSDP2.
        quiet: show no progress. It is shown only in a terminal or a notebook.

    Returns:
        The network as it will be written, with `save`, `summary` and `report`.
    """
    form = _of_network if "model" in kwargs or (args and isinstance(args[0], nn.Module)) else _of_task
    check_call(USAGE, form, args, kwargs)
    return form(*args, **kwargs)


def _of_network(
    model: nn.Module,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any],
    loss: Callable[[Any, Any], Tensor] | None = None,
    metric: Any = None,
    *,
    test_loader: Iterable[Any] | None = None,
    higher_is_better: bool | None = None,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    target: Target | None = route.DEFAULT,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    distributed: route.Distributed | None = None,
    quiet: bool = False,
) -> Compressed:
    task = Task.from_loaders(
        model, train_loader, val_loader, loss, metric, test_loader=test_loader, higher_is_better=higher_is_better
    )
    return _of_task(task, config, hooks, target=target, checkpoint=checkpoint, distributed=distributed, quiet=quiet)


def _of_task(
    task: Task,
    config: CompressConfig | None = None,
    hooks: Sequence[Hook] = (),
    *,
    target: Target | None = route.DEFAULT,
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    distributed: route.Distributed | None = None,
    quiet: bool = False,
) -> Compressed:
    if not isinstance(task, Task):
        raise ConfigError(f"compress: expected a softshare.Task or a torch.nn.Module, got {type(task).__name__}")
    if not isinstance(config, CompressConfig | None):
        advice = "Make one: CompressConfig().override(tau=0.01)"
        raise ConfigError(f"config: expected a softshare.CompressConfig, got {type(config).__name__}. {advice}")
    if not isinstance(hooks, Sequence) or not all(isinstance(hook, Hook) for hook in hooks):
        raise ConfigError(f"hooks: expected a list of softshare.Hook, got {hooks!r}")
    config = config or CompressConfig()
    console = Console(stderr=True, emoji=False)
    shown = console if shows_progress(console) and not quiet else Console(quiet=True, force_terminal=False)
    with tempfile.TemporaryDirectory() as folder:
        film = FrameLog(Path(folder, FRAMES), task.metric, "look" if config.retrain.epochs is None else "epoch")
        watching: list[Hook] = [Spared(ProgressBar("retrain", shown, task.metric)), Spared(film)]
        if distributed and not world().is_first:  # the first process speaks
            watching = [Hook(), Hook()]  # in their places, for a checkpoint
        all_hooks = [*watching, *hooks]
        compressed = route.compress(
            task, config, all_hooks, target=target, checkpoint=checkpoint, distributed=distributed
        )
        compressed = replace(compressed, record=_record(task, compressed, config, film))
    if compressed.record:
        for hook in hooks:
            Spared(hook).on_result(compressed, compressed.record.result)
    return compressed


def _record(task: Task, compressed: Compressed, config: CompressConfig, film: FrameLog) -> Record | None:
    """None if the network cannot be measured: that costs a warning, not the network."""
    before: dict[str, Tensor] = {}
    with spared("the film for the report"):
        filters, state = kept_filters(task.model, compressed), task.model.state_dict()
        film.finish(compressed.mixtures, filters, kept_classifier(task))
        before = {name: state[name].detach().cpu().clone() for name in filters}
    with spared("the final measurement", then="The network is kept, without a result"):
        result = measure(task, compressed, config)
        return Record(result, film.path.read_bytes() if film.path.exists() else b"", before)
    return None


def save(compressed: Compressed | FittedWeights, path: str | os.PathLike[str]) -> int:
    """Write a compressed network, whole or not at all. `load_into_` reads it:

        softshare.save(compressed, "model.sws")
        softshare.load_into_(model, "model.sws")

    Args:
        compressed: what `compress` or `quantize` returned.
        path: of the file, which is replaced if it exists.

    Returns:
        The size of the file in bytes.
    """
    if not isinstance(compressed, Compressed | FittedWeights):
        raise ConfigError(f"save: expected what compress or quantize returns, got {type(compressed).__name__}")
    return compressed.save(path)


# Behind the methods of `Compressed`, which is in a folder below


def line_of(compressed: Compressed) -> str:
    if compressed.record:
        return in_a_line(compressed.record.result)
    outcome, n = compressed.outcome, compressed.quantized.n_shared
    return str(outcome) if outcome else f"{n:,} shared weights"


def summary_of(compressed: Compressed) -> str:
    text = as_text(compressed.record.result) if compressed.record else line_of(compressed)
    return "\n".join([text, *map(printable, dead_messages(compressed))])


def html_of(compressed: Compressed) -> str | None:
    if compressed.record is None:
        return None
    dead = "".join(f"<p><b>{escape(printable(text))}</b></p>" for text in dead_messages(compressed))
    return as_html(compressed.record.result) + dead


def write_report_of(compressed: Compressed, folder: str | os.PathLike[str]) -> Path:
    if compressed.record is None:
        raise ConfigError("report: expected a network from softshare.compress, got one without a measured result")
    record: Record = compressed.record
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary)
        compressed.save(run / MODEL)
        record.result.save(run / RESULT)
        if record.film:
            (run / FRAMES).write_bytes(record.film)
        if record.filters:
            save_checkpoint(run / PRETRAINED, record.filters)
        log = CsvLog(run / HISTORY)
        for line in compressed.history:
            log.on_epoch(line)
        log.on_end()
        return write_report(run, Path(folder)).page
