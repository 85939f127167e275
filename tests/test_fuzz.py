"""A short run of the fuzzer; `make fuzz` is the long one."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

import fuzz
from softshare import codec
from softshare.config import EncodeConfig


def test_no_mutated_file_breaks_the_reader() -> None:
    report = fuzz.fuzz(3000, seed=1000)
    assert report.failures == []
    assert report.n_refused > 2000
    assert report.n_consistent > 50  # the checks behind success are reached too
    assert set(report.sections) >= {"prefix", "checksum", "header", "codebook", "tensor"}


def test_the_fuzzer_sees_a_reader_that_accepts_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec.container, "_check_crc", lambda file, reader: None)
    failures = fuzz.fuzz(300, seed=0).failures
    assert any(failure.startswith("success with a wrong checksum") for failure in failures)


def test_the_fuzzer_sees_another_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> tuple[int, int]:
        raise ZeroDivisionError("no")

    monkeypatch.setattr("softshare.codec.shared.read_n_nonzero", broken)
    seed = next(s for s in fuzz.seeds() if s.config == EncodeConfig() and len(s.data) > 100)
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
