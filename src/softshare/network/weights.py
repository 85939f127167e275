"""WeightView: which tensors of a network are shared, and all shared weights as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from softshare.config import Rule
from softshare.errors import ConfigError, ModelError
from softshare.network.wrapped import require_ordinary, unwrapped, without_prefix

KEPT_FROM = 0.05  # share of the weights: if more are not compressed, a message says so
# Weights and biases of these are shared by default. Normalization layers are not: their few parameters set scales.
SHARED_MODULES = (
    nn.Linear,
    nn.Bilinear,
    _ConvNd,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
)


@dataclass(frozen=True, eq=False)
class SharedTensor:
    """One tensor under the prior: the live parameter, with the first of its names."""

    name: str
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class WeightView:
    """A network's state, split into shared tensors and the rest. A tied tensor appears once, under its first name."""

    shared: tuple[SharedTensor, ...]
    rest: dict[str, Tensor]
    tied: dict[str, str]  # another name -> first name
    order: tuple[str, ...] = ()  # the first names of shared tensors and the rest, in the order of the network

    @classmethod
    def of(cls, model: nn.Module, rules: Sequence[Rule] = ()) -> WeightView:
        """Apply name rules to every floating-point parameter. The first rule that matches decides.

        Without a matching rule, trainable parameters of `SHARED_MODULES` are shared. Buffers and integers are never
        shared. A rule for a tied tensor may use any of its names.
        """
        model = unwrapped(model)
        state = model.state_dict(keep_vars=True)
        wrong = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if wrong:
            raise ModelError(
                f"expected a state dict that holds only tensors, but these entries are not: {', '.join(wrong)}"
            )
        lazy = [name for name, value in state.items() if is_lazy(value)]
        if lazy:
            raise ModelError(
                f"expected an initialized model, but these tensors are lazy: {', '.join(lazy)}. Run one batch through "
                "the model first"
            )
        require_ordinary(state)
        names = _names_of_each(state)
        for rule in rules:
            if not any(fnmatchcase(name, rule.pattern) for name in state):
                raise ConfigError(f"rule {rule}: no tensor matches; the names are {', '.join(state)}")

        owners = dict(model.named_modules(remove_duplicate=False))
        shared, rest = [], {}
        for aliases in names:
            tensor = state[aliases[0]]
            modules = [owners.get(name.rpartition(".")[0]) for name in aliases]
            if _is_shared(tensor, aliases, modules, rules):
                shared.append(SharedTensor(aliases[0], tensor))
            else:
                rest[aliases[0]] = tensor
        return cls(tuple(shared), rest, _tied(names), tuple(aliases[0] for aliases in names))

    def only(self, names: Collection[str]) -> WeightView:
        """A view of the shared tensors with these names, without the rest."""
        return WeightView(tuple(s for s in self.shared if s.name in names), {}, {})

    def layers(self) -> list[tuple[str, ...]]:
        """The names of the shared tensors, by module. A module without weights joins the first one that has some."""
        groups: dict[str, list[SharedTensor]] = {}
        for s in self.shared:
            groups.setdefault(s.name.rpartition(".")[0], []).append(s)
        full = [group for group in groups.values() if any(s.tensor.numel() for s in group)]
        empty = [s.name for group in groups.values() if group not in full for s in group]
        names = [[s.name for s in group] for group in full]
        return [tuple(names[0] + empty), *map(tuple, names[1:])]

    @property
    def tensors(self) -> list[Tensor]:
        return [s.tensor for s in self.shared]

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of the shared tensors, at least float32."""
        return reduce(torch.promote_types, (t.dtype for t in self.tensors), torch.float32)

    @property
    def n_weights(self) -> int:
        return sum(t.numel() for t in self.tensors)

    def check(self) -> None:
        """Raise `ModelError` unless there are weights to share, and they are finite and not all equal."""
        if self.n_weights == 0:
            kept = ", ".join(self.rest) or "none at all"
            raise ModelError(f"the model has no parameter to share; its tensors are: {kept}")
        named = {s.name: s.tensor for s in self.shared} | self.rest
        for name, tensor in named.items():
            if not isinstance(tensor, nn.Parameter):  # a buffer may be a mask of infinities
                continue
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                raise ModelError(
                    f"tensor {name}: expected finite weights, but {bad} of {tensor.numel()} are NaN or infinite"
                )
        low, high = self.range()
        if low == high:
            names = ", ".join(s.name for s in self.shared)
            raise ModelError(
                f"expected a trained network, but all {self.n_weights} shared weights equal {low} ({names})"
            )

    def range(self) -> tuple[float, float]:
        """The smallest and the largest shared weight. Both are NaN if any weight is."""
        ends = torch.stack([torch.stack(torch.aminmax(t.detach())).double() for t in self.tensors if t.numel()])
        return float(ends[:, 0].min()), float(ends[:, 1].max())

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the network's whole present state, on the CPU."""
        named = {s.name: s.tensor for s in self.shared} | self.rest
        state = {name: t.detach().cpu().clone() for name, t in named.items()}
        return state | {alias: state[name] for alias, name in self.tied.items()}

    def gather(self) -> Tensor:
        """A copy of all shared weights as one flat vector."""
        return torch.cat([t.detach().reshape(-1).to(self.dtype) for t in self.tensors])

    def __repr__(self) -> str:
        n_rest = sum(math.prod(t.shape) for t in self.rest.values())
        return f"WeightView({self.n_weights:,} weights shared in {len(self.shared)} tensors, {n_rest:,} values kept)"


def _names_of_each(state: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of each tensor, in the order of the state dict.

    Two names belong to one tensor if their values lie in the same memory. Tensors that overlap in part are refused: a
    file would hold them twice, and loading one would change the other.
    """
    names: dict[Any, list[str]] = {}
    for name, value in state.items():
        names.setdefault(_place(value), []).append(name)
    for aliases in names.values():
        other = next((name for name in aliases if state[name] is not state[aliases[0]]), None)
        if other:  # a copy of the network would untie them
            raise ModelError(f"{aliases[0]} and {other} share memory; tie them by giving both modules one parameter")
    _require_apart({aliases[0]: state[aliases[0]] for aliases in names.values()})
    return list(names.values())


def _place(tensor: Tensor) -> Any:
    """What tells one tensor from another: its memory, or the object itself if it has none."""
    if is_lazy(tensor) or tensor.is_meta or tensor.layout != torch.strided or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _require_apart(tensors: Mapping[str, Tensor]) -> None:
    """Raise if two of the tensors share memory in part. Only those over one storage can."""
    storages: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if not isinstance(place := _place(tensor), int):
            storages.setdefault((place[0], tensor.untyped_storage().data_ptr()), []).append(name)
    for names in storages.values():
        reaching: list[tuple[int, str]] = []  # the ends of earlier spans, and whose they are
        for start, end, second in sorted((*_span(tensors[name]), name) for name in names):
            reaching = [(reach, first) for reach, first in reaching if start < reach]
            for _, first in reaching:
                if _overlap(tensors[first], tensors[second]):
                    raise ModelError(
                        f"{first} and {second} share memory, but are not the same tensor (one is a view of the other); "
                        "clone one of them, or keep only one in the state dict"
                    )
            reaching.append((end, second))


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors over one storage have an element in common. Columns of a matrix interleave without one."""
    places = torch.arange(a.untyped_storage().nbytes() // a.element_size())
    own, other = (places.as_strided(t.shape, t.stride(), t.storage_offset()).flatten() for t in (a, b))
    return a.dtype != b.dtype or bool(torch.isin(own, other).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first byte and the end of what a tensor reaches."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _tied(names: Sequence[Sequence[str]]) -> dict[str, str]:
    return {alias: aliases[0] for aliases in names for alias in aliases[1:]}


def layout(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a network once, in order, under its first name, and the other names of tied tensors."""
    state = {name: t for name, t in unwrapped(model).state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    names = _names_of_each(state)
    return {aliases[0]: state[aliases[0]] for aliases in names}, _tied(names)


def _is_shared(
    tensor: Tensor, aliases: Sequence[str], modules: Sequence[nn.Module | None], rules: Sequence[Rule]
) -> bool:
    if not (isinstance(tensor, nn.Parameter) and tensor.is_floating_point()):
        return False
    for rule in rules:
        if any(fnmatchcase(name, rule.pattern) for name in aliases):
            return rule.share
    if not tensor.requires_grad:
        return False
    own = zip(modules, aliases, strict=True)
    return any(isinstance(m, SHARED_MODULES) and not _is_normed(m, name.rpartition(".")[2]) for m, name in own)


def _is_normed(module: nn.Module, name: str) -> bool:
    """Whether old-style `weight_norm` or `spectral_norm` divides the tensor by its norm: zeros would give NaN."""
    hooks = [h for h in module._forward_pre_hooks.values() if type(h).__name__ in ("WeightNorm", "SpectralNorm")]
    return any(name.startswith(f"{hook.name}_") for hook in hooks)  # type: ignore[attr-defined]


def kept_message(view: WeightView) -> list[str]:
    """One line on the parameters that are not compressed, if they are a part that counts."""
    kept = {name: t.numel() for name, t in view.rest.items() if isinstance(t, nn.Parameter)}
    share = sum(kept.values()) / max(1, view.n_weights + sum(kept.values()))
    if share < KEPT_FROM:
        return []
    names = sorted(kept, key=lambda name: -kept[name])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [
        f"{100 * share:.0f}% of the weights are kept as they are: {', '.join(names[:3])}{more}; a rule shares them, as "
        f"share:{names[0]}"
    ]


def load_state_(model: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Copy a state dict into the model in place. If some do not fit, the error lists them and none is copied."""
    target = check_fits(model, state, source)
    with torch.no_grad():
        for name, tensor in without_prefix(state, target).items():
            target[name].copy_(tensor)


def check_fits(model: nn.Module, state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors of the model that `state` would be copied to, or an error that lists all misfits.

    `state` may be on the meta device.
    """
    target = {name: t for name, t in unwrapped(model).state_dict().items() if isinstance(t, Tensor)}
    state = without_prefix(state, target)
    problems = [f"missing from the file: {name}" for name in target if name not in state]
    problems += [f"not in the model: {name}" for name in state if name not in target]
    problems += [text for name in state if name in target for text in _misfit(name, state[name], target[name])]
    if problems:
        raise ModelError(f"{source} does not fit the model:\n  " + "\n  ".join(problems))
    return target


def _misfit(name: str, ours: Tensor, theirs: Tensor) -> list[str]:
    if is_lazy(theirs):
        return [f"{name}: not initialized in the model; run one batch through it first"]
    if ours.shape != theirs.shape:
        return [f"{name}: shape {tuple(ours.shape)} in the file, {tuple(theirs.shape)} in the model"]
    if ours.is_floating_point() != theirs.is_floating_point():  # copying would round silently
        return [f"{name}: {ours.dtype} in the file, {theirs.dtype} in the model"]
    if theirs.is_meta:  # copying would silently do nothing
        return [f"{name}: on the meta device in the model; allocate it first, for example model.to_empty(device='cpu')"]
    return []
