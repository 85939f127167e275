"""The commands that read a file: `softshare inspect`, `decompress`, `evaluate` and `export`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import softshare as ss
from cli_runs import ACCURATE, Refusals, assert_same_state, result_of, run, write_task
from networks import Transformer, make_task
from softshare.result import Result
from softshare.verdict import verdict
from softshare.zoo.models import LeNet300100

AFFINE = ("weight", "bias")  # of batch norm; its other tensors are statistics
TASK = """
from networks import Transformer, make_task

def task():
    return make_task({name!r})
"""


@pytest.fixture(scope="module")
def batch_norm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A file of a trained network with batch norm, and its task."""
    folder = tmp_path_factory.mktemp("batch-norm")
    model = make_task("batch-norm", epochs=2).model
    ss.compress_weights(model.state_dict(), weight_error=0.2).save(folder / "bn.sws")
    (folder / "net.py").write_text(TASK.format(name="batch-norm"))
    return folder / "bn.sws", f"{folder / 'net.py'}:task"


# Inspect and decompress


def test_inspect_shows_every_tensor_and_the_size(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", finished / "model.sws") == 0
    text = capsys.readouterr().out
    for name in ("0.weight", "0.bias", "4.weight", "4.bias", "1.weight", "overhead"):
        assert any(line.startswith(f"{name} ") for line in text.splitlines())
    assert f"{(finished / 'model.sws').stat().st_size:,} bytes" in " ".join(text.split())


def test_inspect_folds_repeated_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    state = {f"layers.{k}.attn.weight": torch.randn(6, 6) for k in range(4)}
    ss.compress_weights(state, weight_error=0.3).save(tmp_path / "m.sws")
    assert run("inspect", tmp_path / "m.sws") == 0
    assert "layers.{0-3}.attn.weight x4  " in capsys.readouterr().out
    assert run("inspect", tmp_path / "m.sws", "--verbose") == 0
    text = capsys.readouterr().out
    assert [name for name in state if f"{name}  " in text] == list(state)
    assert "x4" not in text


def test_inspect_as_json(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as from Python, and nothing else on the output."""
    assert run("inspect", "--json", finished / "model.sws") == 0
    values = json.loads(capsys.readouterr().out)
    info = ss.inspect(finished / "model.sws")
    assert values == json.loads(json.dumps(info.to_dict()))
    assert [t["name"] for t in values["tensors"]] == [t.name for t in info.tensors]
    assert values["file_bytes"] == (finished / "model.sws").stat().st_size
    assert values["codec"] == "adaptive"


def test_decompress_writes_what_load_gives(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    """--max-bytes is the size of the decoded tensors, to the byte."""
    target, state = tmp_path / "model.safetensors", ss.load(finished / "model.sws")
    size = sum(t.numel() * t.element_size() for t in state.values())
    args = ["decompress", finished / "model.sws", target]
    limited = [*args, "--max-bytes"]
    refused(*limited, size - 1, naming=[str(finished / "model.sws"), f"at most {size - 1:,} bytes", f"got {size:,}"])
    refused(*limited, -1, naming="--max-bytes")
    assert run(*limited, size) == 0
    assert_same_state(safetensors.torch.load_file(target), state)
    assert os.listdir(tmp_path) == [target.name]
    target.write_bytes(b"mine")
    refused(*args, naming=[f"{target} already exists", "--overwrite"])
    assert run(*args, "--overwrite") == 0
    assert_same_state(safetensors.torch.load_file(target), state)
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    refused("decompress", finished / "model.sws", link, naming=[str(link), "a symbolic link"])
    assert not os.listdir(folder)
    missing = tmp_path / "missing" / "model.safetensors"
    refused("decompress", finished / "model.sws", missing, naming=str(missing))


def test_a_file_without_names(tmp_path: Path, refused: Refusals, capsys: pytest.CaptureFixture[str]) -> None:
    """A run evaluates, because it has the network. Inspect numbers the tensors. Decompress needs the network."""
    folder, task = tmp_path / "run", write_task(tmp_path)
    assert run("compress", task, "--names", "none", "--epochs", 1, "--no-limit", "--out", folder) == 0
    assert run("evaluate", folder, "--trust") == 0
    capsys.readouterr()
    assert run("inspect", folder / "model.sws") == 0
    text = capsys.readouterr().out
    assert "#0" in text
    assert "0.weight" not in text
    assert run("inspect", "--json", folder / "model.sws") == 0
    assert all(t["name"] is None for t in json.loads(capsys.readouterr().out)["tensors"])
    target = tmp_path / "a.safetensors"
    refused("decompress", folder / "model.sws", target, naming=["names='none'", "load_into_", "--task"])
    assert run("decompress", folder / "model.sws", target, "--task", task) == 0
    state = safetensors.torch.load_file(target)
    again = tmp_path / "again"
    assert run("compress", task, "--epochs", 1, "--no-limit", "--out", again) == 0
    assert_same_state(state, ss.load(again / "model.sws"))


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str | None, str]] = {  # what inspect says, and what decoding says
    "empty": (lambda data: b"", "every .sws file", "every .sws file"),
    "not .sws": (lambda data: b"PK\3\4" + data[4:], "every .sws file", "every .sws file"),
    "one byte short": (lambda data: data[:-1], "header, byte", "checksum, byte"),
    "very short": (lambda data: data[:6], "every .sws file", "every .sws file"),
    "one bit altered": (lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], None, "checksum, byte"),
    "longer": (lambda data: data + b"\0", "header, byte", "checksum, byte"),
    "newer": (lambda data: data[:4] + b"\7" + data[5:], "expected version 1 or 2", "expected version 1 or 2"),
}


def test_a_file_that_cannot_be_decoded(copy: Path, refused: Refusals) -> None:
    """`inspect` reads only headers, so it does not see a wrong bit elsewhere."""
    file = copy / "model.sws"
    good = file.read_bytes()
    for damage, inspected, decoded in DAMAGES.values():
        file.write_bytes(damage(good))
        for args in (["decompress", file, copy / "a.safetensors"], ["evaluate", copy, "--trust"]):
            refused(*args, naming=[str(file), decoded, "expected", "got"])
        if inspected is None:
            assert run("inspect", file) == 0
        else:
            refused("inspect", "--json", file, naming=[str(file), inspected, "expected", "got"])


def test_a_checkpoint_is_named_with_the_command_that_takes_it(copy: Path, refused: Refusals) -> None:
    for name in ("my weights.pt", "my weights.safetensors"):
        file = copy / name
        (copy / "pretrained.safetensors").rename(file)
        naming = [f"{file}: expected an .sws file, got a checkpoint", f"run: softshare quantize '{file}'"]
        for args in (["inspect", file], ["decompress", file, copy / "a"], ["export", file, "--sparse", copy / "a"]):
            refused(*args, naming=naming)
        file.rename(copy / "pretrained.safetensors")
    (copy / "model.sws").rename(copy / "model.bin")  # whatever its name is
    assert run("inspect", copy / "model.bin") == 0


def test_a_file_that_is_not_there(tmp_path: Path, refused: Refusals) -> None:
    for path in (tmp_path / "missing.sws", tmp_path):
        for args in (["inspect", path], ["decompress", path, tmp_path / "a.safetensors"]):
            refused(*args, naming=str(path))


# Evaluate


def test_evaluate_measures_the_file_again(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the file is read, not a checkpoint."""
    for name in ("pretrained.safetensors", "retrained.safetensors", "history.csv"):
        (copy / name).unlink()
    assert run("evaluate", copy, "--trust") == 0
    result, printed = result_of(copy), capsys.readouterr().out
    measured = f"error {result['error_after']:.4f}%, {result['file_bytes']} bytes."
    assert f"Measured: {measured} result.json says: {measured}" in printed
    sentence = verdict(Result.load(copy / "result.json")).sentence
    assert sentence in " ".join(printed.replace("│", " ").split())


def test_evaluate_says_when_the_result_is_not_the_files(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = result_of(copy)
    for change in ({"error_after": 0.0123}, {"file_bytes": 1}):
        (copy / "result.json").write_text(json.dumps(good | change))
        assert run("evaluate", copy, "--trust") == 1
        assert "The file and result.json differ." in capsys.readouterr().out


def test_evaluate_with_another_metric_is_refused(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path, ACCURATE)
    naming = "expected a task that is judged by 'error %', as in result.json, got 'accuracy %'"
    refused("evaluate", finished, "--task", spec, naming=naming)


def test_evaluate_with_another_task(finished: Path, tmp_path: Path) -> None:
    always = "def task():\n    return make_task(evaluate=lambda model: 12.5)"
    assert run("evaluate", finished, "--task", write_task(tmp_path, always)) == 1
    assert run("evaluate", finished, "--task", write_task(tmp_path)) == 0


def test_a_folder_that_is_not_a_run(copy: Path, refused: Refusals) -> None:
    refused("evaluate", copy / "missing", naming=str(copy / "missing" / "result.json"))
    good = (copy / "result.json").read_text()
    for bad in ("", "[]", "{}", good[:-9], json.dumps(json.loads(good) | {"schema": 2})):
        (copy / "result.json").write_text(bad)
        refused("evaluate", copy, naming=[str(copy / "result.json"), "not a result"])
    (copy / "result.json").write_text(good)
    (copy / "model.sws").unlink()
    refused("evaluate", copy, "--trust", naming=str(copy / "model.sws"))


def test_a_run_of_another_network(finished: Path, tmp_path: Path, refused: Refusals) -> None:
    other = write_task(tmp_path, "model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))")
    refused("evaluate", finished, "--task", other, naming=["0.weight", "1.weight", "4.bias"])


def test_a_run_of_a_task_with_a_name_of_its_own(tmp_path: Path, refused: Refusals) -> None:
    spec = write_task(tmp_path, "def task():\n    return make_task(name='mine')")
    assert run("compress", spec, "--epochs", 1, "--no-limit", "--out", tmp_path / "run") == 0
    assert result_of(tmp_path / "run")["experiment"] == "mine"
    refused("evaluate", tmp_path / "run", "--trust", naming=["mine", "--task"])
    assert run("evaluate", tmp_path / "run", "--task", spec) == 0


# Export and batch norm


@pytest.mark.slow
def test_export_an_experiment_to_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its batches are neither tensors nor tuples."""
    pytest.importorskip("onnxruntime", reason="needs onnxruntime, which runs ONNX files")
    torch.manual_seed(0)
    ss.compress_weights(LeNet300100().state_dict(), weight_error=0.3).save(tmp_path / "m.sws")
    assert run("export", tmp_path / "m.sws", "--onnx", tmp_path / "m.onnx", "--task", "lenet-300-100") == 0
    assert "The outputs of onnxruntime and PyTorch agree to within" in capsys.readouterr().out


def test_export_to_onnx(batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With and without re-estimated batch-norm statistics. Each gives its own outputs."""
    import onnxruntime

    file, task = batch_norm
    plain, new = tmp_path / "plain.onnx", tmp_path / "new.onnx"
    assert run("export", file, "--onnx", plain, "--task", task) == 0
    assert "The outputs of onnxruntime and PyTorch agree to within" in capsys.readouterr().out
    assert run("export", file, "--onnx", new, "--task", task, "--batch-norm") == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, file)
    x = loaded.train[0][0]  # type: ignore[index]
    for path in (plain, new):
        if path == new:
            ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
        (found,) = onnxruntime.InferenceSession(path).run(None, {"input": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), loaded.model(x).detach(), rtol=1e-4, atol=1e-5)
    assert plain.read_bytes() != new.read_bytes()


def test_export_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The smaller network computes what the file's does, and its costs stand beside those of the whole."""
    (tmp_path / "net.py").write_text(TASK.format(name="chain"))
    task, whole = f"{tmp_path / 'net.py'}:task", make_task("chain", epochs=2)
    state = whole.model.state_dict()
    state["3.weight"][:, ::2] = 0  # nothing reads half of the channels that come from layer 0
    file = tmp_path / "half.sws"
    ss.compress_weights(state, weight_error=0.2).save(file)
    for name in ("small.safetensors", "small.onnx"):
        assert run("export", file, "--shrunk", tmp_path / name, "--task", task) == 0
        said = capsys.readouterr().out
        assert "multiply-adds for one example" in said
        assert f"Wrote {tmp_path / name}" in " ".join(said.split())
    state = safetensors.torch.load_file(tmp_path / "small.safetensors")
    assert (
        state["0.weight"].shape[0] == state["3.weight"].shape[1] == whole.model.get_parameter("0.weight").shape[0] / 2
    )
    images = next(iter(whole.train))[0]
    ss.load_into_(whole.model, file)
    small = ss.shrink(whole.model, inputs=(images,))
    small.load_state_dict(state)
    torch.testing.assert_close(small.eval()(images), whole.model.eval()(images))
    assert run("export", file, "--shrunk", tmp_path / "small.pt", "--task", task) == 2
    assert "expected a name that ends in .onnx or .safetensors" in " ".join(capsys.readouterr().err.split())
    assert run("export", file, "--shrunk", tmp_path / "other.onnx") == 2
    assert "--shrunk: expected --task as well" in " ".join(capsys.readouterr().err.split())


def test_export_sparse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, target = tmp_path / "model.sws", tmp_path / "model.pt"
    ss.compress_weights(Transformer().state_dict(), weight_error=0.8).save(file)
    assert run("export", file, "--sparse", target) == 0
    state = torch.load(target, weights_only=True)
    n_sparse = sum(t.layout == torch.sparse_csr for name, t in state.items() if name != "head.weight")  # it is tied
    assert f"Wrote {n_sparse} sparse tensors to" in capsys.readouterr().out
    assert n_sparse > 0


def test_export_refusals(batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, task = batch_norm
    target = tmp_path / "model.onnx"
    (tmp_path / "other.py").write_text(
        "import dataclasses\nfrom networks import make_task\n\n\ndef task():\n"
        "    return dataclasses.replace(make_task('batch-norm'), train=['words'])\n\n\ndef broken():\n"
        "    return dataclasses.replace(make_task('batch-norm'), train=Rows())\n\n\nclass Rows:\n"
        "    def __iter__(self):\n        raise KeyError('row 3')\n"
    )
    for args, message in [
        ([], "expected --onnx FILE, --shrunk FILE or --sparse FILE"),
        (["--onnx", target], "--onnx: expected --task as well"),
        (["--onnx", tmp_path / "other.py", "--task", task], "other.py already exists"),
        (["--sparse", tmp_path / "a.pt", "--batch-norm"], "have an effect only with --onnx"),
        (["--sparse", tmp_path / "a.bin"], ".pt or .pth"),
        (["--onnx", target, "--task", write_task(tmp_path)], "does not fit the model"),
        (["--onnx", target, "--task", f"{tmp_path / 'other.py'}:task"], "got str. In Python, softshare.export_onnx"),
        (["--onnx", target, "--task", f"{tmp_path / 'other.py'}:broken"], "Task.train failed"),
    ]:
        assert run("export", file, *args) == 2
        assert message in capsys.readouterr().err
    assert not target.exists()


def test_decompress_with_new_batch_norm_statistics(
    batch_norm: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The statistics are those of the data. Everything else comes from the file."""
    file, task = batch_norm
    target = tmp_path / "new.safetensors"
    for args, message in [
        (["--batch-norm"], "--batch-norm: expected --task as well"),
        (["--data", str(tmp_path)], "--data has an effect only with --task"),
    ]:
        assert run("decompress", file, target, *args) == 2
        assert message in capsys.readouterr().err
    assert run("decompress", file, target, "--batch-norm", "--task", task) == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, file)
    before = {name: t.clone() for name, t in loaded.model.state_dict().items()}
    ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
    written = safetensors.torch.load_file(target)
    assert set(written) == set(ss.load(file))
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(written[name], tensor)
        assert torch.equal(written[name], before[name]) == (not name.startswith(("1.", "5.")) or name[2:] in AFFINE)


def test_evaluate_with_new_batch_norm_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints the error with the new statistics, and a difference is not a failure."""
    (tmp_path / "net.py").write_text(TASK.format(name="batch-norm"))
    folder = tmp_path / "run"
    assert run("compress", f"{tmp_path / 'net.py'}:task", "--epochs", 1, "--no-limit", "--out", folder) == 0
    loaded = make_task("batch-norm")
    ss.load_into_(loaded.model, folder / "model.sws")
    ss.reestimate_batch_norm_(loaded.model, loaded.train, loaded.loss)
    capsys.readouterr()
    assert run("evaluate", folder, "--trust", "--batch-norm") == 0
    assert f"error {loaded.evaluate(loaded.model):.4f}%" in capsys.readouterr().out
