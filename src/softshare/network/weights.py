"""WeightView: which tensors of a network are shared, and all shared weights as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from softshare._util.float64 import in_float64
from softshare.config import Rule
from softshare.distributed.group import Group
from softshare.distributed.shards import copy_, counts_here, flat_places, group_of, local, local_grad, spans, whole
from softshare.errors import ConfigError, ModelError
from softshare.network.memory import names_of_each, tied_names
from softshare.network.normed import divides_by_norm, is_computed
from softshare.network.wrapped import require_ordinary, under_names, unwrapped

OWN_FROM = 1 << 10  # weights: a smaller parameter of a module that is not known is kept, because it saves little
MAX_TENSORS = 1 << 16  # as many as a file can hold
KEPT_FROM = 0.05  # share of the weights: if more are not compressed, a message says so
# Weights and biases of these are shared by default, and of all other modules the matrices. Normalization layers are
# not: their few parameters set scales.
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
    alone: bool = False  # a matrix of a module that is not known: it is a layer by itself


@dataclass(frozen=True, eq=False)
class WeightView:
    """A network's state: shared tensors, the rest, and dropped ones. A tied tensor appears once, by its first name."""

    shared: tuple[SharedTensor, ...]
    rest: dict[str, Tensor]
    tied: dict[str, str]  # another name -> first name
    order: tuple[str, ...] = ()  # the first names of shared tensors and the rest, in the order of the network
    dropped: dict[str, Tensor] = field(default_factory=dict)  # by every name: tensors that the file leaves out
    normed: tuple[str, ...] = ()  # those of the rest that cannot be shared, because their norm divides them
    processes: Group | None = None  # of a part of a network; None: found from the shared tensors

    @classmethod
    def of(cls, model: nn.Module, rules: Sequence[Rule] = ()) -> WeightView:
        """Apply name rules to every tensor. The first rule that matches decides. Any name of a tied tensor will do.

        Without a matching rule, trainable parameters of `SHARED_MODULES` are shared, and so are large matrices of other
        modules. Buffers and integers are never shared. A dropped parameter must be frozen. Buffers are never dropped,
        because training may change them.
        """
        model = unwrapped(model)
        state = model.state_dict(keep_vars=True)
        wrong = [name for name, value in state.items() if not isinstance(value, Tensor)]
        if wrong:
            raise ModelError(
                f"expected a state dict that holds only tensors, but these entries are not: {', '.join(wrong)}"
            )
        require_ordinary(state)
        names = names_of_each(state)
        _require_matches(rules, state)
        owners = dict(model.named_modules(remove_duplicate=False))
        shared, rest, normed = [], {}, []
        dropped: dict[str, Tensor] = {}
        for aliases in names:
            first, tensor = aliases[0], state[aliases[0]]
            uses = [_Use(owners.get(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in aliases]
            rule = first_match(rules, aliases)
            if rule and rule.drop and isinstance(tensor, nn.Parameter):
                _require_frozen(rule, first, tensor)
                dropped |= dict.fromkeys(aliases, tensor)
            elif _is_shared(first, tensor, uses, rule):
                known = any(isinstance(use.module, SHARED_MODULES) for use in uses)
                shared.append(SharedTensor(first, tensor, alone=not known and _is_matrix(tensor)))
            else:
                rest[first] = tensor
                normed += [first] if any(use.is_normed for use in uses) else []
        names = [aliases for aliases in names if aliases[0] not in dropped]
        return cls(
            tuple(shared), rest, tied_names(names), tuple(aliases[0] for aliases in names), dropped, tuple(normed)
        )

    def only(self, names: Collection[str]) -> WeightView:
        """A view of the shared tensors with these names, without the rest."""
        return WeightView(tuple(s for s in self.shared if s.name in names), {}, {}, processes=self.group)

    def layers(self) -> list[tuple[str, ...]]:
        """The names of the shared tensors, by module; a matrix of a module that is not known stands alone.

        A module without weights joins the first one that has some.
        """
        groups: dict[str, list[SharedTensor]] = {}
        for s in self.shared:
            groups.setdefault(s.name if s.alone else s.name.rpartition(".")[0], []).append(s)
        full, empty = [], list[str]()
        for group in groups.values():
            names = [s.name for s in group]
            if any(s.tensor.numel() for s in group):
                full.append(names)
            else:
                empty += names
        return [tuple(full[0] + empty), *map(tuple, full[1:])]

    @property
    def tensors(self) -> list[Tensor]:
        return [s.tensor for s in self.shared]

    @cached_property
    def group(self) -> Group:
        """The processes that hold the shared weights together. A process that holds all of them is alone."""
        return group_of(self.tensors) if self.processes is None else self.processes

    @property
    def locals(self) -> list[Tensor]:
        """The shared tensors as this process holds them: those that are sharded without a history."""
        return [local(t) for t in self.tensors]

    @property
    def local_grads(self) -> list[Tensor | None]:
        return [local_grad(t) for t in self.tensors]

    @cached_property
    def counted(self) -> list[bool]:
        """Whether this process counts what it holds of each tensor, which others may hold too."""
        return [counts_here(t, self.group) for t in self.tensors]

    @property
    def counted_locals(self) -> list[Tensor]:
        return [t for t, counts in zip(self.locals, self.counted, strict=True) if counts]

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of the shared tensors, at least float32."""
        return reduce(torch.promote_types, (t.dtype for t in self.tensors), torch.float32)

    @property
    def n_weights(self) -> int:
        return sum(t.numel() for t in self.tensors)

    def check(self) -> None:
        """Raise `ModelError` unless there are weights to share, and they are finite and not all equal."""
        if len(self.shared) + len(self.rest) > MAX_TENSORS:
            raise ModelError(
                f"expected a network of at most {MAX_TENSORS:,} tensors, as a file can hold, got "
                f"{len(self.shared) + len(self.rest):,}"
            )
        if self.n_weights == 0:
            kept = ", ".join(self.rest) or "none at all"
            raise ModelError(f"the model has no parameter to share; its tensors are: {kept}")
        named = {s.name: s.tensor for s in self.shared} | self.rest
        parameters = {name: t for name, t in named.items() if isinstance(t, nn.Parameter)}  # buffers may be infinite
        wrong = [(~torch.isfinite(local(t))).sum().cpu() * counts_here(t, self.group) for t in parameters.values()]
        for (name, tensor), bad in zip(parameters.items(), self.group.sum_(torch.stack(wrong)).tolist(), strict=True):
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
        ends = [in_float64(torch.stack(torch.aminmax(t.detach()))) for t in self.locals if t.numel()]
        if self.group.size == 1:
            return float(torch.stack(ends)[:, 0].min()), float(torch.stack(ends)[:, 1].max())
        held = torch.stack(ends).cpu() if ends else torch.tensor([[math.inf, -math.inf]], dtype=torch.float64)
        is_nan = held.isnan().any().double()  # the largest of several numbers need not say so
        low, high, is_nan = self.group.highest_(torch.stack([-held[:, 0].min(), held[:, 1].max(), is_nan])).tolist()
        return (math.nan, math.nan) if is_nan else (-low, high)

    def size(self) -> float:
        """The root mean square of the shared weights."""
        if not self.n_weights:
            return 0.0
        if self.group.size == 1:
            return size_of(self.gather())
        held = zip(self.locals, self.counted, strict=True)
        squares = sum((in_float64(t.detach()).square().sum().cpu() for t, counts in held if counts), _ZERO)
        return math.sqrt(float(self.group.sum_(squares + 0)) / self.n_weights)

    def sample(self, most: int) -> Tensor:
        """At most so many weights, evenly spaced in `gather()`. No process needs the others' weights for it."""
        step = math.ceil(self.n_weights / most)
        if self.group.size == 1:
            return self.gather()[::step]
        found = torch.zeros(-(-self.n_weights // step), dtype=self.dtype, device=self.tensors[0].device)
        first = 0
        for t, held, counts in zip(self.tensors, self.locals, self.counted, strict=True):
            if counts:
                places = flat_places(spans(t), t.shape).flatten() + first
                drawn = (places % step == 0).nonzero()[:, 0]
                found[(places[drawn] // step).to(found.device)] = held.flatten()[drawn.to(found.device)].to(self.dtype)
            first += t.numel()
        return self.group.sum_(found)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the network's whole present state, on the CPU.

        If the weights are sharded, the first process has it, and the others have it on meta.
        """
        named = {s.name: s.tensor for s in self.shared} | self.rest | self.dropped
        if self.group.size > 1:
            state = {name: whole(t, self.group, owner=0).clone() for name, t in named.items()}
        else:
            state = {name: local(t).detach().cpu().clone() for name, t in named.items()}
        return state | {alias: state[name] for alias, name in self.tied.items()}

    def gather(self) -> Tensor:
        """A copy of all shared weights of this process as one flat vector."""
        return torch.cat([t.detach().reshape(-1).to(self.dtype) for t in self.locals])

    def __repr__(self) -> str:
        n_rest = sum(math.prod(t.shape) for t in self.rest.values())
        return f"WeightView({self.n_weights:,} weights shared in {len(self.shared)} tensors, {n_rest:,} values kept)"


_ZERO = torch.zeros((), dtype=torch.float64)


def size_of(weights: Tensor) -> float:
    """The root mean square."""
    return float(in_float64(weights).square().mean().sqrt()) if weights.numel() else 0.0


def layout(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a network once, in order, under its first name, and the other names of tied tensors."""
    state = {name: t for name, t in unwrapped(model).state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    names = names_of_each(state)
    return {aliases[0]: state[aliases[0]] for aliases in names}, tied_names(names)


def _require_matches(rules: Sequence[Rule], state: Mapping[str, Tensor]) -> None:
    require_matches(rules, state)
    parameters = [name for name, tensor in state.items() if isinstance(tensor, nn.Parameter)]
    for rule in rules:
        if rule.drop and not rule.matches(parameters):
            raise ConfigError(f"rule {rule}: it matches only buffers, and those stay: training may change them")


def require_matches(rules: Sequence[Rule], names: Collection[str]) -> None:
    for rule in rules:
        if not rule.matches(names):
            raise ConfigError(f"rule {rule}: no tensor matches; the names are {', '.join(names)}")


def first_match(rules: Sequence[Rule], aliases: Sequence[str]) -> Rule | None:
    return next((rule for rule in rules if rule.matches(aliases)), None)


@dataclass(frozen=True, eq=False)
class _Use:
    """One place of a tensor: its module, and its name in there."""

    module: nn.Module | None
    name: str

    @property
    def is_shared(self) -> bool:
        return isinstance(self.module, SHARED_MODULES) and not is_computed(self.module, self.name)

    @property
    def is_normed(self) -> bool:
        return self.module is not None and divides_by_norm(self.module, self.name)

    @property
    def may_hold_a_matrix(self) -> bool:
        """Whether a parameter of this module may be shared if it is large: not if it sets scales, or is computed on."""
        module = self.module
        return module is not None and "Norm" not in type(module).__name__ and not is_computed(module, self.name)


def _is_shared(name: str, tensor: Tensor, uses: Sequence[_Use], rule: Rule | None) -> bool:
    if not (isinstance(tensor, nn.Parameter) and tensor.is_floating_point()):
        return False
    if rule:
        if rule.share and any(use.is_normed for use in uses):
            raise ConfigError(
                f"rule {rule}: {name} is divided by its norm, and where its weights all become 0 that gives NaN. "
                f"{_FOLD}, or put keep:{name} before this rule"
            )
        return rule.share
    if not tensor.requires_grad:
        return False
    return any(use.is_shared for use in uses) or (_is_matrix(tensor) and all(use.may_hold_a_matrix for use in uses))


_FOLD = "Remove weight_norm or spectral_norm first, as by torch.nn.utils.parametrize.remove_parametrizations"


def _is_matrix(tensor: Tensor) -> bool:
    """Whether the tensor is large and has two sizes above 1: one of shape (1, n, 1) is a vector."""
    return tensor.numel() >= OWN_FROM and sum(size > 1 for size in tensor.shape) > 1


def _require_frozen(rule: Rule, name: str, tensor: Tensor) -> None:
    """Raise if training would change a dropped tensor: then the file would not fit the network that it belongs to."""
    if tensor.requires_grad:
        raise ConfigError(
            f"rule {rule}: {name} is trained, so it differs from the one that the receiver of the file has. Freeze it "
            f"by requires_grad_(False), or store it by keep:{name}"
        )


def kept_message(view: WeightView) -> list[str]:
    """One line each on the parameters that are not compressed, if they count, and on those that are dropped."""
    return [*_rest_message(view), *_dropped_message(view)]


def _rest_message(view: WeightView) -> list[str]:
    kept = {name: t.numel() for name, t in view.rest.items() if isinstance(t, nn.Parameter)}
    share = sum(kept.values()) / max(1, view.n_weights + sum(kept.values()))
    if share < KEPT_FROM:
        return []
    names = sorted(kept, key=lambda name: -kept[name])
    advice = f"a rule shares them, as share:{names[0]}"
    if names[0] in view.normed:
        advice = f"{names[0]} is divided by its norm, so it may not become 0. {_FOLD}, to compress it"
    elif "parametrizations." in names[0]:
        advice = f"a weight is computed from {names[0]}. Remove the parametrization first, to compress it"
    return [f"{100 * share:.0f}% of the weights are kept as they are: {_listed(names)}; {advice}"]


def _dropped_message(view: WeightView) -> list[str]:
    if not view.dropped:
        return []
    n = sum(t.numel() for t in {id(t): t for t in view.dropped.values()}.values())
    return [
        f"{n:,} values are left out of the file: {_listed(list(view.dropped))}; load it with strict=False into a "
        "network that has them"
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def load_state_(model: nn.Module, state: Mapping[str, Tensor], source: str, *, strict: bool = True) -> None:
    """Copy a state dict into the model in place. If some do not fit, the error lists them and none is copied.

    With `strict=False` the state may lack tensors of the model, which stay as they are.
    """
    target = check_fits(model, state, source, strict=strict)
    with torch.no_grad():
        for name, tensor in under_names(state, target).items():
            copy_(target[name], tensor)


def check_fits(
    model: nn.Module, state: Mapping[str, Tensor], source: str, *, strict: bool = True, advice: str = ""
) -> dict[str, Tensor]:
    """The tensors of the model that `state` would be copied to, or an error that lists all misfits.

    `state` may be on the meta device. The error ends with the advice if tensors are missing and all others fit.
    """
    target = {name: t for name, t in unwrapped(model).state_dict().items() if isinstance(t, Tensor)}
    state = under_names(state, target)
    missing = [name for name in target if name not in state] if strict else []
    problems = [f"missing from the file: {name}" for name in missing]
    problems += [f"not in the model: {name}" for name in state if name not in target]
    problems += [text for name in state if name in target for text in _misfit(name, state[name], target[name])]
    if problems:
        hint = [advice] if advice and len(missing) == len(problems) else []
        raise ModelError("\n  ".join([f"{source} does not fit the model:", *problems, *hint]))
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
