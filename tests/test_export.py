"""Leaving: ONNX that onnxruntime runs to PyTorch's outputs, and sparse CSR tensors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from networks import NETWORKS
from softshare import export
from softshare.errors import ConfigError, ModelError, NotAvailableError

Compressed = tuple[nn.Module, Path, Tensor]


def compressed(name: str, folder: Path, bits: float = 6) -> Compressed:
    """A fresh network loaded from a file, the file, and inputs."""
    torch.manual_seed(0)
    make_model, make_data = NETWORKS[name]
    ss.compress_weights(make_model().state_dict(), bits=bits).save(folder / "model.sws")
    model = make_model().eval()
    ss.load_into_(model, folder / "model.sws")
    return model, folder / "model.sws", make_data(8)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_agrees_with_torch(name: str, tmp_path: Path) -> None:
    """On the inputs it was made with and on fewer, with the quantized weights in it, value by value."""
    model, file, x = compressed(name, tmp_path)
    path = tmp_path / "model.onnx"
    assert ss.export_onnx(model, (x,), path) < 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for inputs in (x, x[:3]):
        (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(found, model(inputs).numpy(), rtol=1e-4, atol=1e-5)
    stored = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    values = set(np.concatenate([t.reshape(-1) for t in stored if t.dtype == np.float32]).tolist())
    state = ss.load(file)
    for info in ss.inspect(file).tensors:
        if info.kind == "shared" and info.name is not None:
            assert set(state[info.name].unique().tolist()) <= values


def test_the_mode_of_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model, _, x = compressed("batch-norm", tmp_path)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model.train()
    ss.export_onnx(model, (x,), tmp_path / "model.onnx")
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_what_onnxruntime_computes_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, x = compressed("conv-1d", tmp_path)
    run = export._run
    monkeypatch.setattr(export, "_run", lambda *args: [t * 1.001 for t in run(*args)])
    with pytest.raises(ModelError, match=r"differ from PyTorch's by 0\.001 .* nothing was written"):
        ss.export_onnx(model, (x,), tmp_path / "model.onnx")
    monkeypatch.setattr(export, "_run", lambda *args: [t[:1] for t in run(*args)])
    with pytest.raises(ModelError, match=r"shapes \[\(8, 3\)\] from onnxruntime, got \[\(1, 3\)\]"):
        ss.export_onnx(model, (x,), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("place", [0, 1])
def test_nan_in_any_output_is_not_written(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, 2 * x

    run = export._run
    monkeypatch.setattr(
        export, "_run", lambda *args: [t * torch.nan if i == place else t for i, t in enumerate(run(*args))]
    )
    with pytest.raises(ModelError, match="differ from PyTorch's by nan"):
        ss.export_onnx(Two(), (torch.ones(2, 3),), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_network_that_torch_cannot_export(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ModelError, match="torch cannot export this network to ONNX"):
        ss.export_onnx(Branch(), (torch.ones(2, 2),), tmp_path / "model.onnx")


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": x + y, "product": x @ y.T}

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert ss.export_onnx(Two(), (x, y), tmp_path / "model.onnx") < 1e-5
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x.numpy(), "y": y.numpy()})
    np.testing.assert_allclose(found[1], (x @ y.T).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match=r"expected a tuple of tensors, the model's inputs, or a dict .* got Tensor"):
        ss.export_onnx(Two(), x, tmp_path / "model.onnx")  # type: ignore[arg-type]


def test_inputs_by_name(tmp_path: Path) -> None:
    """In another order than the network's, one left out, and of another size than at export."""

    class Named(nn.Module):
        def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
            x = x if scale is None else x * scale
            return x if bias is None else x + bias

    x, scale = torch.randn(4, 3), torch.randn(4, 3)
    assert ss.export_onnx(Named(), {"scale": scale, "x": x}, tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"x": x[:2].numpy(), "scale": scale[:2].numpy()})
    np.testing.assert_allclose(found, (x * scale)[:2].numpy(), rtol=1e-5)
    with pytest.raises(ConfigError, match="a dict of them by name, got dict"):
        ss.export_onnx(Named(), {"x": 1}, tmp_path / "model.onnx")  # type: ignore[dict-item]


def test_onnx_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str, *args: Any) -> object:
        return None if name == "onnxruntime" else importlib.util.find_spec(name, *args)

    monkeypatch.setattr(export, "find_spec", found)
    with pytest.raises(NotAvailableError, match=r"needs onnxruntime: pip install 'softshare\[onnx\]'"):
        ss.export_onnx(nn.Linear(2, 2), (torch.ones(1, 2),), tmp_path / "model.onnx")


@pytest.fixture
def sparse_file(tmp_path: Path) -> Path:
    """A sparse and a dense matrix, a sparse convolution, a bias, and a second name of the sparse one."""
    g = torch.Generator().manual_seed(0)
    sparse = torch.randn(40, 30, generator=g) * (torch.rand(40, 30, generator=g) < 0.1)
    kernel = torch.randn(4, 5, 3, 3, generator=g) * (torch.rand(4, 5, 3, 3, generator=g) < 0.1)
    state = {"a.weight": sparse, "a.bias": torch.ones(40), "b": torch.randn(20, 30, generator=g), "c": kernel}
    ss.compress_weights(state | {"tied": sparse}, weight_error=0.01).save(tmp_path / "model.sws")
    return tmp_path / "model.sws"


def test_sparse_matrices_are_csr_where_that_is_smaller(sparse_file: Path) -> None:
    state, dense = ss.load_sparse(sparse_file), ss.load(sparse_file)
    assert list(state) == list(dense)
    assert {name for name, t in state.items() if t.layout == torch.sparse_csr} == {"a.weight", "tied"}
    assert state["tied"] is state["a.weight"]
    assert state["a.weight"].col_indices().dtype == torch.int32
    assert state["a.weight"].values().numel() == int(dense["a.weight"].count_nonzero())
    for name, tensor in state.items():
        assert torch.equal(tensor.to_dense() if tensor.layout == torch.sparse_csr else tensor, dense[name])
    x = torch.randn(7, 30)
    expected = F.linear(x, dense["a.weight"], dense["a.bias"])
    torch.testing.assert_close(F.linear(x, state["a.weight"], state["a.bias"]), expected)


def test_a_sparse_file_is_read_by_torch_alone(sparse_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    assert export.export_sparse(sparse_file, path) == 1
    state, expected = torch.load(path, weights_only=True), ss.load_sparse(sparse_file)
    assert list(state) == list(expected)
    assert state["a.weight"].layout == torch.sparse_csr
    assert torch.equal(state["a.weight"].to_dense(), expected["a.weight"].to_dense())
    assert torch.equal(state["c"], expected["c"])
    with pytest.raises(ConfigError, match=r"expected a \.pt or \.pth file"):
        export.export_sparse(sparse_file, tmp_path / "model.safetensors")
