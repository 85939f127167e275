"""The progress bar and the CSV log."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from softshare.config import RetrainConfig
from softshare.prior.prior import MixturePrior
from softshare.task import Metric, Task
from softshare.train.hooks import EpochRecord, Hook
from softshare.train.progress import CsvLog, ProgressBar
from softshare.train.retrain import retrain_

SHOW_CURSOR = "\x1b[?25h"


def record(epoch: int, density: dict[str, float] | None = None, complexity_bits: float = 16_000) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        seconds=0.1 + epoch,
        tau=0.005 / 3,
        task_loss=math.nan if epoch == 0 else 1 / 3,
        prior_loss=-1e5 / 7,
        complexity_bits=complexity_bits,
        validation_error=12.3456 - epoch,
        components_alive=5,
        density=density if density is not None else {"fc.weight": 1 / 7, "fc.bias": 0.0},
    )


def console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=is_terminal, width=100, color_system=None, legacy_windows=False), file


def play(hook: Hook, epochs: int, steps: int | None, actual_steps: int) -> None:
    """The calls of `retrain_`, without the training."""
    hook.on_start(epochs, steps)
    hook.on_epoch(record(0))
    for epoch in range(1, epochs + 1):
        for step in range(1, actual_steps + 1):
            hook.on_step(epoch, step)
        hook.on_epoch(record(epoch))
    hook.on_end()


def last_line(file: io.StringIO) -> str:
    """The last line that stays on the screen."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", file.getvalue()).rstrip().splitlines()[-1]


class Unsized:
    """Batches of unknown number."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.ones(2, 4, 3))


def small_task(train: list[Tensor] | Unsized, fails_at: int | None = None) -> Task:
    torch.manual_seed(0)
    calls = iter(range(1000))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        if next(calls) == fails_at:
            raise KeyboardInterrupt
        result: Tensor = model(batch).square().mean()
        return result

    return Task(model=nn.Linear(3, 2), train=train, loss=loss, evaluate=lambda model: 50.0, n_examples=8)


# ProgressBar


@pytest.mark.parametrize(("steps", "total"), [(4, "12/12"), (None, "3/3")], ids=["steps known", "steps unknown"])
def test_on_a_terminal_a_bar_fills_up(steps: int | None, total: str) -> None:
    con, file = console(is_terminal=True)
    play(ProgressBar("retrain", con), epochs=3, steps=steps, actual_steps=4)
    last = last_line(file)
    assert "retrain" in last
    assert "error 9.35%" in last
    assert "2.0 kB uncoded" in last
    assert total in last
    assert "0:00:00" in last  # time left
    assert SHOW_CURSOR in file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut_where_there_is_little_room(width: int) -> None:
    con, file = console(is_terminal=True)
    con.width = width
    bar = ProgressBar("retrain, run 13", con, Metric("validation accuracy", "%", True))
    bar.on_start(30, 2000)
    bar.on_epoch(record(0, complexity_bits=123e6))
    bar.on_step(1, 1)
    bar.on_end()
    last = last_line(file)
    assert "…" not in last
    assert "validation accuracy 12.35%  15.4 MB uncoded" in last
    assert "1/60000" in last


def test_on_a_terminal_the_bar_is_where_the_training_is() -> None:
    con, file = console(is_terminal=True)
    bar = ProgressBar("retrain", con)
    bar.on_start(3, 4)
    bar.on_epoch(record(0))
    for step in range(1, 5):
        bar.on_step(1, step)
    bar.on_epoch(record(1))
    bar.on_step(2, 1)
    bar.on_end()
    assert "5/12" in last_line(file)


def test_more_steps_than_announced_do_not_overfill_the_bar() -> None:
    con, file = console(is_terminal=True)
    play(ProgressBar("retrain", con), epochs=2, steps=2, actual_steps=5)
    counts = re.findall(r"(\d+)/4", file.getvalue())
    assert max(int(c) for c in counts) == 4


@pytest.mark.parametrize(
    ("epochs", "expected", "steps"),
    [
        (3, [1, 2, 3], 4),
        (10, list(range(1, 11)), None),
        (40, list(range(4, 41, 4)), 4),
        (25, [*range(3, 25, 3), 25], None),
    ],
)
def test_off_a_terminal_a_line_every_tenth_of_the_run(epochs: int, expected: list[int], steps: int | None) -> None:
    con, file = console(is_terminal=False)
    play(ProgressBar("retrain", con), epochs, steps, actual_steps=4)
    lines = file.getvalue().splitlines()
    assert [line.rpartition("  ")[2].partition(",")[0] for line in lines] == [f"{e}/{epochs}" for e in expected]
    error = f"retrain  error {12.3456 - epochs:.2f}%"
    assert lines[-1] == f"{error}  2.0 kB uncoded  {epochs}/{epochs}, 0 s left"
    assert "\x1b" not in file.getvalue()


def test_plain_training_shows_the_error_alone() -> None:
    con, file = console(is_terminal=False)
    bar = ProgressBar("pre-train", con)
    bar.on_start(1, None)
    for epoch in range(2):
        bar.on_epoch(record(epoch, density={}))
    bar.on_end()
    assert file.getvalue() == "pre-train  error 11.35%  1/1, 0 s left\n"


def several_runs(bar: ProgressBar) -> None:
    """As a search calls it: the epochs are numbered on, and the second run ends early."""
    for first, last in ((0, 3), (3, 5), (5, 8)):
        bar.on_start(3, 4)
        for epoch in range(first, last + 1):
            for step in range(1, 5 if epoch > first else 1):
                bar.on_step(epoch, step)
            bar.on_epoch(record(epoch))
    bar.on_end()


def test_off_a_terminal_several_runs_are_counted_and_named() -> None:
    con, file = console(is_terminal=False)
    several_runs(ProgressBar("search", con))
    lines = [
        (line.partition("  ")[0], line.rpartition("  ")[2].partition(",")[0]) for line in file.getvalue().splitlines()
    ]
    runs = {"search": 3, "search, run 2": 2, "search, run 3": 3}
    assert lines == [(name, f"{k}/3") for name, n in runs.items() for k in range(1, n + 1)]


def test_on_a_terminal_each_run_has_a_bar() -> None:
    con, file = console(is_terminal=True)
    several_runs(ProgressBar("search", con))
    assert file.getvalue().count(SHOW_CURSOR) == 3
    assert "search, run 3" in last_line(file)
    assert "12/12" in last_line(file)
    counts = [int(n) for n in re.findall(r"(\d+)/12", file.getvalue())]
    assert max(counts) == 12
    assert counts.count(12) < len(counts)


def test_a_title_with_brackets_is_shown_unchanged() -> None:
    for is_terminal in (False, True):
        con, file = console(is_terminal)
        play(ProgressBar("net[bold]", con), epochs=1, steps=1, actual_steps=1)
        assert "net[bold]" in file.getvalue()


@pytest.mark.parametrize(("is_terminal", "fails_at"), [(True, 0), (True, 3), (False, 1)])
def test_the_bar_stops_after_an_error(is_terminal: bool, fails_at: int) -> None:
    con, file = console(is_terminal)
    bar = ProgressBar("retrain", con)
    task = small_task([torch.ones(4, 3)] * 2, fails_at)
    with pytest.raises(KeyboardInterrupt):
        retrain_(task, None, RetrainConfig(epochs=2), [bar])
    written = file.getvalue()
    assert written.count("\x1b[?25l") == written.count(SHOW_CURSOR) == int(is_terminal)  # hidden, and back again
    bar.on_end()  # a second call does no harm
    con.print("and on")
    assert file.getvalue().removeprefix(written).strip() == "and on"


@pytest.mark.parametrize("train", [[torch.ones(4, 3)] * 2, Unsized()], ids=["sized", "unsized"])
def test_one_bar_follows_a_training_and_then_another(train: list[Tensor] | Unsized) -> None:
    con, file = console(is_terminal=True)
    bar = ProgressBar("retrain", con)
    task = small_task(train)
    for _ in range(2):
        retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=2), [bar])
        assert ("4/4" if isinstance(train, list) else "2/2") in last_line(file)
    assert file.getvalue().count(SHOW_CURSOR) == 2


# CsvLog


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_row_per_epoch_and_every_float_reads_back_equal(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "history.csv")
    records = [record(epoch, {"fc.weight": epoch / 7, "fc.bias": 1e-17 * epoch}) for epoch in range(4)]
    log.on_start(3, None)
    for r in records:
        log.on_epoch(r)
    log.on_end()
    rows = read(tmp_path / "history.csv")
    fields = [f.name for f in dataclasses.fields(EpochRecord) if f.name != "density"]
    assert list(rows[0]) == [*fields, "density/fc.weight", "density/fc.bias"]
    assert len(rows) == 4
    for row, r in zip(rows, records, strict=True):
        truth = [float(getattr(r, name)) for name in fields] + list(r.density.values())
        assert str([float(v) for v in row.values()]) == str(truth)  # as text, so that nan equals nan
        assert (row["epoch"], row["components_alive"]) == (str(r.epoch), "5")


def test_a_run_that_goes_on_keeps_the_columns_that_it_had(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "a.csv")
    log.load_state_dict({"rows": [["epoch", "seconds"], [0, 1.0]]})  # of an older version
    log.on_epoch(record(1))
    log.on_end()
    assert [list(row) for row in read(tmp_path / "a.csv")] == [["epoch", "seconds"]] * 2


def test_plain_training_has_no_density_columns(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "a.csv")
    log.on_epoch(record(0, density={}))
    log.on_end()
    assert [name for name in read(tmp_path / "a.csv")[0] if "density" in name] == []


def test_names_with_commas_and_quotes_are_one_column_each(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "a.csv")
    log.on_epoch(record(0, density={'a,"b"\nc': 0.25}))
    log.on_end()
    assert read(tmp_path / "a.csv")[0]['density/a,"b"\nc'] == "0.25"


def test_a_row_is_in_the_file_as_soon_as_its_epoch_ends(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "a.csv")
    for epoch in range(3):
        log.on_epoch(record(epoch))
        assert len(read(tmp_path / "a.csv")) == epoch + 1
    log.on_end()


def test_the_rows_before_an_error_stay(tmp_path: Path) -> None:
    task = small_task([torch.ones(4, 3)] * 2, fails_at=3)
    with pytest.raises(KeyboardInterrupt):
        retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=2), [CsvLog(tmp_path / "a.csv")])
    assert [row["epoch"] for row in read(tmp_path / "a.csv")] == ["0", "1"]


def test_the_log_is_the_history(tmp_path: Path) -> None:
    task = small_task([torch.ones(4, 3)] * 2)
    history = retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=2), [CsvLog(tmp_path / "a.csv")])
    rows = read(tmp_path / "a.csv")
    assert [float(row["prior_loss"]) for row in rows] == [r.prior_loss for r in history]
    assert [float(row["density/weight"]) for row in rows] == [r.density["weight"] for r in history]


def test_a_new_run_replaces_the_log(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "a.csv")
    for _ in range(2):
        log.on_epoch(record(0))
        log.on_end()
    assert len(read(tmp_path / "a.csv")) == 1


def test_a_log_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    """And it is whole if it can be written again."""
    log = CsvLog(tmp_path / "missing" / "a.csv")
    with pytest.warns(UserWarning, match=r"cannot write .*missing.a\.csv: No such file .* The run goes on"):
        log.on_epoch(record(0))
    log.on_epoch(record(1))  # a warning would be an error here
    (tmp_path / "missing").mkdir()
    log.on_epoch(record(2))
    log.on_end()
    assert [row["epoch"] for row in read(tmp_path / "missing" / "a.csv")] == ["0", "1", "2"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_end_a_training() -> None:
    """What is in the buffer of the file cannot be written either when it is closed."""
    task = small_task([torch.ones(4, 3)] * 2)
    with pytest.warns(UserWarning, match=r"cannot write /dev/full: No space left on device\. The run goes on") as said:
        history = retrain_(task, MixturePrior(task.model), RetrainConfig(epochs=2), [CsvLog("/dev/full")])
    assert [r.epoch for r in history] == [0, 1, 2]
    assert len(said) == 1
