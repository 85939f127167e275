from __future__ import annotations

import functools
import gzip
import hashlib
import re
import struct
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from cifar_files import N, batches, write_binary
from softshare.errors import FormatError
from softshare.zoo import cifar10, datasets
from softshare.zoo.datasets import Augmentation, Batches, Split, load_cifar10, load_mnist, parse_idx

LAW = settings(deadline=None, derandomize=True, max_examples=50)


def idx(sizes: list[int], values: bytes, kind: int = 8) -> bytes:
    return struct.pack(f">2xBB{len(sizes)}I", kind, len(sizes), *sizes) + values


# The IDX reader


def test_idx_by_literal_bytes() -> None:
    data = b"\0\0\x08\x02" + b"\0\0\0\x02" + b"\0\0\0\x03" + bytes([1, 2, 3, 253, 254, 255])
    array = parse_idx(data)
    assert array.dtype == np.uint8
    assert array.tolist() == [[1, 2, 3], [253, 254, 255]]
    assert parse_idx(b"\0\0\x08\x01\0\0\0\0").shape == (0,)
    assert parse_idx(idx([0, 28, 28], b"")).shape == (0, 28, 28)  # no images, but their size is known
    assert parse_idx(b"\0\0\x08\x00\x07").tolist() == 7
    big = parse_idx(idx([256 + 1], bytes(257)))  # sizes are big-endian
    assert big.shape == (257,)


MALFORMED = {
    "empty": (b"", "expected it to start with 00 00 08"),
    "three bytes": (b"\0\0\x08", "expected it to start with 00 00 08"),
    "gzip": (b"\x1f\x8b\x08\0\0\0\0\0", "got 1f 8b 08"),
    "floats": (idx([1], b"x", kind=0x0D), "got 00 00 0d"),
    "a short header": (b"\0\0\x08\x02\0\0\0\x01", "2 dimensions take a header of 12 bytes, got 8"),
    "a byte too few": (idx([2, 3], b"12345"), r"shape \[2, 3\]: expected 18 bytes, got 17"),
    "a byte too many": (idx([2, 3], b"1234567"), r"shape \[2, 3\]: expected 18 bytes, got 19"),
    "no values": (idx([2**32 - 1], b""), "expected 4294967303 bytes, got 8"),
    "2^64 values, which is 0 in 64 bits": (idx([2**16] * 4, b""), r"shape \[65536, 65536, 65536, 65536\]"),
    "a size of 0 beside huge ones": (idx([0, 2**32 - 1, 2**32 - 1], b""), "4294967295"),
    "more dimensions than numpy has": (idx([1] * 65, b"x"), "65"),
}


def test_malformed_idx() -> None:
    for data, message in MALFORMED.values():
        with pytest.raises(FormatError, match=message) as caught:
            parse_idx(data)
        assert not re.search(r"expected (\d+) bytes, got \1$", str(caught.value))  # which would say nothing


SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 256, 2**16, 2**31, 2**32 - 1]), max_size=70)


@LAW
@given(st.binary(max_size=64) | st.builds(idx, SIZES, st.binary(max_size=30)))
@example(idx([2, 3], b"123456"))
def test_any_bytes_give_an_array_or_a_format_error(data: bytes) -> None:
    try:
        array = parse_idx(data)
    except FormatError:
        return
    assert array.dtype == np.uint8
    sizes = struct.unpack_from(f">{data[3]}I", data, 4)
    assert array.shape == sizes
    assert array.tobytes() == data[4 + 4 * len(sizes) :]


# MNIST


@functools.cache
def mnist() -> tuple[Split, Split, Split]:
    return load_mnist()


@functools.cache
def raw(name: str, skip: int) -> NDArray[np.uint8]:
    """The packaged file read without the package's own reader: `skip` bytes of header, then values."""
    packed = (files("softshare.zoo") / "data" / f"{name}.gz").read_bytes()
    return np.frombuffer(gzip.decompress(packed), np.uint8, offset=skip)


def pixels(images: Tensor) -> NDArray[np.uint8]:
    """Back to bytes; scaling by 1/255 must have lost nothing."""
    octets = (images * 255).round().to(torch.uint8)
    assert torch.equal(octets.float() / 255, images)
    array: NDArray[np.uint8] = octets.numpy().reshape(len(images), 784)
    return array


def rows(split: Split) -> Counter[bytes]:
    images, labels = pixels(split.images), split.labels.to(torch.uint8).numpy()
    return Counter(image.tobytes() + bytes([label]) for image, label in zip(images, labels, strict=True))


@pytest.mark.slow
def test_mnist_has_its_sizes_ranges_and_counts_of_digits() -> None:
    for split, n in zip(mnist(), (55_000, 5_000, 10_000), strict=True):
        assert len(split) == n
        assert split.images.shape == (n, 1, 28, 28)
        assert split.labels.shape == (n,)
        assert (split.images.dtype, split.labels.dtype) == (torch.float32, torch.int64)
        assert (float(split.images.min()), float(split.images.max())) == (0.0, 1.0)
    train, validation, test = (split.labels.bincount() for split in mnist())
    assert test.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (train + validation).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.slow
def test_the_test_set_is_the_file() -> None:
    test = mnist()[2]
    assert np.array_equal(pixels(test.images).reshape(-1), raw("t10k-images-idx3-ubyte", 16))
    assert np.array_equal(test.labels.numpy(), raw("t10k-labels-idx1-ubyte", 8))


@pytest.mark.slow
def test_validation_and_training_split_the_60_000() -> None:
    train, validation = rows(mnist()[0]), rows(mnist()[1])
    images, labels = raw("train-images-idx3-ubyte", 16).reshape(60_000, 784), raw("train-labels-idx1-ubyte", 8)
    full = Counter(image.tobytes() + bytes([label]) for image, label in zip(images, labels, strict=True))
    assert len(full) == 60_000  # all images differ, so equal counts mean equal examples
    assert train + validation == full
    assert not train & validation


def test_the_validation_examples_are_fixed() -> None:
    """Another split would make earlier results incomparable."""
    validation = mnist()[1]
    content = pixels(validation.images).tobytes() + validation.labels.to(torch.uint8).numpy().tobytes()
    digest = "516253fc0e9d114abbd3f1a15dfd38815dddf3c3a98a4ae6aab0ac817f24ccab"
    assert hashlib.sha256(content).hexdigest() == digest


@pytest.mark.slow
def test_the_split_neither_follows_nor_moves_the_random_state() -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = load_mnist()[1]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again.images, mnist()[1].images)


def test_a_wrong_checksum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets._MNIST_MD5, "t10k-labels-idx1-ubyte", "0" * 32)
    with pytest.raises(FormatError, match=f"t10k-labels-idx1-ubyte.*{'0' * 32}.*27ae3e4e09519cfbb04c329615203637"):
        datasets._packaged("t10k-labels-idx1-ubyte")


def test_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(datasets._MNIST_MD5, "no-such-file", "0" * 32)
    with pytest.raises(FormatError, match=r"no-such-file\.gz cannot be read"):
        datasets._packaged("no-such-file")


# Batches


def numbered(n: int) -> Split:
    """Image i holds i, and so does its label."""
    numbers = torch.arange(n)
    return Split(numbers.float()[:, None, None, None], numbers)


def test_batches_cover_every_example_once() -> None:
    for n, size, sizes in ((10, 4, [4, 4, 2]), (8, 4, [4, 4]), (3, 5, [3]), (3, 1, [1, 1, 1])) * 2:
        batches = Batches(numbered(n), size)
        parts = list(batches)
        assert [len(part) for part in parts] == sizes
        assert len(batches) == len(sizes)
        labels = torch.cat([part.labels for part in parts])
        assert sorted(labels.tolist()) == list(range(n))
        images = torch.cat([part.images for part in parts])
        assert images.shape == (n, 1, 1, 1)
        assert torch.equal(images.reshape(-1), labels.float())  # each image keeps its label


def order(batches: Batches) -> list[int]:
    return [int(label) for part in batches for label in part.labels]


def test_each_pass_is_shuffled_and_follows_the_seed() -> None:
    batches = Batches(numbered(50), 8)
    torch.manual_seed(3)
    first, second = order(batches), order(batches)
    assert first != second
    assert first != list(range(50))
    torch.manual_seed(3)
    assert [order(batches), order(batches)] == [first, second]
    torch.manual_seed(4)
    assert order(batches) != first


def test_split_indexing_and_moving() -> None:
    part = numbered(5)[torch.tensor([4, 0])]
    assert part.labels.tolist() == [4, 0]
    assert part.images.reshape(-1).tolist() == [4.0, 0.0]
    assert part.to("meta").images.device.type == "meta"
    assert part.to("meta").labels.device.type == "meta"


# CIFAR-10


@pytest.fixture
def small_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six files of 20 records each; 10 records are held out."""
    monkeypatch.setattr(cifar10, "N_RECORDS", N)
    monkeypatch.setattr(datasets, "N_VALIDATION", 10)
    write_binary(tmp_path / "cifar-10-batches-bin")
    return tmp_path


def test_cifar10_splits_the_training_files_and_normalizes_each_channel(small_cifar10: Path) -> None:
    name, (train, validation, test) = load_cifar10(small_cifar10)
    assert name == "CIFAR-10 (unknown copy)"
    assert [len(split) for split in (train, validation, test)] == [90, 10, 20]
    pixels = torch.from_numpy(np.concatenate([p for p, _ in batches()]).reshape(-1, 3, 32, 32)).double()
    labels = torch.from_numpy(np.concatenate([y for _, y in batches()]).astype(np.int64))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(2017))
    training, held_out = order[10:].sort().values, order[:10].sort().values
    std, mean = torch.std_mean(pixels[training], (0, 2, 3), correction=0, keepdim=True)
    for split, index in ((train, training), (validation, held_out), (test, torch.arange(100, 120))):
        assert (split.images.dtype, split.labels.dtype) == (torch.float32, torch.int64)
        torch.testing.assert_close(split.images.double(), (pixels[index] - mean) / std, rtol=0, atol=2e-7)
        assert torch.equal(split.labels, labels[index])
    assert not set(training.tolist()) & set(held_out.tolist())


def test_the_split_of_cifar10_neither_follows_nor_moves_the_random_state(small_cifar10: Path) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    first = load_cifar10(small_cifar10)[1][1]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(98)
    assert torch.equal(load_cifar10(small_cifar10)[1][1].images, first.images)


# Augmentation


def distinct(n: int, channels: int, height: int, width: int) -> Tensor:
    """Every pixel is a different number, and none is 0."""
    return torch.arange(1.0, n * channels * height * width + 1).reshape(n, channels, height, width)


def moved(image: Tensor, down: int, right: int, mirror: bool) -> Tensor:
    """By loops: pixel (y, x) goes to (y + down, x + right). Then the image may be mirrored."""
    out = torch.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y + down < height and 0 <= x + right < width:
                out[:, y + down, x + right] = image[:, y, x]
    return out.flip(2) if mirror else out


@functools.cache
def all_moves(shift: int, mirror: bool) -> dict[tuple[int, int, bool], Tensor]:
    image = distinct(1, 2, 5, 6)[0]
    ways = range(-shift, shift + 1)
    return {
        (d, r, m): moved(image, d, r, m) for d in ways for r in ways for m in ([False, True] if mirror else [False])
    }


@pytest.mark.parametrize(("shift", "mirror"), [(2, False), (1, True), (4, True)])
def test_augmentation_is_a_shift_and_a_mirroring(shift: int, mirror: bool) -> None:
    """Every image is one of all possible moves, and each move comes about equally often."""
    n, moves = 8000, all_moves(shift, mirror)
    split = Split(distinct(1, 2, 5, 6).expand(n, -1, -1, -1), torch.arange(n))
    torch.manual_seed(0)
    images = torch.cat([batch.images for batch in Batches(split, 999, Augmentation(shift, mirror))])
    by_content = {image.numpy().tobytes(): move for move, image in moves.items()}
    counts = Counter(by_content[image.numpy().tobytes()] for image in images)
    if shift < 4:  # otherwise some moves leave nothing of the image and look the same
        assert set(counts) == set(moves)
        expected = n / len(moves)
        assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_each_image_of_a_batch_is_moved_on_its_own_and_keeps_its_label() -> None:
    n, split = 60, Split(distinct(60, 3, 4, 4), torch.arange(60))
    torch.manual_seed(0)
    seen = set()
    for batch in Batches(split, 16, Augmentation(1, mirror=True)):
        for image, label in zip(batch.images, batch.labels, strict=True):
            ways = [(d, r, m) for d in (-1, 0, 1) for r in (-1, 0, 1) for m in (False, True)]
            seen.add(next(way for way in ways if torch.equal(moved(split.images[label], *way), image)))
    assert len(seen) > 12
    assert torch.equal(split.images, distinct(n, 3, 4, 4))  # the data do not change


def epoch(batches: Batches) -> Tensor:
    return torch.cat([batch.images for batch in batches])


def test_each_pass_has_its_own_augmentation_and_follows_the_seed() -> None:
    batches = Batches(Split(distinct(50, 1, 6, 6), torch.arange(50)), 8, Augmentation(2))
    torch.manual_seed(3)
    first, second = epoch(batches), epoch(batches)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(epoch(batches), first)
    assert torch.equal(epoch(batches), second)


def test_augmentation_does_not_change_the_order_of_the_first_pass() -> None:
    orders = []
    for augmentation in (None, Augmentation(1)):
        torch.manual_seed(3)
        orders.append(order(Batches(numbered(50), 8, augmentation)))
    assert orders[0] == orders[1]


def test_the_memory_format_of_batches() -> None:
    split = Split(distinct(6, 3, 4, 4), torch.arange(6))
    for augmentation in (None, Augmentation(1)):
        torch.manual_seed(0)
        plain = epoch(Batches(split, 4, augmentation))
        torch.manual_seed(0)
        parts = list(Batches(split, 4, augmentation, torch.channels_last))
        assert all(part.images.is_contiguous(memory_format=torch.channels_last) for part in parts)
        assert torch.equal(torch.cat([part.images for part in parts]), plain)
        assert plain.is_contiguous()
