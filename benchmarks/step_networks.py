"""The networks whose training step is measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100


class _Block(nn.Module):
    """Conv-BN-ReLU-conv-BN with a shortcut that has no weights."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(n_out)
        self.conv2, self.bn2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out)
        self.stride, self.more = stride, n_out - n_in

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more)) if self.more else x
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


def resnet20() -> nn.Module:
    """ResNet-20 for images of 32 x 32 (He et al., 2016); 0.27 M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    n_in = 16
    for n_out in (16, 32, 64):
        for k in range(3):
            layers.append(_Block(n_in, n_out, 2 if n_out > 16 and k == 0 else 1))
            n_in = n_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class ViT(nn.Module):
    """A vision transformer of 4 layers of 192 features for images of 32 x 32, in patches of 4 x 4; 1.8 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(64, 192))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(192, 3, 768, **options) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.layers(self.patches(x).flatten(2).mT + self.places)
        logits: Tensor = self.head(self.norm(tokens).mean(1))
        return logits


def vgg16() -> nn.Module:
    """VGG-16 for images of 224 x 224; 138.4 M parameters."""
    layers: list[nn.Module] = []
    n_in = 3
    for n_out, n_convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(n_convolutions):
            layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(inplace=True)]
            n_in = n_out
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for n_hidden_in in (512 * 7 * 7, 4096):
        layers += [nn.Linear(n_hidden_in, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


@dataclass(frozen=True)
class Network:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, int, int]
    batch_size: int
    classes: int = 10
    components: int = 16  # free ones, where one mixture covers all weights
    on_cpu: bool = False
    bfloat16: bool = False  # on a GPU, by autocast


NETWORKS = (
    Network("lenet-300-100", LeNet300100, (1, 28, 28), 256, on_cpu=True),
    Network("lenet-5-caffe", LeNet5Caffe, (1, 28, 28), 256, on_cpu=True),
    Network("resnet-20", resnet20, (3, 32, 32), 128, bfloat16=True),
    Network("vit", ViT, (3, 32, 32), 128, bfloat16=True),
    Network("wrn-16-4", WRN164, (3, 32, 32), 128, components=64, bfloat16=True),
    Network("vgg-16", vgg16, (3, 224, 224), 64, classes=1000, bfloat16=True),
)
