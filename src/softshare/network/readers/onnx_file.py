"""The weights in a file of ONNX: its initializers, and the floating-point constants of its nodes, in all its graphs.

ONNX is a message of protobuf: fields of a number and a value, one after another, with messages inside. Only the fields
that lead to tensors are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np
import torch
from torch import Tensor

from softshare._util.files import cannot_read
from softshare.errors import FormatError
from softshare.network.readers.lazy import MOST_TENSORS, Cursor, LazyTensors, kind_of, read_span

DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
MOST_LEVELS = 8  # of graphs in one another
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # how a field is written
_GRAPH, _NODES, _INITIALIZERS = 7, 1, 5  # of a model, and of a graph
_OUTPUTS, _ATTRIBUTES = 2, 5  # of a node
_TENSOR, _INNER, _INNERS = 5, 6, 11  # of an attribute
_DIMS, _TYPE, _FLOATS, _INTS32, _NAME, _INTS64, _RAW, _DOUBLES, _EXTERNAL, _LOCATION = 1, 2, 4, 5, 8, 7, 9, 10, 13, 14
_LISTS = {_FLOATS: torch.float32, _DOUBLES: torch.float64}  # fields of numbers as they are in memory


@dataclass
class _Found:
    """One tensor of the file: its name, and where its values are."""

    name: str = ""
    dims: list[int] = field(default_factory=list)
    type: int = 0
    values: tuple[int, int, int] | None = None  # number of the field, first byte, length
    outside: dict[str, str] = field(default_factory=dict)  # where the values are in another file


@dataclass(frozen=True)
class _Place:
    file: Path
    start: int
    n_bytes: int
    packed: bool = False  # as varints


def open_onnx(path: str | os.PathLike[str]) -> LazyTensors:
    """Shapes are read once, and every size is checked against the file that it is in.

    A tensor of a branch whose name is taken already gets a number: `weight.2`.
    """
    kinds: dict[str, Tensor] = {}
    places: dict[str, _Place] = {}
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            model = Cursor(file, 0, size, path, "ONNX")
            for found in _of_model(file, model):
                name = _fresh(found.name, kinds)
                kinds[name], places[name] = _placed(found, model)
                if len(kinds) > MOST_TENSORS:
                    model.fail(f"expected at most {MOST_TENSORS} tensors, got more")
    except OSError as error:
        raise cannot_read(path, error) from error

    def read(name: str) -> Tensor:
        place, kind = places[name], kinds[name]
        data = read_span(place.file, place.start, place.n_bytes)
        if place.packed:
            return _unpacked(data, kind, model.fail)
        return torch.from_numpy(data).view(kind.dtype).reshape(kind.shape)

    return LazyTensors(kinds, read)


def _fresh(name: str, known: dict[str, Tensor]) -> str:
    found, k = name or "tensor", 1
    while found in known:
        k += 1
        found = f"{name or 'tensor'}.{k}"
    return found


def _fields(cursor: Cursor) -> Iterator[tuple[int, int, int, int]]:
    """Each field of a message: its number, how it is written, its first byte, and its length or value."""
    while cursor.remaining:
        number, kind = divmod(cursor.varint(), 8)
        if kind == _VARINT:
            value = cursor.varint()
            yield number, kind, cursor.offset, value
            continue
        length = cursor.varint() if kind == _BYTES else {_EIGHT: 8, _FOUR: 4}.get(kind, -1)
        if length < 0:
            cursor.fail(f"expected a field of protobuf, got one of kind {kind}")
        start = cursor.offset
        cursor.require(length)
        yield number, kind, start, length
        cursor.offset = start
        cursor.skip(length)


def _inside(file: BinaryIO, outer: Cursor, start: int, length: int) -> Cursor:
    return Cursor(file, start, start + length, outer.path, outer.kind)


def _of_model(file: BinaryIO, model: Cursor) -> Iterator[_Found]:
    graphs = 0
    for number, kind, start, length in _fields(model):
        if (number, kind) == (_GRAPH, _BYTES):
            graphs += 1
            yield from _of_graph(file, _inside(file, model, start, length), MOST_LEVELS)
    if not graphs:
        model.fail("expected the graph of a model, found none")


def _of_graph(file: BinaryIO, graph: Cursor, levels: int) -> Iterator[_Found]:
    if not levels:
        graph.fail(f"expected at most {MOST_LEVELS} graphs in one another, got more")
    nodes = []
    for number, kind, start, length in _fields(graph):
        if (number, kind) == (_INITIALIZERS, _BYTES):
            yield _tensor(_inside(file, graph, start, length))
        elif (number, kind) == (_NODES, _BYTES):
            nodes.append((start, length))  # their branches come last, so that they do not take a name from the graph
    for start, length in nodes:
        yield from _of_node(file, _inside(file, graph, start, length), levels)


def _of_node(file: BinaryIO, node: Cursor, levels: int) -> Iterator[_Found]:
    """The tensor of a constant has the name of the node's output."""
    output, attributes = "", []
    for number, kind, start, length in _fields(node):
        if (number, kind) == (_OUTPUTS, _BYTES):
            output = _inside(file, node, start, length).text(length)
        elif (number, kind) == (_ATTRIBUTES, _BYTES):
            attributes.append((start, length))
    for start, length in attributes:
        attribute = _inside(file, node, start, length)
        for number, kind, at, n in _fields(attribute):
            if kind != _BYTES:
                continue
            if number == _TENSOR:
                found = _tensor(_inside(file, attribute, at, n))
                if found.dims and DTYPES.get(found.type, torch.int8).is_floating_point:
                    found.name = output or found.name
                    yield found
            elif number in (_INNER, _INNERS):
                yield from _of_graph(file, _inside(file, attribute, at, n), levels - 1)


def _tensor(cursor: Cursor) -> _Found:
    found, file = _Found(), cursor.file
    for number, kind, start, length in _fields(cursor):
        if number == _DIMS:
            if kind == _VARINT:
                found.dims.append(length)
            else:
                inner = _inside(file, cursor, start, length)
                while inner.remaining:
                    found.dims.append(inner.varint())
            if len(found.dims) > 64:
                cursor.fail("expected at most 64 sizes of a tensor, got more")
        elif number == _TYPE and kind == _VARINT:
            found.type = length
        elif number == _NAME and kind == _BYTES:
            found.name = _inside(file, cursor, start, length).text(length)
        elif number in (_RAW, _FLOATS, _DOUBLES, _INTS32, _INTS64) and kind == _BYTES:
            found.values = number, start, length
        elif number == _EXTERNAL and kind == _BYTES:
            key, value = _pair(_inside(file, cursor, start, length))
            found.outside[key] = value
    return found


def _pair(cursor: Cursor) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    for number, kind, start, length in _fields(cursor):
        if number in texts and kind == _BYTES:
            texts[number] = _inside(cursor.file, cursor, start, length).text(length)
    return texts[1], texts[2]


def _placed(found: _Found, model: Cursor) -> tuple[Tensor, _Place]:
    def fail(problem: str) -> NoReturn:
        model.fail(f"tensor {found.name!r}: {problem}")

    if found.type not in DTYPES:
        fail(f"expected floats, integers up to 64 bits or bools, got values of type {found.type}")
    kind = kind_of([size - (1 << 64) * (size >> 63) for size in found.dims], DTYPES[found.type], fail)
    if found.outside:
        return kind, _outside(found, kind, model, fail)
    if found.values is None:
        if kind.numel():
            fail("expected its values in one piece, found none")
        return kind, _Place(Path(model.path), 0, 0)
    number, start, length = found.values
    packed = number in (_INTS32, _INTS64)
    if packed and not (kind.numel() <= length <= 10 * kind.numel()):
        fail(f"expected {kind.numel()} integers, got {length} bytes")
    if number in _LISTS and _LISTS[number] != kind.dtype:
        fail(f"expected values of {kind.dtype}, got those of {_LISTS[number]}")
    if not packed and length != kind.nbytes:
        fail(f"expected {kind.nbytes} bytes, got {length}")
    return kind, _Place(Path(model.path), start, length, packed)


def _outside(found: _Found, kind: Tensor, model: Cursor, fail: Callable[[str], NoReturn]) -> _Place:
    """The values in a file beside this one. Its name must be a plain one: a path could lead anywhere."""
    name = found.outside.get("location", "")
    if not name or Path(name).name != name or name in (".", "..") or "\\" in name or "\0" in name:
        fail(f"expected its values in a file of the same folder, got {name!r}")
    file = Path(model.path).parent / name
    start, length = (found.outside.get(key, "") for key in ("offset", "length"))
    if not all(text.isascii() and (text.isdecimal() or not text) and len(text) < 20 for text in (start, length)):
        fail(f"expected an offset and a length, got {start!r} and {length!r}")
    if int(length or kind.nbytes) != kind.nbytes:
        fail(f"expected {kind.nbytes} bytes, got {length}")
    if not file.is_file():
        raise FormatError(
            f"{os.fspath(model.path)}: expected the values of {found.name!r} in {file}, which is not there"
        )
    if int(start or 0) + kind.nbytes > file.stat().st_size:
        fail(f"expected {kind.nbytes} bytes at byte {start or 0} of {name}, which has {file.stat().st_size}")
    return _Place(file, int(start or 0), kind.nbytes)


def _unpacked(data: np.ndarray, kind: Tensor, fail: Callable[[str], NoReturn]) -> Tensor:
    """Integers as varints. Half precision is written as the integers of its bits."""
    last = data < 0x80
    ends = np.flatnonzero(last)
    if len(ends) != math.prod(kind.shape) or not last[-1:].all():
        fail(f"expected {kind.numel()} integers, got {len(ends)}")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - starts
    if lengths.max() > 10:
        fail("expected integers of at most 10 bytes, got a longer one")
    values = np.zeros(len(ends), np.uint64)
    for k in range(int(lengths.max())):
        has = lengths > k
        values[has] |= (data[starts[has] + k] & np.uint64(0x7F)) << np.uint64(7 * k)
    signed = torch.from_numpy(values.view(np.int64))
    if kind.dtype.is_floating_point:
        return signed.to(torch.int16).view(kind.dtype).reshape(kind.shape)
    return signed.to(kind.dtype).reshape(kind.shape)
