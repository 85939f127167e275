"""What each weight of a finished network is worth: the curvature of the loss by it, measured on a few batches."""

from __future__ import annotations

from itertools import islice

from torch import Tensor

from softshare.config import RetrainConfig
from softshare.distributed.shards import assembled
from softshare.distributed.wrap import restore_, state_of, synchronized
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.curvature import Curvature
from softshare.train.hard import quantized
from softshare.train.retrain import seeded
from softshare.train.supply import Supply

BATCHES = 100
DAMPING = (
    0.01  # of a tensor's mean, added to all: a curvature of 0 on a few batches is no proof that a weight is useless
)


def curvatures(task: Task, prior: MixturePrior, config: RetrainConfig) -> dict[str, Tensor]:
    """By name, of the mean loss of the quantized network, on the CPU. The network is as before afterwards."""
    state, was_training = state_of(task.model), task.model.training
    curvature, supply = Curvature(prior), Supply(task.train, config)
    network = synchronized(task.model, task.group)
    task.model.train()
    with seeded(task.model, config.seed):
        for batch in islice(supply.endless(), BATCHES):
            task.model.zero_grad()
            with quantized(prior):
                task.loss(network, batch).backward()
            curvature.note_()
    task.model.zero_grad()
    restore_(task.model, state)  # the buffers of batch norm
    task.model.train(was_training)
    view, held = prior.view, curvature.estimate(supply.batch_size(task.n_examples))
    if view.group.size > 1:
        held = [assembled(c, s.tensor, view.group) for s, c in zip(view.shared, held, strict=True)]
    return {s.name: (c + DAMPING * c.mean()).cpu() for s, c in zip(view.shared, held, strict=True)}
