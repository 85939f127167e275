"""A small network and quantized weights for it, for the tests of files."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights, index_dtype

CODEBOOK = torch.tensor([0.0, -0.25, 0.5])  # float16 holds it exactly


class Net(nn.Module):
    """A convolution, a batch norm with its int64 counter, a head tied to an embedding, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.bfloat16))


def shared(
    name: str,
    shape: tuple[int, ...],
    codebook: Tensor = CODEBOOK,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    density: float = 0.6,
) -> QuantizedTensor:
    """Random indices. A share of about `density` is not 0."""
    generator = torch.Generator().manual_seed(seed)
    n = math.prod(shape)
    keep = torch.rand(n, generator=generator) < density if len(codebook) > 1 else torch.zeros(n, dtype=torch.bool)
    indices = torch.randint(1, max(len(codebook), 2), (n,), generator=generator) * keep
    return QuantizedTensor(name, shape, dtype, indices.to(index_dtype(len(codebook))), codebook)


def net_weights() -> QuantizedWeights:
    """Weights of a `Net`, in its order."""
    state = Net().state_dict()
    rest = {
        "scale": state["scale"],
        "norm.weight": torch.tensor([0.9, 1.1]),
        "norm.bias": torch.tensor([0.25, -0.5]),
        "norm.running_mean": torch.tensor([0.1, -0.3]),
        "norm.running_var": torch.tensor([2.5, 1e-3]),
        "norm.num_batches_tracked": torch.tensor((1 << 40) + 1),
    }
    tensors = (
        shared("conv.weight", (2, 1, 3, 3), CODEBOOK, 1),
        shared("conv.bias", (2,), CODEBOOK, 2),
        shared("embed.weight", (5, 4), torch.tensor([0.0, 0.125, -0.25, 0.375]), 3),
        shared("head.bias", (5,), CODEBOOK, 4),
    )
    order = [name for name in state if name != "head.weight"]
    return QuantizedWeights(
        tensors, {n: rest[n] for n in order if n in rest}, {"head.weight": "embed.weight"}, tuple(order)
    )


def octets(tensor: Tensor) -> bytes:
    """The bytes of the values in memory, so that NaNs compare too."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(a: QuantizedWeights, b: QuantizedWeights) -> None:
    """Both hold the same, bit for bit and in the same order."""
    assert list(a.tensors) == list(b.tensors)
    for x, y in zip(a.shared, b.shared, strict=True):
        assert (x.name, x.shape, x.dtype, x.indices.dtype) == (y.name, y.shape, y.dtype, y.indices.dtype)
        assert torch.equal(x.indices, y.indices)
        assert octets(x.codebook) == octets(y.codebook)
    for name, tensor in a.rest.items():
        assert (tensor.dtype, tensor.shape) == (b.rest[name].dtype, b.rest[name].shape)
        assert octets(tensor) == octets(b.rest[name])
    assert a.tied == b.tied
