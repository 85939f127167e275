"""Rules: which dimensions of an operation's arguments and of its result count the same, for each known operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from softshare.network.axes import Dimension, dimension, fix, join, regrouped

Value = list[Dimension] | list[list[Dimension]]  # of a tensor, or of several


class Trace(Protocol):
    """What is known of the graph so far."""

    reads: set[tuple[str, int]]  # a parameter and a dimension by which it reads

    def dimensions(self, node: Any) -> list[Dimension]:
        """Of what a node returns."""

    def name_of(self, node: Any) -> str:
        """Of a parameter or buffer; empty for another node."""


@dataclass(frozen=True)
class Call:
    """One operation, with its arguments by name."""

    trace: Trace
    node: fx.Node
    given: dict[str, Any]

    def dims(self, name: str) -> list[Dimension]:
        return self.trace.dimensions(self.given[name])

    def tensors(self) -> list[list[Dimension]]:
        return [self.trace.dimensions(v) for v in self.given.values() if isinstance(v, fx.Node)]

    @property
    def shape(self) -> torch.Size:
        return self.node.meta["val"].shape  # type: ignore[no-any-return]

    def is_weight(self, name: str) -> bool:
        return bool(self.trace.name_of(self.given[name]))

    def read(self, name: str, dim: int) -> None:
        """The weights that are this argument read by this dimension."""
        self.trace.reads.add((self.trace.name_of(self.given[name]), dim))


def called(node: fx.Node) -> str:
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet or target, "__name__", target))


def _same(call: Call) -> Value:
    """Each value by itself."""
    return call.dims(next(iter(call.given)))


def _broadcast(call: Call) -> Value:
    """Each value by itself, of several tensors."""
    return _together(call.tensors(), len(call.shape))


def _together(tensors: Iterable[list[Dimension]], n: int) -> list[Dimension]:
    """The last `n` dimensions of tensors that are broadcast."""
    result: list[Dimension] = [[] for _ in range(n)]
    for own in tensors:
        for k, dim in enumerate(reversed(own), 1):
            if dim and result[-k]:
                join(result[-k], dim)
            elif dim:
                result[-k] = dim
    return result


def _linear(call: Call) -> Value:
    x, w, bias = call.dims("input"), call.dims("weight"), call.dims("bias")
    join(x[-1], w[1])
    call.read("weight", 1)
    if bias:
        join(w[0], bias[0])
    return [*x[:-1], w[0]]


def _matmul(call: Call) -> Value | None:
    """With a matrix of weights on either side. Between two activations, nothing may be removed from what is summed."""
    one, other = ("mat1", "mat2") if "mat1" in call.given else ("self", "mat2" if "mat2" in call.given else "other")
    a, b = call.dims(one), call.dims(other)
    if len(a) < 2 or len(b) < 2:
        return None
    join(a[-1], b[-2])
    if call.is_weight(one):
        call.read(one, len(a) - 1)
    elif call.is_weight(other):
        call.read(other, len(b) - 2)
    else:
        fix(a[-1], "a product of two activations sums over it")
    product = [*_together([a[:-2], b[:-2]], len(call.shape) - 2), a[-2], b[-1]]
    return _together([product, call.dims("self")], 2) if one == "mat1" else product  # addmm


def _convolution(call: Call) -> Value | None:
    x, w, bias, groups = call.dims("input"), call.dims("weight"), call.dims("bias"), call.given["groups"]
    if len(x) != len(w):  # without a batch
        return None
    if groups == 1:
        join(x[1], w[1])
        call.read("weight", 1)
    elif not w[1] and len(w[0]) == len(x[1]) and size(w[0]) == groups:  # depthwise
        join(x[1], w[0])
    else:
        within = [regrouped([dim], [groups, size(dim) // groups]) for dim in (x[1], w[0])]
        if within[0] is None or within[1] is None:
            return None
        for dim in within:  # one place is removed from all groups
            fix(dim[0], "a convolution has these groups")  # type: ignore[index]
        join(within[0][1], w[1])
        call.read("weight", 1)
    if bias:
        join(w[0], bias[0])
    return [x[0], w[0], *_places(call, x[2:])]


def _transposed_convolution(call: Call) -> Value | None:
    x, w, bias = call.dims("input"), call.dims("weight"), call.dims("bias")
    if call.given["groups"] != 1 or len(x) != len(w):
        return None
    join(x[1], w[0])
    call.read("weight", 0)
    if bias:
        join(w[1], bias[0])
    return [x[0], w[1], *_places(call, x[2:])]


def _pool(call: Call) -> Value | None:
    """Each channel by itself, over places that move: the last dimensions, as many as the operation's name says."""
    x = call.dims(next(iter(call.given)))
    if not isinstance(call.node.meta["val"], Tensor):
        return None
    channels = len(x) - int(called(call.node)[-2])
    return [*x[:channels], *_places(call, x[channels:])]


def _pad(call: Call) -> Value | None:
    x, padding = call.dims("self"), call.given["pad"]
    kept = len(x) - len(padding) // 2
    return [*x[:kept], *_places(call, x[kept:])]


def _places(call: Call, before: Sequence[Dimension]) -> list[Dimension]:
    """The last dimensions of the result, one for each of these, whose places are mixed."""
    for dim in before:
        fix(dim, "it counts places")
    return [dimension(n, "it counts places") for n in call.shape[len(call.shape) - len(before) :]]


def _batch_norm(call: Call) -> Value:
    x = call.dims("input")
    for name in ("weight", "bias", "running_mean", "running_var"):
        if own := call.dims(name):
            join(x[1], own[0])
    return x


def _layer_norm(call: Call) -> Value:
    x = call.dims("input")
    n = len(call.given["normalized_shape"])
    for k in range(1, n + 1):
        fix(x[-k], "a norm averages over it")
    for name in ("weight", "bias"):
        for k, dim in enumerate(reversed(call.dims(name) if name in call.given else []), 1):
            join(x[-k], dim)
    return x


def _group_norm(call: Call) -> Value:
    x = call.dims("input")
    fix(x[1], "a norm averages over it")
    for name in ("weight", "bias"):
        if own := call.dims(name):
            join(x[1], own[0])
    return x


def _softmax(call: Call) -> Value:
    x = call.dims("self")
    fix(x[call.given["dim"]], "a softmax sums over it")
    return x


def _reduced(call: Call) -> Value:
    x, dims = call.dims("self"), call.given.get("dim")
    chosen = range(len(x)) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
    gone = {d % len(x) for d in chosen} if x else set()
    for d in gone:
        fix(x[d], f"{called(call.node)} goes over it")
    if call.given.get("keepdim"):
        return [[] if d in gone else dim for d, dim in enumerate(x)]
    return [dim for d, dim in enumerate(x) if d not in gone]


def _view(call: Call) -> Value | None:
    return regrouped(call.dims(next(iter(call.given))), call.shape)


def _permuted(call: Call) -> Value:
    x = call.dims("self")
    return [x[d] for d in call.given["dims"]]


def _transposed(call: Call) -> Value:
    x = list(call.dims("self"))
    if len(x) > 1:
        a, b = call.given.get("dim0", 0), call.given.get("dim1", 1)
        x[a], x[b] = x[b], x[a]
    return x


def _expanded(call: Call) -> Value:
    x, shape = call.dims("self"), call.shape
    x = [*([[]] * (len(shape) - len(x))), *x]
    return [dim or dimension(n, "it repeats a value") for dim, n in zip(x, shape, strict=True)]


def _selected(call: Call) -> Value:
    x, dim = call.dims("self"), call.given["dim"]
    fix(x[dim], "single places of it are used")
    return [own for d, own in enumerate(x) if d != dim % len(x)]


def _sliced(call: Call) -> Value:
    x, dim = list(call.dims("self")), call.given["dim"]
    if size(x[dim]) != call.shape[dim]:
        fix(x[dim], "single places of it are used")
        x[dim] = dimension(call.shape[dim], "it is a part of another")
    return x


def _split(call: Call) -> Value | None:
    """Equal parts, as of queries, keys and values: one place is removed from all of them."""
    x, dim, parts = call.dims("self"), call.given["dim"], call.node.meta["val"]
    shape = list(parts[0].shape)
    if any(list(part.shape) != shape for part in parts):
        return None
    dim %= len(x)
    cut = regrouped([x[dim]], [len(parts), shape[dim]])
    if cut is None:
        return None
    fix(cut[0], "single places of it are used")
    return [[*x[:dim], cut[1], *x[dim + 1 :]] for _ in parts]


def _joined(call: Call) -> Value | None:
    """Parts one after another: nothing can be removed from that dimension."""
    parts = [call.trace.dimensions(node) for node in call.given["tensors"]]
    if any(len(part) != len(parts[0]) for part in parts):
        return None
    at = call.given.get("dim", 0) % len(parts[0])
    for part in parts:
        fix(part[at], "cat puts it beside others")
        for d, dim in enumerate(part):
            if d != at:
                join(parts[0][d], dim)
    result = list(parts[0])
    result[at] = dimension(call.shape[at], "cat has made it")
    return result


def _embedding(call: Call) -> Value:
    rows, w = call.dims("indices"), call.dims("weight")
    fix(w[0], "the input chooses from it")
    return [*rows, w[1]]


def _attention(call: Call) -> Value | None:
    q, k, v = (call.dims(name) for name in ("query", "key", "value"))
    if not len(q) == len(k) == len(v) or call.given.get("enable_gqa"):
        return None
    for own in (k, v):
        for d in range(len(q) - 2):
            if q[d] and own[d]:
                join(q[d], own[d])
    join(q[-1], k[-1])
    fix(q[-1], "a product of two activations sums over it")
    fix(k[-2], "a softmax sums over it")
    join(k[-2], v[-2])
    mask = call.dims("attn_mask") if isinstance(call.given.get("attn_mask"), fx.Node) else []
    for dim in mask[:-2]:
        fix(dim, "a mask has it")
    return [*q[:-1], v[-1]]


def size(dim: Dimension) -> int:
    return math.prod(axis.size for axis in dim)


_BY_VALUE = (
    "relu gelu silu sigmoid tanh leaky_relu elu selu celu mish hardswish hardtanh hardsigmoid relu6 softplus softsign "
    "threshold exp log neg abs sqrt rsqrt square erf sin cos reciprocal clamp clamp_min clamp_max dropout "
    "feature_dropout alpha_dropout native_dropout contiguous clone detach alias to _to_copy lift_fresh_copy lift_fresh "
    "nan_to_num logsigmoid log_sigmoid bitwise_not logical_not zeros_like ones_like full_like"
)
_BY_VALUES = "add sub rsub mul div maximum minimum where pow addcmul masked_fill type_as eq ne lt le gt ge lerp prelu_"
_OVER_PLACES = (
    "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
    "adaptive_avg_pool3d adaptive_max_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_bilinear2d upsample_bicubic2d"
)
RULES: dict[str, Callable[[Call], Value | None]] = {
    **dict.fromkeys(_BY_VALUE.split(), _same),
    **dict.fromkeys(_BY_VALUES.split(), _broadcast),
    **dict.fromkeys(_OVER_PLACES.split(), _pool),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"), _view),
    **dict.fromkeys(("matmul", "mm", "bmm", "addmm"), _matmul),
    **dict.fromkeys(("mean", "sum", "amax", "amin"), _reduced),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax"), _softmax),
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    **dict.fromkeys(("transpose", "t", "swapaxes"), _transposed),
    **dict.fromkeys(("expand", "expand_as"), _expanded),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), _split),
    "linear": _linear,
    "constant_pad_nd": _pad,
    "pad": _pad,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "permute": _permuted,
    "select": _selected,
    "slice": _sliced,
    "cat": _joined,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
}
