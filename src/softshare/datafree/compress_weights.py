"""Compress a checkpoint without a task or data. Nothing is trained.

The user gives the bits per weight of the file, or the error that is allowed on the weights (default: 5%).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from softshare._util.calls import checked
from softshare._util.work_stages import stages
from softshare.codec import BaseSource, header, header_checks, open_base
from softshare.config import EncodeConfig, Rule
from softshare.datafree.by_bits import by_bits
from softshare.datafree.by_error import by_error
from softshare.datafree.deltas import Delta
from softshare.datafree.fitted import FittedWeights as FittedWeights
from softshare.datafree.lossless import whole
from softshare.datafree.source import Source
from softshare.errors import ConfigError, ModelError
from softshare.network.checkpoint import Checkpoint, open_checkpoint
from softshare.network.wrapped import unwrapped

ERROR = 0.05  # default error of a tensor: about 4.6 bits per weight if weights are normal
LEAST_ERROR = 0.001  # twice the error of the narrowest components, because the codebook is rounded too
_DEFAULTS = EncodeConfig()


@checked("quantize(model, bits=4)")
def quantize(
    source: str | os.PathLike[str] | Mapping[str, Tensor] | nn.Module,
    *,
    bits: float | None = None,
    max_bytes: int | None = None,
    weight_error: float | None = None,
    loss_increase: float | None = None,
    calibrate: Iterable[Any] | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    refine: int = 0,
    base: BaseSource | None = None,
    lossless: bool = False,
    rules: Sequence[Rule] = (),
    config: EncodeConfig = _DEFAULTS,
    quiet: bool = False,
) -> FittedWeights:
    """Quantize a network by its weights alone, without data:

        softshare.quantize(model, bits=4).save("model.sws")

    Floating-point tensors of at least two dimensions are shared, unless a rule says otherwise. A file is read tensor by
    tensor and is never in memory as a whole. `compress_weights` is another name of this function.

    With `base`, the file holds only how the network differs from that one. `load(path, base=...)` reads it.

    Args:
        source: a network, its state dict, or the path of a checkpoint: safetensors, a folder of shards with its index,
            a Hugging Face folder, GGUF, `torch.save` or ONNX.
        bits: per weight, at most, over the whole file: fewer than the weights have now.
        max_bytes: of the whole file, at most.
        weight_error: at most, of each shared tensor, relative to the root mean square of its weights.
        loss_increase: at most, of the mean loss on a part of `calibrate`, which needs labels. Give one of these four;
            the default is an error of 0.05.
        calibrate: batches of inputs, without labels, for a network and one of the other limits. Errors are then put
            where these inputs feel them the least: tensors, tuples, or dicts that the network takes by name.
        loss: of outputs and labels, as for `compress`. It is measured before and after, on every fourth batch (at least
            one), and these batches do not calibrate. Not needed if the model computes its own.
        refine: steps of training for the values of the codebooks and the parameters that are not quantized, towards the
            outputs of the network itself on the batches of `calibrate`.
        base: the checkpoint to differ from, as `source`, or a `.sws` file. Equal tensors take no bytes.
        lossless: keep every bit of every tensor, in place of a limit.
        rules: which tensors are shared or kept. The first that matches decides.
        config: how the file is written.
        quiet: show no progress. It is shown only in a terminal or a notebook.

    Returns:
        The quantized weights and their file, with `save`, `summary`, `table` and `report`.
    """
    model = unwrapped(source) if isinstance(source, nn.Module) else None
    limited = bits is not None or max_bytes is not None or loss_increase is not None
    if calibrate is not None and not (model is not None and limited):
        got = "no network" if model is None else "no such limit"
        raise ConfigError(f"calibrate: expected a network and bits, max_bytes or loss_increase, got {got}")
    if calibrate is None and (given := [k for k, v in {"loss_increase": loss_increase, "loss": loss}.items() if v]):
        raise ConfigError(f"{given[0]}: expected batches to measure it on; give them by calibrate")
    if isinstance(refine, bool) or not isinstance(refine, int) or refine < 0:
        raise ConfigError(f"refine: expected a number of steps, got {refine!r}")
    if refine and calibrate is None:
        raise ConfigError("refine: expected batches to train on; give them by calibrate")
    if calibrate is not None and not isinstance(calibrate, Iterable):
        raise ConfigError(f"calibrate: expected batches, such as a list of tensors, got {type(calibrate).__name__}")
    if calibrate is not None and base is not None:
        raise ConfigError("calibrate: a file of differences from a base cannot be calibrated; leave one of them out")
    if model is not None:
        source = model.state_dict()
    elif not isinstance(source, str | os.PathLike | Mapping):
        kind = type(source).__name__
        raise ConfigError(f"quantize: expected a torch.nn.Module, a state dict or the path of a file, got {kind}")
    limits = {
        "bits": bits, "max_bytes": max_bytes, "weight_error": weight_error, "loss_increase": loss_increase,
        "lossless": lossless or None,
    }  # fmt: skip
    given = [name for name, value in limits.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"expected one of {', '.join(limits)}, got {' and '.join(given)}; give one of them")
    for name in ("bits", "max_bytes", "weight_error", "loss_increase"):
        if isinstance(limits[name], bool) or not isinstance(limits[name], int | float | None):
            raise ConfigError(f"{name}: expected a number, got {limits[name]!r}")
    if bits is not None and not bits > 0:
        raise ConfigError(f"bits: expected a number above 0, got {bits}")
    if max_bytes is not None and max_bytes <= 0:
        raise ConfigError(f"max_bytes: expected a number above 0, got {max_bytes}")
    if weight_error is not None and not LEAST_ERROR <= weight_error < 1:
        raise ConfigError(f"weight_error: expected a number from {LEAST_ERROR} to below 1, got {weight_error}")
    if loss_increase is not None and not 0 < loss_increase < math.inf:
        raise ConfigError(f"loss_increase: expected a number above 0, got {loss_increase}")
    if config.names == "none":
        raise ConfigError(
            "names='none': a checkpoint does not give the order of the network's tensors; use names='keep'"
        )
    if lossless:
        if rules or config.rest_dtype != "float32":
            raise ConfigError("lossless: every tensor is kept whole, so leave out rules and rest_dtype")
        rules = (Rule("*", share=False),)
    if not isinstance(quiet, bool):
        raise ConfigError(f"quiet: expected True or False, got {quiet!r}")
    checkpoint = open_checkpoint(source, rules, header.MAX_ENTRIES)
    if not any(kind.numel() for kind in checkpoint.kinds.values()):
        raise ModelError("expected a checkpoint with weights, got one without any: all its tensors are empty")
    delta = None if base is None else Delta(open_base(base))
    if lossless:
        with stages(quiet) as shown:
            return whole(checkpoint, delta, config, shown)
    if not checkpoint.shared and delta is None:
        kept = ", ".join(checkpoint.rest) or "none at all"
        raise ModelError(
            f"expected a tensor to share, got none; all tensors are kept: {kept}. Share one by the rule share:NAME"
        )
    _check_saving(bits, checkpoint)
    header_checks.check_names([*checkpoint.shared, *checkpoint.rest], checkpoint.tied)  # fitting takes long
    with stages(quiet) as shown:
        work = Source(checkpoint, config, delta, shown)
        if not work.checkpoint.shared:
            return work.fitted([], work.encoded([]))
        if max_bytes is not None:
            bits = 8 * (max_bytes + 0.5) / work.n_weights
        if calibrate is not None and model is not None:
            from softshare.datafree.with_batches import Wanted, with_batches

            return with_batches(work, model, calibrate, Wanted(bits, loss_increase, loss, refine), tuple(rules))
        if bits is not None:
            return by_bits(work, bits, tuple(rules))
        return by_error(work, ERROR if weight_error is None else weight_error)


def _check_saving(bits: float | None, checkpoint: Checkpoint) -> None:
    """A limit of as many bits as the weights have already would be no compression."""
    kinds = checkpoint.kinds.values()
    own = 8 * sum(k.numel() * k.element_size() for k in kinds) / max(1, sum(k.numel() for k in kinds))
    if bits is not None and bits >= own:
        raise ConfigError(
            f"bits: expected a number above 0 and below {own:.3g}, which is what the weights take now, got {bits}. To "
            "keep every bit, give lossless=True"
        )


compress_weights = quantize
