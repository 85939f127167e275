"""Files made to break a reader. It refuses them with a place and an explanation, in little time and memory."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from attacks.make import ATTACKS, FOLDER, readme
from softshare import codec
from softshare.cli import main
from softshare.errors import FormatError, ModelError

LIMIT = 1 << 20  # of decoded bytes
SECONDS = 60.0  # a guard, not a measurement: they take milliseconds, but some would take days if believed
MEMORY = 40 << 20  # with the tables of the coders


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Coders are compiled on first use, which takes time and memory of its own."""
    for stem in ("bomb-adaptive-within", "bomb-planes-within"):
        with pytest.raises(FormatError):
            codec.decode(ATTACKS[stem].data, max_bytes=LIMIT)


def test_the_files_are_those_that_make_writes() -> None:
    assert sorted(p.stem for p in FOLDER.glob("*.sws")) == sorted(ATTACKS)
    for stem, attack in ATTACKS.items():
        assert (FOLDER / f"{stem}.sws").read_bytes() == attack.data, stem
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme()
    assert sum(len(attack.data) for attack in ATTACKS.values()) < 120_000


@contextmanager
def in_little_time() -> Iterator[None]:
    start = time.perf_counter()
    yield
    assert time.perf_counter() - start < SECONDS


SLOW = {"name-amplified": pytest.mark.slow}


@pytest.mark.slow
@pytest.mark.parametrize("stem", [pytest.param(stem, marks=SLOW.get(stem, ())) for stem in ATTACKS])
def test_an_attack(stem: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By every way to read it. A few are harmless."""
    path, section = FOLDER / f"{stem}.sws", ATTACKS[stem].section
    if section is None:
        assert stem in ("name-path", "shape-empty", "shape-empty-scaled")
        with in_little_time():
            assert codec.load(path, max_bytes=LIMIT).keys() == codec.decode(path.read_bytes()).state_dict().keys()
    else:
        check_refused(lambda: codec.load(path, max_bytes=LIMIT), section, path.stat().st_size)
        check_refused(lambda: codec.decode(path.read_bytes(), max_bytes=LIMIT), section, path.stat().st_size)
    check_load_into_a_small_network(path)
    status = check_inspect(path, capfd)
    if section is not None and section != "checksum" and not section.startswith("tensor") and "bomb" not in stem:
        assert status == 2


def check_refused(read: Callable[[], object], section: str, n_bytes: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught, in_little_time():
            read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    error = caught.value
    assert error.section == section
    assert error.offset is not None
    assert 0 <= error.offset <= n_bytes
    assert "expected" in error.problem
    assert "got" in error.problem
    assert len(str(error)) < 5000
    assert str(error).isprintable()


def check_load_into_a_small_network(path: Path) -> None:
    """No limit is needed, because the network's own sizes are one."""
    model = nn.Linear(3, 2)
    before = {text: t.clone() for text, t in model.state_dict().items()}
    with pytest.raises((FormatError, ModelError)), in_little_time():
        codec.load_into_(model, path)
    for text, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[text])


def check_inspect(path: Path, capfd: pytest.CaptureFixture[str]) -> int:
    """The command line prints nothing that a terminal would obey. Returns its status."""
    with in_little_time():
        status = main(["inspect", "--json", str(path)])
    assert status in (0, 2)
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    assert all(line.isprintable() for line in (out + err).splitlines())
    return status


def test_names_are_only_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stem = "name-path"
    monkeypatch.chdir(tmp_path)
    state = codec.load(FOLDER / f"{stem}.sws", max_bytes=LIMIT)
    assert list(state) == [
        "../../etc/passwd",
        "/etc/shadow",
        "C:\\Windows\\System32",
        "~/.ssh/authorized_keys",
        "__metadata__",
        "$(touch here)",
        "../..",
    ]
    assert state["../../etc/passwd"].tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 0.0]]
    assert state["../.."] is state["../../etc/passwd"]
    assert list(codec.load(FOLDER / f"{stem}.sws", ["/etc/shadow"])) == ["/etc/shadow"]
    assert os.listdir(tmp_path) == []
    status = main(["decompress", str(FOLDER / f"{stem}.sws"), "out.safetensors"])
    assert os.listdir(tmp_path) == (["out.safetensors"] if status == 0 else [])
    if status == 0:
        assert set(load_file("out.safetensors")) == set(state)
