"""Limits of bytes and of work hold before anything is decoded, however small the file is."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from by_hand import ADAPTIVE, U8, book, entry, name, rest, shared, sizes, sws, varint
from softshare import codec
from softshare.cli import main
from softshare.codec import budget
from softshare.codec.header import Codebook, Entry, Header, Shared
from softshare.config import EncodeConfig
from softshare.errors import FormatError
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

SECONDS = 2.0  # a guard: what is refused takes milliseconds, and would take minutes if it were decoded
MEBIBYTE = 1 << 20


def tied(n: int, size: int) -> bytes:
    """A tensor of zeros under n more names."""
    aliases = [name(f"{k:x}") + varint(0) for k in range(n)]
    return sws([book(0.5)], [entry(0, None, name("w"), sizes(size))], tied=aliases)


def test_each_tied_name_counts(tmp_path: Path) -> None:
    """A file of a few hundred bytes made `decompress --max-bytes 67108864` write 2.75 GB."""
    data = tied(40, MEBIBYTE)
    assert len(data) < 350
    (tmp_path / "m.sws").write_bytes(data)
    with pytest.raises(FormatError, match=f"got {41 * 4 * MEBIBYTE:,}, each tied name counted"):
        codec.decode(data, max_bytes=64 * MEBIBYTE)
    with pytest.raises(FormatError, match=r"m\.sws: header, byte 0: expected at most"):
        codec.load(tmp_path / "m.sws", max_bytes=64 * MEBIBYTE)
    assert list(codec.load(tmp_path / "m.sws", ["3"], max_bytes=4 * MEBIBYTE)) == ["3"]
    assert main(["decompress", str(tmp_path / "m.sws"), str(tmp_path / "out"), "--max-bytes", str(64 * MEBIBYTE)]) == 2
    assert not (tmp_path / "out").exists()


def dense(n: int, index_bits: int) -> bytes:
    """A section that declares n non-zero weights. The first byte of its code is wrong, but the header is right."""
    section = varint(n) + bytes(9)
    values = [0.5] * (1 << index_bits)
    return sws([book(*values)], [entry(len(section), None, name("w"), sizes(n))], section, codec=ADAPTIVE)


def planes(n: int) -> bytes:
    """A tensor of n bytes in one coded plane, of 8 decisions each."""
    section = bytes([2]) + bytes(9)
    return sws([], [entry(len(section), rest(U8, planes=True), name("w"), sizes(n))], section)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(planes(3 << 30), id="planes"),
        pytest.param(dense(1 << 29, 16), id="large codebook"),
        pytest.param(dense(1 << 28, 4), id="dense"),
    ],
)
def test_work_is_limited_before_decoding(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 4 GiB of tensors, a few kilobytes took twelve minutes."""
    monkeypatch.setattr("softshare.codec.rest_section.decode", None)
    monkeypatch.setattr("softshare.codec.shared_section.decode", None)
    start = time.perf_counter()
    with pytest.raises(FormatError, match=r"header, byte 0: expected at most [\d,]+ steps .* raise max_bytes to"):
        codec.decode(data)
    assert time.perf_counter() - start < SECONDS


def test_the_message_names_a_limit_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MAX_WORK", 1 << 10)
    monkeypatch.setattr(budget, "WORK_PER_BYTE", 1)
    weights = torch.ones(300, dtype=torch.uint8)
    data = codec.encode(
        QuantizedWeights((QuantizedTensor("w", (300,), torch.float32, weights, torch.tensor([0.0, 0.5])),), {}, {})
    )
    with pytest.raises(FormatError, match="raise max_bytes to") as caught:
        codec.decode(data)
    enough = int(str(caught.value).rpartition(" ")[2].replace(",", ""))
    with pytest.raises(FormatError):
        codec.decode(data, max_bytes=enough // 2)
    assert codec.decode(data, max_bytes=enough).n_shared == 300
    assert codec.decode(data, max_bytes=None).n_shared == 300


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("density", [0.01, 1.0])
@pytest.mark.parametrize("n_tensors", [2, 100])
def test_a_hundred_million_weights_are_within_the_default(bits: int, density: float, n_tensors: int) -> None:
    """By the entropy of the indices, with both models: tensors above and below 2^20 weights."""
    n = 100_000_000 // n_tensors
    n_nonzero = int(n * density)
    bytes_each = int(n_nonzero * (bits - 0.5) / 8 + (0.08 * n / 8 if density < 1 else 0))
    first = varint(n_nonzero) + bytes(9)
    entries = tuple(Entry(f"w{k}", (n,), Shared("float32", 0), bytes_each) for k in range(n_tensors))
    values = np.linspace(0, 1, 1 << bits, dtype=np.float32)
    header = Header("adaptive", True, (Codebook(values, "float16"),), entries, {})
    names = [e.name for e in entries]
    budget.check_budget(header, names, n_tensors * bytes_each, lambda _: first, codec.MAX_BYTES)


@pytest.mark.parametrize("name_of_codec", ["adaptive", "han"])
def test_real_files_are_far_below(name_of_codec: str) -> None:
    """The file of a network of 300,000 weights needs less than a hundredth of the default."""
    rng = torch.Generator().manual_seed(0)
    indices = (torch.rand(300_000, generator=rng) < 0.05).to(torch.uint8)
    tensor = QuantizedTensor("w", (600, 500), torch.float32, indices, torch.tensor([0.0, 0.5]))
    config = EncodeConfig(codec="han") if name_of_codec == "han" else EncodeConfig()
    data = codec.encode(QuantizedWeights((tensor,), {"b": torch.randn(500, generator=rng)}, {}), config)
    assert codec.decode(data, max_bytes=4 * 300_500).n_shared == 300_000


@pytest.mark.parametrize("bits", [1, 4])
def test_rows_count_with_the_bands_that_hold_them(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A band is decoded whole. Two bands of a few bytes took 2 GB for one row, within a limit of 1 MiB."""
    n_bands = 1 << bits
    counts = b"".join(varint(1) + varint(9) for _ in range(n_bands))
    section = varint(n_bands) + bytes([bits]) + counts + bytes(9 * n_bands)
    kind = shared(bands=True)
    entries = [entry(len(section), kind, name("w"), sizes(1 << 20, 1 << 12))]
    data = sws([book(0.5)], entries, section, codec=ADAPTIVE, version=2)
    monkeypatch.setattr("softshare.codec.adaptive.bands.decode_bands", None)
    band = (1 << 34) >> bits  # bytes
    for limit in (MEBIBYTE, band - 1):
        with pytest.raises(FormatError, match=f"decoded tensors, got {band:,}, each"):
            codec.load(io.BytesIO(data), ["w"], rows=range(3, 5), max_bytes=limit)
    with pytest.raises(FormatError, match=f"decoded tensors, got {2 * band:,}, each"):
        codec.load(io.BytesIO(data), ["w"], rows=range(band // (1 << 14) - 1, band // (1 << 14) + 1), max_bytes=band)
    if bits == 1:
        with pytest.raises(FormatError, match="steps of decoding"):
            codec.load(io.BytesIO(data), ["w"], rows=range(3, 5), max_bytes=band)


def test_a_part_counts_with_the_scales_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """All scales are decoded, however few rows are wanted, and a few bytes can stand for many."""
    n = 1 << 31
    section = varint(1) + varint(9) + bytes(9)
    entries = [entry(len(section), shared(rows=True, static=True), name("w"), sizes(n, 2))]
    data = sws([book(0.5)], entries, section, codec=ADAPTIVE, version=2)
    monkeypatch.setattr("softshare.codec.planes.decode_planes", None)
    with pytest.raises(FormatError, match=f"decoded tensors, got {n + 8:,}, each"):
        codec.load(io.BytesIO(data), ["w"], rows=range(1), max_bytes=MEBIBYTE)
    with pytest.raises(FormatError, match="steps of decoding"):
        codec.load(io.BytesIO(data), ["w"], rows=range(1))


def test_many_names_cost_a_bounded_time(tmp_path: Path) -> None:
    """Each of 32,767 tensors looked for its own among as many tied names, for fifteen seconds."""
    n, first = (1 << 15) - 1, entry(0, None, name("w"), sizes(2))
    entries = [first, *(entry(0, None, name(f"{k:x}"), sizes(2)) for k in range(n))]
    data = sws([book(0.5)], entries, tied=[name(f"A{k:x}") + varint(0) for k in range(n)])
    (tmp_path / "m.sws").write_bytes(data)
    start = time.process_time()
    assert len(codec.kinds(tmp_path / "m.sws")) == 2 * n + 1
    assert time.process_time() - start < 2 * SECONDS
