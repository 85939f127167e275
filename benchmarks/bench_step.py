"""Measure the time of a training step (forward, backward, prior, Adam) with and without the prior; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import devices
import torch
from devices import console
from record import Results, RunRow, Timing
from rich import box
from rich.table import Table
from step_networks import NETWORKS, Network
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.config import CompressConfig, PriorConfig, RetrainConfig
from softshare.errors import SoftShareError
from softshare.network.weights import WeightView
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.captured import CapturedStep
from softshare.train.step import Step

Batch = tuple[Tensor, Tensor]  # images and labels
N_BATCHES = 4
WARM_UP = 20  # steps
ROUND_SECONDS, LEAST_STEPS, MOST_STEPS = 0.2, 5, 100  # of one variant per turn
TAU, N_EXAMPLES, LR_WEIGHTS = 0.05, 50_000, 1e-4
BASELINE, CAPTURED = "no prior", "captured, "


@dataclass(frozen=True)
class Variant:
    name: str
    prior: PriorConfig | None
    hard: bool = False
    captured: bool = False


@dataclass(eq=False)
class Runner:
    """A variant with its own network. All networks are equal at the start."""

    variant: Variant
    step: Step
    batches: Iterable[Batch]
    device: torch.device
    n_weights: int
    seconds: list[float] = dataclasses.field(default_factory=list)  # per step, one of each round
    peak_mib: float | None = None

    def run(self, steps: int) -> float:  # seconds per step
        devices.synchronize(self.device)
        start = time.perf_counter()
        for batch in itertools.islice(self.batches, steps):
            self.step.set(TAU, 0.0)  # with learning rates of 0, Adam does all its work, but the network stays the same
            self.step(batch)
        devices.synchronize(self.device)
        return (time.perf_counter() - start) / steps

    def warm_up(self) -> float:
        """Compile and capture, measure the memory of a step unless it is captured, and return its time."""
        self.run(WARM_UP)
        if not self.variant.captured:
            before = devices.allocated(self.device)
            self.run(1)
            self.peak_mib = devices.peak_mib(self.device, before)
        return self.run(5)

    @property
    def method(self) -> str:
        prior = self.step.prior
        return "" if prior is None else "table" if None not in prior.reaches else "exact"


def variants(network: Network, device: torch.device, patterns: str) -> list[Variant]:
    """The baseline, and those whose name matches one of the patterns."""
    default = PriorConfig()
    one = dataclasses.replace(CompressConfig.paper().prior, components=network.components, init_std=0.01)
    out = [
        Variant(BASELINE, None),
        Variant("prior, soft", default),
        Variant("prior, hard", default, hard=True),
        Variant("one mixture, soft", one),
        Variant("one mixture, hard", one, hard=True),
        Variant("one mixture, exact", dataclasses.replace(one, method="exact")),
        Variant("one mixture, table", dataclasses.replace(one, method="table")),
    ]
    if device.type == "cuda":
        out += [dataclasses.replace(v, name=CAPTURED + v.name, captured=True) for v in out]
    out.append(Variant("one mixture, sampled 1 in 10, block", dataclasses.replace(one, sample_one_in=10)))
    return [v for v in out if v.prior is None or any(fnmatchcase(v.name, p) for p in patterns.split(";"))]


def make_batches(network: Network, device: torch.device, memory: torch.memory_format) -> list[Batch]:
    random = torch.Generator(device).manual_seed(0)
    sizes = (network.batch_size, *network.shape)
    return [
        (
            torch.randn(sizes, generator=random, device=device).contiguous(memory_format=memory),
            torch.randint(network.classes, sizes[:1], generator=random, device=device),
        )
        for _ in range(N_BATCHES)
    ]


def make_runner(
    network: Network, variant: Variant, batches: list[Batch], device: torch.device, options: argparse.Namespace
) -> Runner:
    torch.manual_seed(0)
    with device:
        model = network.make()
    model.to(memory_format=memory_format(options))  # type: ignore[call-overload]
    forward = torch.compile(model) if options.compile else model
    low_precision = in_bfloat16(network, device, options)

    def loss(_: nn.Module, batch: Batch) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=low_precision):
            logits: Tensor = forward(batch[0])
        return F.cross_entropy(logits.float(), batch[1])

    task = Task(model, batches, loss, lambda _: 0.0, N_EXAMPLES, name=network.name)
    prior = MixturePrior(model, variant.prior) if variant.prior else None
    step = (CapturedStep if variant.captured else Step)(task, prior, RetrainConfig(lr_weights=LR_WEIGHTS))
    step.hard = variant.hard
    return Runner(variant, step, itertools.cycle(batches), device, WeightView.of(model).n_weights)


def in_bfloat16(network: Network, device: torch.device, options: argparse.Namespace) -> bool:
    return device.type == "cuda" and network.bfloat16 and not options.float32


def memory_format(options: argparse.Namespace) -> torch.memory_format:
    return torch.channels_last if options.channels_last else torch.contiguous_format


def run_network(
    network: Network, results: Results[RunRow], device: torch.device, options: argparse.Namespace
) -> list[RunRow]:
    torch.backends.cudnn.benchmark = not network.on_cpu
    batches = make_batches(network, device, memory_format(options))
    runners: list[Runner] = []
    fastest = math.inf
    for variant in variants(network, device, options.variants):
        try:
            runner = make_runner(network, variant, batches, device, options)
            fastest = min(fastest, runner.warm_up())
            runners.append(runner)
        except SoftShareError as reason:
            devices.skipped(network.name, variant.name, reason)
    steps = min(MOST_STEPS, max(LEAST_STEPS, round(ROUND_SECONDS / fastest)))
    for k in range(options.rounds):
        first = k % len(runners)  # drift affects all alike, and none always follows the same one
        for runner in runners[first:] + runners[:first]:
            runner.seconds.append(runner.run(steps))
    rows = [row_of(runner, runners, network, steps, options) for runner in runners]
    for row in rows:
        results.append(row)
    return rows


def row_of(runner: Runner, runners: list[Runner], network: Network, steps: int, options: argparse.Namespace) -> RunRow:
    variant, device = runner.variant, runner.device
    base_name = CAPTURED + BASELINE if variant.captured else BASELINE
    base = next(other for other in runners if other.variant.name == base_name)
    pairs = zip(runner.seconds, base.seconds, strict=True)
    overhead = 100 * (statistics.median([own / other for own, other in pairs]) - 1)
    extra = None if runner.peak_mib is None or base.peak_mib is None else runner.peak_mib - base.peak_mib
    note = [f"by {runner.method}"] if runner.method else []
    note += [f"batch {network.batch_size}", f"{options.rounds} rounds of {steps} steps"]
    note += ["bfloat16"] if in_bfloat16(network, device, options) else []
    note += ["channels last"] if options.channels_last else []
    note += ["torch.compile"] if options.compile else []
    return RunRow(
        benchmark="step",
        case=network.name,
        n_weights=runner.n_weights,
        method=variant.name,
        device=devices.name_of(device),
        run=Timing.of(runner.seconds),
        threads=devices.threads_of(device),
        components=variant.prior.components + 1 if variant.prior else None,
        extra_mib=None if runner is base else extra,
        overhead_percent=None if runner is base else overhead,
        note=", ".join(note),
    )


def table_of(rows: list[RunRow]) -> Table:
    title = f"{rows[0].case}: {rows[0].n_weights:,} weights, {rows[0].note}"
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    out.add_column("variant", no_wrap=True)
    for name in ("step ms", "p20", "p80", "steps / s", "overhead %", "MiB"):
        out.add_column(name, justify="right", no_wrap=True)
    out.add_column("method")
    for row in rows:
        ms = (f"{t:,.3f}" for t in (row.run.median, row.run.p20, row.run.p80))
        overhead = "" if row.overhead_percent is None else f"{row.overhead_percent:+.1f}"
        mib = "" if row.extra_mib is None else f"{row.extra_mib:,.1f}"
        how = row.note.partition(",")[0] if row.components else ""
        out.add_row(row.method, *ms, f"{1e3 / row.run.median:,.0f}", overhead, mib, how)
    return out


def wanted(only: str, device: torch.device) -> list[Network]:
    found = [n for n in NETWORKS if only == n.name or (not only and (n.on_cpu or device.type == "cuda"))]
    if not found:
        raise SystemExit(f"--only: expected one of {', '.join(n.name for n in NETWORKS)}, got {only!r}")
    if only == "vgg-16" and device.type != "cuda":
        raise SystemExit("vgg-16 is measured on a GPU only")
    return found


def main() -> None:
    parser = devices.parser_of(__doc__)
    parser.add_argument("--only", default="", metavar="NAME", help=", ".join(n.name for n in NETWORKS))
    parser.add_argument("--variants", default="*", metavar="PATTERNS", help="names or patterns, separated by ';'")
    parser.add_argument("--rounds", type=int, default=15, help="number of turns of each variant")
    parser.add_argument("--float32", action="store_true", help="no network in bfloat16")
    parser.add_argument("--compile", action="store_true", help="the network under torch.compile")
    parser.add_argument("--channels-last", action="store_true", help="network and images in that memory format")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: expected at least 1")
    device = devices.pick(options.device)
    networks = wanted(options.only, device)
    if options.compile:
        torch._dynamo.config.recompile_limit = 64  # each variant compiles the same code for its own network
    results = Results[RunRow](options.out)
    console.print(f"run {results.run_id}, {devices.name_of(device)}, rows appended to {options.out}")
    for network in networks:
        console.print(table_of(run_network(network, results, device, options)))
        devices.release(device)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
