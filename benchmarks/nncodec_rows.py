"""Run NNCodec (ISO/IEC 15938-17) on arrays for bench_codec.py, in its own environment, without softshare.

    python -m venv nncodec-env
    nncodec-env/bin/pip install --no-deps numpy==1.26.4 nncodec==2.1.3    # compiles C++

The argument is a JSON file `{"arrays": FILE.npz, "jobs": [{"settings": {...}, "sparsity": 0.5}, ...], "repeats": 3,
"clock": "perf_counter" or "process_time", "out": FOLDER}`. `settings` are arguments of `nncodec.nnc.compress`;
`sparsity`, if given, first zeroes weights by NNCodec's own rule until that share of the network is zero. The folder
gets `rows.json`, with a row per job (`n_bytes`, and lists of `repeats` values, `encode_s` and `decode_s`), and for each
job `K.npz`, what the bitstream decodes to.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import sys
import time
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, Any]  # name -> float32 or int32 array


def import_nnc() -> Any:
    """`nncodec.nnc` without its adapters to frameworks, which arrays do not need and which import torchvision."""
    adapters: Any = types.ModuleType("nncodec.framework")
    adapters.tensorflow_model = adapters.pytorch_model = adapters.use_case_init = None
    sys.modules["nncodec.framework"] = adapters
    return importlib.import_module("nncodec.nnc")


def sparsified(arrays: Arrays, sparsity: float, qp: int, qp_density: int) -> Arrays:
    """Zero weights as `nncodec.nn.encode(args={"sparsity": ...})` does. Its file is read by path, as above."""
    path = (
        Path(importlib.import_module("nncodec").__path__[0])
        / "framework"
        / "applications"
        / "utils"
        / "sparsification.py"
    )
    spec = importlib.util.spec_from_file_location("nncodec_sparsification", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"NNCodec {version('nncodec')}: expected its sparsification rules in {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.apply_unstruct_spars_v2(qp, arrays, target_sparsity=sparsity, qp_density=np.int32(qp_density)))


def run(nnc: Any, arrays: Arrays, job: dict[str, Any], repeats: int, clock: Any) -> tuple[dict[str, Any], Arrays]:
    settings = job["settings"]
    if job.get("sparsity"):
        arrays = sparsified(arrays, job["sparsity"], settings["qp"], settings.get("qp_density", 2))
    encode_s, decode_s = [], []
    for _ in range(repeats):
        start = clock()
        data = nnc.compress(dict(arrays), bitstream_path=None, return_bitstream=True, **settings)
        middle = clock()
        decoded = nnc.decompress(data)
        end = clock()
        encode_s.append(middle - start)
        decode_s.append(end - middle)
    return {"n_bytes": len(data), "encode_s": encode_s, "decode_s": decode_s}, decoded


def main(request_path: str) -> None:
    request = json.loads(Path(request_path).read_text())
    out = Path(request["out"])
    nnc = import_nnc()
    arrays = dict(np.load(request["arrays"]))
    rows = []
    for k, job in enumerate(request["jobs"]):
        with contextlib.redirect_stdout(io.StringIO()):  # NNCodec prints
            row, decoded = run(nnc, arrays, job, request["repeats"], getattr(time, request["clock"]))
        np.savez(out / f"{k}.npz", **decoded)
        rows.append(row)
    (out / "rows.json").write_text(json.dumps({"nncodec": version("nncodec"), "rows": rows}))


if __name__ == "__main__":
    main(sys.argv[1])
