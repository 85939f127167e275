"""Links between layers: where one layer feeds the next, unit by unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from softshare.network.weights import layout
from softshare.network.wrapped import copied

# What may lie between two layers. "unit" acts on each value separately. "pool" and "scale" act on each channel
# separately: "pool" keeps any constant, "scale" only the constant 0. "flatten" puts the channels one after another.
# "norm" is batch norm in evaluation mode, which has entries of its own for each channel.
Kind = Literal["unit", "pool", "scale", "flatten", "norm"]
NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_UNIT_MODULES = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.Identity, nn.Dropout)
_FUNCTIONS: dict[Any, Kind] = {
    **dict.fromkeys((F.relu, torch.relu, F.tanh, torch.tanh, F.sigmoid, torch.sigmoid, F.gelu, F.leaky_relu), "unit"),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d, F.adaptive_avg_pool2d), "pool"),
    F.dropout: "unit",
    F.avg_pool2d: "scale",
    torch.flatten: "flatten",
}
_METHODS: dict[Any, Kind] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), "unit"),
    **dict.fromkeys(("flatten", "view", "reshape"), "flatten"),
}


@dataclass(frozen=True, eq=False)
class Step:
    """One operation between two layers."""

    kind: Kind
    apply: Callable[[Tensor], Tensor]
    norm: str = ""  # the name of a batch norm
    eps: float = 0.0


@dataclass(frozen=True, eq=False)
class Link:
    """Layer `source` feeds only layer `target`. Both are names of modules. Neither is tied or used twice."""

    source: str
    target: str
    n_units: int  # rows of a Linear, filters of a Conv2d
    has_bias: bool  # of the source
    steps: tuple[Step, ...]

    @property
    def norms(self) -> tuple[str, ...]:
        """The tensors of the batch norms between the two layers, with an entry for each unit."""
        return tuple(f"{step.norm}.{name}" for step in self.steps if step.kind == "norm" for name in NORM_TENSORS)

    def vanishes(
        self,
        values: Tensor,  # (units,)
        tensors: Mapping[str, Tensor],  # those of `norms`
    ) -> Tensor:  # (units,) bool
        """Whether a unit with this constant output reaches the target as exactly 0, everywhere."""
        values = values.clone()  # a step may act in place
        for step in self.steps:
            if step.kind == "unit":
                values = step.apply(values)
            elif step.kind == "norm":
                own = [tensors[f"{step.norm}.{name}"].to(values.dtype) for name in NORM_TENSORS]
                values = (values - own[2]) / (own[3] + step.eps).sqrt() * own[0] + own[1]
            elif step.kind == "scale":  # by an unknown factor, which differs between places
                values = torch.where(values == 0, values, torch.nan)
        return values == 0


def find_links(model: nn.Module, through_norms: bool = False) -> tuple[list[Link], dict[str, str]]:
    """All links of a network in evaluation mode, in the order of the forward pass, and why other layers have none.

    Inputs must have a batch dimension, so that a Flatten before a Linear yields whole channels. A batch norm between
    two layers ends a link, unless links may go through it. The model is not changed: a copy of it is traced.
    """
    try:
        model = copied(model).eval()
        graph = fx.Tracer().trace(model)
    except Exception as error:  # tracing runs the user's code, which may raise anything
        reason = (str(error).splitlines() or [""])[0]
        return [], {"the network": f"the model cannot be traced: {type(error).__name__}: {reason}"}
    modules = dict(model.named_modules())
    taken = _taken(model, graph)
    links, reasons = list[Link](), dict[str, str]()
    for node in graph.nodes:
        if _layer(node, modules) is None:
            continue
        found = _link(node, modules, taken, through_norms)
        if isinstance(found, Link):
            links.append(found)
        elif found:
            reasons[str(node.target)] = found
    return links, reasons


def _taken(model: nn.Module, graph: fx.Graph) -> set[str]:
    """Modules that are called twice, have tied tensors, or have tensors that the forward pass reads directly."""
    tied = layout(model)[1]
    names = [*tied, *tied.values(), *(str(node.target) for node in graph.nodes if node.op == "get_attr")]
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    return {name.rpartition(".")[0] for name in names} | {name for name, n in calls.items() if n > 1}


def _layer(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Linear | nn.Conv2d | None:
    """The Linear or Conv2d that a node calls. A subclass does not count: it may do anything."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    return module if type(module) in (nn.Linear, nn.Conv2d) else None  # type: ignore[return-value]


def _link(node: fx.Node, modules: dict[str, nn.Module], taken: set[str], through_norms: bool) -> Link | str:
    """The link from a layer to the next, or why there is none. The reason is empty for the last layer."""
    source, steps, here = _layer(node, modules), list[Step](), node
    while True:
        users = [user for user in here.users if not _is_batch_size(user, here)]
        if len(users) != 1:
            return f"its output is used {len(users)} times"
        before, here = here, users[0]
        if here.op == "output":
            return ""
        inputs = [other for other in here.all_input_nodes if not _is_batch_size(other, before)]
        if inputs != [before] or here.args[:1] != (before,):
            return f"{_called(here, modules)} joins its output with others"
        target = _layer(here, modules)
        if target is not None:
            break
        step = (_norm(here, modules) if through_norms else None) or _step(here, modules)
        if step is None:
            return f"{_called(here, modules)} may mix its units"
        steps.append(step)
    if source is None:
        return "not a layer"
    names = [str(node.target), str(here.target)]
    norms = [step.norm for step in steps if step.kind == "norm"]
    problem = _problem(source, target, steps, modules) or _tie([*names, *norms], modules, taken)
    return problem or Link(names[0], names[1], source.weight.shape[0], source.bias is not None, tuple(steps))


def _called(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """What a node calls, without the place in the network, so that layers with one problem share a message."""
    if node.op == "call_module":
        return type(modules[str(node.target)]).__name__
    return str(getattr(node.target, "__name__", node.target))


def _step(node: fx.Node, modules: dict[str, nn.Module]) -> Step | None:
    if node.op == "call_module":
        module = modules[str(node.target)]
        kind = _kind(module)
        return None if kind is None or _hooked(module) else Step(kind, module)
    kind = (_METHODS if node.op == "call_method" else _FUNCTIONS).get(node.target)
    if kind is None or (kind == "flatten" and not _flattens_channels(node)):
        return None
    if node.target is F.dropout and node.kwargs.get("training", True):  # it drops at random in evaluation too
        return None
    function: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target
    return Step(kind, lambda x: function(x, *node.args[1:], **node.kwargs))


def _norm(node: fx.Node, modules: dict[str, nn.Module]) -> Step | None:
    """A batch norm that in evaluation mode takes each channel by itself."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if module is None or not foldable(module):
        return None
    return Step("norm", module, str(node.target), module.eps)  # type: ignore[arg-type]


def foldable(module: nn.Module) -> bool:
    """Whether this is a batch norm with statistics, weights and biases."""
    return type(module) in NORMS and all(getattr(module, name) is not None for name in NORM_TENSORS)


def _kind(module: nn.Module) -> Kind | None:
    if type(module) in _UNIT_MODULES:
        return "unit"
    if type(module) in (nn.MaxPool2d, nn.AdaptiveAvgPool2d):
        return "pool"
    if type(module) is nn.AvgPool2d:  # padding counts as zeros
        return "pool" if module.padding in (0, (0, 0)) and module.divisor_override is None else "scale"
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return "flatten"
    return None


def _is_batch_size(node: fx.Node, of: fx.Node) -> bool:
    return (node.op, node.target, node.args) == ("call_method", "size", (of, 0))


def _flattens_channels(node: fx.Node) -> bool:
    """`flatten(x, 1)` or `x.view(x.size(0), -1)`."""
    if node.target in ("view", "reshape"):
        return len(node.args) == 3 and isinstance(node.args[1], fx.Node) and bool(node.args[2] == -1)
    given = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | dict(node.kwargs)
    return (given.get("start_dim", 0), given.get("end_dim", -1)) == (1, -1)


def _problem(
    source: nn.Linear | nn.Conv2d,
    target: nn.Linear | nn.Conv2d,
    steps: Sequence[Step],
    modules: Mapping[str, nn.Module],
) -> str:
    """Why the inputs of the target do not match the units of the source. Empty if they do."""
    kinds = [step.kind for step in steps]
    norms = [modules[step.norm].get_buffer("running_mean") for step in steps if step.kind == "norm"]
    if any(len(mean) != source.weight.shape[0] for mean in norms):
        return "a batch norm between them has another number of units"
    if any(isinstance(layer, nn.Conv2d) and layer.groups != 1 for layer in (source, target)):
        return "a convolution has groups"
    pools = [at for at, kind in enumerate(kinds) if kind in ("pool", "scale")]
    if isinstance(source, nn.Linear):
        if isinstance(target, nn.Conv2d) or pools:
            return "pooling or a convolution would mix the units of a Linear"
        return "" if target.in_features == source.out_features else "the next layer takes another number of units"
    if isinstance(target, nn.Conv2d):
        same = "flatten" not in kinds and target.in_channels == source.out_channels
        return "" if same else "the next convolution does not take its channels"
    if (
        "flatten" not in kinds
        or max(pools, default=0) > kinds.index("flatten")
        or target.in_features % source.out_channels
    ):
        return "the next Linear does not take whole channels"
    return ""


def _tie(names: Sequence[str], modules: dict[str, nn.Module], taken: set[str]) -> str:
    for name in names:
        if name in taken:
            return "it or the next layer is tied or used more than once"
        if _hooked(modules[name]):
            return "it or the next layer has hooks"
    return ""


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
