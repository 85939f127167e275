"""The route in one line, and what its result says of itself."""

from __future__ import annotations

import copy
import dataclasses
import html
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss
from softshare.codec import decode
from softshare.errors import ConfigError
from softshare.train.hooks import EpochRecord, Hook
from softshare.verdict import verdict

SHORT = ss.CompressConfig().override(steps=20, backend="torch", tau=1e-5, zeroing=0.0, zero_mixing=0.5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    torch.manual_seed(1)
    x = torch.randn(200, 6)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    train, val = torch.utils.data.random_split(data, [150, 50], torch.Generator().manual_seed(0))
    return DataLoader(train, 30, shuffle=True), DataLoader(val, 50)


@pytest.fixture(scope="module")
def compressed() -> ss.Compressed:
    return ss.compress(network(), *loaders(), loss=nn.CrossEntropyLoss(), config=SHORT, target=None)


def test_a_network_and_two_loaders_are_a_task() -> None:
    model = network()
    plain = ss.compress(
        ss.Task.from_loaders(network(), *loaders(), nn.CrossEntropyLoss(), "accuracy"), SHORT, target=None
    )
    for one in (
        ss.compress(model, *loaders(), nn.CrossEntropyLoss(), "accuracy", config=SHORT, target=None),
        ss.compress(
            model=model,
            train_loader=loaders()[0],
            val_loader=loaders()[1],
            loss=nn.CrossEntropyLoss(),
            metric="accuracy",
            config=SHORT,
            target=None,
        ),
    ):
        assert one.to_bytes() == plain.to_bytes()
        assert one.record.result.metric.name == "accuracy"
    torch.testing.assert_close(model.state_dict(), network().state_dict(), rtol=0, atol=0)


def test_the_test_data_give_the_final_figures() -> None:
    x = torch.randn(40, 6)
    test = DataLoader(TensorDataset(x, torch.full((40,), 0)), 40)
    model = network()
    found = ss.compress(
        model, *loaders(), nn.CrossEntropyLoss(), test_loader=test, config=SHORT, target=None
    ).record.result
    assert found.error_before == pytest.approx(100 * float((model(x).argmax(1) != 0).double().mean()))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'task'"),
        ((3,), {}, r"expected a softshare\.Task or a torch\.nn\.Module, got int"),
        ((network(), []), {}, "missing a required argument: 'val_loader'"),
        ((network(), [], []), {"tau": 1}, r"unexpected keyword argument 'tau'; known are model, .* Call compress\("),
        ((network(), [], []), {"los": 1}, r"unexpected keyword argument 'los'; did you mean loss\? Call compress\("),
        ((network(), [], []), {"loss_fn": 1}, r"did you mean loss\?"),
        ((network(), [], loaders()[1]), {"loss": nn.MSELoss()}, "^train_loader: expected at least one batch, got none"),
        ((network(), *loaders()), {}, "^expected a loss function, or .* Give a loss function, such as nn.CrossEntropy"),
        (
            (network(), *loaders()),
            {"loss": nn.MSELoss(), "config": {"tau": 1}},
            r"expected a softshare\.CompressConfig",
        ),
        (
            (network(), *loaders()),
            {"loss": nn.MSELoss(), "hooks": [print]},
            r"hooks: expected a list of softshare\.Hook",
        ),
        ((network(), *loaders()), {"loss": nn.MSELoss(), "hooks": ss.Hook()}, r"hooks: expected a list"),
    ],
)
def test_a_wrong_call_says_how_to_call(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ss.compress(*args, **kwargs)


def test_save_and_load_are_a_pair(compressed: ss.Compressed, tmp_path: Path) -> None:
    assert ss.save(compressed, tmp_path / "model.sws") == (tmp_path / "model.sws").stat().st_size
    model = network()
    ss.load_into_(model, tmp_path / "model.sws")
    torch.testing.assert_close(model.state_dict(), compressed.state_dict(), rtol=0, atol=0)
    with pytest.raises(ConfigError, match="expected what compress or quantize returns, got Sequential"):
        ss.save(model, tmp_path / "other.sws")  # type: ignore[arg-type]


def test_what_it_says_of_itself(compressed: ss.Compressed) -> None:
    result = compressed.record.result
    n = len(compressed.to_bytes())
    assert repr(compressed).startswith(f"<Compressed: {n} bytes, {4 * 146 / n:.1f} times smaller; error ")
    lines = compressed.summary().splitlines()
    assert " ".join(lines[:-3]) == verdict(result).sentence
    assert [line.split()[0] for line in lines[-3:]] == ["error", "bytes", "time"]
    assert f"584 -> {n} (" in lines[-2]
    html = compressed._repr_html_()
    assert html is not None
    assert f"584 -&gt; {n} (" in html


def test_a_layer_without_weights_is_said(compressed: ss.Compressed) -> None:
    assert "nothing passes through it" not in compressed.summary()
    dead = next(t for t in compressed.quantized.shared if t.name == "0.weight")
    zeros = dataclasses.replace(dead, indices=torch.zeros_like(dead.indices))
    shared = tuple(zeros if t is dead else t for t in compressed.quantized.shared)
    ruined = dataclasses.replace(compressed, quantized=dataclasses.replace(compressed.quantized, shared=shared))
    html = ruined._repr_html_()
    assert html is not None
    for text in (ruined.summary(), html):
        assert "0.weight is all zero" in text


def test_names_from_a_task_cannot_write_html() -> None:
    def score(outputs: Tensor, targets: Tensor) -> float:
        return float((outputs.argmax(1) == targets).double().mean())

    found = ss.compress(
        network(),
        *loaders(),
        nn.CrossEntropyLoss(),
        {"<script>": score},
        higher_is_better=True,
        config=SHORT,
        target=None,
    )
    html = found._repr_html_()
    assert html is not None
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_it_survives_pickle_and_copy(compressed: ss.Compressed) -> None:
    for one in (copy.deepcopy(compressed), pickle.loads(pickle.dumps(compressed))):
        assert one.summary() == compressed.summary()


@pytest.mark.slow
def test_a_report(compressed: ss.Compressed, tmp_path: Path) -> None:
    page = compressed.report(tmp_path / "report")
    assert page == tmp_path / "report" / "index.html"
    text = page.read_text()
    assert "0.weight" in text
    assert list((tmp_path / "report").rglob("*.png"))


def test_a_network_without_a_run_has_no_report(tmp_path: Path) -> None:
    plain = ss.MixturePrior(network(), SHORT.prior).quantize()
    assert plain._repr_html_() is None
    assert "146 shared weights" in plain.summary()
    with pytest.raises(ConfigError, match=r"expected a network from softshare\.compress"):
        plain.report(tmp_path)


def test_a_test_that_fails_does_not_cost_the_network() -> None:
    def test(model: nn.Module) -> float:
        raise ZeroDivisionError("no images")

    task = ss.Task(
        network(),
        [(torch.randn(8, 6), torch.arange(8) % 2)],
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        lambda model: 10.0,
        test=test,
    )
    with pytest.warns(UserWarning, match="the final measurement failed .*no images.* The network is kept"):
        found = ss.compress(task, SHORT, target=None)
    assert found.to_bytes()
    assert found.record is None


class Recorder(Hook):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record.epoch)


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "is_shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_progress_is_shown_where_someone_looks(
    is_terminal: bool, quiet: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, recorder = io.StringIO(), Recorder()

    def console(*args: Any, quiet: bool = False, **kwargs: Any) -> Console:
        return Console(file=text, quiet=quiet, force_terminal=is_terminal and not quiet)

    monkeypatch.setattr("softshare.api.Console", console)
    ss.compress(network(), *loaders(), nn.CrossEntropyLoss(), config=SHORT, hooks=[recorder], target=None, quiet=quiet)
    assert ("retrain" in text.getvalue()) == is_shown
    assert recorder.epochs[0] == 0
    assert len(recorder.epochs) > 1


def test_a_hook_gets_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    class Last(Hook):
        def on_result(self, compressed: ss.Compressed, result: ss.Result) -> None:
            got.append((compressed.record.result, result))
            raise RuntimeError("no server")

    with pytest.warns(UserWarning, match=r"Last failed \(RuntimeError: no server\)"):
        ss.compress(network(), *loaders(), nn.CrossEntropyLoss(), config=SHORT, hooks=[Last()], target=None)
    ((kept, result),) = got
    assert kept is result
    assert issubclass(ss.integrations.TensorBoardLog, Hook)


# Without data


def test_quantize_takes_a_network_its_state_dict_or_a_file(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = network()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    sources: list[Any] = [model, nn.DataParallel(model), model.state_dict(), tmp_path / "model.safetensors"]
    first, *others = (ss.quantize(source, weight_error=0.1) for source in sources)
    for other in others:
        torch.testing.assert_close(decode(other.data).state_dict(), decode(first.data).state_dict(), rtol=0, atol=0)
    assert ss.compress_weights is ss.quantize
    for wrong in (3, [model], None):
        with pytest.raises(ConfigError, match=r"expected a torch\.nn\.Module, a state dict or the path of a file, got"):
            ss.quantize(wrong)  # type: ignore[arg-type]


def test_what_quantized_weights_say_of_themselves() -> None:
    model = network().to(torch.float16)
    found = ss.quantize(model, weight_error=0.1)
    n = sum(p.numel() for p in model.parameters())
    assert found.original_bytes == 2 * n
    assert found.ratio == 2 * n / len(found.data)
    assert repr(found).startswith(f"<FittedWeights: {len(found.data)} bytes, ")
    assert found._repr_html_() == f"<pre>{html.escape(found.summary())}</pre>"
    assert f"{2 * n} bytes, {n} weights" in found.summary()
