"""silero-vad, which tells speech from other sounds: 0.31 million weights, and sounds that are made up.

The weights come inside the package silero-vad 6.2.3 (`data/silero_vad_16k_op15.onnx`). Nothing of the package is
imported. No recording is needed: the float network says where there is speech, and the others are to agree.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.network.checkpoint import load_checkpoint

RATE, CHUNK, CONTEXT, BINS, WIDTH = 16_000, 512, 64, 129, 128
LAYERS = ((BINS, 128, 1), (128, 64, 2), (64, 64, 2), (64, WIDTH, 1))  # channels in, channels out, stride


class Silero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * BINS, 256, 128, bias=False)
        for k, (n_in, n_out, stride) in enumerate(LAYERS):
            setattr(self, f"conv{k + 1}", nn.Conv1d(n_in, n_out, 3, stride, 1))
        self.lstm_cell = nn.LSTMCell(WIDTH, WIDTH)
        self.final_conv = nn.Conv1d(WIDTH, 1, 1)

    def forward(
        self,
        x: Tensor,  # (n, samples), whole chunks
    ) -> Tensor:  # (n, chunks), log-odds of speech
        chunks = F.pad(x, (CONTEXT, 0)).unfold(1, CONTEXT + CHUNK, CHUNK)  # each with the end of the one before
        h = self.stft_conv(F.pad(chunks.flatten(0, 1), (0, CONTEXT), mode="reflect")[:, None])
        h = (h[:, :BINS].square() + h[:, BINS:].square()).sqrt()
        for k in range(len(LAYERS)):
            h = F.relu(getattr(self, f"conv{k + 1}")(h))
        found, state = [], None
        for part in h.unflatten(0, chunks.shape[:2])[..., 0].unbind(1):
            state = self.lstm_cell(part, state)
            found.append(self.final_conv(F.relu(state[0])[..., None]).flatten())
        return torch.stack(found, 1)


def load(path: str | Path) -> Silero:
    """The names of the ONNX file are in the order of the network's own."""
    model, found = Silero(), load_checkpoint(path)
    model.load_state_dict(dict(zip(model.state_dict(), found.values(), strict=False)))
    return model.eval()


def sounds(n: int, seed: int, seconds: float = 4) -> Tensor:  # (n, samples)
    """Harmonics of a gliding pitch through moving formants, in syllables and pauses, and noise. A quarter is noise."""
    g = torch.Generator().manual_seed(seed)
    n_samples = round(seconds * RATE / CHUNK) * CHUNK
    time = torch.arange(n_samples) / RATE

    def drawn(low: float, high: float, *shape: int) -> Tensor:
        return low * (high / low) ** torch.rand(n, *shape, generator=g)

    def moving(low: float, high: float, rate: float) -> Tensor:  # a random path
        points = drawn(low, high, max(2, round(seconds * rate)))
        return F.interpolate(points[:, None], n_samples, mode="linear", align_corners=True)[:, 0]

    pitch = drawn(90, 240, 1) * moving(0.8, 1.25, 3)
    phase = 2 * math.pi * pitch.cumsum(1) / RATE
    formants = [
        (moving(*span, 5), width) for span, width in (((300, 900), 90), ((900, 2400), 120), ((2300, 3200), 160))
    ]
    voice = torch.zeros(n, n_samples)
    for k in range(1, 40):
        tone = k * pitch
        strength = sum(torch.exp(-0.5 * ((tone - centre) / (2 * width)).square()) for centre, width in formants)
        voice += (strength + 0.02) / k**0.5 * (tone < 0.45 * RATE) * torch.sin(k * phase)
    syllables = (torch.sin(2 * math.pi * drawn(2, 5, 1) * time + drawn(1, 6, 1)) + 0.3).clamp(min=0)
    pauses = (moving(0.1, 10, 1) > 0.7).float()
    voice = voice / voice.std(1, keepdim=True) * syllables * pauses * (torch.rand(n, 1, generator=g) > 0.25)
    noise = torch.randn(n, n_samples, generator=g)
    noise = noise + 3 * F.avg_pool1d(noise[:, None], 9, 1, 4)[:, 0]
    return drawn(0.01, 0.2, 1) * (voice + drawn(0.001, 0.3, 1) * noise)


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(16)])


def judged(found: Tensor, truth: Tensor) -> tuple[float, float, float]:
    """Chunks that are called otherwise in percent, the mean difference of the probability, and the divergence."""
    p = truth.sigmoid()
    other = 100 * float(((found > 0) != (truth > 0)).float().mean())
    nats = F.binary_cross_entropy_with_logits(found, p) - F.binary_cross_entropy_with_logits(truth, p)
    return other, float((found.sigmoid() - p).abs().mean()), float(nats)
