"""Measure bytes and speed of the codecs and of their rivals: bench_codec.py [MODEL.sws ...]; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import cases
import memory
import nncodec_compare
import rivals
import torch
from record import Budget, Results, Row, timed
from rich.console import Console
from rich.table import Table

from softshare.codec import decode, encode, inspect, load
from softshare.config import EncodeConfig
from softshare.config.stages import Codec
from softshare.quantization.description_length import entropy_bits
from softshare.quantization.quantized import QuantizedWeights

HERE = Path(__file__).parent
KEPT = HERE.parent / "results" / "wrn-16-4"  # convolutions with real local structure
HAN_LIMIT = 10_000_000  # weights: 'han' is slow
PEAK_FROM = 10_000_000  # weights: memory is measured from here on
CPUS = os.cpu_count() or 1
QUICK = Budget(0.1, least=1)
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def skipped(case: str, method: str, reason: object) -> None:
    console.print(f"[yellow]{case}: {method} skipped: {reason}")


def own_rows(case: cases.Case, weights: QuantizedWeights, blank: Row, budget: Budget) -> Iterable[Row]:
    for codec in ("adaptive", "han"):
        if codec == "han" and case.n_weights > HAN_LIMIT:
            skipped(case.name, codec, f"more than {HAN_LIMIT:,} weights")
            continue
        for threads in (1, CPUS) if len(weights.shared) > 1 and case.n_weights > 1e6 and CPUS > 1 else (1,):
            yield own_row(weights, codec, threads, blank, budget)


def own_row(weights: QuantizedWeights, codec: Codec, threads: int, blank: Row, budget: Budget) -> Row:
    config, clock = EncodeConfig(codec=codec), time.process_time if threads == 1 else time.perf_counter
    data, encoding = timed(lambda: encode(weights, config, threads=threads), budget, clock)
    decoded, decoding = timed(lambda: decode(data, threads=threads), budget, clock)
    same = all(torch.equal(a.indices, b.indices) for a, b in zip(weights.shared, decoded.shared, strict=True))
    if not same:
        raise SystemExit(f"{blank.case}: {codec} does not decode to what was coded")
    del decoded
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.sws"
        path.write_bytes(data)
        _, loading = timed(lambda: load(path, threads=threads), budget, clock)
    peaks = memory.peaks(weights, data, config, threads) if weights.n_shared >= PEAK_FROM else (None, None)
    return dataclasses.replace(
        blank,
        method=codec,
        n_bytes=len(data),
        threads=threads,
        encode=encoding,
        decode=decoding,
        load=loading,
        encode_peak_mib=peaks[0],
        decode_peak_mib=peaks[1],
        note=f"whole file, {inspect(data).overhead_bytes} bytes of it header, names, codebook and checksum"
        + ("; processor time" if threads == 1 else ""),
    )


def rival_rows(case: cases.Case, weights: QuantizedWeights, blank: Row, budget: Budget) -> Iterable[Row]:
    makers: dict[str, Callable[[], rivals.Rival]] = {"static range": lambda: rivals.static_range(weights)}
    makers |= {name: lambda name=name: rivals.general(name, weights) for name in rivals.compressors()}  # type: ignore[misc]
    for name, make in makers.items():
        try:
            rival = make()
        except rivals.SkippedError as reason:
            skipped(case.name, name, reason)
            continue
        coded, encoding = timed(rival.encode, budget, time.process_time)
        decoded, decoding = timed(lambda rival=rival, coded=coded: rival.decode(coded), budget, time.process_time)  # type: ignore[misc]
        if not rival.same(decoded):
            raise SystemExit(f"{case.name}: {name} does not decode to what was coded")
        n_bytes = rival.n_bytes(coded)
        yield dataclasses.replace(
            blank, method=name, n_bytes=n_bytes, encode=encoding, decode=decoding, note=f"{rival.note}; processor time"
        )


def run_case(case: cases.Case, results: Results[Row], budget: Budget) -> None:
    weights = case.make()
    order0 = entropy_bits(weights) / 8
    blank = Row("codec", case.name, case.n_weights, weights.n_nonzero, order0, "order-0 entropy", order0)
    first = len(results.rows)
    results.append(dataclasses.replace(blank, note="ideal; codebook and model not counted"))
    for rows in (own_rows(case, weights, blank, budget), rival_rows(case, weights, blank, budget)):
        for row in rows:
            results.append(row)
    title = f"{case.name}: {case.n_weights:,} weights, {weights.n_nonzero / case.n_weights:.2%} not zero"
    console.print(table(title, results.rows[first:]))


def table(title: str, rows: list[Row]) -> Table:
    with_error = any(row.error is not None for row in rows)
    out = Table(title=title, title_justify="left")
    out.add_column("method")
    columns = ["bytes", "/ order 0", "encode M/s", "decode M/s", "load M/s", "MiB enc, dec"]
    for name in (*columns, "error %") if with_error else columns:
        out.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        speeds = [f"{t.mw_s(row.n_weights):,.1f}" if t else "" for t in (row.encode, row.decode, row.load)]
        peak = "" if row.encode_peak_mib is None else f"{row.encode_peak_mib:,.0f}, {row.decode_peak_mib:,.0f}"
        method = row.method + (f", {row.threads} threads" if row.threads > 1 else "")
        cells = [method, f"{row.n_bytes:,.0f}", f"{row.n_bytes / row.order0_bytes:.3f}", *speeds, peak]
        out.add_row(*cells, *([f"{row.error:.2f}"] if with_error else []))
    return out


def run_nncodec(paths: list[Path], python: str | None, quick: bool, results: Results[Row]) -> None:
    if not python:
        reason = f"it needs its own environment ({nncodec_compare.INSTALL}); give the interpreter by "
        skipped("networks", "NNCodec", reason + "--nncodec-python or SOFTSHARE_NNCODEC_PYTHON")
        return
    for path in paths:
        rows, messages = nncodec_compare.compare(path, python, quick)
        for row in rows:
            results.append(row)
        for message in messages:
            console.print(f"[yellow]{message}")
        if rows:
            what = "without loss" if rows[0].error is None else "bytes at an error not above our file's"
            console.print(table(f"{rows[0].case}: {what}", rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", type=Path, help="'.sws' files; default: benchmarks/networks/*.sws")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="under a minute: synthetic tensors of 0.25 M weights only, fewer repetitions",
    )
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="CSV file that rows are appended to")
    parser.add_argument("--nncodec-python", help="interpreter of an environment with NNCodec")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    paths = options.networks or sorted((HERE / "networks").glob("*.sws"))
    if not paths:
        console.print(f"[yellow]no networks: give .sws files, or put them in {HERE.name}/networks")
    torch.set_num_threads(1)
    results = Results[Row](options.out)
    console.print(f"run {results.run_id}, {CPUS} processors, rows appended to {options.out}")

    warm_up = cases.synthetic("", memory.WARM_UP, 0.02, False).make()
    for codec in ("adaptive", "han"):
        decode(encode(warm_up, EncodeConfig(codec=codec), threads=1), threads=1)
    gc.freeze()  # garbage collection before each measurement skips imported and compiled code
    kept = [] if options.networks or options.quick else sorted(KEPT.glob("softshare-*/seed-0/model.sws"))
    todo = (
        [cases.network(path) for path in [*paths, *kept]]
        + cases.small(options.quick)
        + ([] if options.quick else cases.large())
    )
    for case in todo:
        if options.only in case.name:
            run_case(case, results, QUICK if options.quick else Budget())
    wanted = [path for path in [*paths, *kept] if options.only in cases.network_name(path)]
    run_nncodec(wanted, options.nncodec_python or os.environ.get("SOFTSHARE_NNCODEC_PYTHON"), options.quick, results)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
