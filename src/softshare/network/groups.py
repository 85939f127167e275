"""Groups of units: the slices of all tensors that belong to one neuron, channel or attention head.

The network is exported as a graph of tensor operations. Each dimension of each tensor counts something, and each
operation says which dimensions count the same. What is left at the end can be removed place by place, from all tensors
that count it. A residual stream is one group, over all layers that write to it or read it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from softshare.network.axes import Axis, Dimension, dimension, fix, join, leaves, regrouped
from softshare.network.wrapped import copied

Value = list[Dimension] | list[list[Dimension]]  # of a tensor, or of several


@dataclass(frozen=True)
class Slices:
    """Where the units of a group are in a tensor: `dim` is (outer, units, inner)."""

    name: str  # of a parameter or a buffer
    dim: int
    outer: int
    inner: int
    read: bool  # whether a layer reads the units by these weights, one by one; otherwise they belong to a writer

    def of(self, tensor: Tensor, n_units: int) -> Tensor:
        """The tensor with the units as a dimension of their own, `dim` + 1. A view."""
        return tensor.unflatten(self.dim, (self.outer, n_units, self.inner))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Group:
    """Units that can be removed, each with all of its slices."""

    n_units: int
    slices: tuple[Slices, ...]


def find_groups(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """All groups of a network in evaluation mode, and messages about the operations that are not known.

    The arguments are those of a call of the model. A copy of it is exported, so it is not changed.
    """
    try:
        model = copied(model).eval()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the copy
            exported = torch.export.export(model, tuple(args), dict(kwargs), strict=False)
    except Exception as error:  # it runs the user's code, which may raise anything
        reason = (str(error).strip().splitlines() or [""])[0]
        return (), (f"units left alone: the network cannot be exported: {type(error).__name__}: {reason}",)
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return _Trace(model, names).groups(exported.graph)


class _Trace:
    def __init__(self, model: nn.Module, names: Mapping[str, str]) -> None:
        self._tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._tensors |= dict(model.named_parameters(remove_duplicate=False))
        self._names = names
        self._own: dict[str, list[Dimension]] = {}  # of each parameter and buffer, by name
        self._of: dict[fx.Node, Value] = {}
        self.reads: set[tuple[str, int]] = set()  # a parameter and a dimension by which it reads
        self._unknown: set[str] = set()  # operations

    def groups(self, graph: fx.Graph) -> tuple[tuple[Group, ...], tuple[str, ...]]:
        for node in graph.nodes:
            if node.op == "placeholder":
                self._of[node] = self._input(node)
            elif node.op == "output":
                self._fix_inputs(node, "the output of the network has it")
            elif (value := self._call(node)) is not None:
                self._of[node] = value
            else:
                if node.all_input_nodes:
                    self._unknown.add(_called(node))
                self._fix_inputs(node, f"{_called(node)} may mix its units")
                self._of[node] = _fresh(node.meta.get("val"), f"{_called(node)} has made it")
        unknown = ", ".join(sorted(self._unknown))
        return self._found(), (f"units left alone where {unknown} may mix them",) if unknown else ()

    def _input(self, node: fx.Node) -> Value:
        name = self._names.get(node.name)
        if name is None:
            return _fresh(node.meta.get("val"), "the input of the network has it")
        same = next((n for n in self._own if self._tensors[n] is self._tensors[name]), None)  # tied
        self._own[name] = self._own[same] if same else [dimension(n) for n in self._tensors[name].shape]
        return self._own[name]

    def _call(self, node: fx.Node) -> Value | None:
        """The dimensions of what a node returns. None if the operation is not known."""
        if node.target is not None and getattr(node.target, "__name__", "") == "getitem":
            source = self._of[node.args[0]]  # type: ignore[index]
            return source[node.args[1]]  # type: ignore[index, return-value]
        rule = RULES.get(_called(node).removesuffix("_"))
        if rule is None or not isinstance(node.target, torch._ops.OpOverload):
            return None
        arguments = node.target._schema.arguments
        given = {argument.name: argument.default_value for argument in arguments}
        given |= dict(zip(given, node.args, strict=False)) | dict(node.kwargs)
        return rule(Call(self, node, given))

    def dimensions(self, node: Any) -> list[Dimension]:
        return self._of[node] if isinstance(node, fx.Node) else []  # type: ignore[return-value]

    def name_of(self, node: Any) -> str:
        return self._names.get(node.name, "") if isinstance(node, fx.Node) else ""

    def _fix_inputs(self, node: fx.Node, why: str) -> None:
        for source in node.all_input_nodes:
            for dim in _flat(self._of[source]):
                fix(dim, why)

    def _found(self) -> tuple[Group, ...]:
        slices: dict[Axis, list[Slices]] = {}
        for name, own in self._own.items():
            for dim, axes in enumerate(map(leaves, own)):
                for place, axis in enumerate(axes):
                    outer, inner = _size(axes[:place]), _size(axes[place + 1 :])
                    slices.setdefault(axis, []).append(Slices(name, dim, outer, inner, (name, dim) in self.reads))
        groups = (Group(axis.size, tuple(own)) for axis, own in slices.items() if not axis.fixed)
        return tuple(group for group in groups if any(s.read for s in group.slices))


@dataclass(frozen=True)
class Call:
    """One operation, with its arguments by name."""

    trace: _Trace
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


def _called(node: fx.Node) -> str:
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    return str(getattr(packet or target, "__name__", target))


def _fresh(value: Any, why: str) -> Value:
    if isinstance(value, Tensor):
        return [dimension(n, why) for n in value.shape]
    return [_fresh(v, why) for v in value] if isinstance(value, tuple | list) else []  # type: ignore[return-value]


def _flat(value: Value) -> list[Dimension]:
    """The dimensions of one tensor or several."""
    if any(isinstance(axis, list) for item in value for axis in item):
        return [dim for item in value for dim in _flat(item)]  # type: ignore[arg-type]
    return value  # type: ignore[return-value]


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
    elif not w[1] and len(w[0]) == len(x[1]) and _size(w[0]) == groups:  # depthwise
        join(x[1], w[0])
    else:
        return None
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
    channels = len(x) - int(_called(call.node)[-2])
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
        fix(x[d], f"{_called(call.node)} goes over it")
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
    if _size(x[dim]) != call.shape[dim]:
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


def _size(dim: Dimension) -> int:
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
