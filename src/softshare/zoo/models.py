"""The paper's three networks (section 5), exactly, and a small modern one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LeNet300100(nn.Sequential):
    """784-300-100-10, 266,610 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc1", nn.Linear(784, 300))
        self.add_module("relu1", nn.ReLU())
        self.add_module("fc2", nn.Linear(300, 100))
        self.add_module("relu2", nn.ReLU())
        self.add_module("fc3", nn.Linear(100, 10))


class LeNet5Caffe(nn.Sequential):
    """Caffe's MNIST example, 431,080 parameters. As in Caffe, only pooling follows a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("conv1", nn.Conv2d(1, 20, 5))
        self.add_module("pool1", nn.MaxPool2d(2))
        self.add_module("conv2", nn.Conv2d(20, 50, 5))
        self.add_module("pool2", nn.MaxPool2d(2))
        self.add_module("flatten", nn.Flatten())
        self.add_module("fc1", nn.Linear(800, 500))
        self.add_module("relu1", nn.ReLU())
        self.add_module("fc2", nn.Linear(500, 10))


class _PreActivationBlock(nn.Module):
    """BN-ReLU-conv twice, with a 1x1 convolution on the shortcut where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        result: Tensor = self.conv2(F.relu(self.bn2(self.conv1(out)))) + shortcut
        return result


class WRN164(nn.Module):
    """Wide residual network, depth 16, width 4, no dropout, for 32 x 32 colour images; 2.7 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks, n_in = [], 16
        for n_out, stride in ((64, 1), (128, 2), (256, 2)):
            blocks += [_PreActivationBlock(n_in, n_out, stride), _PreActivationBlock(n_out, n_out, 1)]
            n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(256)
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.blocks(self.conv(x))))
        logits: Tensor = self.fc(torch.mean(out, dim=(2, 3)))
        return logits


class _InvertedBlock(nn.Module):
    """BN-ReLU-conv three times: to more channels, each place of each channel by itself, and back to few channels."""

    def __init__(self, n_in: int, n_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        n = expansion * n_in
        self.bn1, self.expand = nn.BatchNorm2d(n_in), nn.Conv2d(n_in, n, 1, bias=False)
        self.bn2, self.depthwise = nn.BatchNorm2d(n), nn.Conv2d(n, n, 3, stride, padding=1, groups=n, bias=False)
        self.bn3, self.project = nn.BatchNorm2d(n), nn.Conv2d(n, n_out, 1, bias=False)
        self.adds = n_in == n_out and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        out = self.depthwise(F.relu(self.bn2(self.expand(F.relu(self.bn1(x))))))
        result: Tensor = self.project(F.relu(self.bn3(out)))
        return result + x if self.adds else result


class Mobile100k(nn.Module):
    """Inverted residual blocks (MobileNetV2) for 32 x 32 colour images; 100,378 parameters."""

    STAGES = ((16, 1, 4), (32, 2, 4), (48, 2, 3))  # channels, stride of the first block, blocks

    def __init__(self) -> None:
        super().__init__()
        n_in = self.STAGES[0][0]
        self.conv = nn.Conv2d(3, n_in, 3, padding=1, bias=False)
        blocks = []
        for n_out, stride, n_blocks in self.STAGES:
            for k in range(n_blocks):
                blocks.append(_InvertedBlock(n_in, n_out, stride if k == 0 else 1, expansion=4))
                n_in = n_out
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(n_in)
        self.fc = nn.Linear(n_in, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.blocks(self.conv(x))))
        logits: Tensor = self.fc(torch.mean(out, dim=(2, 3)))
        return logits
