"""Results of networks quantized by hand: measured, then tampered with. And runs of a user's own task."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from digits import digits
from report_runs import compress, make_task
from softshare.cli import main
from softshare.codec import save
from softshare.compressed import Compressed
from softshare.config import CompressConfig
from softshare.config.settings import Names
from softshare.errors import ConfigError
from softshare.network.weights import WeightView
from softshare.paper.verify import Check, find_runs, verify
from softshare.prior.mixture import Mixture
from softshare.quantization.assignment import quantize
from softshare.result import Result, measure
from softshare.task import Task
from softshare.zoo import experiments
from softshare.zoo.datasets import Split
from softshare.zoo.models import WRN164

NAME = "lenet-300-100/ours/tau0.05-seed0"


def by_hand(model: torch.nn.Module) -> Compressed:
    """Quantize to three values, zero among them, where most weights of an untrained network end."""
    mixing = torch.tensor([0.5, 0.25, 0.25]).log()
    mixture = Mixture(mixing, torch.tensor([0.0, -0.04, 0.04]), torch.full((3,), 0.01).square().log())
    view = WeightView.of(model, ())
    mixtures = {s.name: mixture for s in view.shared}
    return Compressed(quantize(view, mixtures), mixtures, {})


def write_pair(folder: Path, name: str, result: Result, compressed: Compressed) -> None:
    path = folder / name
    path.mkdir(parents=True)
    save(compressed.quantized, f"{path}/model.sws", CompressConfig.from_dict(result.config).encode)
    result.save(f"{path}/result.json")


@pytest.fixture(scope="module")
def loads() -> list[str]:
    return []


@pytest.fixture(scope="module", autouse=True)
def _few_images(loads: list[str]) -> Any:
    """256 examples in place of each part of MNIST; counts how often they are loaded."""

    def few() -> tuple[Split, Split, Split]:
        loads.append("MNIST")
        return digits(256, 256, 256)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "load_mnist", few)
        yield


@pytest.fixture(scope="module")
def true_folder(tmp_path_factory: pytest.TempPathFactory, _few_images: None) -> Path:
    folder = tmp_path_factory.mktemp("true")
    kinds: tuple[Names, Names] = ("keep", "none")
    for seed, names in enumerate(kinds):
        task = experiments.make_task("lenet-300-100", seed=seed)
        config = CompressConfig().override(seed=seed, names=names)
        compressed = dataclasses.replace(by_hand(task.model), config=config.encode)
        result = measure(task, compressed, config, method="ours")
        write_pair(folder, f"lenet-300-100/ours/tau0.05-seed{seed}", result, compressed)
    return folder


@pytest.fixture
def folder(true_folder: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(true_folder, tmp_path / "results"))


def tamper(folder: Path, **changes: Any) -> None:
    path = folder / f"{NAME}/result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def only_bad(folder: Path) -> Check:
    """The one check that failed. The other run must agree."""
    first, second = verify(folder)
    assert second.ok
    assert not first.ok
    assert first.path == NAME
    return first


# Agreement


def test_true_results_agree(folder: Path, loads: list[str]) -> None:
    loads.clear()
    checks = list(verify(folder))
    assert [c.path for c in checks] == [f"lenet-300-100/ours/tau0.05-seed{seed}" for seed in (0, 1)]
    assert all(c.ok and not c.not_checked for c in checks)
    assert loads == ["MNIST"]
    for check in checks:
        result = Result.load(folder / check.path / "result.json")
        size = (folder / check.path / "model.sws").stat().st_size
        assert (check.file_bytes, check.error) == (size, result.error_after) == (result.file_bytes, check.error)


# Differences


def test_every_tampered_field_is_named(folder: Path) -> None:
    """A field that is not tampered with agrees, so each difference is that of its own field."""
    true = Result.load(folder / f"{NAME}/result.json")
    said: dict[str, Any] = {name: getattr(true, name) + 1 for name in ("n_weights", "n_components", "han_bytes")}
    said |= {name: getattr(true, name) - 1 for name in ("file_bytes", "n_nonzero")}
    said |= {name: getattr(true, name) * 1.0001 for name in ("ratio", "han_ratio", "entropy_bytes")}
    said |= {"error_after": true.error_after + 1e-6, "dataset": "CIFAR-10"}
    tamper(folder, **said)
    found = {text.partition(":")[0]: text for text in only_bad(folder).differences}
    assert found.keys() == said.keys()
    for field, text in found.items():
        assert text.startswith(f"{field}: expected {said[field]!r} by the result, got ")
    tamper(folder, **{name: getattr(true, name) for name in said} | {"error_after": float("nan")})
    (difference,) = only_bad(folder).differences
    assert "error_after: expected a finite number, got nan" in difference
    tamper(folder, error_after=true.error_after + 1e-10)  # rounding
    assert all(c.ok for c in verify(folder))


def test_a_kept_result_has_the_method_and_seed_of_its_folder(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "kept" / "lenet-300-100" / "dns"
    place.mkdir(parents=True)
    shutil.copytree(folder / NAME, place / "seed-7")
    (check,) = verify(tmp_path / "kept")
    assert [d.partition(":")[0] for d in check.differences] == ["method", "seed"]
    path = place / "seed-7" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"method": "dns", "seed": 7}))
    assert all(c.ok for c in verify(tmp_path / "kept"))


def test_a_file_of_another_network_of_the_same_size_differs(folder: Path) -> None:
    """Two results are swapped: each is true of the other file."""
    first, second = folder / f"{NAME}/result.json", folder / f"{NAME[:-1]}1/result.json"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    for check in verify(folder):
        assert {d.partition(":")[0] for d in check.differences} >= {"file_bytes", "n_nonzero"}


def test_a_truncated_a_changed_and_an_empty_file(folder: Path) -> None:
    path = folder / f"{NAME}/model.sws"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    check = only_bad(folder)
    assert check.error is None
    assert any(d.startswith("file_bytes: ") for d in check.differences)
    assert any("checksum" in d for d in check.differences)
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    assert any("checksum" in d for d in only_bad(folder).differences)
    path.write_bytes(b"")
    assert len(only_bad(folder).differences) == 2


def test_a_missing_file_and_a_missing_result(folder: Path) -> None:
    run = folder / NAME
    (run / "model.sws").rename(run / "kept")
    check = only_bad(folder)
    assert check.file_bytes is None
    assert check.differences == ("expected model.sws beside result.json, found none",)
    (run / "kept").rename(run / "model.sws")
    (run / "result.json").unlink()
    assert only_bad(folder).differences == ("expected result.json beside model.sws, found none",)


def test_what_is_not_a_result(folder: Path) -> None:
    tamper(folder, error_after="1.5")
    assert "error_after: expected a number, got '1.5'" in only_bad(folder).differences[0]
    for text in ("", "{}", "[1, 2]"):
        (folder / f"{NAME}/result.json").write_text(text)
        assert "is not a result" in only_bad(folder).differences[0]


def test_the_folder_one_is_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / NAME)
    (check,) = verify(".")
    assert check.ok
    assert check.path == "."


def test_an_unknown_experiment(folder: Path) -> None:
    tamper(folder, experiment="my-net", file_bytes=1)
    unknown, size = only_bad(folder).differences
    assert unknown == "a run of your own task 'my-net': give --task FILE.py:make_task"
    assert size.startswith("file_bytes")


def test_a_file_of_another_experiment(folder: Path) -> None:
    tamper(folder, experiment="lenet-5-caffe")
    assert any("does not fit the model" in d for d in only_bad(folder).differences)


def test_a_different_error_names_what_was_measured_with(folder: Path) -> None:
    """Only what is known to differ. An older result does not record its threads."""
    threads = torch.get_num_threads()
    tamper(folder, error_after=3.5, threads=threads + 1, versions={"torch": "1.0"})
    (difference,) = only_bad(folder).differences
    now = torch.__version__
    assert difference.endswith(f" (threads {threads + 1} then, {threads} now; torch 1.0 then, {now} now)")
    tamper(folder, threads=None, versions={}, device="cpu")
    assert only_bad(folder).differences[0].endswith("from the file")


def test_other_conditions_are_a_note_and_no_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were named only if the error differed."""
    threads, now = torch.get_num_threads(), torch.__version__
    assert [check.conditions for check in verify(folder)] == [(), ()]
    assert main(["verify", str(folder)]) == 0
    assert "other conditions" not in capsys.readouterr().out
    tamper(folder, threads=threads + 1, versions={"torch": "1.0"}, device="H200")
    first, second = verify(folder)
    then = ("device H200 then, cpu now", f"threads {threads + 1} then, {threads} now", f"torch 1.0 then, {now} now")
    assert (first.ok, first.conditions, second.conditions) == (True, then, ())
    assert main(["verify", str(folder)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    said = "; ".join(f"{text} (1 of 2 runs)" for text in then)
    assert f"measured under other conditions, which may round differently: {said}" in out
    assert "2 of 2 agree with their results." in out


# What cannot be measured


@pytest.fixture(scope="module")
def wrn_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A WRN-16-4 whose result is true, except for the error, which nobody has measured."""
    folder = tmp_path_factory.mktemp("wrn")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WRN164()
    task = Task(model, [None], lambda *_: torch.zeros(()), lambda _: 50.0, 1, name="wrn-16-4", dataset="CIFAR-10")
    compressed, config = by_hand(model), CompressConfig()
    write_pair(folder, "wrn-16-4/ours/seed0", measure(task, compressed, config), compressed)
    return folder


@pytest.mark.slow
def test_without_the_data_everything_except_the_error_is_checked(
    wrn_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (check,) = verify(wrn_folder)
    assert check.ok
    assert check.error is None
    (reason,) = check.not_checked
    assert reason.startswith("error: wrn-16-4: CIFAR-10 is not part of the package. Expected cifar-10-batches-bin")
    assert main(["verify", str(wrn_folder)]) == 0
    text = capsys.readouterr().out
    assert "The error of 1 could not be measured" in text
    assert "ok; error not checked" in " ".join(text.split())
    assert " ".join(text.split()).count("not checked: error: wrn-16-4: CIFAR-10 is not part of the package.") == 1
    # The rest can still differ.
    shutil.copytree(wrn_folder, tmp_path / "results")
    path = tmp_path / "results/wrn-16-4/ours/seed0/result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_nonzero": 5}))
    (check,) = verify(tmp_path / "results")
    assert [d.partition(":")[0] for d in check.differences] == ["n_nonzero"]


def test_a_config_that_does_not_say_how_the_file_was_encoded(folder: Path) -> None:
    tamper(folder, config={"method": "another"})
    first, _ = verify(folder)
    assert first.ok
    assert len(first.not_checked) == 1
    assert first.not_checked[0].startswith("han_bytes: ")


# The folder and the command


def test_runs_are_found_once_and_in_order(tmp_path: Path) -> None:
    for name in (
        "b/model.sws",
        "a/x/result.json",
        "a/x/model.sws",
        "a/0.5/result.json",
        "a/readme.txt",
        "a/.c/model.sws",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(p.relative_to(tmp_path)) for p in find_runs(tmp_path)] == ["a/0.5", "a/x", "b"]


def test_a_missing_and_an_empty_folder_are_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        find_runs(tmp_path / "none")
    for path, message in ((tmp_path / "none", "there is no folder"), (tmp_path, "found none")):
        assert main(["verify", str(path)]) == 2
        assert message in capsys.readouterr().err


def test_the_command_says_what_agrees_and_what_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    before = torch.get_rng_state()
    assert main(["verify"]) == 0  # the default folder is results
    assert torch.equal(torch.get_rng_state(), before)
    text = capsys.readouterr().out
    assert "2 of 2 agree" in text
    assert f"{Result.load(folder / f'{NAME}/result.json').file_bytes:,}" in text
    tamper(folder, n_nonzero=3)
    assert main(["verify", str(folder)]) == 1
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "1 of 2 agree" in text
    assert "n_nonzero" in text


def test_json_for_a_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / f"{NAME}/model.sws").unlink()
    assert main(["verify", str(folder), "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert not values["ok"]
    assert [check["ok"] for check in values["checks"]] == [False, True]
    assert values["checks"][0]["path"] == NAME
    assert values["checks"][0]["file_bytes"] is None
    assert "expected model.sws" in values["checks"][0]["differences"][0]


# A user's own task


def test_a_run_of_the_users_own_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--task FILE.py:make_task` measures it. Without --task, the command says what to give."""
    run = compress(tmp_path, "--epochs", 1)
    capsys.readouterr()
    assert main(["verify", str(run), "--task", f"{tmp_path / 'net.py'}:task"]) == 0
    assert "1 of 1 agree" in capsys.readouterr().out
    (check,) = verify(run, task=make_task())
    assert (check.ok, check.not_checked) == (True, ())
    assert check.error == Result.load(run / "result.json").error_after

    assert main(["verify", str(run)]) == 1
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "give --task FILE.py:make_task" in text

    path = run / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"error_after": 1.0}))
    assert main(["verify", str(run), "--task", f"{tmp_path / 'net.py'}:task"]) == 1
    assert "error_after" in capsys.readouterr().out
