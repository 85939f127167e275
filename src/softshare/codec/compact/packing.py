"""An ordinary file as a compact one (docs/format.md 15)."""

from __future__ import annotations

import io
import zlib

import numpy as np

from softshare.codec import shared_section as shared
from softshare.codec.adaptive.full import run_full
from softshare.codec.adaptive.rangecoder import finish, start_encoding
from softshare.codec.compact.fields import Fields
from softshare.codec.compact.outline import BEGIN, MOST_TENSORS, code_outline
from softshare.codec.compact.primer import primed_states
from softshare.codec.compact.unpacking import MOST_VALUES
from softshare.codec.header import COMPACT, MAGIC, Header, Shared, n_values
from softshare.codec.header_writing import pack_header
from softshare.codec.symbols import matrix_shape
from softshare.codec.wire import CRC, Reader, varint
from softshare.errors import FormatError

_FIRST_BUFFER = 1 << 12


def packed(header: Header, sections: list[bytes]) -> bytes | None:
    """The compact file of an ordinary one, or None if there is none: it serves small networks of shared tensors."""
    fits = header.codec == "adaptive" and header.has_names and header.version == 1
    fits = fits and len(header.entries) <= MOST_TENSORS and all(isinstance(e.kind, Shared) for e in header.entries)
    if not fits or sum(n_values(e.shape) for e in header.entries) > MOST_VALUES:
        return None
    heads, tensors = [], []
    for entry, section in zip(header.entries, sections, strict=True):
        assert isinstance(entry.kind, Shared)
        book = header.codebooks[entry.kind.codebook]
        n_nonzero, start = shared.read_n_nonzero(section)
        heads.append(varint(n_nonzero) + section[start : start + 1])
        if n_nonzero:
            indices = shared.decode(section, entry, entry.kind, book, header.codec).indices.numpy()
            matrix = np.require(indices.reshape(matrix_shape(entry.shape)), requirements=["C", "W"])
            tensors.append((matrix, section[start], len(book.values), n_nonzero))
    given = pack_header(header)[len(BEGIN) :] + b"".join(heads)
    data = np.zeros(_FIRST_BUFFER, np.uint8)
    fields = Fields(primed_states(), start_encoding(), data, Reader(io.BytesIO(given), len(given)))
    try:
        code_outline(fields)
    except FormatError:  # it is too long
        return None
    data, coder = fields.data, fields.coder
    for tensor in tensors:
        data, coder = run_full(*tensor, coder, False, data)
    out = MAGIC + bytes([2, COMPACT | BEGIN[5]]) + finish(coder, data)
    return out + CRC.pack(zlib.crc32(out))
