"""Every public name explains itself in an editor: arguments, what it returns, and an example that runs."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss

FUNCTIONS = [name for name in ss.__all__ if inspect.isfunction(getattr(ss, name))]
CLASSES = [name for name in ss.__all__ if inspect.isclass(getattr(ss, name))]
STEPS = 20
SHORT = ss.CompressConfig().override(steps=STEPS, backend="torch", zeroing=0.1, zero_mixing=0.5)
TAKE_LONG = ("softshare.compress(", "report(", "export_onnx(", "_pretrained(")


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
            yield name, getattr(cls, name)


METHODS = {
    f"{cls}.{name}": member
    for cls in CLASSES
    for name, member in _members(getattr(ss, cls))
    if not isinstance(member, property)
}
CALLABLE = {name: getattr(ss, name) for name in FUNCTIONS} | METHODS
PUBLIC = {name: getattr(ss, name) for name in CLASSES} | CALLABLE


def _text(member: Any) -> str:
    return inspect.getdoc(member) or ""


def _not_described(function: Any, text: str) -> list[str]:
    """The arguments that the text does not name."""
    described = f"\n{text.partition(f'{chr(10)}Args:{chr(10)}')[2]}"
    return [a for a in inspect.signature(function).parameters if a != "self" and f"\n    {a}: " not in described]


def _examples(member: Any) -> list[str]:
    """The indented blocks above the arguments."""
    lines = re.split(r"^(?:Args|Returns):$", _text(member), maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    blocks = itertools.groupby(lines, key=lambda line: line.startswith("    ") or not line)
    return [code for is_code, block in blocks if is_code and (code := inspect.cleandoc("\n".join(block)))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_an_example(name: str) -> None:
    assert f"softshare.{name}(" in "\n".join(_examples(getattr(ss, name)))


@pytest.mark.parametrize("name", CALLABLE)
def test_arguments_and_what_is_returned_are_described(name: str) -> None:
    function, text = CALLABLE[name], _text(CALLABLE[name])
    assert text
    if name != "compress":  # its two forms have their own arguments
        assert _not_described(function, text) == []
    takes_some = set(inspect.signature(function).parameters) - {"self"}
    if takes_some and inspect.signature(function).return_annotation != "None":
        assert "\nReturns:\n" in text


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_an_example_and_its_members_say_what_they_are(name: str) -> None:
    cls = getattr(ss, name)
    assert _examples(cls)
    assert not re.match(rf"{name}\(\w+: ", _text(cls))  # what a dataclass writes if nobody does
    assert [member for member, value in _members(cls) if not _text(value)] == []
    if "__init__" in vars(cls) and not dataclasses.is_dataclass(cls):  # its fields have their own texts
        assert _not_described(cls, _text(cls)) == []


# They run


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = {
        "conv": nn.Conv2d(3, 16, 3, stride=2),
        "norm": nn.BatchNorm2d(16),
        "relu": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(4),
        "flat": nn.Flatten(),
        "hidden": nn.Linear(256, 64),
        "relu2": nn.ReLU(),
        "head": nn.Linear(64, 2),
    }
    return nn.Sequential(OrderedDict(layers)).eval()


@pytest.fixture(scope="module")
def compressed(network: nn.Module) -> ss.Compressed:
    return ss.compress(_task(network), SHORT, target=None)


def _loader() -> DataLoader[Any]:
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), 16)


def _task(model: nn.Module) -> ss.Task:
    return ss.Task.from_loaders(model, _loader(), _loader(), nn.CrossEntropyLoss())


def _of_transformers(folder: Path) -> nn.Module:
    """A model, and the folder that `from_pretrained` reads."""
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=500, max_position_embeddings=8, **size)
    model: nn.Module = transformers.BertForSequenceClassification(config)
    ss.save_pretrained(model, ss.quantize(model, bits=4), folder)
    return model


def _given(name: str, network: nn.Module, compressed: ss.Compressed, folder: Path) -> dict[str, Any]:
    """What the reader of an example has."""
    model, batch = copy.deepcopy(network), next(iter(_loader()))
    prior, of_batch = ss.MixturePrior(model), nn.CrossEntropyLoss()
    compressed.save(folder / "model.sws")
    if name.endswith("_pretrained"):
        model = _of_transformers(folder / "small")
    return {
        "softshare": ss,
        "torch": torch,
        "nn": nn,
        "model": model,
        "train_loader": _loader(),
        "val_loader": _loader(),
        "batches": [x for x, _ in _loader()],
        "batch": batch,
        "images": batch[0],
        "x": batch[0],
        "y": batch[1],
        "loss_fn": of_batch,
        "loss": lambda model, batch: of_batch(model(batch[0]), batch[1]),
        "task": _task(network),
        "config": SHORT,
        "compressed": compressed,
        "prior": prior,
    }


def _shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are trained for a moment: an example shows the call, not what comes of it."""

    def short(given: Any, *args: Any, **kwargs: Any) -> ss.Compressed:
        if args and isinstance(args[0], ss.CompressConfig):
            args = (args[0].override(steps=STEPS), *args[1:])
        else:
            kwargs["config"] = SHORT
        return compress(given, *args, **{"target": None} | kwargs)

    compress = ss.compress
    monkeypatch.setattr(ss, "compress", short)


def _examples_to_run() -> Iterator[Any]:
    for name, member in PUBLIC.items():
        if code := "\n".join(_examples(member)):
            yield pytest.param(name, marks=[pytest.mark.slow] if any(word in code for word in TAKE_LONG) else [])


@pytest.mark.parametrize("name", list(_examples_to_run()))
def test_an_example_runs(
    name: str,
    network: nn.Module,
    compressed: ss.Compressed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = _given(name, network, compressed, tmp_path)
    _shortened(monkeypatch)
    for code in _examples(PUBLIC[name]):
        exec(compile(code, name, "exec"), given)
