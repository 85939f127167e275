"""The four sisters of IgFold, 1.56 million weights each: four files alone, and one file with three deltas.

The weights come inside the package igfold 1.0.1, as safetensors. Errors are equal: each tensor is off by at most so
much of its weights' root mean square, in every file. The base of the deltas is the first file as it decodes.

    python benchmarks/checkpoints/igfold.py FOLDER    # with igfold_1, _2, _3 and _5.safetensors

`igfold.csv` is written: the bytes of each file, and how far each network is from the first one.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

import softshare as ss

NUMBERS = (1, 2, 3, 5)
ERRORS = (0.1, 0.05)
HERE = Path(__file__).parent
COLUMNS = ("network", "differs_percent", "error_percent", "alone", "with_deltas")


def closeness(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    """Root mean square of the difference, over that of the weights of the first."""
    names = [name for name, t in first.items() if t.is_floating_point() and t.dim() > 1]
    square = sum(float((first[k].double() - second[k].double()).square().sum()) for k in names)
    return float((square / sum(float(first[k].double().square().sum()) for k in names)) ** 0.5)


def bytes_of(sources: list[Path], error: float, folder: Path) -> tuple[list[int], list[int]]:
    """Sizes of the files alone, and of the first with the deltas."""
    alone = [ss.quantize(path, weight_error=error).save(folder / f"{path.stem}.sws") for path in sources]
    base = folder / f"{sources[0].stem}.sws"
    deltas = [ss.quantize(path, base=base, weight_error=error) for path in sources[1:]]
    return alone, [alone[0], *(delta.save(folder / "delta.sws") for delta in deltas)]


def main() -> None:
    sources = [Path(sys.argv[1]) / f"igfold_{k}.safetensors" for k in NUMBERS]
    missing = [str(path) for path in sources if not path.is_file()]
    if missing:
        raise SystemExit(f"{missing[0]} is not there: unpack the package igfold 1.0.1")
    first = load_file(sources[0])
    differs = [100 * closeness(first, load_file(path)) for path in sources]
    with tempfile.TemporaryDirectory() as folder, (HERE / "igfold.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for error in ERRORS:
            sizes = bytes_of(sources, error, Path(folder))
            found = list(zip([path.stem for path in sources], differs, *sizes, strict=True))
            for name, differ, alone, together in [*found, ("all", max(differs), sum(sizes[0]), sum(sizes[1]))]:
                row = (name, f"{differ:.1f}", f"{100 * error:g}", alone, together)
                writer.writerow(row)
                sys.stdout.write("  ".join(f"{k} {v}" for k, v in zip(COLUMNS, row, strict=True)) + "\n")
                sys.stdout.flush()
            file.flush()


if __name__ == "__main__":
    main()
