"""Look up locked versions among the known vulnerabilities: `python .ci/audit.py locks/*.txt`.

Exits with 1 if one is known. Where the database of advisories cannot be reached, it says so and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

UNREACHABLE = ("requests.exceptions.", "urllib3.exceptions.", "ConnectionError", "Could not connect", "timed out")


def looked_up(lock: str) -> list[dict[str, Any]] | None:
    """The packages of a lock as pip-audit knows them. None if the database cannot be reached."""
    # `--no-deps` and `--disable-pip`: the versions are those in the lock, and nothing is resolved or installed.
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
    run = subprocess.run([*command, "--format=json", f"--requirement={lock}"], capture_output=True, text=True)
    if run.stdout.startswith("{"):
        packages: list[dict[str, Any]] = json.loads(run.stdout)["dependencies"]
        return packages
    if any(text in run.stderr for text in UNREACHABLE):
        return None
    raise SystemExit(f"audit: pip-audit cannot read {lock}: {run.stderr.strip()}")


def report(packages: Iterable[dict[str, Any]]) -> tuple[list[str], bool]:
    """What to print, and whether a vulnerability is known."""
    each = {(p["name"], p.get("version")): p for p in packages}
    unknown = sum("skip_reason" in p for p in each.values())
    if unknown == len(each):
        return ["audit: skipped, the database of advisories cannot be reached: it knows no package"], False
    lines = [
        f"{name} {version}: {v['id']}, fixed in {', '.join(v['fix_versions']) or 'no version yet'}"
        for (name, version), p in each.items()
        for v in p.get("vulns", ())
    ]
    summary = f"audit: {len(each)} packages, of which {unknown} are unknown, and {len(lines)} known vulnerabilities"
    return [*lines, summary], bool(lines)


def main(locks: Sequence[str]) -> int:
    found = [looked_up(lock) for lock in locks]
    if None in found:
        lines, bad = ["audit: skipped, the database of advisories cannot be reached"], False
    else:
        lines, bad = report(p for packages in found for p in packages or ())
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
