from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from softshare.zoo.models import WRN164, LeNet5Caffe, LeNet300100, Mobile100k


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def images(n: int, channels: int, size: int) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_lenet_300_100() -> None:
    model = LeNet300100()
    assert n_parameters(model) == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10 == 266_610
    assert shapes(model) == {
        "fc1.weight": (300, 784),
        "fc1.bias": (300,),
        "fc2.weight": (100, 300),
        "fc2.bias": (100,),
        "fc3.weight": (10, 100),
        "fc3.bias": (10,),
    }


def test_lenet_300_100_by_hand() -> None:
    model, x = LeNet300100(), images(3, 1, 28)
    w = {name: p.detach() for name, p in model.named_parameters()}
    out = torch.relu(x.reshape(3, 784) @ w["fc1.weight"].T + w["fc1.bias"])
    out = torch.relu(out @ w["fc2.weight"].T + w["fc2.bias"])
    out = out @ w["fc3.weight"].T + w["fc3.bias"]
    assert out.shape == (3, 10)
    torch.testing.assert_close(model(x).detach(), out)


def test_lenet_5_caffe() -> None:
    model = LeNet5Caffe()
    assert n_parameters(model) == (25 * 20 + 20) + (500 * 50 + 50) + (800 * 500 + 500) + (500 * 10 + 10) == 431_080
    assert shapes(model) == {
        "conv1.weight": (20, 1, 5, 5),
        "conv1.bias": (20,),
        "conv2.weight": (50, 20, 5, 5),
        "conv2.bias": (50,),
        "fc1.weight": (500, 800),
        "fc1.bias": (500,),
        "fc2.weight": (10, 500),
        "fc2.bias": (10,),
    }


def test_lenet_5_caffe_by_hand() -> None:
    """Only pooling follows a convolution. The only ReLU is between the linear layers."""
    model, x = LeNet5Caffe(), images(3, 1, 28)
    w = {name: p.detach() for name, p in model.named_parameters()}
    pooled1 = F.max_pool2d(F.conv2d(x, w["conv1.weight"], w["conv1.bias"]), 2)
    pooled2 = F.max_pool2d(F.conv2d(pooled1, w["conv2.weight"], w["conv2.bias"]), 2)
    assert pooled2.shape == (3, 50, 4, 4)
    assert float(pooled1.min()) < 0  # so a ReLU, or any other bound at 0, would show
    assert float(pooled2.min()) < 0
    hidden = torch.relu(pooled2.flatten(1) @ w["fc1.weight"].T + w["fc1.bias"])
    out = hidden @ w["fc2.weight"].T + w["fc2.bias"]
    assert out.shape == (3, 10)
    torch.testing.assert_close(model(x).detach(), out)


def wrn_parameters(depth: int, width: int) -> int:
    """Counted from the architecture: 3 groups of (depth - 4) / 6 blocks, two 3 x 3 convolutions each, no biases."""
    total, n_in = 3 * 16 * 9, 16
    for n_out in (16 * width, 32 * width, 64 * width):
        for _ in range((depth - 4) // 6):
            total += 2 * n_in + n_in * n_out * 9 + 2 * n_out + n_out * n_out * 9
            total += n_in * n_out if n_in != n_out else 0  # the 1 x 1 convolution on the shortcut
            n_in = n_out
    return total + 2 * n_in + n_in * 10 + 10


def test_wrn_16_4() -> None:
    model = WRN164()
    assert n_parameters(model) == wrn_parameters(16, 4) == 2_748_890
    assert 2_700_000 < n_parameters(model) < 2_800_000  # the paper's 2.7 M
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 16  # the depth
    assert all(c.bias is None for c in convolutions)
    assert sum(c.kernel_size == (1, 1) for c in convolutions) == 3
    assert [c.stride for c in convolutions].count((2, 2)) == 4  # two blocks, each with its shortcut
    assert {c.out_channels for c in convolutions} == {16, 64, 128, 256}
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())


def test_wrn_16_4_shapes() -> None:
    model = WRN164().eval()
    x = images(2, 3, 32)
    with torch.no_grad():
        assert model.blocks(model.conv(x)).shape == (2, 256, 8, 8)
        assert model(x).shape == (2, 10)


def test_a_block_without_change_of_shape_adds_to_its_input() -> None:
    """Pre-activation: with the second convolution at 0 the block is the identity, without a ReLU after the sum."""
    block = WRN164().eval().blocks[1]
    with torch.no_grad():
        for name, p in block.named_parameters():
            if name == "conv2.weight":
                p.zero_()
    x = images(1, 64, 8)
    assert torch.equal(block(x), x)


def test_mobile_100k() -> None:
    """Parameters by hand: each block has three batch norms and three convolutions without biases."""
    total, n_in = 3 * 9 * 16, 16
    for n_out, n_blocks in ((16, 4), (32, 4), (48, 3)):
        for _ in range(n_blocks):
            n = 4 * n_in
            total += 2 * n_in + n_in * n + 2 * n + 9 * n + 2 * n + n * n_out
            n_in = n_out
    model = Mobile100k().eval()
    assert n_parameters(model) == total + 2 * 48 + 48 * 10 + 10 == 100_378
    with torch.no_grad():
        assert model.blocks(model.conv(images(2, 3, 32))).shape == (2, 48, 8, 8)
        assert model(images(2, 3, 32)).shape == (2, 10)
    assert sum(bool(block.adds) for block in model.blocks) == 9
