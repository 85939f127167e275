from __future__ import annotations

import hashlib
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cifar_files import N, array, batches, binary, number, pickled, python, text, write_binary, write_python
from softshare.errors import FormatError, NotAvailableError
from softshare.zoo import cifar10
from softshare.zoo.cifar10 import Records, load_records, parse_binary, parse_python

WRITERS = {"cifar-10-batches-bin": write_binary, "cifar-10-batches-py": write_python}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "N_RECORDS", N)


def assert_equal(records: Records, numbers: list[int]) -> None:
    parts = [batches()[i] for i in numbers]
    assert np.array_equal(records.images.reshape(-1, 3072), np.concatenate([pixels for pixels, _ in parts]))
    assert np.array_equal(records.labels, np.concatenate([labels for _, labels in parts]))
    assert records.images.shape == (N * len(numbers), 3, 32, 32)
    assert records.images.dtype == records.labels.dtype == np.dtype(np.uint8)


# Where it is


@pytest.mark.parametrize("name", WRITERS)
def test_both_layouts_from_the_folder_its_parent_and_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = WRITERS[name](tmp_path / name)
    renamed = WRITERS[name](tmp_path / "other" / "mine")
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


@pytest.mark.parametrize("how", ["unset", "empty", "data", "variable"])
def test_data_that_is_not_there(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how in ("empty", "variable"):
        monkeypatch.setenv("SOFTSHARE_DATA", str(tmp_path) if how == "variable" else "")
    with pytest.raises(NotAvailableError) as caught:
        load_records(tmp_path if how == "data" else None)
    message = str(caught.value)
    for word in ("cifar-10-batches-bin", "test_batch.bin", "cifar-10-batches-py", "--data", "SOFTSHARE_DATA"):
        assert word in message
    assert (str(tmp_path) in message) == (how in ("data", "variable"))


@pytest.mark.parametrize("name", WRITERS)
def test_missing_files_are_named(name: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / name)
    gone = sorted(os.listdir(folder))[1], sorted(os.listdir(folder))[5]
    for file in gone:
        (folder / file).unlink()
    with pytest.raises(NotAvailableError, match=f"{name} is not complete: there is no {', '.join(gone)}$"):
        load_records(tmp_path)


def test_a_whole_layout_goes_before_a_broken_one(tmp_path: Path) -> None:
    (write_binary(tmp_path / "cifar-10-batches-bin") / "data_batch_2.bin").unlink()
    write_python(tmp_path / "cifar-10-batches-py")
    assert_equal(load_records(tmp_path)[2], [5])


# What it may be called


@pytest.mark.parametrize("name", WRITERS)
def test_only_the_authors_files_are_called_cifar_10(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = WRITERS[name](tmp_path / name)
    assert load_records(tmp_path)[0] == "CIFAR-10 (unknown copy)"
    layout = next(layout for layout in cifar10.LAYOUTS if layout.folder == name)
    for file in layout.digests:
        digest = hashlib.new(layout.algorithm, (folder / file).read_bytes()).hexdigest()
        monkeypatch.setitem(layout.digests, file, digest)
    assert load_records(tmp_path)[0] == "CIFAR-10"
    monkeypatch.setitem(layout.digests, next(iter(layout.digests)), "0" * 32)
    assert load_records(tmp_path)[0] == "CIFAR-10 (unknown copy)"


@pytest.mark.parametrize("name", WRITERS)
def test_the_jpeg_copy_is_known_by_its_labels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS[name](tmp_path / name)
    labels = b"".join(labels.tobytes() for _, labels in batches())
    monkeypatch.setattr(cifar10, "_JPEG_COPY_LABELS", hashlib.md5(labels).hexdigest())
    assert load_records(tmp_path)[0] == "CIFAR-10 (JPEG copy)"


def test_the_digests_are_of_the_length_of_their_algorithm() -> None:
    for layout in cifar10.LAYOUTS:
        assert len(set(layout.digests.values())) == 6
        assert {len(d) for d in layout.digests.values()} == {2 * hashlib.new(layout.algorithm).digest_size}


# The binary layout


def test_a_record_by_literal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Label, then the red plane row by row, the green one, the blue one."""
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


@pytest.mark.parametrize("change", [-3073, -1, 1, 3073], ids=["record less", "byte less", "byte more", "record more"])
def test_a_binary_file_of_a_wrong_length(change: int, tmp_path: Path) -> None:
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    data = (folder / "data_batch_3.bin").read_bytes()
    (folder / "data_batch_3.bin").write_bytes(data[:change] if change < 0 else data + bytes(change))
    expected = f"data_batch_3.bin: expected {N * 3073} bytes, {N} records of 3073, got {N * 3073 + change}"
    with pytest.raises(FormatError, match=expected):
        load_records(tmp_path)


def test_a_label_of_no_class() -> None:
    pixels, labels = batches()[0]
    labels = np.where(np.arange(N) == 3, 10, labels).astype(np.uint8)
    for parse, data in ((parse_binary, binary(pixels, labels)), (parse_python, python(pixels, labels))):
        with pytest.raises(FormatError, match="expected labels from 0 to 9"):
            parse(data)


# The python layout


def test_the_hand_made_pickle_is_one() -> None:
    """Python and numpy themselves read from it what was put in."""
    pixels, labels = batches()[0]
    content = pickle.loads(python(pixels, labels).replace(b"numpy.core", b"numpy._core"), encoding="bytes")
    assert np.array_equal(content[b"data"], pixels)
    assert content[b"labels"] == labels.tolist()
    assert len(content[b"filenames"]) == N


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_files_that_python_3_has_written_anew(protocol: int) -> None:
    pixels, labels = batches()[0]
    records = parse_python(pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol))
    assert_equal(records, [0])


def test_a_python_file_cut_short_anywhere() -> None:
    data = python(*batches()[0])
    for end in [*range(400), *range(400, len(data), 997), len(data) - 1]:
        with pytest.raises(FormatError):
            parse_python(data[:end])


def test_the_file_is_named(tmp_path: Path) -> None:
    folder = write_python(tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_2").write_bytes((folder / "data_batch_2").read_bytes()[:1000])
    with pytest.raises(FormatError, match="data_batch_2: not a pickle as CIFAR-10 has them"):
        load_records(tmp_path)


class Evil:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_does_not(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for evil in (
        Evil(os.mkdir, str(mark)),
        Evil(eval, f"__import__('os').mkdir({str(mark)!r})"),
        Evil(open, mark, "w"),
    ):
        with pytest.raises(FormatError, match=r"asks for \w+\.\w+, which no file of CIFAR-10 does"):
            parse_python(pickle.dumps({b"data": evil}, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    "module",
    ["numpy", "numpy.core.multiarray", "builtins", "__builtin__", "os", "numpy.ndarray", "softshare.zoo.cifar10"],
)
@pytest.mark.parametrize("name", ["load", "getattr", "system", "scalar", "fromfile", "tofile", "_STAND_INS", "a.b"])
def test_other_names_are_refused(module: str, name: str) -> None:
    with pytest.raises(FormatError, match=f"asks for {module}.{name}"):
        parse_python(b"\x80\x02c" + f"{module}\n{name}\n".encode() + b".")


def test_what_is_called_keeps_no_state() -> None:
    """Or one file could change how the next one is read."""
    state = b"N}(" + text(b"__defaults__") + b"(" + number(5) + b"tu\x86"
    for name in (b"numpy\nndarray", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode"):
        with pytest.raises(FormatError, match="changes a function"):
            parse_python(b"\x80\x02c" + name + b"\n" + state + b"b.")
    assert_equal(parse_python(python(*batches()[0])), [0])


def test_a_number_in_the_file_takes_no_memory() -> None:
    """The memo of the C unpickler would be made as long as the largest place in it: here 64 GB."""
    with pytest.raises(FormatError, match="expected a pickled dict"):
        parse_python(b"\x80\x02Nr\xfe\xff\xff\xff.")


LABELS = b"](" + number(1) * N + b"e"
PIXELS = bytes(N * 3072)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a pickle"),
        (b"N.", "expected a pickled dict"),
        (b"].", "expected a pickled dict"),
        (pickled(labels=LABELS), "expected a pickled dict"),
        (pickled(data=array((N, 3072), PIXELS)), "expected a pickled dict"),
        (pickled(data=text(PIXELS), labels=LABELS), "expected a pickled dict"),
        (pickled(data=array((N, 3072), PIXELS), labels=array((N,), bytes(N))), "expected a pickled dict"),
        (pickled(data=array((N, 3072), PIXELS[1:]), labels=LABELS), rf"expected {N * 3072} bytes, got {N * 3072 - 1}"),
        (pickled(data=array((N, 3071), PIXELS[N:]), labels=LABELS), rf"shape \({N}, 3072\).*got \({N}, 3071\)"),
        (pickled(data=array((3072, N), PIXELS), labels=LABELS), rf"got \(3072, {N}\)"),
        (pickled(data=array((N, 3072), PIXELS), labels=b"](" + number(1) + b"e"), rf"{N} labels, got .* and 1;"),
        (pickled(data=array((N, 3072), PIXELS), labels=LABELS.replace(number(1), number(-1), 1)), "labels from 0"),
        (pickled(data=array((N, 3072), PIXELS), labels=LABELS.replace(number(1), b"N", 1)), "labels from 0"),
        (pickled(data=array((N, 3072), PIXELS, b"f4"), labels=LABELS), "array of unsigned bytes"),
        (pickled(data=array((N, 3072), PIXELS, b"O8"), labels=LABELS), "array of unsigned bytes"),
        (pickled(data=array((N, 3072), PIXELS, by_columns=b"\x88"), labels=LABELS), "row by row"),
        (pickled(data=array((-N, -3072), PIXELS), labels=LABELS), "expected an array's shape"),
    ],
)
def test_malformed_python_files(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_python(data)


OPCODES = st.lists(
    st.sampled_from(
        [
            *(bytes([code]) for code in b"()]}.0123NRabdeilostu\x81\x85\x86\x87\x88\x89\x91\x93\x94"),
            *(b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", b"inumpy\ndtype\n"),
            *(number(7), text(b"u1"), b"r" + struct.pack("<I", 2**32 - 2), b"q\x00", b"h\x00", b"\x82\x01", b"Px\n"),
        ]
    ),
    max_size=30,
).map(b"".join)


@given(st.binary(max_size=60) | OPCODES.map(lambda codes: b"\x80\x02" + codes + b"."))
@example(b"\x80\x05\x97.")
def test_any_bytes_give_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_python(data)
