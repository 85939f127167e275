"""Write kept files as the present writer does: the same weights, in the form that today's defaults choose.

A result names the settings that its file was written with. Those that it does not name are younger than it, and take
today's defaults. The file is decoded and written again, and the result records the new bytes, the new ratio and the
settings. It is an error if the new file decodes to other bits. Nothing is trained or measured, and everything else that
the result says remains: it is about the same weights.

    PYTHONPATH=src python3 experiments/rewrite_results.py results
    softshare verify results
    softshare results results
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import torch
from rich.console import Console

from softshare._util.files import read_bytes, write_atomic
from softshare._util.run_folder import MODEL, RESULT
from softshare.codec import decode, encode
from softshare.config import EncodeConfig
from softshare.paper.verify import find_runs
from softshare.result import Result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of kept results")
    folder, console = parser.parse_args().folder, Console(highlight=False)
    for run in find_runs(folder):
        before, after = rewrite(run)
        console.print(f"{run.relative_to(folder)}: {before:,} bytes, now {after:,}")


def rewrite(run: Path) -> tuple[int, int]:  # bytes before and after
    result, data = Result.load(run / RESULT), read_bytes(run / MODEL)
    config = EncodeConfig(**result.config["encode"])
    written = encode(decode(data, max_bytes=None), config)
    require_same_bits(data, written, run)
    size = len(written)
    recorded = {**result.config, "encode": dataclasses.asdict(config)}
    result = dataclasses.replace(result, file_bytes=size, ratio=4 * result.n_weights / size, config=recorded)
    write_atomic(run / MODEL, written)
    result.save(run / RESULT)
    return len(data), size


def require_same_bits(before: bytes, after: bytes, run: Path) -> None:
    old, new = (decode(data, max_bytes=None).state_dict() for data in (before, after))
    for name in old.keys() | new.keys():
        pair = [state[name] for state in (old, new) if name in state]
        if len(pair) < 2 or pair[0].dtype != pair[1].dtype or not torch.equal(*map(bits, pair)):
            raise SystemExit(f"{run}: expected a file that decodes to the same bits, but {name} is another")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    main()
