"""Measure the time of the prior's loss and all its gradients, by every method; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import devices
import torch
from devices import Run, console
from record import Budget, Results, RunRow, Timing
from rich import box
from rich.table import Table
from torch import Tensor

from softshare.errors import NotAvailableError
from softshare.prior.kernels import find_sweep, mixture_nll_ref, sampled
from softshare.prior.kernels.choice import available_backends
from softshare.prior.kernels.sweep import Sweep, sweep_torch
from softshare.prior.kernels.table import reach_of

MILLIONS, COMPONENTS = (0.27, 2.7, 25.6, 138.0), (5, 17, 65)
CPU_LIMIT = 2.7  # million weights
PLAIN_ARRAYS = 6  # of N x J floats that plain PyTorch needs at its peak
SUBSET = 100_000  # weights on which errors are measured
WARM_UP, WARM_UP_SAMPLED = 3, 20  # a sample begins anywhere, and each alignment compiles a kernel
BUDGETS = {"cpu": Budget(), "cuda": Budget(0.4, least=10, most=100)}
QUICK = Budget(0.1, least=3)


class Mixture(NamedTuple):
    log_mixing: Tensor  # (J,)
    mean: Tensor  # (J,)
    log_var: Tensor  # (J,)

    @classmethod
    def of(cls, components: int, device: torch.device) -> Mixture:
        """A mixture as after training: zero is narrow and has 0.99; the others lie evenly over [-0.8, 0.8]."""
        free = components - 1
        std = torch.tensor([0.005] + [0.03] * free)
        mean = torch.cat([torch.zeros(1), torch.linspace(-0.8, 0.8, free)])
        log_mixing = torch.tensor([0.99] + [0.01 / free] * free).log()
        return cls(log_mixing.to(device), mean.to(device), (2 * std.log()).to(device))

    def weights(self, n: int) -> Tensor:  # (n,)
        """Draw 95% of the weights around zero and the rest around the other means, in no order."""
        device, free = self.mean.device, len(self.mean) - 1
        random = torch.Generator(device).manual_seed(0)
        w = 0.03 * torch.randn(n, generator=random, device=device)
        w += self.mean[1:][torch.randint(free, (n,), generator=random, device=device)]
        at_zero = torch.rand(n, generator=random, device=device) < 0.95
        return torch.where(at_zero, 0.005 * torch.randn(n, generator=random, device=device), w)


@dataclass(frozen=True)
class Method:
    name: str
    prepare: Callable[[], Run]  # makes the buffers and returns what is timed
    capture: bool = False  # on a GPU, also replay it from a graph
    n_arrays: int = 0  # of N x J floats that it needs
    warm_up: int = WARM_UP
    may_fail: bool = False
    score: Callable[[Tensor], tuple[Tensor, Tensor]] | None = (
        None  # weights -> loss, score: to measure the error of both
    )


def methods(w: Tensor, mixture: Mixture) -> Iterable[Method]:
    def plain() -> Run:
        return autograd(w, mixture, mixture_nll_ref)

    def compiled() -> Run:
        torch.compiler.reset()  # otherwise it gives up after some sizes and runs the plain function
        return autograd(w, mixture, torch.compile(mixture_nll_ref, dynamic=False))

    def copy() -> Run:
        grad = torch.empty_like(w)
        return lambda: grad.copy_(w)

    def filled(sweep: Sweep) -> Run:
        grad = torch.empty_like(w)
        return lambda: sweep([w], *mixture, [grad])

    def added(sweep: Sweep) -> Run:
        grad, scale = torch.zeros_like(w), w.new_full((), 1e-6)
        return lambda: sweep([w], *mixture, [grad], scale)

    def score_of(sweep: Sweep) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        return lambda part: swept(sweep, part, mixture)

    exact = find_sweep(mixture.mean)
    yield Method("copy", copy, capture=True)
    yield Method("plain", plain, n_arrays=PLAIN_ARRAYS, score=lambda part: plain_score(part, mixture))
    yield Method("torch.compile", compiled, n_arrays=PLAIN_ARRAYS, may_fail=True)
    yield Method("exact", lambda: filled(exact), capture=True, score=score_of(exact))
    try:
        table = find_sweep(mixture.mean, reach=reach_of(float(w.abs().max())))
        yield Method("table", lambda: filled(table), capture=True, score=score_of(table))
    except NotAvailableError as reason:
        devices.skipped("prior", "table", reason)
    yield Method("exact, sampled 1 in 10, block", lambda: added(sampled(exact, 10)), warm_up=WARM_UP_SAMPLED)


def autograd(w: Tensor, mixture: Mixture, loss: Callable[..., Tensor]) -> Run:
    leaves = [t.detach().requires_grad_() for t in (w, *mixture)]
    return lambda: torch.autograd.grad(loss(leaves[:1], *leaves[1:]), leaves)


def swept(sweep: Sweep, w: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    score = torch.empty_like(w)
    return sweep([w], *mixture, [score])[0], score


def plain_score(w: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    w = w.detach().requires_grad_()
    loss = mixture_nll_ref([w], *mixture)
    return loss.detach(), torch.autograd.grad(loss, w)[0]


def errors(method: Method, w: Tensor, mixture: Mixture) -> tuple[float | None, float | None]:
    """Errors against float64: the largest of a score, times the smallest std, and the relative one of the loss."""
    if method.score is None:
        return None, None
    part = w[:SUBSET].clone()
    true_loss, true_score = swept(sweep_torch, part.double(), Mixture(*(t.double() for t in mixture)))
    loss, score = method.score(part)
    smallest = math.exp(0.5 * float(mixture.log_var.min()))
    return float((score - true_score).abs().max()) * smallest, abs(float(loss) / float(true_loss) - 1)


def measure(method: Method, device: torch.device, budget: Budget) -> tuple[list[tuple[str, Timing]], float | None]:
    """The suffix of the name and the time, as launched and as replayed if that is possible; then the MiB."""
    before = devices.allocated(device)
    run = method.prepare()
    for _ in range(method.warm_up):
        run()
    devices.allocated(device)  # compiling may have taken more than running does
    run()
    mib = devices.peak_mib(device, before)  # with its buffers, and the gradient among them
    times = [(", eager" if device.type == "cuda" else "", devices.clock(run, device, budget))]
    if method.capture and device.type == "cuda":
        times.append((", captured", devices.clock(devices.captured(run), device, budget, queued=True)))
    return times, mib


def does_not_fit(method: Method, w: Tensor, mixture: Mixture) -> str:
    needed, free = method.n_arrays * 4 * len(w) * len(mixture.mean), devices.free_bytes(w.device)
    if free is None or needed <= free:
        return ""
    return f"it would need about {needed / 2**30:,.0f} GiB, {free / 2**30:,.0f} are free"


def run_case(n: int, components: int, results: Results[RunRow], device: torch.device, budget: Budget) -> None:
    mixture = Mixture.of(components, device)
    w = mixture.weights(n)
    case = f"{n / 1e6:g}M x {components}"
    blank = RunRow("mixture", case, n, "", devices.name_of(device), Timing(0, 0, 0), devices.threads_of(device))
    blank = dataclasses.replace(blank, components=components)
    medians: dict[str, float] = {}
    for method in methods(w, mixture):
        devices.release(device)
        reason = does_not_fit(method, w, mixture)
        try:
            times, mib = ([], None) if reason else measure(method, device, budget)
        except torch.OutOfMemoryError:
            times, reason = [], "out of memory"
        except RuntimeError as problem:
            if not method.may_fail:
                raise
            times, reason = [], f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}"
        if reason:
            devices.skipped(case, method.name, reason)
            continue
        score_error, loss_error = errors(method, w, mixture)
        text = note(method, w, mixture)
        for suffix, timing in times:
            medians[method.name + suffix] = timing.median
            row = dataclasses.replace(
                blank,
                method=method.name + suffix,
                run=timing,
                extra_mib=None if suffix == ", captured" else mib,
                ratio_to_plain=ratio(timing, medians.get("plain, eager", medians.get("plain"))),
                ratio_to_copy=ratio(timing, medians.get("copy" + suffix)),
                score_error=score_error,
                loss_error=loss_error,
                note=text,
            )
            results.append(row)
    console.print(f"{case} done")


def ratio(timing: Timing, other: float | None) -> float | None:
    return None if other is None else timing.median / other


def note(method: Method, w: Tensor, mixture: Mixture) -> str:
    """The backend. For the table also the error of the loss, because on a GPU it counts only a part of the weights."""
    if method.name not in ("exact", "table") and "sampled" not in method.name:
        return ""
    backend = available_backends(mixture.mean)[0]
    if method.name != "table" or method.score is None:
        return backend
    true_loss = float(swept(find_sweep(mixture.mean), w, mixture)[0])
    return f"{backend}; loss of all weights off by {abs(float(method.score(w)[0]) / true_loss - 1):.1e} of exact"


def table_of(title: str, rows: list[RunRow]) -> Table:
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    out.add_column("weights x J")
    out.add_column("method", no_wrap=True)
    for name in ("ms", "p20", "p80", "/ plain", "/ copy", "MiB", "score error", "loss error"):
        out.add_column(name, justify="right", no_wrap=True)
    case = ""
    for row in rows:
        ms = (f"{t:,.3f}" for t in (row.run.median, row.run.p20, row.run.p80))
        ratios = (f"{r:.3g}" if r is not None else "" for r in (row.ratio_to_plain, row.ratio_to_copy))
        mib = "" if row.extra_mib is None else f"{row.extra_mib:,.1f}"
        wrong = (f"{e:.1e}" if e is not None else "" for e in (row.score_error, row.loss_error))
        out.add_row(row.case if row.case != case else "", row.method, *ms, *ratios, mib, *wrong)
        case = row.case
    return out


def a_case(text: str) -> tuple[float, int]:
    millions, _, components = text.partition(",")
    try:
        case = float(millions), int(components)
    except ValueError:
        case = (0.0, 0)
    if case[0] * 1e6 < 1 or case[1] < 2:
        raise argparse.ArgumentTypeError(f"expected million weights and components, as in 2.7,17, got {text!r}")
    return case


def main() -> None:
    parser = devices.parser_of(__doc__)
    parser.add_argument("--only", type=a_case, action="append", metavar="N,J", help="million weights and components")
    parser.add_argument("--full", action="store_true", help=f"on a CPU: more than {CPU_LIMIT} M weights too")
    parser.add_argument("--quick", action="store_true", help="the smallest number of weights only, fewer repetitions")
    options = parser.parse_args()
    device = devices.pick(options.device)
    results = Results[RunRow](options.out)
    console.print(f"run {results.run_id}, {devices.name_of(device)}, rows appended to {options.out}")
    most = MILLIONS[0] if options.quick else MILLIONS[-1] if options.full or device.type == "cuda" else CPU_LIMIT
    todo = options.only or [(n, j) for n in MILLIONS if n <= most for j in COMPONENTS]
    for millions, components in todo:
        run_case(round(1e6 * millions), components, results, device, QUICK if options.quick else BUDGETS[device.type])
    console.print(table_of("Loss and all gradients of the prior", results.rows))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
