"""Compare NNCodec with softshare: bytes at an equal test error, on the zoo's networks.

NNCodec codes (a) the float network that ours was made from, without training, as NNCodec is mostly used; and (b) the
quantized network of our file, so that only the coding differs. Of many settings, the smallest bitstream with a test
error not above that of our file counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from cases import network_name
from record import Row, Timing
from safetensors.torch import load_file
from torch import nn

from softshare.codec import decode
from softshare.quantization.description_length import entropy_bits
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.result import final_error, load_copy
from softshare.task import Task
from softshare.zoo.datasets import Split, load_mnist
from softshare.zoo.experiments import EXPERIMENTS, make_task

Array = npt.NDArray[Any]
HERE = Path(__file__).parent
INSTALL = "python -m venv ENV && ENV/bin/pip install --no-deps numpy==1.26.4 nncodec==2.1.3"

CODEBOOK_BYTES = 2  # per value, as float16 like our file: the integers alone do not make a network
# A step is about 2 ** (qp / 4): 1/64 to 1/3 for the float network, 1/256 to 1/8 for the values of our codebook.
FLOAT_QPS, FLOAT_NONWEIGHT_QPS, FLOAT_SPARSITIES = range(-24, -5), (-24, -16), (0.0, 0.5, 0.7, 0.8, 0.9)
CODEBOOK_QPS, DEPENDENT_QPS = range(-32, -11, 2), range(-32, -11, 4)
TIMED = 5  # runs of the chosen settings
STEP = 500  # test images at a time; it divides their number


@dataclass(frozen=True)
class Job:
    key: str  # "float", "quantized" or "integer"
    settings: dict[str, Any]
    sparsity: float = 0.0

    def __str__(self) -> str:
        settings = self.settings | ({"sparsity": self.sparsity} if self.sparsity else {})
        return self.key + ": " + (", ".join(f"{k}={v}" for k, v in settings.items()) or "defaults")


def jobs(with_float: bool, quick: bool) -> list[Job]:
    integer = [
        Job("integer", {"scan_order": scan, "row_skipping": skip, "cabac_unary_length_minus1": unary})
        for scan, skip, unary in itertools.product(range(5), (False, True), (4, 10))
    ]
    codebook = [Job("quantized", _uniform(qp, qp, use_dq=False, codebook_mode=1)) for qp in CODEBOOK_QPS]
    dependent = [Job("quantized", _uniform(qp, qp)) for qp in DEPENDENT_QPS]
    of_float = [
        Job("float", _uniform(qp, other), sparsity)
        for qp, other, sparsity in itertools.product(FLOAT_QPS, FLOAT_NONWEIGHT_QPS, FLOAT_SPARSITIES)
    ]
    if quick:
        codebook, dependent, of_float = codebook[::5], dependent[:1], of_float[::9]
    return integer + codebook + dependent + (of_float if with_float else [])


def _uniform(qp: int, nonweight_qp: int, **others: Any) -> dict[str, Any]:
    return {"qp": qp, "nonweight_qp": nonweight_qp, "row_skipping": True, **others}


def compare(path: Path, python: str, quick: bool) -> tuple[list[Row], list[str]]:
    """Rows for one file, and messages about what was left out."""
    quantized = decode(path.read_bytes())
    task = _task(quantized)
    if task is None:
        return [_without_loss(path, quantized, python)], [
            f"{path}: NNCodec without loss alone: not a network of the zoo with all tensors shared, or no data for it"
        ]
    of_float = _float_network(path)
    arrays = {
        "quantized": {name: t.numpy() for name, t in quantized.state_dict().items()},
        "integer": {t.name: _signed_ranks(t) for t in quantized.shared},
    }
    if of_float is not None:
        arrays["float"] = {name: t.float().numpy() for name, t in of_float.items()}

    ours = _error(task, quantized.state_dict())
    entropy = entropy_bits(quantized) / 8

    def row(method: str, n_bytes: int, error: float, note: str) -> Row:
        n, nonzero, name = quantized.n_shared, quantized.n_nonzero, network_name(path)
        return Row("nncodec", name, n, nonzero, entropy, method, n_bytes, error=error, note=note)

    out = [row("softshare file", path.stat().st_size, ours, "whole file")]
    if of_float is not None:
        error = _error(task, of_float)
        out.append(row("float32", sum(4 * t.numel() for t in of_float.values()), error, "before compression"))
    todo = jobs(of_float is not None, quick)
    for key in arrays:
        kind = [job for job in todo if job.key == key]
        job, error, note = _best(python, arrays[key], kind, quantized, task, ours)
        with tempfile.TemporaryDirectory() as folder:
            version, (best,) = _run(python, arrays[key], [job], TIMED, Path(folder), "process_time")
        encoding, decoding = Timing.of(best["encode_s"]), Timing.of(best["decode_s"])
        n_bytes = best["n_bytes"] + (_codebook_bytes(quantized) if key == "integer" else 0)
        measured = row(f"nncodec {key}", n_bytes, error, f"NNCodec {version}; {note}; processor time")
        out.append(dataclasses.replace(measured, encode=encoding, decode=decoding))
    without = [f"{path}: NNCodec on the float network skipped: no {path.stem}.safetensors beside it"]
    return out, without if of_float is None else []


def _without_loss(path: Path, quantized: QuantizedWeights, python: str) -> Row:
    n_bytes, encoding, decoding, note = same_indices(quantized, python)
    entropy = entropy_bits(quantized) / 8
    blank = Row("nncodec", network_name(path), quantized.n_shared, quantized.n_nonzero, entropy, "", n_bytes)
    return dataclasses.replace(blank, method="nncodec integer", encode=encoding, decode=decoding, note=note)


def same_indices(quantized: QuantizedWeights, python: str) -> tuple[int, Timing, Timing, str]:
    """Bytes with the codebooks, the processor time to encode and to decode, and a note: its smallest lossless form."""
    ranks = {t.name: _signed_ranks(t) for t in quantized.shared}
    todo = [job for job in jobs(False, True) if job.key == "integer"]
    with tempfile.TemporaryDirectory() as folder:
        _, rows = _run(python, ranks, todo, 1, Path(folder))
    chosen = min(range(len(todo)), key=lambda k: rows[k]["n_bytes"])
    with tempfile.TemporaryDirectory() as folder:
        version, (row,) = _run(python, ranks, [todo[chosen]], TIMED, Path(folder), "process_time")
        found = np.load(Path(folder) / "0.npz")
        for name, given in ranks.items():
            if not np.array_equal(found[name], given):
                raise SystemExit(f"NNCodec: {name} does not decode to what was coded")
    note = f"NNCodec {version}; best of {len(todo)} settings; {todo[chosen]}; processor time"
    n_bytes = row["n_bytes"] + _codebook_bytes(quantized)
    return n_bytes, Timing.of(row["encode_s"]), Timing.of(row["decode_s"]), note


def _best(
    python: str, arrays: dict[str, Array], kind: list[Job], quantized: QuantizedWeights, task: Task, ours: float
) -> tuple[Job, float, str]:
    """The smallest bitstream with an error not above ours; if none has, the one with the least error."""

    def model(k: int) -> nn.Module:
        decoded = dict(np.load(Path(folder) / f"{k}.npz"))
        if kind[k].key == "integer":
            decoded = {t.name: _from_ranks(decoded[t.name], t) for t in quantized.shared}
        return load_copy(task.model, {name: torch.from_numpy(a) for name, a in decoded.items()})

    rates: dict[int, float] = {}
    _, _, test = load_mnist()
    with tempfile.TemporaryDirectory() as folder:
        _, rows = _run(python, arrays, kind, 1, Path(folder))
        for k in sorted(range(len(kind)), key=lambda k: rows[k]["n_bytes"]):
            rates[k] = _rate(model(k), test, ours)
            if rates[k] <= ours:
                return kind[k], final_error(task, model(k)), f"best of {len(kind)} settings; {kind[k]}"
        k = min(rates, key=lambda k: rates[k])
        error = final_error(task, model(k))
    return kind[k], error, f"none of {len(kind)} settings had an error of at most {ours:g}%; {kind[k]}"


@torch.no_grad()
def _rate(model: nn.Module, test: Split, limit: float) -> float:
    """Error in percent. It stops early, with the error so far, once the limit must be exceeded."""
    wrong = 0
    for seen in range(STEP, len(test) + 1, STEP):
        batch = test[torch.arange(seen - STEP, seen)]
        wrong += int((model(batch.images).argmax(1) != batch.labels).sum())
        if 100 * wrong > limit * len(test):
            break
    return 100 * wrong / seen


def _codebook_bytes(quantized: QuantizedWeights) -> int:
    return CODEBOOK_BYTES * (quantized.n_components - 1)


def _run(
    python: str, arrays: dict[str, Array], todo: list[Job], repeats: int, folder: Path, clock: str = "perf_counter"
) -> tuple[str, list[dict[str, Any]]]:
    np.savez(folder / "arrays.npz", **arrays)  # type: ignore[arg-type]
    request = {
        "arrays": str(folder / "arrays.npz"),
        "jobs": [{"settings": j.settings, "sparsity": j.sparsity} for j in todo],
        "repeats": repeats,
        "clock": clock,
        "out": str(folder),
    }
    (folder / "request.json").write_text(json.dumps(request))
    subprocess.run([python, str(HERE / "nncodec_rows.py"), str(folder / "request.json")], check=True)
    answer = json.loads((folder / "rows.json").read_text())
    return answer["nncodec"], answer["rows"]


def _task(quantized: QuantizedWeights) -> Task | None:
    """The experiment whose network has these tensors, all shared."""
    shapes = {t.name: t.shape for t in quantized.shared}
    for name, experiment in EXPERIMENTS.items():
        state = experiment.make_model().state_dict()
        if experiment.dataset == "MNIST" and {k: tuple(t.shape) for k, t in state.items()} == shapes:
            return make_task(name)
    return None


def _float_network(path: Path) -> dict[str, torch.Tensor] | None:
    """`NAME.safetensors` beside `NAME.sws`, or `pretrained.safetensors` in the folder of a run."""
    for other in (path.with_suffix(".safetensors"), path.parent / "pretrained.safetensors"):
        if other.exists():
            return dict(load_file(other))
    return None


def _error(task: Task, state: dict[str, torch.Tensor]) -> float:
    return final_error(task, load_copy(task.model, state))


def _ranks(t: QuantizedTensor) -> npt.NDArray[np.int32]:
    """The rank of each index's value, counted from zero: negative for negative values."""
    rank = np.argsort(np.argsort(t.codebook.numpy()))
    return np.asarray(rank - rank[0], np.int32)


def _signed_ranks(t: QuantizedTensor) -> Array:
    """The weights as ranks: NNCodec codes integers without loss, and small magnitudes best."""
    ranks: Array = _ranks(t)[t.indices.numpy()].reshape(t.shape)
    return ranks


def _from_ranks(ranks: Array, t: QuantizedTensor) -> Array:
    of_index = _ranks(t)
    values = np.zeros(len(of_index), np.float32)
    values[of_index - of_index.min()] = t.codebook.numpy()
    dense: Array = values[ranks - of_index.min()]
    return dense
