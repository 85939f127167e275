"""Files made to break a reader: refused with a place and an explanation, in little time and memory, or harmless."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
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
SECONDS = 60.0  # no measurement, a guard: they take milliseconds, and some would take days if believed
MEMORY = 40 << 20  # tables of the coders included
HARMLESS = [stem for stem, attack in ATTACKS.items() if attack.section is None]
HOSTILE = [stem for stem, attack in ATTACKS.items() if attack.section is not None]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Coders are compiled on first use, which is not the attacks' doing."""
    for stem in ("bomb-adaptive-within", "bomb-planes-within"):
        with pytest.raises(FormatError):
            codec.decode(ATTACKS[stem].data, max_bytes=LIMIT)


def test_the_files_are_those_that_make_writes() -> None:
    assert sorted(p.stem for p in FOLDER.glob("*.sws")) == sorted(ATTACKS)
    for stem, attack in ATTACKS.items():
        assert (FOLDER / f"{stem}.sws").read_bytes() == attack.data, stem
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme()
    assert sum(len(attack.data) for attack in ATTACKS.values()) < 120_000


@pytest.mark.parametrize("stem", HOSTILE)
def test_refused(stem: str) -> None:
    path, attack = FOLDER / f"{stem}.sws", ATTACKS[stem]
    reads: list[Callable[[], object]] = [
        lambda: codec.load(path, max_bytes=LIMIT),
        lambda: codec.decode(path.read_bytes(), max_bytes=LIMIT),
    ]
    for read in reads:
        start = time.perf_counter()
        tracemalloc.start()
        try:
            with pytest.raises(FormatError) as caught:
                read()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert time.perf_counter() - start < SECONDS
        assert peak < MEMORY
        error = caught.value
        assert error.section == attack.section
        assert error.offset is not None
        assert 0 <= error.offset <= len(attack.data)
        assert "expected" in error.problem
        assert "got" in error.problem
        assert len(str(error)) < 5000
        assert str(error).isprintable()


@pytest.mark.parametrize("stem", ATTACKS)
def test_load_into_a_small_network(stem: str) -> None:
    """No limit is needed: the network's own sizes are one."""
    model = nn.Linear(3, 2)
    before = {text: t.clone() for text, t in model.state_dict().items()}
    start = time.perf_counter()
    with pytest.raises((FormatError, ModelError)):
        codec.load_into_(model, FOLDER / f"{stem}.sws")
    assert time.perf_counter() - start < SECONDS
    for text, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[text])


@pytest.mark.parametrize("stem", ATTACKS)
def test_inspect_refuses_or_tells(stem: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By the command line, which prints what it finds: nothing that a terminal would obey."""
    start = time.perf_counter()
    status = main(["inspect", "--json", str(FOLDER / f"{stem}.sws")])
    assert time.perf_counter() - start < SECONDS
    assert status in (0, 2)
    section = ATTACKS[stem].section
    if section is not None and section != "checksum" and not section.startswith("tensor") and "bomb" not in stem:
        assert status == 2
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err
    assert all(line.isprintable() for line in (out + err).splitlines())


@pytest.mark.parametrize("stem", HARMLESS)
def test_names_are_keys_and_nothing_else(stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
