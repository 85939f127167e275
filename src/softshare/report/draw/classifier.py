"""A sequential image classifier as a list of layers, which a page can run. A trace proves that the list is the network.

The list follows from the graph of `forward`. Then it runs on a batch, and must give the outputs of the network itself.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from softshare._util.schema import from_plain, require, to_plain
from softshare._util.user_code import batches
from softshare.errors import ConfigError, ModelError
from softshare.network.weights import layout
from softshare.network.wrapped import copied, unwrapped
from softshare.task import Task, evaluating

SIDES = range(8, 65)  # pixels of an image that can be drawn
MOST_CLASSES = 64
MOST_WORK = 1 << 26  # multiplications for an image: a page answers while a finger moves
MOST_LAYERS = 256
BATCHES = 8  # read to find an example of each class
TRIED = 16  # images that network and list are compared on
TOLERANCE = 1e-4  # of the largest output: sums in another order differ by far less

Kind = Literal["linear", "conv", "relu", "pool", "flatten"]
Pair = tuple[int, ...]  # rows and columns
Names = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Layer:
    kind: Kind
    weight: str = ""  # names of tensors, of linear and conv
    bias: str = ""  # empty if there is none
    size: Pair = ()  # of the window of pool
    stride: Pair = ()  # of conv and pool
    padding: Pair = ()


@dataclass(frozen=True)
class Classifier:
    """What a page must know of a network, beside its file."""

    shape: tuple[int, ...]  # of an image: 1, height, width
    low: float  # value of an empty pixel
    high: float  # of a full one
    classes: int
    layers: tuple[Layer, ...]
    names: tuple[str, ...]  # of the distinct tensors in order, for a file without names
    shapes: tuple[str, ...]  # theirs, as "300x784"
    tied: dict[str, str]
    examples: dict[str, str]  # by class: an image, a byte for a pixel from low to high, as base64

    def __post_init__(self) -> None:
        _, height, width = (*self.shape, 0, 0, 0)[:3]
        require(len(self.shape) == 3 and self.shape[0] == 1, "shape", "one channel", self.shape)
        require(height in SIDES and width in SIDES, "shape", f"sides of {SIDES[0]} to {SIDES[-1]} pixels", self.shape)
        require(2 <= self.classes <= MOST_CLASSES, "classes", f"2 to {MOST_CLASSES}", self.classes)
        require(abs(self.low) < 1e6 and abs(self.high) < 1e6 and self.low < self.high, "high", "above low", self.high)
        require(0 < len(self.layers) <= MOST_LAYERS, "layers", f"1 to {MOST_LAYERS} of them", len(self.layers))
        require(len(self.names) == len(self.shapes), "shapes", "one for each name", len(self.shapes))


def classifier_of(task: Task) -> Classifier | str:
    """The network of a task as a list of layers, or why it has none."""
    try:
        with torch.random.fork_rng(devices=[]):  # a loader may draw from the global random state
            return described(task.model, list(itertools.islice(batches(task.train), BATCHES)))
    except Exception as problem:  # the user's own code
        return f"the network cannot be described ({type(problem).__name__}: {problem})"


def kept_classifier(task: Task) -> Any:
    """The same as JSON values, for the film of a run."""
    found = classifier_of(task)
    return found if isinstance(found, str) else to_plain(found)


def described(model: nn.Module, found: Sequence[Any]) -> Classifier | str:
    """The network as a list of layers, by some of its batches."""
    images, labels = _images(found)
    if images is None:
        return "the batches do not begin with images (floats of batch, channel, height and width)"
    shape = tuple(images.shape[1:])
    if shape[0] != 1 or not set(shape[1:]) <= set(SIDES):
        return f"it reads images of {' x '.join(map(str, shape))}, not one channel of {SIDES[0]} to {SIDES[-1]} pixels"
    try:
        layers = _traced(model)
        classes, work = _proven(model, layers, images[:TRIED])
    except ModelError as problem:
        return str(problem)
    if not 2 <= classes <= MOST_CLASSES:
        return f"it has {classes} outputs, not 2 to {MOST_CLASSES}"
    if work > MOST_WORK:
        return f"it takes {work:,} multiplications for an image, more than {MOST_WORK:,}"
    low, high = float(images.min()), float(images.max())
    if not low < high:
        return "the images of its first batches are all of one value"
    low, high = (0.0, 1.0) if low >= 0 and 0.5 < high <= 1 else (low, high)
    tensors, tied = layout(model)
    return Classifier(
        shape,
        low,
        high,
        classes,
        tuple(layers),
        tuple(tensors),
        tuple("x".join(map(str, t.shape)) for t in tensors.values()),
        dict(tied),
        _examples(images, labels, classes, low, high),
    )


def _images(found: Sequence[Any]) -> tuple[Tensor | None, Tensor | None]:
    """The images and the labels of batches that are pairs, or have `images` and `labels`."""
    images, labels = list[Tensor](), list[Tensor]()
    for batch in found:
        pair = (batch.images, batch.labels) if hasattr(batch, "images") and hasattr(batch, "labels") else batch
        if not isinstance(pair, tuple | list) or len(pair) < 2 or not all(isinstance(t, Tensor) for t in pair[:2]):
            return None, None
        images.append(pair[0].detach().cpu())
        labels.append(pair[1].detach().cpu())
    if not images or images[0].dim() != 4 or not images[0].is_floating_point() or not len(images[0]):
        return None, None
    usable = all(t.dim() == 1 and not t.is_floating_point() for t in labels)
    return torch.cat(images).float(), torch.cat(labels) if usable else None


def _examples(images: Tensor, labels: Tensor | None, classes: int, low: float, high: float) -> dict[str, str]:
    """The first image of each class."""
    found: dict[str, str] = {}
    if labels is None:
        return found
    for k in range(classes):
        places = labels.eq(k).nonzero()
        if len(places):
            levels = ((images[places[0, 0], 0] - low) / (high - low) * 255).round().clamp(0, 255)
            found[str(k)] = base64.b64encode(levels.numpy().astype(np.uint8).tobytes()).decode()
    return found


# The graph of the network


def _traced(model: nn.Module) -> list[Layer]:
    """The layers in order. Raise `ModelError` unless the network is a chain of layers that a page can run."""
    network = copied(unwrapped(model)).eval()
    try:
        graph = fx.Tracer().trace(network)
    except Exception as problem:  # tracing runs the user's code
        reason = (str(problem).splitlines() or [""])[0]
        raise ModelError(f"its forward cannot be traced ({type(problem).__name__}: {reason})") from None
    modules, layers, current = dict(network.named_modules()), list[Layer](), None
    for node in graph.nodes:
        if node.op == "placeholder":
            if current is not None:
                raise ModelError("it has more than one input")
            current = node
        elif node.op == "output":
            if node.args[0] is not current:
                raise ModelError("its output is not that of its last layer")
        elif not _is_size(node):
            if node.args[:1] != (current,):
                raise ModelError(f"its layers are no chain: {_called(node, modules)} does not read the layer before")
            layers += _layers(node, modules)
            current = node
    return layers


def _is_size(node: fx.Node) -> bool:
    """Whether a node only asks for a size, which `view` needs."""
    asks = (node.op == "call_method" and node.target == "size") or (
        node.op == "call_function" and node.target is getattr and node.args[1] == "shape"
    )
    source = node.args[0] if node.args else None
    return asks or (
        node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
        and isinstance(source, fx.Node)
        and _is_size(source)
    )


def _layers(node: fx.Node, modules: Mapping[str, nn.Module]) -> list[Layer]:
    """What a page does for a node: one layer, or nothing for a Dropout."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    name = str(node.target)
    if type(module) is nn.Linear:
        return [Layer("linear", f"{name}.weight", "" if module.bias is None else f"{name}.bias")]
    if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros" and _plain(module):
        stride, padding = _pair(module.stride), _pair(module.padding)
        bias = "" if module.bias is None else f"{name}.bias"
        return [Layer("conv", f"{name}.weight", bias, stride=stride, padding=padding)]
    pool = _called_pool(node) if module is None else module
    if type(pool) is nn.MaxPool2d and _plain(pool) and not (pool.ceil_mode or pool.return_indices):
        size = _pair(pool.kernel_size)
        return [Layer("pool", size=size, stride=_pair(pool.stride) or size, padding=_pair(pool.padding))]
    if type(module) is nn.ReLU or node.target in (F.relu, torch.relu, "relu"):
        return [Layer("relu")]
    if type(module) is nn.Flatten or node.target in (torch.flatten, "flatten", "view", "reshape"):
        return [Layer("flatten")]
    if type(module) in (nn.Dropout, nn.Identity) or node.target is F.dropout:
        return []
    raise ModelError(
        f"{_called(node, modules)} is no Linear, Conv2d (one group, zeros around), ReLU, MaxPool2d or Flatten"
    )


def _called_pool(node: fx.Node) -> nn.Module | None:
    """The module that does what a call of `max_pool2d` does."""
    if node.target not in (F.max_pool2d, torch.max_pool2d):
        return None
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given: dict[str, Any] = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    return nn.MaxPool2d(**given) if set(given) <= set(names) and not node.all_input_nodes[1:] else None


def _plain(module: nn.Conv2d | nn.MaxPool2d) -> bool:
    return _pair(module.dilation) == (1, 1) and not isinstance(module.padding, str)


def _pair(value: Any) -> Pair:
    if value is None:
        return ()
    found = (value, value) if isinstance(value, int) else tuple(value)
    return found if all(type(v) is int for v in found) else ()


def _called(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    module = modules.get(str(node.target))
    return f"{type(module).__name__} {node.target}" if node.op == "call_module" else f"{node.name}"


# The list of layers, run by torch


def _proven(model: nn.Module, layers: Sequence[Layer], images: Tensor) -> tuple[int, int]:
    """The number of outputs and the multiplications for an image. Raise `ModelError` if the list is another network."""
    network = copied(unwrapped(model)).cpu().float()
    state = {name: t.detach() for name, t in network.state_dict().items()}
    with evaluating(network):
        expected = network(images)
        try:
            found, work = run(layers, state, images)
        except (RuntimeError, KeyError) as problem:
            raise ModelError(f"its layers do not run one after another ({problem})") from None
    if not isinstance(expected, Tensor) or expected.shape != found.shape or found.dim() != 2:
        raise ModelError("its output is not one row of numbers for each image")
    if not float((expected - found).abs().max()) <= TOLERANCE * float(expected.abs().max()) + 1e-6:
        raise ModelError("its layers, one after another, give other outputs than the network")
    return found.shape[1], work


def run(layers: Sequence[Layer], state: Mapping[str, Tensor], images: Tensor) -> tuple[Tensor, int]:
    """The outputs, and the multiplications for an image: what the page computes."""
    x, work = images, 0
    for layer in layers:
        weight, bias = state.get(layer.weight), state.get(layer.bias)
        if layer.kind == "linear":
            x = F.linear(x.flatten(1), state[layer.weight], bias)
            work += state[layer.weight].numel()
        elif layer.kind == "conv":
            x = F.conv2d(x, state[layer.weight], bias, layer.stride, layer.padding)
            work += 0 if weight is None else weight[0].numel() * x[0].numel()
        elif layer.kind == "pool":
            x = F.max_pool2d(x, layer.size, layer.stride, layer.padding)
        elif layer.kind == "relu":
            x = F.relu(x)
        else:
            x = x.flatten(1)
    return x, work


def from_film(about: Mapping[str, Any]) -> Classifier | str | None:
    """The classifier that the film of a run keeps, or the reason why there is none. None: the film does not say."""
    value = about.get("classifier")
    if value is None:
        return None
    if isinstance(value, str):
        return value[:500]
    try:
        return from_plain(Classifier, value, "classifier")
    except ConfigError as problem:
        return f"the run does not describe its network ({problem})"
