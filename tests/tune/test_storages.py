"""A study in a storage that machines share: PostgreSQL, Redis and a journal file, each real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

import servers
from softshare._util.run_folder import MODEL, RESULT
from softshare.errors import ConfigError, NotAvailableError
from softshare.tune import storages
from softshare.tune.sending import PIECE, fetch, is_beaten, send
from softshare.tune.storages import BEAT, Journal
from softshare.tune.study import open_storage, quiet
from studies import started, trials_said, wait_for

STORAGES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "postgresql": lambda folder: servers.postgresql(),
    "redis": lambda folder: servers.redis(),
    "journal": lambda folder: contextlib.nullcontext(f"journal://{folder / 'study.log'}"),
}
each_storage = pytest.mark.parametrize("kind", STORAGES)
# A minute without a heartbeat is long for a test.
SOON = "from softshare.tune import storages; storages.HEARTBEAT, storages.GRACE = 1, 4"
TRIALS = int(os.environ.get("STUDY_TRIALS", "8"))


@pytest.mark.slow
@each_storage
def test_workers_with_folders_of_their_own_of_which_one_is_killed(kind: str, tmp_path: Path) -> None:
    """No trial is lost, none is there twice, and the one that is left has all files of the front."""
    one, other = tmp_path / "one", tmp_path / "other"
    hang, logs = tmp_path / "hang", [tmp_path / "log 0", tmp_path / "log 1"]
    with STORAGES[kind](tmp_path) as url:
        to = ("--storage", url, "--study", "shared", "--sampler", "tpe")
        dies = started(one, TRIALS, logs[0], *to, prelude=SOON, HANG=hang, TRIALS=one / "trials")
        with dies as process, started(other, TRIALS, logs[1], *to, prelude=SOON) as second:
            wait_for(hang, process, logs[0])
            process.send_signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL
            assert second.wait(60 + 60 * TRIALS) == 0, logs[1].read_text()
        with quiet(), open_storage(url) as storage:
            trials = optuna.load_study(study_name="shared", storage=storage).trials
    done = [trial for trial in trials if trial.state.is_finished() and trial.state.name != "FAIL"]
    (killed,) = (trial for trial in trials if trial.state.name == "FAIL")
    assert len(done) == TRIALS, "none is lost"
    assert len({str(trial.params) for trial in done}) == TRIALS, "none is run twice"
    assert [trial.params for trial in done].count(killed.params) == 1, "that of the killed worker is run again"
    assert sorted(trials_said(logs[0]) + trials_said(logs[1])) == [trial.number for trial in done]
    assert len(trials_said(logs[0])) == 2
    points = sorted((tuple(trial.values), trial.number) for trial in done)
    best = {number for k, (point, number) in enumerate(points) if all(other[1] > point[1] for other, _ in points[:k])}
    kept = {int(path.name.removeprefix("trial-")) for path in (other / "front").iterdir()}
    assert kept == best, "the files of the front are here, whoever made them"


OPENS = """
import sys, time
from softshare.task import Metric
from softshare.tune.study import open_storage, open_study, quiet
import optuna.samplers, sqlalchemy.dialects.postgresql
time.sleep(max(0, float(sys.argv[2]) - time.time()))
with quiet(), open_storage(sys.argv[1]) as storage:
    open_study(storage, "s", {"a": 1}, optuna.samplers.RandomSampler(), Metric())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
def test_processes_that_find_an_empty_database_at_the_same_moment(kind: str, tmp_path: Path) -> None:
    server = servers.postgresql() if kind == "postgresql" else contextlib.nullcontext(f"sqlite:///{tmp_path}/study.db")
    with server as url:
        moment = str(time.time() + 8)  # all of them have imported what they need by then
        command = [sys.executable, "-c", OPENS, url, moment]
        opening = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
        said = [process.communicate(timeout=120)[1] for process in opening]
    assert [process.returncode for process in opening] == [0] * 4, said


def journal(folder: Path) -> str:
    return f"journal://{folder / 'study.log'}"


def test_a_journal_counts_heartbeats_and_asks_no_clock_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("softshare.tune.storages.time", SimpleNamespace(monotonic=lambda: now[0]))
    with quiet(), open_storage(journal(tmp_path)) as mine, open_storage(journal(tmp_path)) as theirs:
        assert isinstance(mine, Journal)
        assert isinstance(theirs, Journal)
        study = optuna.create_study(storage=theirs, study_name="s")
        beating, silent = (study.ask()._trial_id for _ in range(2))
        for _ in range(3):
            theirs.record_heartbeat(beating)
        theirs.record_heartbeat(silent)
        study_id = mine.get_study_id_from_name("s")
        assert mine._get_stale_trial_ids(study_id) == []
        now[0] += storages.GRACE + 1
        theirs.record_heartbeat(beating)
        assert mine._get_stale_trial_ids(study_id) == [silent]
        assert mine.get_trial(beating).user_attrs[BEAT] == 4
        now[0] += storages.GRACE + 1
        assert mine._get_stale_trial_ids(study_id) == [beating, silent]


def test_a_pair_goes_through_the_storage_in_pieces(tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    made.mkdir()
    file, result = os.urandom(2 * PIECE + 1), '{"a": "\u00e9"}'.encode()
    (made / MODEL).write_bytes(file)
    (made / RESULT).write_bytes(result)
    with quiet(), open_storage(f"sqlite:///{tmp_path / 'study.db'}") as storage:
        study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"] * 2)
        trials = [study.ask() for _ in range(2)]
        assert send(study, storage, trials[1], made)
        assert not fetch(study, storage, 0, there)
        assert fetch(study, storage, 1, there)
    assert (there / MODEL).read_bytes() == file
    assert (there / RESULT).read_bytes() == result


def test_a_file_beyond_the_front_or_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MODEL).write_bytes(b"123")
    (tmp_path / RESULT).write_bytes(b"{}")
    monkeypatch.setattr("softshare.tune.sending.MOST_SENT", 2)
    with quiet(), open_storage(journal(tmp_path)) as storage:
        study = optuna.create_study(storage=storage, study_name="s", directions=["minimize"] * 2)
        assert not send(study, storage, study.ask(), tmp_path)
        study.add_trial(optuna.create_trial(values=[2.0, 100.0]))
        values = ([3.0, 100.0], [1.0, 101.0], [2.0, 100.0])
        assert [is_beaten(own, study) for own in values] == [True, False, True]


@pytest.mark.parametrize("url", ["redis://localhost:1", "journal:///no/such/folder/study.log"])
def test_a_storage_that_cannot_be_opened(url: str) -> None:
    with quiet(), pytest.raises((ConfigError, NotAvailableError), match="the study's storage: "), open_storage(url):
        pass
