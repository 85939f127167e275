"""What `distributed.py` runs in each of several processes, and in one process for comparison."""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import softshare as ss
from softshare.distributed.group import world
from softshare.distributed.shards import local
from softshare.distributed.wrap import shard_
from softshare.train.curvature import Curvature
from softshare.train.zeroing import spare_bits_
from softshare.zoo.datasets import load_mnist
from softshare.zoo.models import LeNet300100

STEPS, BATCH, TAU, PRICE, RATE = 200, 64, 1e-4, 1e-8, 3e-4
PRETRAINED = 300  # steps
PRIOR = {"zero_mixing": 0.5, "lr_means": 1e-4}  # gentle: a short run must not ruin the network
WIDTH = 2048  # of the network whose memory is measured


class Transformer(nn.Module):
    """Reads an image as 28 words, its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(28, 64)
        self.places = nn.Parameter(torch.zeros(28, 64))
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2))
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x.reshape(-1, 28, 28)) + self.places
        out: Tensor = self.head(self.blocks(h).mean(1))
        return out


NETWORKS = {"lenet-300-100": LeNet300100, "transformer": Transformer}


def replicated(model: nn.Module, sums: str) -> nn.Module:
    """By DDP, which sums the gradients of all processes in float32, or here in float64."""
    wrapped = nn.parallel.DistributedDataParallel(model)

    def in_float64(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        own = bucket.buffer()
        sent = dist.all_reduce(own.double().div_(dist.get_world_size()), async_op=True)
        return sent.get_future().then(lambda found: own.copy_(found.value()[0]))

    if sums == "float64":
        wrapped.register_comm_hook(None, lambda _, bucket: in_float64(bucket))
    return wrapped


def sharded(model: nn.Module, sums: str) -> nn.Module:
    """By FSDP2, likewise."""
    policy = MixedPrecisionPolicy(reduce_dtype=getattr(torch, sums))
    for module in (*getattr(model, "blocks", ()), *model.children(), model):
        fully_shard(module, mp_policy=policy)
    return model


def in_turn(model: nn.Module, shares: Sequence[tuple[Tensor, Tensor]], sums: str) -> float:
    """What several processes do with the shares of a batch, in this one: the mean loss, and its gradients."""
    total, grads = 0.0, [torch.zeros_like(p, dtype=getattr(torch, sums)) for p in model.parameters()]
    for x, y in shares:
        loss = F.cross_entropy(model(x), y) / len(shares)
        loss.backward()
        total += float(loss.detach())
        for p, grad in zip(model.parameters(), grads, strict=True):
            grad += p.grad
            p.grad = None
    for p, grad in zip(model.parameters(), grads, strict=True):
        p.grad = grad.to(p.dtype)
    return total


def train(network: str, way: str, processes: int, sums: str, folder: Path) -> dict[str, Any]:
    """Half of the steps soft, half of them hard, with zeroing; then the file. In each process of the group."""
    torch.set_num_threads(1)
    split, held_out, _ = load_mnist()
    images, labels = split.images[:20_000].flatten(1), split.labels[:20_000]
    torch.manual_seed(0)
    model: nn.Module = NETWORKS[network]()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for step in range(PRETRAINED):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % len(images)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    group = world()
    wrapped = {"one": lambda m, _: m, "ddp": replicated, "fsdp": sharded}[way](model, sums)
    prior = ss.MixturePrior(wrapped, ss.PriorConfig(**PRIOR), relative=True)
    curvature = Curvature(prior)
    optimizer = torch.optim.Adam([{"params": wrapped.parameters(), "lr": RATE}, *prior.param_groups()])
    before = _peak()
    losses, sent, seconds = [], [], []
    for step in range(STEPS):
        start, n_sent = time.perf_counter(), prior.view.group.n_sent
        rows = (torch.arange(step * BATCH, (step + 1) * BATCH) % len(images)).chunk(processes)
        shares = [(images[own], labels[own]) for own in rows]
        optimizer.zero_grad()
        with ss.hard_step(prior) if step >= STEPS // 2 else contextlib.nullcontext():
            if way == "one":
                loss = in_turn(model, shares, sums)
            else:
                x, y = shares[group.rank]
                own = F.cross_entropy(wrapped(x), y)
                own.backward()
                loss = float(own.detach())
        if step >= STEPS // 2:
            curvature.note_()
        prior.add_gradients_(TAU, len(images))
        optimizer.step()
        sent.append(prior.view.group.n_sent - n_sent)
        seconds.append(time.perf_counter() - start)
        losses.append(group.mean(loss))
    spare_bits_(prior, curvature.estimate(BATCH), PRICE, 1.0)
    trained = _peak()
    compressed = prior.quantize(hard=True)
    path = folder / "model.sws"
    n_bytes = compressed.save(path)
    encoded = _peak()
    ss.load_into_(wrapped, path)
    with torch.no_grad():
        guesses = wrapped(held_out.images.flatten(1)).argmax(1)
    return {
        "losses": losses,
        "bytes per step": max(sent),
        "allowed": 8 * prior.config.components * len(prior.parts) * 4 + 1024,
        "file": n_bytes,
        "error": 100 * float((guesses != held_out.labels).float().mean()),
        "ms": 1000 * statistics.median(seconds),
        "MB": [before, trained, encoded],
    }


def curve(network: str, way: str, processes: int, sums: str, folder: Path) -> None:
    if way != "one":
        dist.init_process_group("gloo")
    found = train(network, way, processes, sums, folder)
    if world().is_first:
        (folder / "found.json").write_text(json.dumps(found))
    if way != "one":
        dist.destroy_process_group()


def larger(meta: bool) -> nn.Module:
    with torch.device("meta") if meta else contextlib.nullcontext():
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))


def memory(folder: Path) -> None:
    """In each process: train its shards of a larger network for a few steps, then write the file, and load it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group, model = world(), shard_(larger(meta=True)).to_empty(device="cpu")  # no process ever has all weights
    draw = torch.Generator().manual_seed(group.rank)
    with torch.no_grad():
        for p in model.parameters():
            local(p).normal_(0, WIDTH**-0.5, generator=draw)
    peaks = [_peak()]
    prior = ss.MixturePrior(model, ss.PriorConfig())
    curvature = Curvature(prior)
    optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-5}, *prior.param_groups()])
    for step in range(4):
        optimizer.zero_grad()
        with ss.hard_step(prior) if step > 1 else contextlib.nullcontext():
            model(torch.randn(16, WIDTH, generator=draw)).square().mean().backward()
        if step > 1:
            curvature.note_()
        prior.add_gradients_(TAU, 50_000)
        optimizer.step()
    spare_bits_(prior, curvature.estimate(16), PRICE, 1.0)
    optimizer.zero_grad()
    peaks.append(_peak())
    path = folder / "model.sws"
    prior.quantize(hard=True).save(path)
    peaks.append(_peak())
    ss.load_into_(shard_(larger(meta=True)).to_empty(device="cpu"), path)
    peaks.append(_peak())
    state = prior.current_view().state_dict()
    if group.is_first:
        torch.save([state, prior.state_dict()], folder / "state.pt")
    (folder / f"{group.rank}.json").write_text(json.dumps(peaks))
    dist.destroy_process_group()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if len(sys.argv) > 2:
        curve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    else:
        memory(Path(sys.argv[1]))
