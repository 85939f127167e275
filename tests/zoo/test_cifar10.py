from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from cifar_files import N, batches, binary, write_binary
from softshare.errors import FormatError, NotAvailableError
from softshare.zoo import cifar10
from softshare.zoo.cifar10 import FOLDER, Records, load_records, parse_binary


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "N_RECORDS", N)


def assert_equal(records: Records, numbers: list[int]) -> None:
    parts = [batches()[i] for i in numbers]
    assert np.array_equal(records.images.reshape(-1, 3072), np.concatenate([pixels for pixels, _ in parts]))
    assert np.array_equal(records.labels, np.concatenate([labels for _, labels in parts]))
    assert records.images.shape == (N * len(numbers), 3, 32, 32)
    assert records.images.dtype == records.labels.dtype == np.dtype(np.uint8)


# The folder


def test_the_folder_its_parent_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_binary(tmp_path / FOLDER)
    renamed = write_binary(tmp_path / "other" / "mine")
    for data in (folder, tmp_path, str(tmp_path), renamed):
        _, train, test = load_records(data)
        assert_equal(train, [0, 1, 2, 3, 4])
        assert_equal(test, [5])
    for data in (folder, tmp_path):
        monkeypatch.setenv("SOFTSHARE_DATA", str(data))
        assert_equal(load_records()[2], [5])


def test_the_argument_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path / "a")
    monkeypatch.setenv("SOFTSHARE_DATA", str(tmp_path / "nowhere"))
    assert_equal(load_records(tmp_path / "a")[2], [5])


def test_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to give, and names the folder that was searched, if any."""
    for data, variable in ((None, None), (None, ""), (tmp_path, ""), (None, str(tmp_path))):
        if variable is not None:
            monkeypatch.setenv("SOFTSHARE_DATA", variable)
        with pytest.raises(NotAvailableError) as caught:
            load_records(data)
        message = str(caught.value)
        for word in (FOLDER, "test_batch.bin", "--data", "SOFTSHARE_DATA"):
            assert word in message
        assert (str(tmp_path) in message) == bool(data or variable)


def test_missing_files_are_named(tmp_path: Path) -> None:
    folder = write_binary(tmp_path / FOLDER)
    gone = sorted(os.listdir(folder))[1], sorted(os.listdir(folder))[5]
    for file in gone:
        (folder / file).unlink()
    with pytest.raises(NotAvailableError, match=f"{FOLDER} is not complete: {', '.join(gone)} missing; unpack"):
        load_records(tmp_path)


# The name of the data


def test_only_the_authors_files_are_called_cifar_10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_binary(tmp_path / FOLDER)
    assert load_records(tmp_path)[0] == "CIFAR-10 (unknown copy)"
    for file in cifar10.DIGESTS:
        monkeypatch.setitem(cifar10.DIGESTS, file, hashlib.sha1((folder / file).read_bytes()).hexdigest())
    assert load_records(tmp_path)[0] == "CIFAR-10"
    monkeypatch.setitem(cifar10.DIGESTS, "test_batch.bin", "0" * 40)
    assert load_records(tmp_path)[0] == "CIFAR-10 (unknown copy)"


def test_the_jpeg_copy_is_recognised_by_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_binary(tmp_path / FOLDER)
    labels = b"".join(labels.tobytes() for _, labels in batches())
    monkeypatch.setattr(cifar10, "_JPEG_COPY_LABELS", hashlib.md5(labels).hexdigest())
    assert load_records(tmp_path)[0] == "CIFAR-10 (JPEG copy)"


def test_the_digests_are_of_the_length_of_their_algorithm() -> None:
    assert len(set(cifar10.DIGESTS.values())) == 6
    assert {len(d) for d in cifar10.DIGESTS.values()} == {2 * hashlib.sha1().digest_size}


# The binary layout


def test_a_record_by_literal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label, then the red, green and blue planes, row by row."""
    monkeypatch.setattr(cifar10, "N_RECORDS", 2)
    first = bytes([7]) + bytes([1] * 32 + [2] * 992) + bytes([3] * 1024) + bytes([4] * 1023 + [5])
    records = parse_binary(first + bytes([9]) + bytes(3072))
    assert records.labels.tolist() == [7, 9]
    image = records.images[0]
    assert (image[0, 0] == 1).all()
    assert (image[0, 1:] == 2).all()
    assert (image[1] == 3).all()
    assert image[2, 31, 30:].tolist() == [4, 5]
    assert not records.images[1].any()


def test_a_binary_file_of_a_wrong_length(tmp_path: Path) -> None:
    """A record or a byte is missing, or there is one too many."""
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    data = (folder / "data_batch_3.bin").read_bytes()
    for change in (-3073, -1, 1, 3073):
        (folder / "data_batch_3.bin").write_bytes(data[:change] if change < 0 else data + bytes(change))
        expected = f"data_batch_3.bin: expected {N * 3073} bytes, {N} records of 3073, got {N * 3073 + change}"
        with pytest.raises(FormatError, match=expected):
            load_records(tmp_path)


def test_a_label_out_of_range() -> None:
    pixels, labels = batches()[0]
    labels = np.where(np.arange(N) == 3, 10, labels).astype(np.uint8)
    with pytest.raises(FormatError, match="expected labels from 0 to 9"):
        parse_binary(binary(pixels, labels))
