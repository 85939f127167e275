"""Look up locked versions among the known vulnerabilities: `python .ci/audit.py locks/*.txt`.

Exits with 1 if one is known. Where the database of advisories cannot be reached, it says so and exits with 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def main(locks: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        # `--no-deps` and `--disable-pip`: the versions are those in the locks, and nothing is resolved or installed.
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"]
        command += ["--format=json", f"--output={found}", *(f"--requirement={lock}" for lock in locks)]
        run = subprocess.run(command, capture_output=True, text=True)
        if not found.exists() or not found.stat().st_size:
            if run.returncode == 0:
                return _say("audit: expected a list of the locked packages, got none", 1)
            reason = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
            return _say(f"audit: skipped, the database of advisories cannot be reached ({reason[:200]})", 0)
        packages = json.loads(found.read_text())["dependencies"]
    known = [(p["name"], p["version"], v["id"], v["fix_versions"]) for p in packages for v in p.get("vulns", ())]
    for name, version, advisory, fixes in known:
        _say(f"{name} {version}: {advisory}, fixed in {', '.join(fixes) or 'no version yet'}", 0)
    skipped = sum("skip_reason" in p for p in packages)
    return _say(f"audit: {len(packages)} packages, {skipped} unknown, {len(known)} known vulnerabilities", bool(known))


def _say(text: str, status: int) -> int:
    sys.stdout.write(text + "\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
