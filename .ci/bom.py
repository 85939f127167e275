"""Say which wheel a bill of materials is of: `cyclonedx-py requirements ... | python .ci/bom.py dist`.

cyclonedx-py knows neither the version, which is in the code, nor the wheel, and it writes the address of a package
index beside each package, which the locks leave open.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def completed(bom: dict[str, Any], wheel: Path) -> dict[str, Any]:
    """The bill with the wheel's version and hash, and without addresses."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    root = bom["metadata"]["component"]
    root |= {"type": "library", "version": version, "purl": f"pkg:pypi/{name}@{version}"}
    root["hashes"] = [{"alg": "SHA-256", "content": digest}]
    for part in bom["components"]:
        part.pop("externalReferences", None)
    needed = [part["bom-ref"] for part in bom["components"]]
    others = [entry for entry in bom.get("dependencies", []) if entry["ref"] != root["bom-ref"]]
    return {**bom, "dependencies": [*others, {"ref": root["bom-ref"], "dependsOn": needed}]}


def main(folder: Path) -> int:
    (wheel,) = folder.glob("*.whl")
    bom = completed(json.load(sys.stdin), wheel)
    (folder / f"{wheel.stem}.cdx.json").write_text(json.dumps(bom, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
