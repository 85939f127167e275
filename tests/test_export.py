"""Export: ONNX that gives PyTorch's outputs in onnxruntime, and sparse CSR tensors."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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


@pytest.mark.slow
def test_torch_says_nothing_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its exporter warns that torchvision is not installed, which no network of ours needs."""
    ss.export_onnx(nn.Linear(3, 2), (torch.randn(4, 3),), tmp_path / "model.onnx")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_onnx_agrees_with_torch(name: str, tmp_path: Path) -> None:
    """The outputs agree on the inputs of the export and on fewer, and the file holds the quantized values."""
    import onnx
    import onnxruntime
    from onnx import numpy_helper

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


@pytest.mark.slow
def test_the_mode_of_the_model_is_restored(tmp_path: Path) -> None:
    model, _, x = compressed("batch-norm", tmp_path)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    model.train()
    ss.export_onnx(model, (x,), tmp_path / "model.onnx")
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_other_outputs_of_onnxruntime_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that differ, NaN in either output, and another shape. onnxruntime is replaced by what it could return."""

    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + 1, 2 * x

    x, path = torch.ones(8, 3), tmp_path / "model.onnx"
    first, second = x + 1, 2 * x
    monkeypatch.setattr(export, "find_spec", lambda name: name)
    monkeypatch.setattr(export, "_onnx", lambda *_: b"a file")
    for outputs, message in (
        ([first, 1.001 * second], r"differ from PyTorch's by 0\.001 .* nothing was written"),
        ([first * torch.nan, second], "differ from PyTorch's by nan"),
        ([first, second * torch.nan], "differ from PyTorch's by nan"),
        ([first, second[:1]], r"shapes \[\(8, 3\), \(8, 3\)\] from onnxruntime, got \[\(8, 3\), \(1, 3\)\]"),
    ):
        monkeypatch.setattr(export, "_run", lambda *_, outputs=outputs: outputs)
        with pytest.raises(ModelError, match=message):
            ss.export_onnx(Two(), (x,), path)
    assert not path.exists()
    monkeypatch.setattr(export, "_run", lambda *_: [first, second])
    assert ss.export_onnx(Two(), (x,), path) == 0
    assert path.read_bytes() == b"a file"


@pytest.mark.parametrize(
    ("dtype", "passes", "fails"),
    [
        (torch.float64, 1e-10, 1e-8),
        (torch.float32, 1e-5, 1e-3),
        (torch.float16, 1e-3, 0.1),
        (torch.bfloat16, 0.02, 0.2),
    ],
)
def test_the_tolerance_knows_the_dtype(
    dtype: torch.dtype, passes: float, fails: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: name)
    monkeypatch.setattr(export, "_onnx", lambda *_: b"a file")
    model, x = nn.Linear(3, 2).to(dtype), torch.ones(4, 3, dtype=dtype)
    outputs = model(x).detach().double()
    monkeypatch.setattr(export, "_run", lambda *_: [outputs * (1 + passes)])
    assert ss.export_onnx(model, (x,), tmp_path / "model.onnx") == pytest.approx(passes, rel=0.01)
    monkeypatch.setattr(export, "_run", lambda *_: [outputs * (1 + fails)])
    with pytest.raises(ModelError, match=f"the limit for {str(dtype).removeprefix('torch.')}; nothing was written"):
        ss.export_onnx(model, (x,), tmp_path / "model.onnx")


@pytest.mark.slow
def test_a_network_in_half_precision(tmp_path: Path) -> None:
    """onnxruntime runs float16 with other sums, and no bfloat16 at all on a CPU."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    x = torch.randn(8, 64)
    assert 0 < ss.export_onnx(model.half(), (x.half(),), tmp_path / "half.onnx") < 1e-2
    with pytest.raises(ModelError, match=r"onnxruntime cannot run this network, .* bfloat16; try model\.float\(\)"):
        ss.export_onnx(model.bfloat16(), (x.bfloat16(),), tmp_path / "brain.onnx")
    assert not (tmp_path / "brain.onnx").exists()


@pytest.mark.slow
def test_a_network_that_torch_cannot_export(tmp_path: Path) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(ModelError, match="torch cannot export this network to ONNX"):
        ss.export_onnx(Branch(), (torch.ones(2, 2),), tmp_path / "model.onnx")


@pytest.mark.slow
def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    import onnxruntime

    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"sum": x + y, "product": x @ y.T}

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert ss.export_onnx(Two(), (x, y), tmp_path / "model.onnx") < 1e-5
    found = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x.numpy(), "y": y.numpy()})
    np.testing.assert_allclose(found[1], (x @ y.T).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(
        ConfigError, match=r"expected the model's inputs as a tuple of tensors, or as a dict .* got Tensor"
    ):
        ss.export_onnx(Two(), x, tmp_path / "model.onnx")  # type: ignore[arg-type]


@pytest.mark.slow
def test_inputs_by_name(tmp_path: Path) -> None:
    """The inputs have another order than the network's, one is left out, and their size differs from the export."""
    import onnxruntime

    class Named(nn.Module):
        def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
            x = x if scale is None else x * scale
            return x if bias is None else x + bias

    x, scale = torch.randn(4, 3), torch.randn(4, 3)
    assert ss.export_onnx(Named(), {"scale": scale, "x": x}, tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"x": x[:2].numpy(), "scale": scale[:2].numpy()})
    np.testing.assert_allclose(found, (x * scale)[:2].numpy(), rtol=1e-5)
    with pytest.raises(ConfigError, match="a dict of tensors by name, got dict"):
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
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.pt or \.pth"):
        export.export_sparse(sparse_file, tmp_path / "model.safetensors")
