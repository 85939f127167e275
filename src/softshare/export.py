"""Export: a network as ONNX with its quantized weights, or a file's matrices as torch's sparse CSR tensors."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from softshare._util.files import read_bytes, write_atomic
from softshare._util.rounding import TOLERANCES, coarsest
from softshare.codec import MAX_BYTES, decode
from softshare.errors import ConfigError, ModelError, NotAvailableError
from softshare.quantization.quantized import QuantizedTensor

_ONNX = ("onnx", "onnxscript", "onnxruntime")
Inputs = tuple[Tensor, ...] | Mapping[str, Tensor]  # by position, or by name


@torch.no_grad()
def export_onnx(model: nn.Module, inputs: Inputs, path: str | os.PathLike[str]) -> float:
    """Write the network in evaluation mode, with dense weights:

        softshare.export_onnx(model, (torch.randn(1, 3, 32, 32),), "model.onnx")

    Before writing, onnxruntime runs the exported network on the same inputs. If its outputs differ from PyTorch's,
    nothing is written. How far they may differ depends on the coarsest dtype of the network, its inputs and outputs.
    The first dimension of every input may have any size, if the network allows it.

    Args:
        model: with the weights to write (see `load_into_`).
        inputs: of one call, as a tuple of tensors or as a dict by name.
        path: of the file.

    Returns:
        The largest difference of an output, relative to the largest output.
    """
    missing = [name for name in _ONNX if find_spec(name) is None]
    if missing:
        raise NotAvailableError(f"ONNX needs {', '.join(missing)}: pip install 'softshare[onnx]'")
    by_name = dict(inputs) if isinstance(inputs, Mapping) else {}
    in_order = () if isinstance(inputs, Mapping) else inputs
    if not isinstance(in_order, tuple) or not all(isinstance(t, Tensor) for t in (*in_order, *by_name.values())):
        raise ConfigError(
            "export_onnx: expected the model's inputs as a tuple of tensors, or as a dict of tensors by name, "
            f"got {type(inputs).__name__}"
        )
    training = model.training
    model.eval()
    try:
        data = _onnx(model, in_order, by_name)
        expected = model(*in_order, **by_name)
    finally:
        model.train(training)
    wanted = [t.cpu() for t in tree_leaves(expected) if isinstance(t, Tensor)]
    dtype = coarsest([*model.parameters(), *model.buffers(), *in_order, *by_name.values(), *wanted])
    difference = _difference(_run(data, inputs, dtype), wanted)
    if not difference <= TOLERANCES[dtype]:
        raise ModelError(
            f"onnxruntime's outputs differ from PyTorch's by {difference:.2g} of the largest, more than "
            f"{TOLERANCES[dtype]:g}, the limit for {_name(dtype)}; nothing was written. Check whether something "
            "in the network is random"
        )
    write_atomic(path, data)
    return difference


def _onnx(model: nn.Module, in_order: tuple[Tensor, ...], by_name: dict[str, Tensor]) -> bytes:
    def dims(t: Tensor) -> dict[int, Any]:
        return {0: torch.export.Dim.AUTO} if t.dim() else {}

    shapes: Any = {name: dims(t) for name, t in by_name.items()} or [dims(t) for t in in_order]
    try:
        with warnings.catch_warnings(), _silent("torch.onnx"):
            warnings.simplefilter("ignore")  # torch's exporter warns about its own parts
            # Not optimized: that would fold batch norm into the weights, which would no longer be the quantized ones.
            program = torch.onnx.export(
                model,
                in_order,
                kwargs=by_name,
                dynamo=True,
                dynamic_shapes=shapes,
                optimize=False,
                verbose=False,
            )
    except Exception as error:  # anything may fail in the network's code, or in torch's tracing of it
        raise ModelError(f"torch cannot export this network to ONNX: {error}") from error
    if program is None:
        raise ModelError("torch.onnx.export returned nothing for this network")
    data: bytes = program.model_proto.SerializeToString()
    return data


@contextlib.contextmanager
def _silent(logger: str) -> Iterator[None]:
    """Without what it logs below an error, such as that torchvision is not installed."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _run(data: bytes, inputs: Inputs, dtype: torch.dtype) -> list[Tensor]:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        pairs = inputs.items() if isinstance(inputs, Mapping) else zip(names, inputs, strict=True)
        given = {name: t.detach().cpu().numpy() for name, t in pairs}
        return [torch.from_numpy(values) for values in session.run(None, given)]
    except Exception as error:  # it lacks many operations in bfloat16, and some in float64
        advice = "" if dtype == torch.float32 else f". The network has tensors of {_name(dtype)}; try model.float()"
        raise ModelError(
            f"onnxruntime cannot run this network, so nothing was written: {type(error).__name__}: {error}{advice}"
        ) from error


def _difference(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference of an output, relative to that output's largest value; NaN if any difference is NaN."""
    if [t.shape for t in found] != [t.shape for t in wanted]:
        shapes = [[tuple(t.shape) for t in ts] for ts in (wanted, found)]
        raise ModelError(f"expected outputs of shapes {shapes[0]} from onnxruntime, got {shapes[1]}")
    pairs = [(f.double(), w.double()) for f, w in zip(found, wanted, strict=True) if w.numel()]
    differences = [float((f - w).abs().max() / w.abs().max().clamp(min=1e-30)) for f, w in pairs]
    return float(torch.tensor([0.0, *differences], dtype=torch.float64).max())


def load_sparse(path: str | os.PathLike[str], *, max_bytes: int | None = MAX_BYTES) -> dict[str, Tensor]:
    """The state dict that a file decodes to. A shared matrix is a sparse CSR tensor if that is smaller:

        state = softshare.load_sparse("model.sws")

    Args:
        path: of the file.
        max_bytes: as in `load`.

    Returns:
        The tensors by name, on the CPU.
    """
    quantized = decode(read_bytes(path), max_bytes=max_bytes)
    quantized.require_whole()
    state = {name: _sparse(t) if isinstance(t, QuantizedTensor) else t for name, t in quantized.tensors.items()}
    return state | {alias: state[name] for alias, name in quantized.tied.items()}


def _sparse(tensor: QuantizedTensor) -> Tensor:
    dense, size, width = tensor.dense(), tensor.indices.numel(), tensor.dtype.itemsize
    if dense.dim() != 2 or (width + 4) * tensor.n_nonzero + 4 * (len(dense) + 1) >= width * size:
        return dense
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that its CSR tensors are in beta
        rows = dense.to_sparse_csr()
        return torch.sparse_csr_tensor(rows.crow_indices().int(), rows.col_indices().int(), rows.values(), dense.shape)


def export_sparse(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> int:
    """Write the tensors of `load_sparse`, for `torch.load(path, weights_only=True)`. Returns how many are sparse."""
    if Path(path).suffix not in (".pt", ".pth"):
        raise ConfigError(f"sparse: expected a name that ends in .pt or .pth, for torch.load, got {os.fspath(path)}")
    state, buffer = load_sparse(source), io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue())
    return len({id(t) for t in state.values() if t.layout == torch.sparse_csr})
