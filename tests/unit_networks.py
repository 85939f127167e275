"""Small networks of every shape that units can have, for tests of groups and of cutting."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGES = torch.randn(3, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    """Two blocks on one stream, with batch norm, a depthwise convolution and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(2))
        self.wide = nn.ModuleList(nn.Conv2d(6, 9, 1, bias=False) for _ in range(2))
        self.deep = nn.ModuleList(nn.Conv2d(9, 9, 3, padding=1, groups=9) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Conv2d(9, 6, 1) for _ in range(2))
        self.gate = nn.Linear(6, 6)
        self.head = nn.Linear(6 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, wide, deep, narrow in zip(self.norms, self.wide, self.deep, self.narrow, strict=True):
            x = x + narrow(F.silu(deep(F.relu(wide(norm(x))))))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.head(F.adaptive_avg_pool2d(x, 2).flatten(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Queries, keys and values of one matrix, written out."""

    def __init__(self, n_heads: int = 3) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.all = nn.Linear(8, 3 * 4 * n_heads)
        self.out = nn.Linear(4 * n_heads, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, self.n_heads, 4).transpose(1, 2) for t in self.all(x).chunk(3, -1))
        mixed = torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 10, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.own = Attention()
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self.encoder(self.embedding(x))).mean(1))  # type: ignore[no-any-return]


def prepared(model: nn.Module) -> nn.Module:
    """The network with seeded values that let activations through."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_normal_(parameter)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            nn.init.normal_(buffer, std=0.1)
        elif name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 1.5)
    return model.double().eval()
