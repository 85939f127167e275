"""Made-up digits in the shape of MNIST, for tests that need no real images."""

from __future__ import annotations

import functools

import torch

from softshare.zoo.datasets import Split


@functools.cache
def digits(n_train: int, n_validation: int, n_test: int) -> tuple[Split, Split, Split]:
    """Splits of these sizes: each class is a pattern of pixels whose brightness is random, which is easy to learn."""
    g = torch.Generator().manual_seed(0)
    patterns = (torch.rand(10, 1, 28, 28, generator=g) < 0.15).float()

    def split(n: int) -> Split:
        labels = torch.randint(10, (n,), generator=g)
        return Split(patterns[labels] * torch.rand(n, 1, 28, 28, generator=g), labels)

    return split(n_train), split(n_validation), split(n_test)
