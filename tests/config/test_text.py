"""Settings as text: one value as on the command line, and whole configs as TOML files with comments."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from typing import Any

import pytest
from hypothesis import example, given, settings

from configs import configs
from softshare.config import Beta, CompressConfig, Dirichlet, Gamma, Rule
from softshare.config.fields import help_of
from softshare.config.text import HINTS, STAGES, from_toml, parse, to_toml
from softshare.errors import ConfigError

# One value


def test_a_text_becomes_a_value_of_the_settings_type() -> None:
    values: dict[tuple[str, str], Any] = {
        ("steps", "7"): 7,
        ("epochs", "7"): 7,
        ("epochs", "none"): None,
        ("scaling", "paper"): "paper",
        ("seed", "-3"): -3,
        ("tau", "1e-3"): 1e-3,
        ("tau", "0"): 0.0,
        ("width", "0.5"): 0.5,
        ("width", "none"): None,
        ("capture", "true"): True,
        ("symmetries", "false"): False,
        ("codec", "han"): "han",
        ("names", "none"): "none",  # a choice, not a missing value
        ("mixing_prior", "alpha=900,beta=0.5"): Beta(900, 0.5),
        ("mixing_prior", "zero=900,free=0.5"): Dirichlet(900, 0.5),
        ("mixing_prior", "none"): None,
        ("zero_precision_prior", " beta = 1e-1, alpha= 250 "): Gamma(250, 0.1),
        ("free_precision_prior", "none"): None,
        ("rules", "keep:*.bias, share:*,keep:a:b"): (Rule("*.bias", False), Rule("*", True), Rule("a:b", False)),
    }
    for (name, text), value in values.items():
        if isinstance(value, Beta | Dirichlet | Gamma):
            assert parse(name, str(value)) == value  # as it prints itself
        found = parse(name, text)
        assert found == value, name
        assert type(found) is type(value), name


def test_a_gamma_by_its_standard_deviation_and_strength() -> None:
    """Appendix B: the mode of the precision is 1 / std^2, and its standard deviation is the mode over the strength."""
    gamma = parse("zero_precision_prior", "std=0.03,strength=70")
    assert math.isclose((gamma.alpha - 1) / gamma.beta, 0.03**-2, rel_tol=1e-12)
    assert math.isclose(math.sqrt(gamma.alpha) / gamma.beta, 0.03**-2 / 70, rel_tol=1e-12)


@pytest.mark.parametrize("name", ["zero_precision_prior", "free_precision_prior", "mixing_prior"])
def test_a_bad_hyper_prior_is_refused_with_its_forms(name: str) -> None:
    bad = ["", "3", "None", "alpha=1", "alpha=1,beta", "alpha=1,beta=x", "alpha=1,beta=2,", "alpha=1;beta=2"]
    bad += ["alpha=1,beta=2,std=3", "alpha=1=2,beta=3", "alpha=1,alpha=2,beta=3", "ALPHA=1,BETA=2"]
    bad += ["zero=1,free=2" if name != "mixing_prior" else "std=1,strength=2"]  # a form of the others
    for text in bad:
        with pytest.raises(ConfigError) as error:
            parse(name, text, "--option")
        second = "zero=A,free=B" if name == "mixing_prior" else "std=S,strength=K"
        assert str(error.value) == f"--option: expected 'alpha=A,beta=B', '{second}' or 'none', got {text!r}"


REFUSED: list[tuple[str, str, str]] = [
    ("steps", "1.5", "steps: expected a whole number, got '1.5'"),
    ("epochs", "1.5", "epochs: expected a whole number or 'none', got '1.5'"),
    ("tau", "", "tau: expected a number, got ''"),
    ("width", "wide", "width: expected a number or 'none', got 'wide'"),
    ("capture", "yes", "capture: expected true or false, got 'yes'"),
    ("codec", "zip", "codec: expected one of han, adaptive, got 'zip'"),
    ("rules", "fc1.weight", "rules: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got 'fc1.weight'"),
    ("rules", "lose:fc1", "rules: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got 'lose:fc1'"),
    ("rules", "keep:", "rules: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got 'keep:'"),
    ("zero_precision_prior", "alpha=-1,beta=2", "zero_precision_prior: Gamma: alpha must be a finite number above 0"),
    ("free_precision_prior", "std=1e200,strength=1", "free_precision_prior: Gamma.from_std: 1 / std^2 must be"),
    ("mixing_prior", "zero=1,free=-2", "mixing_prior: Dirichlet: free must be a finite number above 0, got -2.0"),
    ("taux", "1", "unknown setting 'taux'; did you mean tau?"),
    ("learning_rate", "1", "unknown setting 'learning_rate'; known are mixtures, components, "),
]


def test_a_text_that_is_no_value_is_refused() -> None:
    for name, text, message in REFUSED:
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            parse(name, text)


# A file


@settings(max_examples=40)
@given(configs)
@example(CompressConfig().override(rules=(Rule('\N{GRINNING FACE} \x7f "\\ \n', True),)))
def test_every_setting_survives_a_toml_file(config: CompressConfig) -> None:
    """Whatever base it is applied to: a file of `softshare config` has every setting, the length of the run once."""
    text = to_toml(config)
    found = from_toml(text, "my.toml")
    assert list(found) == [name for name in HINTS if name != "steps" or not config.retrain.epochs]
    assert CompressConfig.paper().override(**found) == config


def test_steps_that_epochs_replace_are_a_comment() -> None:
    assert "\nsteps = 6000\n" in to_toml(CompressConfig())
    assert '\nepochs = "none"\n' in to_toml(CompressConfig())
    assert "\n# steps = 6000\n" in to_toml(CompressConfig.paper())
    assert "\nepochs = 40\n" in to_toml(CompressConfig.paper())


def test_the_file_says_what_every_setting_is() -> None:
    """The comment above a setting is its help, and a table is headed by the first sentence on its stage."""
    text = to_toml(CompressConfig())
    said = " ".join(line.removeprefix("# ") for line in text.splitlines())
    assert all(len(line) <= 120 for line in text.splitlines())
    for stage, kind in STAGES.items():
        about = kind.__doc__.partition("\n\n")[0]
        assert f"{about} [{stage}]" in said
        for field in dataclasses.fields(kind):
            assert re.search(rf"{re.escape(help_of(kind)[field.name])} (One of: [\w, ]+\. )?{field.name} = ", said)
    assert "One of: auto, triton, numba, torch. backend" in said
    assert tomllib.loads(text)["version"] == CompressConfig.VERSION


def test_a_file_may_leave_out_settings_and_tables() -> None:
    assert from_toml("", "my.toml") == {}
    text = 'tau = 0.5\nmixing_prior = "zero=3,free=2"\n[prior]\nwidth = "none"\nrules = ["keep:a", "share:b"]'
    assert from_toml(text, "my.toml") == {
        "tau": 0.5,
        "mixing_prior": Dirichlet(3, 2),
        "width": None,
        "rules": (Rule("a", False), Rule("b", True)),
    }


REFUSED_FILES: list[tuple[str, str]] = [
    ("tau 3", "my.toml is not a TOML file: "),
    ("version = 2", "my.toml: expected version 4 of the settings, got 2"),
    ("prior = 3", "my.toml: expected a table [prior], got 3"),
    ("[prior]\ntau = 3", "my.toml: [prior] has no setting 'tau'; known are mixtures, "),
    ("[prior]\nwidht = 3", "my.toml: [prior] has no setting 'widht'; did you mean width?"),
    ("learning_rate = 3", "my.toml: unknown setting 'learning_rate'; known are mixtures, "),
    ("[training]\ntau = 3", "my.toml: unknown setting 'training'; known are mixtures, "),
    ("tau = 1\n[retrain]\ntau = 2", "my.toml: tau is given twice"),
    ("steps = 1.5", "my.toml: steps: expected a whole number, got 1.5"),
    ("capture = 1", "my.toml: capture: expected true or false, got 1"),
    ('codec = "zip"', "my.toml: codec: expected one of han, adaptive, got 'zip'"),
    ("rules = 3", "my.toml: rules: expected a tuple of Rule, got 3"),
    ('rules = ["fc1"]', "my.toml: rules: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got 'fc1'"),
    ("mixing_prior = { alpha = 1 }", "my.toml: mixing_prior: expected a Beta or a Dirichlet or None, got {'alpha': 1}"),
    ("zero_precision_prior = { alpha = 1, beta = -1 }", "my.toml: zero_precision_prior: Gamma: beta must be a finite"),
]


def test_a_bad_file_is_refused_with_its_name() -> None:
    for text, message in REFUSED_FILES:
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            from_toml(text, "my.toml")


@pytest.mark.parametrize("text", ["tau = " + "9" * 5000, "a = " + "[" * 50_000])
def test_a_forged_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"settings\.toml is not a TOML file"):
        from_toml(text, "settings.toml")
