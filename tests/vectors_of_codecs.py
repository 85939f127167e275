"""The test vectors of the fast model and of the codec `han`. The steps of `han` follow docs/format.md 9 alone."""

from __future__ import annotations

from collections.abc import Iterator

from vectors import DECISION, _header_parts, _section, _tensor, _weights, decisions, file_lines, hexed, table

CRC = (4, "CRC-32 (3.4)")


def fast_vector() -> list[str]:
    from softshare import codec

    shape = 1025, 1024  # the fewest rows of 1,024 that take the fast model
    indices = [0] * (shape[0] * shape[1])
    indices[3], indices[17], indices[18] = 2, 1, 2
    data = codec.encode(_weights(_tensor(indices, shape, [0.0, -0.25, 0.5])))
    section = _section(data)
    assert section[:2] == bytes([3, 128])
    parts = _header_parts(data, 1)
    parts[-2] = (5, "2 dimensions and their sizes, 1025 and 1024")
    parts += [
        (1, "n_nonzero, 3"),
        (1, "128, the fast model (8.3)"),
        (len(section) - 2, "the range code (8.2)"),
        CRC,
    ]
    rows = decisions(lambda: codec.decode(data))
    assert codec.decode(data).shared[0].indices.tolist() == indices
    return [
        *file_lines("Fast model, version 1", data, parts),
        "1,025 x 1,024 weights, more than 2^20. V = 3 and N = 3, so D16 = 0 and O = STRETCH[0], and the states of",
        '"is it zero" start with estimate 8192, the least. The non-zeros are in the first row, and nothing is coded',
        "after the last one. Only values are mixed.",
        "",
        *table(DECISION, rows),
        "Indices: 2 in column 3, 1 in column 17 and 2 in column 18 of row 0, and 0 everywhere else.",
        "",
    ]


def han_vector() -> list[str]:
    from softshare import codec
    from softshare.config import EncodeConfig

    indices = [0] * 80
    indices[1], indices[38], indices[39], indices[40], indices[44] = 1, 2, 1, 1, 2
    data = codec.encode(_weights(_tensor(indices, (2, 40), [0.0, -0.25, 0.5])), EncodeConfig(codec="han"))
    section = _section(data)[1:]
    fields, found = han_fields(section, 2, 40, 3, 5)
    assert found == indices == codec.decode(data).shared[0].indices.tolist()
    parts = [*_header_parts(data, 1), (1, "n_nonzero, 5"), (len(section), "the fields below (9)"), CRC]
    return [
        *file_lines("Codec `han`, version 1", data, parts),
        "2 x 40 weights, V = 3. A gap has 5 bits. 36 zeros are between the first two non-zeros, so an entry of gap 31",
        f"and index 0 stands for 32 of them. `{hexed(section)}` from the highest bit of each byte:",
        "",
        *table("bit, bits, meaning", fields),
        f"Indices: {found}.",
        "",
    ]


def han_fields(
    section: bytes, n_rows: int, n_cols: int, n_values: int, gap_bits: int
) -> tuple[list[list[object]], list[int]]:
    """The place, the bits and the meaning of each field, and the indices."""
    bits, fields = "".join(f"{octet:08b}" for octet in section), list[list[object]]()
    at = 0

    def take(n: int) -> int:
        nonlocal at
        at += n
        return int(bits[at - n : at], 2)

    def note(start: int, meaning: str) -> None:
        fields.append([start, f"`{bits[start:at]}`", meaning])

    width = take(6)
    note(0, f"w = {width}")
    ends = []
    for row in range(n_rows):
        ends.append(take(width))
        note(at - width, f"{ends[-1]} entries up to the end of row {row}")

    def coded(what: str, alphabet: int) -> Iterator[int]:
        size = (alphabet - 1).bit_length()
        last = take(size)
        note(at - size, f"{what}: the last symbol in use is {last}")
        of_lengths = take(3)
        note(at - 3, f"{what}: a code length has {of_lengths} bits")
        lengths = [take(of_lengths) for _ in range(last + 1)]
        used = {symbol: length for symbol, length in enumerate(lengths) if length}
        note(
            at - of_lengths * len(lengths),
            f"{what}: the code lengths, " + ", ".join(f"{n} of {s}" for s, n in used.items()),
        )
        codes, code, before = dict[str, int](), -1, 0
        for symbol, length in sorted(used.items(), key=lambda item: (item[1], item[0])):
            code = code + 1 << max(0, length - before)
            codes[f"{code:0{length}b}"], before = symbol, length
        listed = ", ".join(f"`{c}` is {s}" for c, s in codes.items())
        for k in range(ends[-1]):
            start, own = at, ""
            while own not in codes:
                own += str(take(1))
            note(start, f"{what} {k}: {codes[own]}" + ("" if k else f". The codes: {listed}"))
            yield codes[own]

    gaps = list(coded("gap", 1 << gap_bits))
    values = list(coded("index", n_values))
    start, left = at, len(bits) - at
    assert left < 8
    if left:
        assert take(left) == 0
        note(start, "zeros to the end of the byte")
    indices, row, col = [0] * (n_rows * n_cols), 0, 0
    for k, (gap, value) in enumerate(zip(gaps, values, strict=True)):
        while k == ends[row]:
            row, col = row + 1, 0
        col += gap + 1
        indices[row * n_cols + col - 1] = value
    return fields, indices
