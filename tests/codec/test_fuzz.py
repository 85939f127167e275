"""A short run of the fuzzer. `make fuzz` is the long one."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuzz
from softshare import codec
from softshare.codec import han, planes
from softshare.codec.adaptive import tensor as adaptive
from softshare.config import EncodeConfig


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "model"), [(1000, "run_full"), (1001, "run_fast")])
def test_no_mutated_file_breaks_the_reader(seed: int, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: Counter[str] = Counter()
    watched = [(adaptive, model), (han, "decode_tensor"), (planes, "decode_planes"), (planes, "_code_planes")]
    for module, name in watched:
        monkeypatch.setattr(module, name, _counted(getattr(module, name), name, reached))
    report = fuzz.fuzz(2000, seed)
    assert report.failures == []
    assert report.n_refused > 1500
    assert report.n_consistent > 50  # the checks behind success are reached too
    assert set(report.sections) >= {"prefix", "checksum", "header", "codebook", "tensor"}
    assert min(reached.values()) > 200
    assert len(reached) == 4


def _counted(function: Callable[..., Any], name: str, reached: Counter[str]) -> Callable[..., Any]:
    def counted(*args: Any) -> Any:
        reached[name] += 1
        return function(*args)

    return counted


def test_the_fuzzer_sees_a_reader_that_accepts_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.opening, "_check_crc", lambda file, reader: None)
    failures = fuzz.fuzz(80, seed=0).failures
    assert any(failure.startswith("success with a wrong checksum") for failure in failures)


def test_the_fuzzer_sees_another_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> tuple[int, int]:
        raise ZeroDivisionError("no")

    seed = next(s for s in fuzz.seeds() if s.config == EncodeConfig() and len(s.data) > 100)
    monkeypatch.setattr("softshare.codec.shared_section.read_n_nonzero", broken)
    report = fuzz.Report()
    fuzz.check(seed.data, seed, {seed.data}, False, report)
    assert report.failures[0].startswith("ZeroDivisionError: no: 89535753")


def test_the_same_seed_gives_the_same_files() -> None:
    corpus = fuzz.seeds()
    a, b = (np.random.default_rng(5) for _ in range(2))
    for s in corpus:
        data = fuzz.mutate(s.data, corpus, False, a)
        assert data == fuzz.mutate(s.data, corpus, False, b)
        assert struct.unpack("<I", s.data[-4:])[0] == zlib.crc32(s.data[:-4])
