"""Quantize a checkpoint to at most so many bytes, with the error where it does the least harm.

Tensors are coded once, the smallest first. What the first ones really take corrects the steps of those that follow, so
the file ends just below its limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from softshare.config import Rule
from softshare.datafree.fit import with_norms
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.grid import VALUE_BITS, levels
from softshare.datafree.rates import FIRST_FINER, Part, in_units, negligible, part_of, relatives, stages, step_for
from softshare.datafree.source import CodedTensor, Source
from softshare.datafree.stored import Sections
from softshare.errors import ConfigError
from softshare.network.weights import first_match
from softshare.quantization.quantized import QuantizedTensor

NEAR = 0.98  # share of the allowed bytes that is good enough, because coding takes the longest
SAFE = 0.998  # share of what is left to aim at
MOST_TRIES = 6  # codes of the last tensors
HALF_BITS = 16
NORMED = ".running_var"  # ending of a tensor of batch norm
ROUNDED = (".weight", ".bias", ".running_mean", ".running_var")  # of the rest: endings that half precision suffices for


@dataclass(frozen=True, eq=False)
class Plan:
    """What a file of a limited size holds, and how much of it is not weights of shared tensors."""

    parts: dict[str, Part]
    rest: dict[str, Tensor]
    room: int  # bytes of the whole file
    fixed: int  # of names, shapes and the rest


@dataclass
class Coded:
    """The tensors that are coded so far, with their expected and their actual bits."""

    tensors: dict[str, CodedTensor] = field(default_factory=dict)
    sections: Sections = field(default_factory=Sections)
    expected: float = 0.0
    actual: float = 0.0

    @property
    def ratio(self) -> float:
        return self.actual / self.expected if self.expected else 1.0

    def add_(self, coded: CodedTensor, expected: float) -> None:
        self.tensors[coded.tensor.name] = coded
        self.expected += expected
        self.actual += coded.bits + VALUE_BITS * len(coded.tensor.codebook)

    def left(self, plan: Plan) -> float:
        """Bits for the tensors that are not coded yet."""
        return max(0.0, SAFE * (8 * (plan.room - plan.fixed) - self.actual))


def planned(source: Source, wanted: float, rules: tuple[Rule, ...], first_finer: float = FIRST_FINER) -> Plan:
    """A plan for at most `wanted` bits a weight, over the whole file."""
    n = source.n_weights
    room = int(wanted * n / 8)
    rest = {name: _rounded(name, t, rules) for name, t in source.rest.items()}
    fixed = len(source.encoded([source.zeros(name) for name in source.checkpoint.shared], rest))
    if fixed > room:
        raise ConfigError(
            f"bits: names and unshared tensors take {8 * fixed / n:.3g} bits a weight by themselves, more than "
            f"{wanted}; allow more, give rest_dtype='float16', or share more tensors by rules"
        )
    parts = parts_of(source, first_finer)
    step = step_for(parts.values(), SAFE * 8 * (room - fixed))
    small = negligible(part.n for part in parts.values())
    for name, part in list(parts.items()):
        if part.n <= small and part.bits(step) > HALF_BITS * part.n and first_match(rules, [name]) is None:
            kept = None if source.is_difference(name) else _halved(source.checkpoint[name])
            if kept is not None:
                rest[name] = kept
                del parts[name]
    if len(rest) > len(source.rest):
        fixed = len(source.encoded([source.zeros(name) for name in parts], rest))
    return Plan(parts, rest, room, fixed)


def by_bits(source: Source, wanted: float, rules: tuple[Rule, ...]) -> FittedWeights:
    """At most `wanted` bits a weight, over the whole file."""
    plan = planned(source, wanted, rules)
    if not plan.parts:
        return source.fitted([], source.encoded([], plan.rest))
    done = Coded()
    source.start("quantize", plan.parts)
    *first, last = stages(plan.parts)
    for names in first:
        left = [part for name, part in plan.parts.items() if name not in done.tensors]
        step = step_for(left, done.left(plan) / done.ratio)
        for name in names:
            done.add_(
                source.code(quantized(source, plan.parts[name], step), done.sections), plan.parts[name].bits(step)
            )
    return finished(source, plan, done, last, lambda name, step: quantized(source, plan.parts[name], step))


def finished(
    source: Source,
    plan: Plan,
    done: Coded,
    last: list[str],  # tensors that are still to be coded
    quantize: Callable[[str, float], QuantizedTensor],
) -> FittedWeights:
    """Code the last tensors, several times if need be: so that the file ends just below its limit."""
    best, ratio, before = None, done.ratio, 0.0
    for k in range(MOST_TRIES):
        step = step_for((plan.parts[k] for k in last), done.left(plan) / ratio)
        if step == before:  # the next file would be the same
            break
        if k:
            source.start("meet the size", last)
        tensors = {name: source.code(quantize(name, step), done.sections) for name in last}
        everything = list((done.tensors | tensors).values())
        data = source.encoded([coded.tensor for coded in everything], plan.rest, done.sections)
        if len(data) <= plan.room and (best is None or len(data) > len(best[1])):
            best = everything, data
        if NEAR * plan.room <= len(data) <= plan.room:
            break
        own = sum(plan.parts[name].bits(step) for name in last)
        if not own:  # all of them are zeros
            break
        ratio = max(1e-3, (8 * (len(data) - plan.fixed) - done.actual) / own) / SAFE
        before = step
    if best is None:
        most = 8 * plan.room / source.n_weights
        raise ConfigError(f"bits: found no file of at most {most:.3g} bits a weight; allow more")
    return source.fitted(*best)


def parts_of(source: Source, first_finer: float = FIRST_FINER) -> dict[str, Part]:
    """A direction of `weight_norm` has no scales: its norm divides it, so none of its rows may become 0."""
    source.start("read", source.checkpoint.shared)
    parts = {name: _part(source, name) for name in source.checkpoint.shared}
    relative = relatives({name: part.n for name, part in parts.items()}, first_finer)
    return {name: dataclasses.replace(part, relative=relative[name]) for name, part in parts.items()}


def _part(source: Source, name: str) -> Part:
    of = source.whole[name] if source.is_difference(name) else None
    normed = any(other.endswith(NORMED) for other in source.rest)
    part = part_of(name, source.checked(name), source.magnitudes(name) is None, of, normed)
    source.stages.done(part.n)
    return part


def quantized(source: Source, part: Part, step: float) -> QuantizedTensor:
    weights = source.checkpoint[part.name]
    indices, codebook = levels(in_units(weights, part.rows, part.columns), part.grid(step))
    scales = (part.rows, part.columns) if len(codebook) > 1 else (None, None)
    tensor = QuantizedTensor(part.name, tuple(weights.shape), weights.dtype, indices, codebook, *scales)
    other = source.magnitudes(part.name)
    return tensor if other is None else with_norms(tensor, weights, source.whole[other].shape)


def _rounded(name: str, tensor: Tensor, rules: tuple[Rule, ...]) -> Tensor:
    """A tensor of the rest with the eleven bits of half precision, unless a rule keeps it or it needs more range."""
    usual = tensor.dim() < 2 and tensor.dtype in (torch.float32, torch.float64) and name.endswith(ROUNDED)
    if not usual or first_match(rules, [name]) is not None:
        return tensor
    halved = _halved(tensor)
    return tensor if halved is None else halved


def _halved(tensor: Tensor) -> Tensor | None:
    """Rounded to half precision, in its own dtype. None if that would lose more than a 2048th of any value."""
    half = tensor.to(torch.float16).to(tensor.dtype)
    close = (half - tensor).abs() <= tensor.abs() / 2048
    return half if bool(close.all()) else None
