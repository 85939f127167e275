"""Quantize a network with some batches of its inputs, and no labels: see `quantize(calibrate=...)`.

The layers are quantized in the order in which the network uses them, within one pass of all batches: the inputs of each
come from the network as it is by then, quantized up to there. Their second moments say what an error costs, and each
column makes good for the errors of the columns before it (`calibrate.feedback`). What the batches do not reach
(embeddings, and products that are not seen) is quantized without data, and first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softshare.calibrate.abreast import Survey, outputs, survey, sweep
from softshare.calibrate.batches import evaluating, relative
from softshare.calibrate.feedback import Factor, factored, with_feedback
from softshare.calibrate.inputs import Finder, Moments, Use
from softshare.config import Rule
from softshare.datafree.by_bits import Coded, Plan, finished, planned, quantized
from softshare.datafree.fit import cells_of
from softshare.datafree.fitted import FittedWeights
from softshare.datafree.grid import indexed
from softshare.datafree.rates import SHORTEST, Part, in_units, rms, step_for
from softshare.datafree.refined import reserve, trainable
from softshare.datafree.source import Source
from softshare.errors import ConfigError
from softshare.quantization.quantized import QuantizedTensor
from softshare.quantization.scales import exponents, factors

LAST = 0.05  # of the weights: the last layers that are quantized again until the file fits
HEAD_FINER = 2.0  # times: a table of embeddings that is the head too, next to layers whose errors feedback reduces
WIDEST_COLUMN = 2.0  # times the step of the usual column, at most: inputs that were hardly seen still count


def calibrated(
    source: Source,
    model: nn.Module,
    seen: Sequence[Any],  # batches
    wanted: float,
    rules: tuple[Rule, ...],
    refinable: bool = False,  # whether to leave room for parameters that are trained afterwards
) -> FittedWeights:
    """At most `wanted` bits a weight. The network itself is left as it is."""
    plan = planned(source, wanted, rules, first_finer=1.0)  # the inputs tell what an error costs
    if refinable:
        room = reserve(source, plan.rest, trainable(plan.rest, model, rules))
        plan = planned(source, wanted - 8 * room / source.n_weights, rules, first_finer=1.0)
    weights = {name: t for name, t in model.state_dict().items() if name in plan.parts}
    finder = Finder(weights)
    with evaluating(model):
        source.stages.start("follow the inputs", "batches", [1] * len(seen))
        known = survey(model, seen, finder, source.stages)
        before = outputs(model, seen, finder)
        work = _Work(source, plan, finder, known)
        sweep(model, seen, finder, known, work.reached, work.ready)
        fitted = work.finish()
        for coded in fitted.quantized.shared:
            if coded.name in weights:
                finder.put(coded.name, coded.dense())
        error = relative(outputs(model, seen, finder), before)
    return dataclasses.replace(fitted, layer_errors=work.layer_errors, output_error=error)


class _Span(NamedTuple):
    """Columns whose errors make good for each other."""

    columns: slice
    factor: Factor
    moments: Tensor  # float32


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows of a weight, as they should be after the errors before them, and what errors in them cost."""

    target: Tensor  # (rows, n_in), or its transpose if the inputs run across
    parts: tuple[_Span, ...]


class _Work:
    def __init__(self, source: Source, plan: Plan, finder: Finder, known: Survey) -> None:
        self.source, self.plan, self.finder, self.known = source, plan, finder, known
        self.done = Coded()
        self.layer_errors: dict[str, float] = {}
        names = list(dict.fromkeys(use.name for use in known.inputs))
        self.reached = [
            name
            for name in names
            if name in plan.parts
            and _covered(known.of(name), source.checkpoint.kinds[name])
            and name not in known.tables
        ]
        if not self.reached:
            raise ConfigError("calibrate: expected products with weights of the network, saw none in the batches")
        for name in set(names) & plan.parts.keys() - set(self.reached):
            self.plan.parts[name] = dataclasses.replace(
                plan.parts[name], relative=plan.parts[name].relative / HEAD_FINER
            )
        self.last = _last(self.reached, {name: part.n for name, part in plan.parts.items()})
        self.blocks: dict[str, dict[Use, _Block]] = {}
        self.levels: dict[str, Tensor] = {}
        self.steps: dict[str, float] = {}
        self.parts: dict[int, tuple[Moments, tuple[_Span, ...]]] = {}
        source.start("calibrate", plan.parts)
        for name in plan.parts:
            if name not in self.reached:
                self._without_data(name)

    def ready(self, use: Use, moments: Moments) -> None:
        name, weights = use.name, self.source.checkpoint[use.name]
        if id(moments) not in self.parts:
            pairs = zip(moments.spans, moments.own, strict=True)
            self.parts = {id(moments): (moments, tuple(_Span(s, factored(m.cpu()), m.cpu().float()) for s, m in pairs))}
        parts = self.parts[id(moments)][1]
        matrix = weights.reshape(len(weights), -1).float()
        rows = matrix.T if use.across else matrix[use.start : use.stop]
        target = torch.empty_like(rows)
        for span, crossed, own in zip(parts, moments.crossed, moments.own, strict=True):
            target[:, span.columns] = span.factor.corrected(rows[:, span.columns], (crossed - own).cpu())
        block = _Block(target, parts)
        if name not in self.blocks:
            self.blocks[name] = {}
            self.plan.parts[name] = _calibrated_part(self.plan.parts[name], weights, use, parts)
            self.steps[name] = self._step()
            self.levels[name] = torch.zeros(matrix.shape, dtype=torch.int16)
        self.blocks[name][use] = block
        self._round(name, use, self.steps[name])
        if len(self.blocks[name]) < len(self.known.of(name)):
            part = self._tensor(name, self.steps[name])
            now = part.dense().reshape(matrix.shape)
            ready = torch.zeros(len(matrix), 1, dtype=torch.bool)
            for one in self.blocks[name]:
                ready[one.start : one.stop] = True
            self.finder.put(name, torch.where(ready, now, matrix).reshape(weights.shape))
            return
        tensor = self._tensor(name, self.steps[name])
        self.finder.put(name, tensor.dense())
        if name not in self.last:
            self._take(tensor, self.steps[name])
            del self.blocks[name], self.levels[name]

    def finish(self) -> FittedWeights:
        for name in self.reached:  # the quantized network may not use all that the network itself used
            if name not in self.done.tensors and len(self.blocks.get(name, ())) < len(self.known.of(name)):
                self._without_data(name)
        last = [name for name in self.last if name not in self.done.tensors] or [self.reached[-1]]
        return finished(self.source, self.plan, self.done, last, self._again)

    def _without_data(self, name: str) -> None:
        step = self._step()
        tensor = quantized(self.source, self.plan.parts[name], step)
        self._take(tensor, step)
        self.finder.put(name, tensor.dense())

    def _again(self, name: str, step: float) -> QuantizedTensor:
        for use in self.blocks[name]:
            self._round(name, use, step)
        return self._tensor(name, step)

    def _step(self) -> float:
        left = [part for name, part in self.plan.parts.items() if name not in self.done.tensors]
        return step_for(left, self.done.left(self.plan) / self.done.ratio)

    def _take(self, tensor: QuantizedTensor, step: float) -> None:
        coded = self.source.code(tensor, self.done.sections)
        self.done.add_(coded, self.plan.parts[tensor.name].bits(step))

    def _round(self, name: str, use: Use, step: float) -> None:
        part, block, levels = self.plan.parts[name], self.blocks[name][use], self.levels[name]
        width = step * part.relative * part.cells.rms
        borders = torch.from_numpy(part.grid(step).borders / width).float()
        rows, columns = factors(part.rows, None, (len(levels), 1)), factors(None, part.columns, (1, levels.shape[1]))
        if use.across:
            scaled, steps, here = block.target / columns.T, (width * rows[:, 0]).expand(len(levels)), levels.T
        else:
            scaled, steps = block.target / rows[use.start : use.stop], (width * columns[0]).expand(levels.shape[1])
            here = levels[use.start : use.stop]
        for span in block.parts:
            own = span.columns
            here[:, own] = with_feedback(scaled[:, own], span.factor, steps[own], borders)

    def _tensor(self, name: str, step: float) -> QuantizedTensor:
        part, weights, levels = self.plan.parts[name], self.source.checkpoint[name], self.levels[name]
        width = step * part.relative * part.cells.rms
        values = torch.arange(int(levels.abs().max()) + 1).double().numpy() * width
        indices, codebook = indexed(levels.reshape(-1), values)
        scales = (part.rows, part.columns) if len(codebook) > 1 else (None, None)
        tensor = QuantizedTensor(name, tuple(weights.shape), weights.dtype, indices, codebook, *scales)
        if len(self.blocks[name]) == len(self.known.of(name)):
            self.layer_errors[name] = _output_error(weights, tensor.dense(), self.blocks[name])
        return tensor


def _last(names: Sequence[str], sizes: dict[str, int]) -> list[str]:
    """The last names that have a share of all weights together."""
    found: list[str] = []
    for name in reversed(names):
        if sum(sizes[k] for k in found) >= LAST * sum(sizes.values()):
            break
        found.append(name)
    return found[::-1]


def _output_error(weights: Tensor, decoded: Tensor, found: dict[Use, _Block]) -> float:
    """The error of a layer's outputs, relative to them, by the second moments of its inputs."""
    square = whole = 0.0
    for use, known in found.items():
        for matrix, is_error in ((decoded.float() - weights.float(), True), (weights.float(), False)):
            block = matrix.reshape(len(weights), -1)
            block = block.T if use.across else block[use.start : use.stop]
            products = ((block[:, p.columns] @ p.moments) * block[:, p.columns] for p in known.parts)
            power = sum(float(product.sum(dtype=torch.float64)) for product in products)
            square, whole = (square + power, whole) if is_error else (square, whole + power)
    return math.sqrt(max(0.0, square) / whole) if whole > 0 else 0.0


def _covered(blocks: Iterable[Use], weight: Tensor) -> bool:
    """Whether every row is in exactly one block."""
    spans = sorted((use.start, use.stop) for use in blocks)
    ends = [0, *(stop for _, stop in spans)]
    return bool(spans) and ends[:-1] == [start for start, _ in spans] and ends[-1] == len(weight)


def _calibrated_part(part: Part, weights: Tensor, use: Use, parts: Sequence[_Span]) -> Part:
    """Steps of the columns by what an error costs there: the diagonal of the factor."""
    matrix = weights.reshape(len(weights), -1).float()
    rows = columns = None
    if part.scalable and not use.across and matrix.shape[1] >= SHORTEST:
        rows = exponents(rms(matrix, 1))
    if part.scalable and not use.across and matrix.shape[0] >= SHORTEST:
        diagonal = torch.cat([span.factor.diagonal for span in parts]).double().log()
        columns = exponents((diagonal - diagonal.median()).exp().clamp(1 / 64, WIDEST_COLUMN))
    cells = cells_of(in_units(weights, rows, columns).abs())
    return dataclasses.replace(part, cells=cells, rows=rows, columns=columns)
