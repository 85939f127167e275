"""A look at the task before it is trained: what would ruin a network in silence is refused here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from softshare.errors import ConfigError
from softshare.prior.prior import MixturePrior
from softshare.task import Task
from softshare.train.retrain import seeded

CLEARLY = 0.3  # of the loss of zeros, by which that of a trained network is lower


def require_an_error(task: Task, prior: MixturePrior, seed: int) -> None:
    """Raise if `Task.evaluate` prefers a network of zeros that has a clearly higher loss: then it is no error.

    A network that is not trained yet passes: its loss is not clearly below that of zeros. So does a task that cannot be
    asked, because its loss needs training mode or fails for zeros.
    """
    was_training = task.model.training
    task.model.eval()
    try:
        with seeded(task.model, seed):
            batch = next(iter(task.train))
            loss = float(task.loss(task.model, batch).detach())
            with _zeroed(prior.view.tensors):
                of_zeros = float(task.loss(task.model, batch).detach())
                if not loss < of_zeros - CLEARLY * abs(of_zeros):
                    return
                zeros = task.judge(task.model)
            error = task.judge(task.model)
    except Exception:  # the user's own code: if something is wrong with it, training says what
        return
    finally:
        task.model.train(was_training)
    if zeros < error:
        raise ConfigError(
            f"Task.evaluate must return an error, where less is better. It gives {error:.4g} for the network and "
            f"{zeros:.4g} for one whose weights are all 0, but their losses are {loss:.4g} and {of_zeros:.4g}. If it "
            "returns an accuracy in percent, return 100 minus that"
        )


@contextmanager
def _zeroed(tensors: Sequence[Tensor]) -> Iterator[None]:
    kept = [t.detach().clone() for t in tensors]
    try:
        for t in tensors:
            t.data.zero_()
        yield
    finally:
        for t, own in zip(tensors, kept, strict=True):
            t.data.copy_(own)
