"""The made-up network whose header is the primer of compact files: `PYTHONPATH=tests python -m primer` prints it.

Its names, shapes and codebooks are of the kinds that small networks have. It is none of the kept ones.
"""

from __future__ import annotations

import io
import sys
import textwrap

import numpy as np

from softshare.codec.adaptive.rangecoder import finish, start_encoding
from softshare.codec.compact.fields import Fields, new_states
from softshare.codec.compact.outline import BEGIN, code_outline
from softshare.codec.header import Codebook, Entry, Header, Shared
from softshare.codec.header_writing import pack_header
from softshare.codec.wire import Reader, varint

LAYERS: tuple[tuple[str, tuple[int, ...], int, int], ...] = (  # stem, weight's shape, non-zeros, period
    ("conv1", (16, 1, 3, 3), 60, 3),
    ("conv2", (32, 16, 5, 5), 700, 5),
    ("fc1", (120, 400), 2400, 0),
    ("fc2", (84, 120), 900, 0),
    ("fc3", (10, 84), 200, 0),
    ("features.0", (32, 3, 5, 5), 300, 5),
    ("classifier.2", (10, 500), 350, 0),
    ("0", (128, 784), 1100, 28),
    ("2", (128, 128), 600, 0),
    ("layers.0", (64, 256), 800, 0),
    ("linear1", (200, 784), 1300, 28),
    ("head", (10, 32), 60, 0),
)
BOOKS = ((0.06, -0.07, 0.11, -0.13, 0.2), (0.09, -0.15))


def header() -> tuple[Header, bytes]:
    """The header, and the numbers of non-zeros and the periods."""
    entries, heads = [], b""
    for k, (stem, shape, n_nonzero, period) in enumerate(LAYERS):
        kind = Shared("float32", min(k // 2, 1))
        for name, own, n, p in ((".weight", shape, n_nonzero, period), (".bias", shape[:1], shape[0] // 3, 0)):
            entries.append(Entry(stem + name, own, kind, 0))
            heads += varint(n) + bytes([p])
    books = tuple(Codebook(np.array([0, *b], np.float16).astype(np.float32), "float16") for b in BOOKS)
    return Header("adaptive", True, books, tuple(entries), {}), heads


def primer() -> bytes:
    own, heads = header()
    given = pack_header(own)[len(BEGIN) :] + heads
    reader = Reader(io.BytesIO(given), len(given))
    fields = Fields(new_states(), start_encoding(), np.zeros(1 << 12, np.uint8), reader)
    code_outline(fields)
    return finish(fields.coder, fields.data)


if __name__ == "__main__":
    sys.stdout.write("".join(f'"{line}"\n' for line in textwrap.wrap(primer().hex(), 100)))
