"""The JavaScript decoder in Chromium: a page imports the module, and fetches and decodes files as a site would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, NO_BROWSER, Browser, browser
from golden.deltas.make import base as delta_base
from golden.make import EXPECTED, FILES, FOLDER, Net
from node import by_python, comparable, options
from paths import ROOT
from servers_of_files import served
from softshare.codec.base import open_base

KEPT = sorted(p for name in ("results", "docs/tuning", "benchmarks/networks") for p in (ROOT / name).rglob("*.sws"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER),
    pytest.mark.skipif(not (ROOT / "decoders/js").is_dir(), reason="needs the folder decoders of the repository"),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    """A page of the repository's root, from a server."""
    with served(ROOT) as server, browser() as found:
        found.open(f"{server.address}/tests/decoders/read.html")
        yield found


def read(tab: Browser, path: Path, **given: Any) -> dict[str, Any]:
    """What the page makes of a file, in the words of `node.ask`."""
    request = json.dumps({"address": f"/{path.relative_to(ROOT)}", **given})
    return dict(json.loads(tab.run(f"read({request})")))


def test_golden_files_have_the_recorded_values(tab: Browser) -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for stem in FILES:
        given = options(Net() if FILES[stem].names == "none" else None)
        assert dict(read(tab, FOLDER / f"{stem}.sws", **given)["digests"]) == expected[stem], stem
    second = FOLDER / "v2"
    expected = json.loads((second / "expected.json").read_text(encoding="utf-8"))
    assert expected
    for stem in expected:
        for worker in (False, True):
            assert dict(read(tab, second / f"{stem}.sws", worker=worker)["digests"]) == expected[stem], stem
    base, path = open_base(delta_base()), FOLDER / "deltas" / "delta.sws"
    assert comparable(read(tab, path, **options(None, base=base))) == by_python(path.read_bytes(), base=base)
    assert read(tab, path)["error"] == "ConfigError"
    assert tab.problems == []


def test_kept_files_have_the_same_bits_as_in_python(tab: Browser) -> None:
    assert len(KEPT) > 70
    for path in KEPT:
        assert comparable(read(tab, path)) == by_python(path.read_bytes()), path
    assert tab.problems == []
