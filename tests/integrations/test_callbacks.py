"""Both callbacks without their libraries, which take seconds to import: small classes stand in for them."""

from __future__ import annotations

import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import softshare as ss
from softshare.errors import ConfigError, NotAvailableError

MODULES = {"lightning": ("pytorch_lightning", "Callback"), "huggingface": ("transformers", "TrainerCallback")}


@pytest.mark.parametrize("name", MODULES)
def test_a_callback_checks_what_it_is_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, base = MODULES[name]
    names = (base, "TrainerControl", "TrainerState", "TrainingArguments")
    stand_in = types.ModuleType(library)
    stand_in.__spec__ = sys.modules["types"].__spec__
    for of in names:
        setattr(stand_in, of, type(of, (), {}))
    monkeypatch.setitem(sys.modules, library, stand_in)
    monkeypatch.delitem(sys.modules, f"softshare.integrations.{name}", raising=False)
    try:
        callback = import_module(f"softshare.integrations.{name}").SoftShareCallback
        assert callback(tmp_path / "model.sws").compressed is None
        with pytest.raises(ConfigError, match="distill"):
            callback(tmp_path / "model.sws", ss.CompressConfig().override(distill=0.5))
        with pytest.raises(ConfigError, match="cannot write"):
            callback(tmp_path / "nowhere" / "model.sws")
    finally:
        sys.modules.pop(f"softshare.integrations.{name}", None)


@pytest.mark.parametrize("name", MODULES)
def test_without_its_library_it_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    monkeypatch.delitem(sys.modules, f"softshare.integrations.{name}", raising=False)
    with pytest.raises(NotAvailableError, match=rf"softshare\[{name}\]"):
        import_module(f"softshare.integrations.{name}")
