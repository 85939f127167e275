"""What a file made of the weights of a frame would hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from softshare.prior.mixture import Mixture
from softshare.quantization.merge import merge_groups, spread
from softshare.report.frames import Array, Frames
from softshare.report.run import Run


@dataclass(frozen=True, eq=False)
class Held:
    """The values of one mixture in the file, zero first."""

    values: Array  # (V,)
    counts: Array  # (V,) weights that have each of them
    index: Array  # (S,) which of them each sampled weight has


def held(run: Run, frames: Frames, frame: int, q: int) -> Held:
    """Quantize the sampled weights of a mixture. Those of the last frame are merged too, as in the file."""
    part = int(frames.shown[q])
    w = torch.from_numpy(frames.sample[frame, frames.owner == q].astype(np.float32))
    mixture = Mixture(*(torch.from_numpy(v[frame, part]) for v in (frames.log_mixing, frames.mean, frames.log_var)))
    counts = frames.counts[frame, part]
    if frame < len(frames.epochs) - 1:
        return Held(mixture.mean.numpy(), counts, mixture.assign(w).numpy())
    merged, groups = merge_groups(mixture, run.merging)
    onto = spread(torch.arange(len(groups)), groups)
    index = onto[mixture.assign(w)] if run.hard else merged.assign(w)  # the hard phase has decided about each weight
    return Held(merged.mean.numpy(), np.bincount(onto.numpy(), counts, len(groups)).astype(int), index.numpy())
