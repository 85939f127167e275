"""What the tests of several processes run in each of them, and in one process for comparison."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import softshare as ss
from softshare.distributed.group import world
from softshare.distributed.shards import is_sharded
from softshare.distributed.wrap import shard_
from softshare.network.groups import find_groups
from softshare.network.weights import WeightView
from softshare.train.curvature import Curvature
from softshare.train.hard import quantize_network_, restore_
from softshare.train.zeroing import spare_bits_

STEPS, BATCH, EXAMPLES = 24, 32, 256
PRICE = 1e-3  # of a bit
LAYERS = 60  # of a deep network
PRIOR: dict[str, Any] = {"components": 16, "zero_mixing": 0.3}


class Attention(nn.Module):
    """A small transformer: an embedding, two blocks, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, 30, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h)[:, -1]
        return out


def dense(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 15), nn.LayerNorm(15), nn.ReLU(), nn.Linear(15, 5, bias=False)
    )


@dataclass(frozen=True)
class Problem:
    """A network that is trained already, and its data."""

    model: nn.Module
    x: Tensor
    y: Tensor


def problem(name: str) -> Problem:
    torch.manual_seed(0)
    if name != "attention":
        model, x = dense(33 if name == "dense" else 32), torch.randn(EXAMPLES, 20)
        y = (x[:, :5] + 0.3 * x[:, 5:10]).argmax(1)
    else:
        model, x = Attention(), torch.randint(0, 30, (EXAMPLES, 6))
        y = (x[:, -1] + x[:, -2]) % 30
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return Problem(model, x, y)


def distributed(model: nn.Module, way: str) -> nn.Module:
    """The network as several processes hold it, or as it is, if the way is one.

    Ways: DDP, FSDP2, tensor parallelism; with four processes, FSDP2 in two replicas, and over tensor parallelism.
    """
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if way == "fsdp":
        return shard_(model)
    if way == "hsdp":
        return cast(
            nn.Module, fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
        )
    if way == "tp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return parallelize_module(model, mesh, PLAN)
    if way == "fsdp of tp":  # the last layers are not in the plan
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "parallel"))
        return cast(nn.Module, fully_shard(parallelize_module(model, mesh["parallel"], PLAN), mesh=mesh["shards"]))
    return model


PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def own_loop(folder: Path, case: str, alone: bool = False) -> dict[str, Any]:
    """A soft and a hard phase in a loop of one's own, with zeroing, then a file.

    Each process takes its share of a batch; those that are tensor parallel take the same. Alone, one takes all shares
    in turn: where the gradient is 0 but for rounding, Adam makes steps of it.
    """
    n, name, way, settings = CASES[case]
    n_shares, way = {"tp": 1, "fsdp of tp": 2}.get(way, n), "one" if alone else way
    own = problem(name)
    fresh = distributed(copy.deepcopy(own.model), way)
    model, group = distributed(own.model, way), world()
    prior = ss.MixturePrior(model, ss.PriorConfig(**PRIOR, **settings))
    curvature = Curvature(prior)
    optimizer = torch.optim.Adam([{"params": model.parameters(), "lr": 1e-3}, *prior.param_groups()], foreach=False)
    first = group.rank * n_shares // group.size
    losses, priors, sent = [], [], 0
    for step in range(STEPS):
        rows = torch.arange(step * BATCH, (step + 1) * BATCH) % EXAMPLES
        shares = rows.chunk(n_shares) if alone else rows.chunk(n_shares)[first : first + 1]
        optimizer.zero_grad()
        before, total = prior.view.group.n_sent, 0.0
        with ss.hard_step(prior) if step >= STEPS // 2 else contextlib.nullcontext():
            for held in shares:
                loss = F.cross_entropy(model(own.x[held]), own.y[held]) / len(shares)
                loss.backward()
                total += float(loss.detach())
        if step >= STEPS // 2:
            curvature.note_()
        priors.append(float(prior.add_gradients_(0.01, EXAMPLES)))
        sent = max(sent, prior.view.group.n_sent - before)
        optimizer.step()
        losses.append(group.mean(total))
        if step in (STEPS * 3 // 4, STEPS - 1):
            spare_bits_(prior, curvature.estimate(BATCH), PRICE, 1.0)
    assigned, kept = quantize_network_(prior)
    restore_(prior, kept)
    with torch.no_grad():
        total = float(prior.neg_log_prior())
    path = folder / f"{case}.sws"
    n_bytes = prior.quantize(hard=True).save(path)
    ss.load_into_(fresh, path)
    return {
        "losses": losses,
        "priors": priors,
        "sent": sent,
        "held": sum(w.numel() for w in prior.view.locals),
        "curvature bytes": sum(t.nbytes for t in curvature.estimate(1)),
        "hard bytes": sum(t.nbytes for t in (*assigned, *kept)),
        "parts": len(prior.parts),
        "total": total,
        "n_bytes": n_bytes,
        "state": prior.current_view().state_dict(),
        "prior": prior.state_dict(),
        "loaded": WeightView.of(fresh).state_dict(),
    }


class Seen(ss.Hook):
    """Whether the weights that are trained are sharded."""

    def on_prior(self, prior: ss.MixturePrior | None) -> None:
        assert prior is not None
        self.sharded = [is_sharded(w) for w in prior.view.tensors]


TARGETS: dict[str, Any] = {
    "none": None,
    "noise": ss.WithinNoise(),
    "bytes": ss.MaxBytes(700),
    "error": ss.MaxError(40.0),
    "macs": ss.MaxMacs(0.5),
}


def route(way: str | None, target: str) -> tuple[ss.Compressed, list[bool]]:
    """`compress` with the process's share of each batch."""
    own, seen, group = problem("dense"), Seen(), world()
    rank, n = (group.rank, group.size) if way else (0, 1)
    loss = nn.CrossEntropyLoss()
    shares = [torch.arange(k, k + BATCH).chunk(n)[rank] for k in range(0, EXAMPLES, BATCH)]
    task = ss.Task(
        own.model,
        [(own.x[rows], own.y[rows]) for rows in shares],
        lambda model, batch: loss(model(batch[0]), batch[1]),
        lambda model: 100 * float((model(own.x).argmax(1) != own.y).float().mean()),
        n_examples=EXAMPLES,
    )
    config = ss.CompressConfig().override(steps=40, units=1.0 if target == "none" else 0.0)
    goal, given = TARGETS[target], cast(Any, way)
    return ss.compress(task, config, [seen], target=goal, quiet=True, distributed=given), seen.sharded


def routes(folder: Path, *targets: str) -> dict[str, Any]:
    """By both ways: what came of each target."""
    found: dict[str, Any] = {}
    for target in targets or TARGETS:
        for way in ("replicate", "shard"):
            compressed, sharded = route(way, target)
            outcome = compressed.outcome
            assert outcome is not None
            found[f"{target} {way}"] = {
                "file": compressed.to_bytes(),
                "met": outcome.met,
                "after": outcome.after,
                "losses": [record.task_loss for record in compressed.history],
                "sharded": any(sharded),
            }
    return found


def messages(folder: Path) -> list[dict[str, int]]:
    """What a soft and a hard step of a network of many layers send: without a prior over units, and with one."""
    found = []
    for units in (0.0, 1.0):
        plain = nn.Sequential(*(nn.Linear(6, 6) for _ in range(LAYERS)))
        x = torch.randn(4, 6)
        groups, _ = find_groups(plain, (x,), {})
        model = shard_(plain)
        prior = ss.MixturePrior(model, ss.PriorConfig(**PRIOR, units=units), groups=groups)
        for hard in (False, True):
            before = prior.view.group.n_sent
            with ss.hard_step(prior) if hard else contextlib.nullcontext():
                model(x).square().mean().backward()
            prior.add_gradients_(0.01, EXAMPLES)
            sent = prior.view.group.n_sent - before
            n_units = sum(group.n_units for group in groups) if units else 0
            found.append({"hard": hard, "sent": sent, "units": n_units, "parts": len(prior.parts)})
    return found


Case = tuple[int, str, str, dict[str, Any]]  # processes, network, way, settings of the prior
CASES: dict[str, Case] = {
    "dense-ddp": (2, "dense", "ddp", {}),
    "dense-fsdp": (2, "dense", "fsdp", {"init": "quantile", "mixtures": "global"}),
    "even-tp": (2, "even", "tp", {}),  # tensor parallelism cannot share 33 rows out
    "attention-fsdp": (2, "attention", "fsdp", {"width": None}),
    "attention-fsdp-4": (4, "attention", "fsdp", {"width": None}),
    "attention-ddp-4": (4, "attention", "ddp", {"width": None}),
    "dense-fsdp-4": (4, "dense", "fsdp", {}),
    "dense-hsdp": (4, "dense", "hsdp", {}),
    "even-fsdp-of-tp": (4, "even", "fsdp of tp", {"init": "quantile"}),
}


def own_loops(folder: Path) -> dict[str, Any]:
    """All of them in one start of the processes."""
    n = world().size
    return {case: own_loop(folder, case) for case, (of, *_) in CASES.items() if of == n}
