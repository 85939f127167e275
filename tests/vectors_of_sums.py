"""The test vector of scales and differences. What it shows follows docs/format.md 3.5 and 5 alone."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib

import numpy as np

from vectors import DECISION, decisions, file_lines, hexed, table

VALUES = (0.0, -0.25, 0.5)
INDICES = (0, 2, 0, 1, 2, 1)
ROWS, COLUMNS = (-5, 6), (0, 3, -2)
BASE = (1 + 2.0**-11 + 2.0**-40, 3.0, -0.0, 1.0, 1.5, -2.0)  # float64
FACTORS = ("0x1p0", "0x1.306fe0p0", "0x1.6a09e6p0", "0x1.ae89fap0")


def differences_vector() -> list[str]:
    import torch

    from softshare import codec
    from softshare.codec.adaptive import tensor as adaptive

    of_a = b"\1a" + bytes([3, 2, 2, 3]) + struct.pack("<6d", *BASE)
    of_b = b"\1b" + bytes([4, 1, 2]) + struct.pack("2b", 5, -6)
    digest = hashlib.sha256(of_a + of_b).digest()
    coded = bytes(adaptive.encode_tensor(np.array(INDICES, np.uint8), (2, 3), 3, 4))
    scales = b"\2" + struct.pack("2b", *ROWS) + b"\3" + struct.pack("3b", *COLUMNS)
    section = b"\4" + scales + coded
    entry = bytes([2 * len(section), 1 << 1 | 1 << 5 | 1 << 6, 0]) + b"\0\1a" + bytes([2, 2, 3])
    body = b"\x89SWS\2\7" + digest + bytes([1, 9]) + struct.pack("<2e", *VALUES[1:]) + b"\1" + entry + b"\0\0" + section
    data = body + struct.pack("<I", zlib.crc32(body))
    rows, bits = _weights()
    base = {"a": torch.tensor(BASE, dtype=torch.float64).view(2, 3), "b": torch.tensor([5, -6], dtype=torch.int8)}
    found, kept = (codec.load(io.BytesIO(data), base=base)[name] for name in ("a", "b"))
    assert found.view(torch.int16).flatten().tolist() == np.array(bits, np.uint16).astype(np.int16).tolist()
    assert kept.tolist() == [5, -6]
    parts = [
        (4, "magic"), (1, "version"), (1, "flags: `adaptive`, names and shapes, differences"),
        (32, "SHA-256 of the base (3.5)"), (1, "1 codebooks"), (1, "2 values, float16"), (4, "-0.25 and 0.5"),
        (1, "1 tensor"), (1, "the entry: 2 times the bytes of its section"),
        (1, "kind 0x62: float16, scales of rows and of columns (4.2)"), (1, "codebook 0"),
        (3, "the name: no suffix, no common beginning, 1 byte, `a`"), (3, "2 dimensions and their sizes"),
        (1, "no tied names"), (1, "no tensor stands alone"), (1, "n_nonzero, 4"),
        (1, "the scales of the rows take 2 bytes, so they are raw (5)"), (2, "-5 and 6"),
        (1, "the scales of the columns take 3 bytes"), (3, "0, 3 and -2"),
        (1, "the period of the full model, 0 (8.3)"), (len(coded) - 1, "the range code (8.2)"), (4, "CRC-32 (3.4)"),
    ]  # fmt: skip
    return [
        *file_lines("Scales and differences, version 2", data, parts),
        "The base has `a`, 2 x 3 of float64, and `b`, 5 and -6 in int8. The digest is that of these bytes:",
        "",
        f"`{hexed(of_a)} {hexed(of_b)}`",
        "",
        *table(DECISION, decisions(lambda: adaptive.decode_tensor(coded, (2, 3), 3, 4))),
        "With s the sum of the scales, the factor is `F[s mod 4] 2^floor(s / 4)`, and d is the value times the factor,",
        "in float32. Where d is 0 the weight is b. Sums are in float64, as b is; they become float32, then float16.",
        "",
        *table("number, index, value, s, factor, d, b, b + d, as float32, bits of the float16", rows),
        "`b` has no entry and keeps the values of the base.",
        "",
    ]  # fmt: skip


def _weights() -> tuple[list[list[object]], list[int]]:
    rows, bits = list[list[object]](), list[int]()
    for k, (index, b) in enumerate(zip(INDICES, BASE, strict=True)):
        s = ROWS[k // 3] + COLUMNS[k % 3]
        factor = float.fromhex(FACTORS[s % 4]) * 2.0 ** (s // 4)
        d = np.float32(VALUES[index] * factor)
        total = b if d == 0 else b + float(d)
        narrow = int(np.float32(total).astype(np.float16).view(np.uint16))
        shown = [f"{x.hex()}" for x in (factor, float(d), b, total, float(np.float32(total)))]
        rows.append([k, index, VALUES[index], s, *shown, f"{narrow:#06x}"])
        bits.append(narrow)
    return rows, bits
