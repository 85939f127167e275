"""Groups of units: the slices of all tensors that belong to one neuron, channel or attention head.

The network is exported as a graph of tensor operations. Each dimension of each tensor counts something, and each
operation says which dimensions count the same. What is left at the end can be removed place by place, from all tensors
that count it. A residual stream is one group, over all layers that write to it or read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from softshare.network.axes import Axis, Dimension, dimension, fix, leaves
from softshare.network.rules import RULES, Call, Value, called, size
from softshare.network.wrapped import copied


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
                    self._unknown.add(called(node))
                self._fix_inputs(node, f"{called(node)} may mix its units")
                self._of[node] = _fresh(node.meta.get("val"), f"{called(node)} has made it")
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
        rule = RULES.get(called(node).removesuffix("_"))
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
                    outer, inner = size(axes[:place]), size(axes[place + 1 :])
                    slices.setdefault(axis, []).append(Slices(name, dim, outer, inner, (name, dim) in self.reads))
        groups = (Group(axis.size, tuple(own)) for axis, own in slices.items() if not axis.fixed)
        return tuple(group for group in groups if any(s.read for s in group.slices))


def _fresh(value: Any, why: str) -> Value:
    if isinstance(value, Tensor):
        return [dimension(n, why) for n in value.shape]
    return [_fresh(v, why) for v in value] if isinstance(value, tuple | list) else []  # type: ignore[return-value]


def _flat(value: Value) -> list[Dimension]:
    """The dimensions of one tensor or several."""
    if any(isinstance(axis, list) for item in value for axis in item):
        return [dim for item in value for dim in _flat(item)]  # type: ignore[arg-type]
    return value  # type: ignore[return-value]
