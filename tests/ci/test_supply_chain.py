"""What is installed: every package by its hash, from no named place; and a bill of what the wheel needs."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT

LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pins(path: Path) -> dict[tuple[str, str], set[str]]:
    """Name and marker of each package -> its hashes, with the version."""
    entries = re.split(r"\n(?=[a-z])", re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE).strip())
    found = {}
    for entry in entries:
        match = re.match(r"([a-z0-9-]+)==(\S+)(?: ; ([^\\\n]*))?", entry)
        assert match, entry
        found[match[1], (match[3] or "").strip()] = {match[2], *re.findall(r"--hash=(sha256:[0-9a-f]{64})", entry)}
    return found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_package_but_torch_has_hashes_and_no_place_is_named(path: Path) -> None:
    assert not re.search(r"https?:|file:|--(extra-)?index-url|--find-links", path.read_text())
    for (name, _), versions in pins(path).items():
        assert (len(versions) > 1) == (name != "torch"), name


def test_the_locks_agree_with_each_other() -> None:
    assert [path.stem for path in LOCKS] == ["demo", "dev", "docs", "run", "tools", "torch", "uv"]
    versions: dict[str, set[str]] = {}
    for path in LOCKS:
        for (name, marker), values in pins(path).items():
            if "python_full_version" not in marker:
                versions.setdefault(name, set()).update(v for v in values if not v.startswith("sha256"))
    assert {name: v for name, v in versions.items() if len(v) > 1} == {}


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    wanted = {
        "run": project["project"]["dependencies"],
        "demo": [*project["project"]["dependencies"], *extras["report"], *groups["build"]],
        "dev": [*(r for name in extras if name != "docs" for r in extras[name]), *groups["build"]],
        "docs": extras["docs"],
        "tools": groups["tools"],
    }
    torch = pins(ROOT / "locks/torch.txt")
    for lock, requirements in wanted.items():
        locked = {name for name, _ in [*pins(ROOT / f"locks/{lock}.txt"), *torch]}
        names = {re.split(r"[\[><=;]", r)[0].strip().lower().replace("_", "-") for r in requirements}
        assert names - {"softshare"} <= locked, lock


def test_make_installs_by_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes --only-binary :all: --no-deps" in makefile
    installs = re.findall(r"^\t.*pip install.*$", makefile, re.MULTILINE)
    assert [re.sub(r".*pip install ", "", line) for line in installs] == [
        "--quiet --requirement locks/torch.txt",
        "--quiet --no-deps --no-build-isolation --editable .",
    ]


def test_other_installs_are_by_hash() -> None:
    """Those of CI and of the Dockerfile, but for torch, the package itself, and the jobs that try other versions."""
    ci, docker = ((ROOT / name).read_text() for name in (".github/workflows/ci.yml", "Dockerfile"))
    lines = re.findall(r"^.*pip install.*$", ci + docker, re.MULTILINE)
    free = [line for line in lines if "--require-hashes" not in line]
    tried = [line for line in free if "install: uv pip install --system --" in line and "'.[dev]'" in line]
    assert len(tried) == 2  # the lowest and the newest versions
    torch = [line for line in free if "locks/torch.txt" in line or line.strip().startswith('pip="')]
    own = [line for line in free if "--no-deps dist/*.whl" in line or "--no-build-isolation /softshare" in line]
    comments = [line for line in free if line.lstrip().startswith("#")]
    assert sorted(free) == sorted(tried + torch + own + comments)
    assert sum("locks/uv.txt" in line for line in lines) == 2


def test_new_versions_are_proposed_for_all_that_is_installed() -> None:
    configured = (ROOT / ".github/dependabot.yml").read_text()
    assert re.findall(r"package-ecosystem: (\S+)", configured) == ["pip", "github-actions", "docker"]


def test_the_audit_names_what_is_known() -> None:
    report = script("audit").report
    good = {"name": "good", "version": "1", "vulns": []}
    bad = {"name": "bad", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}
    unknown = {"name": "own", "skip_reason": "not found"}
    lines, found = report([good, bad, bad, unknown])
    assert found
    assert lines[0] == "bad 2: CVE-1, fixed in 3"
    assert lines[1] == "audit: 3 packages, of which 1 are unknown, and 1 known vulnerabilities"
    assert report([good, unknown])[1] is False
    lines, found = report([unknown])
    assert not found
    assert "cannot be reached" in lines[0]


def test_the_bill_names_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "softshare-1.2-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    bom = {
        "metadata": {"component": {"bom-ref": "root", "name": "softshare"}},
        "components": [{"bom-ref": "a", "name": "numpy", "externalReferences": [{"url": "somewhere"}]}],
    }
    found = script("bom").completed(bom, wheel)
    root = found["metadata"]["component"]
    assert (root["version"], root["purl"]) == ("1.2", "pkg:pypi/softshare@1.2")
    assert root["hashes"][0]["content"].startswith("ba599261")
    assert "somewhere" not in str(found)
    assert found["dependencies"] == [{"ref": "root", "dependsOn": ["a"]}]


def test_the_dockerfile_installs_what_make_demo_installs() -> None:
    """The same locks in the same order, under the same conditions, from a context that has them."""
    docker, makefile = ((ROOT / name).read_text() for name in ("Dockerfile", "Makefile"))
    recipe = re.search(r"^\$\(DEMO_READY\):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    locked = re.search(r"^LOCKED := .* install (.*)$", makefile, re.MULTILINE)
    assert locked is not None
    by_make = re.findall(
        r"(?:\$\(LOCKED\)|pip install) (.*)", recipe[1].replace("$(LOCKED)", f"pip install {locked[1]}")
    )
    by_docker = re.findall(r"uv pip install (.*?)(?: \\| && .*|$)", docker, re.MULTILINE)
    own = {"--quiet", "--system", "--no-cache", "--torch-backend", "cpu", "--editable", ".", "/softshare"}
    wanted = [[word for word in line.split() if word not in own] for line in by_make]
    assert [
        [word.replace("/locks/", "locks/") for word in line.split() if word not in own] for line in by_docker
    ] == wanted
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = ["src", "pyproject.toml", project["readme"], *project["license-files"]]
    links = [link.resolve().relative_to(ROOT) for link in (ROOT / "src").rglob("*") if link.is_symlink()]
    copied = re.findall(r"locks/\w+\.txt", docker)
    assert {Path(path).parts[0] for path in (*needed, *links, *copied)} <= sent
    assert all((ROOT / path).exists() for path in copied)
