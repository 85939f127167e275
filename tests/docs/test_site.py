"""The site: it builds without a warning, dead links and anchors stop it, and it asks no other host for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT

pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'softshare[docs]'")
pytestmark = pytest.mark.slow


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_it_builds_and_needs_no_other_host(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.glob("*.html"))
    assert {"index.html", "cli.html", "api.html", "benchmarks.html", "contributing.html"} <= {p.name for p in pages}
    for page in pages:
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]* (?:src|href)="?(?:https?:)?//', page.read_text())
    commands = (tmp_path / "cli.html").read_text()
    assert 'id="compress"' in commands
    assert "--max-bytes" in commands
    assert "<math" in (tmp_path / "math.html").read_text()
    assert "\\frac" not in (tmp_path / "math.html").read_text()


def test_dead_links_and_anchors_stop_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("src", "examples", "benchmarks", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    dead = ["nowhere.md", "math.md#nowhere", "../src/nowhere.py", "../examples/README.md#nowhere"]
    with (tmp_path / "docs" / "index.md").open("a") as file:
        file.writelines(f"\n[dead]({link})\n" for link in dead)
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == len(dead), built.stderr
