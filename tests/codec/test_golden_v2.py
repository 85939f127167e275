"""Files of version 2 decode forever, and writing them again gives the same bytes (docs/format.md 12)."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from golden.make import digest
from golden.v2.make import EXPECTED, FILES, FOLDER, contents, encoded, expected
from paths import TESTS
from softshare import codec
from softshare.codec.header import Rest, Shared
from softshare.codec.header_reading import read_header, read_prefix
from softshare.codec.symbols import matrix_shape
from softshare.codec.wire import Reader


@pytest.mark.parametrize("stem", FILES)
def test_decodes_to_the_recorded_values(stem: str) -> None:
    recorded = json.loads(EXPECTED.read_text(encoding="utf-8"))[stem]
    state = codec.load(FOLDER / f"{stem}.sws")
    assert {name: digest(tensor) for name, tensor in state.items()} == recorded
    assert {name: digest(t) for name, t in expected(contents(stem), FILES[stem][1]).items()} == recorded


@pytest.mark.parametrize("stem", FILES)
def test_writing_gives_the_same_bytes(stem: str) -> None:
    assert encoded(stem) == (FOLDER / f"{stem}.sws").read_bytes()


def test_the_files_cover_version_2() -> None:
    """Every number of lanes, tables by row and by column, planes, scales with every code, and every number of bands."""
    assert sorted(path.stem for path in FOLDER.glob("*.sws")) == sorted(FILES)
    seen = set[tuple[str, int]]()
    for stem in FILES:
        data = (FOLDER / f"{stem}.sws").read_bytes()
        assert data[4] == 2
        seen.add(("compact", data[5] == 11))
        reader = Reader(io.BytesIO(data), len(data) - 4)
        for e in read_header(reader, read_prefix(reader)).entries:
            kind, code = e.kind, data[e.offset :]
            if isinstance(kind, Shared) and e.n_bytes and data[5] != 11:
                form = "static" if kind.static else "bands" if kind.bands else "adaptive" if data[5] & 1 else "han"
                seen.add((form, 2 * kind.row_scales + kind.column_scales))
                start = 2 if code[0] > 127 else 1  # after n_nonzero
                for scaled, n in zip((kind.row_scales, kind.column_scales), matrix_shape(e.shape), strict=True):
                    if scaled:
                        seen.add(("raw scales", code[start] == n))
                        start += 1 + code[start]
                if kind.static:
                    seen |= {("lanes", code[start]), ("axis", code[start + 2] >> 3), ("tables", code[start + 2] & 7)}
                if kind.bands:
                    seen.add(("2^bands", code[start]))
            if isinstance(kind, Rest):
                seen |= {("planes", kind.static), ("rounded", kind.static and kind.stored != kind.dtype)}
    wanted = {("lanes", k) for k in range(6)} | {("axis", k) for k in range(3)} | {("2^bands", k) for k in range(1, 5)}
    wanted |= {("tables", k - 1) for k in (1, 2, 3, 4, 5, 8)} | {("raw scales", False), ("raw scales", True)}
    wanted |= {(form, k) for form in ("static", "bands") for k in range(4)}
    wanted |= {(form, k) for form in ("adaptive", "han") for k in range(1, 4)}
    assert seen >= wanted | {("compact", True), ("planes", True), ("rounded", True)}


WITHOUT_NUMBA = """
import sys
sys.path.insert(0, TESTS)
sys.modules["numba"] = None
from golden.v2.make import FILES, FOLDER, encoded
from golden.make import digest
from softshare import codec
for stem in FILES:
    print(*(digest(t) for t in codec.load(FOLDER / f"{stem}.sws").values()), sep="\\n")
    assert (FOLDER / f"{stem}.sws").read_bytes() == encoded(stem), stem
"""


@pytest.mark.slow
def test_plain_python_gives_the_same_values_and_bytes() -> None:
    code = WITHOUT_NUMBA.replace("TESTS", repr(str(TESTS)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    recorded = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert sorted(done.stdout.splitlines()) == sorted(d for stem in FILES for d in recorded[stem].values())
