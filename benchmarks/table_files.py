"""Does retraining with the table, or on a sample of the weights, give the same files? Writes a row per seed and way.

    python benchmarks/table_files.py --seeds 0-19 --ways 'exact;table'        # 20 networks, a GPU: about 3 minutes

The rows are appended to table_files.csv; README.md draws the conclusion.
"""

from __future__ import annotations

import argparse
import copy
import csv
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

import softshare as ss
from softshare.zoo.experiments import get_experiment, make_task, pretrain_

WAYS = {
    "exact": {"method": "exact"},
    "table": {"method": "table"},
    "block, 1 in 10": {"method": "exact", "sample_one_in": 10},
}
COLUMNS = ["experiment", "device", "seed", "way", "error_before", "error_after", "file_bytes"]


def rows(experiment: str, device: str, seeds: list[int], ways: list[str]) -> Iterator[dict[str, object]]:
    setting = get_experiment(experiment)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    for seed in seeds:
        task = make_task(experiment, device, seed)
        capture = device == "cuda"
        pretrain_(task, dataclasses.replace(setting.pretrain, seed=seed, capture=capture))
        assert task.test is not None
        before = task.test(task.model.eval())
        for way in ways:
            captured = capture and "sample_one_in" not in WAYS[way]
            config = setting.compress.override(seed=seed, capture=captured, **WAYS[way])
            compressed = ss.compress(task, config, target=None)
            fresh = copy.deepcopy(task.model)
            fresh.load_state_dict(compressed.state_dict())
            after, size = task.test(fresh.eval()), len(compressed.to_bytes())
            Console().print(f"seed {seed:3d}  {way:16s} {before:.2f} -> {after:.2f}%  {size:6d} bytes", highlight=False)
            values = (experiment, name, seed, way, f"{before:.2f}", f"{after:.2f}", size)
            yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="lenet-300-100")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", default="0-4", help="first-last")
    parser.add_argument("--ways", default="exact;table", help="; ".join(WAYS))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("table_files.csv"))
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = list(range(int(first), int(last or first) + 1))
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        for row in rows(options.experiment, options.device, seeds, options.ways.split(";")):
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
