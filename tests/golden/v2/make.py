"""Writes the golden files of version 2: `PYTHONPATH=tests python -m golden.v2.make --overwrite`.

They decode forever to what expected.json says. Their contents are those of the golden files of version 1, and more. The
codes of large tensors are given to small ones here, so that a few kilobytes hold all forms. `forms` and `han` have
forms that the writer does not choose today.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.make import codebook, decoded, digest, floats, indices, numbers, recipe
from softshare.codec import adaptive, choice, encode, han
from softshare.codec.adaptive import bands
from softshare.codec.shared_section import Section, packed_scales
from softshare.codec.static import code
from softshare.codec.static.classes import Choice
from softshare.codec.wire import varint
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.quantization.scales import FACTORS

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected.json"
FILES = {  # lanes of the static code (0: no tensor has it), settings
    "static-1": (1, EncodeConfig(speed="fastest")),
    "static-4": (4, EncodeConfig(speed="fastest", codebook_dtype="bfloat16", rest_dtype="float16")),
    "static-32": (32, EncodeConfig(speed="fastest")),
    "bands": (4, EncodeConfig(speed="balanced")),
    "compact": (0, EncodeConfig()),
    "forms": (0, EncodeConfig(codebook_dtype="float32")),
    "han": (0, EncodeConfig(codec="han")),
}


@contextlib.contextmanager
def large_codes(lanes: int) -> Iterator[None]:
    if lanes == 0:
        yield
        return
    was = choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM
    choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM = 32, 512, lanes, lanes, 32
    try:
        yield
    finally:
        choice.STATIC_FROM, code.CHUNK, code.LANES, code.GPU_LANES, bands.FROM = was


def contents(stem: str) -> QuantizedWeights:
    """The recipe of version 1 without its large tensor, and dense tensors of rows and columns that differ."""
    if stem in ("forms", "han"):
        return QuantizedWeights(tuple(tensor for tensor, _ in forms(stem)), {}, {})
    base = recipe()
    if stem == "compact":
        small = tuple(t for t in base.shared if t.name != "wide")
        names = {t.name for t in small}
        tied = {alias: name for alias, name in base.tied.items() if name in names}
        return QuantizedWeights(small, {}, tied, tuple(t.name for t in small))
    book = codebook([41 * (k + 3) ** 2 for k in range(12)])
    shared = [t for t in base.shared if t.name != "wide"]
    for name, shape, dtype in (("rows", (48, 40), torch.float32), ("columns", (36, 10, 5), torch.bfloat16)):
        drawn = indices(shape, 13, 950, len(name)).reshape(shape[0], -1).long()
        axis = torch.arange(shape[0])[:, None] if name == "rows" else torch.arange(50)[None, :]
        narrow = (drawn * (1 + axis % 3) // 3).to(torch.uint8).reshape(-1)
        shared.append(QuantizedTensor(name, shape, dtype, narrow, book))
    scales = (torch.arange(48) % 9 - 4).to(torch.int8), (torch.arange(40) % 7 * 3 - 9).to(torch.int8)
    shared.append(dataclasses.replace(shared[-2], name="scaled", row_scales=scales[0], column_scales=scales[1]))
    shared.append(QuantizedTensor("narrow", (400, 3), torch.float16, indices((400, 3), 13, 700, 7), book))
    rest = dict(base.rest) | {"exact": floats(700, 50).reshape(70, 10), "brain": floats(900, 51).bfloat16()}
    rest |= {"integers": (100 * floats(600, 52)).to(torch.int32)}
    if stem == "bands":
        shared.append(QuantizedTensor("sparse", (33, 60), torch.float32, indices((33, 60), 13, 60, 8), book))
    return QuantizedWeights(tuple(shared), rest, base.tied)


def forms(stem: str) -> Iterator[tuple[QuantizedTensor, Section]]:
    """Scales of rows or columns alone, raw and by byte plane, with every code; 2 to 8 tables; 2, 4 and 16 bands."""
    book, wide = codebook([41 * (k + 3) ** 2 for k in range(12)]), codebook([17 * (k + 1) for k in range(255)])
    random = numbers(22)
    uneven = torch.tensor([-128, 127, *(next(random) % 256 - 128 for _ in range(31))], dtype=torch.int8)
    even = (torch.arange(33) // 11 - 8).to(torch.int8)
    # name, shape, dtype, codebook, of a thousand not zero, scales of rows and columns, code
    plan: list[tuple[Any, ...]] = [
        ("rows", (33, 20), torch.float64, book, 700, uneven, None, "codec"),
        ("columns", (3, 11, 3), torch.float32, book, 200, None, even, "codec"),
        ("both", (33, 33), torch.bfloat16, book, 900, even, even, "codec"),
        ("zeros", (33, 33), torch.float32, book, 0, even, even, "codec"),
        ("axis 1", (33, 40), torch.float16, book, 900, even - 8, None, (1, 8, 2)),
        ("axis 2", (50, 33), torch.float32, wide, 990, None, even, (2, 3, 16)),
        ("vector", (500,), torch.float32, wide, 990, None, None, (2, 5, 8)),
        ("index 255", (2, 70), torch.bfloat16, wide, 1000, None, None, (1, 2, 4)),
    ]
    if stem == "forms":
        plan += [
            ("2 bands", (33, 33), torch.float32, book, 300, None, even, 1),
            ("4 bands", (33, 9), torch.float16, wide, 100, even - 20, None, 2),
            ("16 bands", (33, 33), torch.bfloat16, book, 60, even, even, 4),
        ]
    for number, (name, shape, dtype, values, per_mille, rows, columns, form) in enumerate(plan):
        drawn = indices(shape, len(values), per_mille, 60 + number) if per_mille else torch.zeros(33 * 33).byte()
        t = QuantizedTensor(name, shape, dtype, drawn, values, rows, columns)
        head = b"".join([varint(t.n_nonzero), *(packed_scales(s) for s in (rows, columns) if s is not None)])
        if t.n_nonzero == 0:
            yield t, Section(b"")
        elif form == "codec":
            coder = (han if stem == "han" else adaptive).encode_tensor
            yield t, Section(head + coder(drawn.numpy(), shape, len(values), t.n_nonzero))
        elif isinstance(form, int):
            yield t, Section(head + bands.encode_bands(drawn.numpy(), shape, len(values), form), bands=True)
        else:
            yield t, Section(head + _static(t, *form), static=True)


def _static(t: QuantizedTensor, axis: int, n_tables: int, lanes: int) -> bytes:
    """Every n-th row or column has the same table."""
    symbols = t.indices.numpy().reshape(t.shape if len(t.shape) > 1 else (1, -1))
    classes = np.arange(symbols.shape[axis - 1]) % n_tables
    counts = np.stack([np.bincount(np.compress(classes == k, symbols, axis - 1).reshape(-1), minlength=len(t.codebook))
                       for k in range(n_tables)])  # fmt: skip
    choice = Choice(axis, classes.astype(np.uint8), counts.astype(np.int64))
    rows, cols = symbols.shape
    return code.encode(symbols.reshape(-1), rows, cols, len(t.codebook), lanes, 64, choice)


def encoded(stem: str) -> bytes:
    lanes, config = FILES[stem]
    sections = {t.name: section for t, section in forms(stem)} if stem in ("forms", "han") else {}
    with large_codes(lanes):
        return encode(contents(stem), config, coded=sections)


def expected(weights: QuantizedWeights, config: EncodeConfig) -> dict[str, Tensor]:
    """By definition, without decoding. Scales are applied here one by one."""
    out = decoded(weights, config)
    for t in weights.shared:
        if t.row_scales is None and t.column_scales is None:
            continue
        stored = "float16" if config.codebook_dtype == "auto" else config.codebook_dtype
        values = t.codebook.to(getattr(torch, stored)).float()[t.indices.long()].reshape(t.shape[0], -1)
        for i in range(values.shape[0]):
            for j in range(values.shape[1]):
                row, column = (0 if s is None else int(s[k]) for s, k in ((t.row_scales, i), (t.column_scales, j)))
                values[i, j] *= FACTORS[row + column + 256]
        out[t.name] = values.to(t.dtype).reshape(t.shape)
    return out


def main(overwrite: bool) -> None:
    if any(FOLDER.glob("*.sws")) and not overwrite:
        raise SystemExit("these must decode forever; give --overwrite to replace them")
    digests = {}
    for stem, (_, config) in FILES.items():
        (FOLDER / f"{stem}.sws").write_bytes(encoded(stem))
        digests[stem] = {name: digest(t) for name, t in expected(contents(stem), config).items()}
    EXPECTED.write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main("--overwrite" in sys.argv)
