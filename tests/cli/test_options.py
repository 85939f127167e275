"""Options from the fields of the config: every field is one, with its help, and reaches the command by its name."""

from __future__ import annotations

import dataclasses
import io
import re
import typing
from typing import Annotated, Any, Literal

import pytest
import typer

from softshare.cli import main
from softshare.cli.options import PANELS, with_config_options, with_file_options
from softshare.config import Beta, CompressConfig, Gamma, Rule
from softshare.config.fields import help_of
from softshare.config.text import HINTS
from softshare.errors import ConfigError

FIELDS = [f for stage in vars(CompressConfig()).values() for f in dataclasses.fields(stage)]

HELP = {name: text for stage in vars(CompressConfig()).values() for name, text in help_of(type(stage)).items()}


def flag_of(name: str) -> str:
    return "--rule" if name == "rules" else "--" + name.replace("_", "-")


def overrides_of(*args: str, decorate: Any = with_config_options) -> dict[str, Any]:
    """What a command that takes the options of the config is called with."""
    seen: list[dict[str, Any]] = []

    def command(overrides: dict[str, Any], other: Annotated[int, typer.Option()] = 3) -> None:
        """A command."""
        seen.append({**overrides, "other": other})

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(decorate(command))
    app(args=list(args), standalone_mode=False)
    assert seen[0].pop("other") == 3
    return seen[0]


# The help


@pytest.fixture(scope="module")
def compress_help() -> str:
    """The help of `softshare compress` without its frames and line breaks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setattr("typer.rich_utils.FORCE_TERMINAL", None)
        capture = io.StringIO()
        patch.setattr("sys.stdout", capture)
        assert main(["compress", "--help"]) == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", capture.getvalue()).split())


def test_every_field_is_an_option_with_its_help_choices_and_default(compress_help: str) -> None:
    for field in FIELDS:
        hint = HINTS[field.name]
        kind = f"--no-{flag_of(field.name)[2:]}" if hint is bool else r"\S+"
        expected = f"{flag_of(field.name)} {kind} {re.escape(HELP[field.name])}"
        if typing.get_origin(hint) is Literal:
            expected += f" One of: {', '.join(typing.get_args(hint))}\\."
        if field.default != ():
            default = {"True": "on", "False": "off", "None": "none"}.get(str(field.default), str(field.default))
            expected += f" Default: {re.escape(default)}\\."
        assert re.search(expected, compress_help), expected


def test_the_help_groups_options_by_stage_in_the_order_of_the_route(compress_help: str) -> None:
    order = [
        "--steps",
        "--epochs",
        "--seed",
        "Target",
        "--max-error",
        "--no-limit",
        "Prior",
        "--components",
        "Retraining",
        "--tau",
        "Merging",
        "--merge-threshold",
    ]
    order += ["Simplifying", "--symmetries", "File", "--codec"]
    places = [re.search(rf"(?<![\w-]){word} ", compress_help[compress_help.index("Options") :]) for word in order]
    starts = [match.start() for match in places if match]
    assert len(starts) == len(order)
    assert starts == sorted(starts)
    assert list(PANELS) == [f.name for f in dataclasses.fields(CompressConfig)]


# Values


def test_numbers_choices_and_switches_come_through() -> None:
    args = (
        "--mixtures global --components 4 --init quantile --width none --init-std 0.25 "
        "--zero-mixing 0.5 --units 2 --lr-means 0 --lr-log-vars 1e-3 --lr-mixing 1 --backend torch "
        "--method table --sample-one-in 3 "
        "--steps 900 --epochs 7 --tau 0 --scaling paper --tau-warmup 0.0 --lr-weights 1e-9 "
        "--optimizer sgd --weight-decay 0.5 --schedule constant --hard-from 0.25 --zeroing 0 --distill 1 "
        "--seed -3 --capture --merge-threshold 2 --no-symmetries --fold-batchnorm "
        "--codec han --codebook-dtype bfloat16 --rest-dtype float16 --names none --speed fastest --no-compact"
    )
    overrides = overrides_of(*args.split())
    assert overrides == {
        "mixtures": "global",
        "components": 4,
        "init": "quantile",
        "width": None,
        "init_std": 0.25,
        "zero_mixing": 0.5,
        "units": 2.0,
        "lr_means": 0.0,
        "lr_log_vars": 1e-3,
        "lr_mixing": 1.0,
        "backend": "torch",
        "method": "table",
        "sample_one_in": 3,
        "steps": 900,
        "epochs": 7,
        "tau": 0.0,
        "scaling": "paper",
        "tau_warmup": 0.0,
        "lr_weights": 1e-9,
        "optimizer": "sgd",
        "weight_decay": 0.5,
        "schedule": "constant",
        "hard_from": 0.25,
        "zeroing": 0.0,
        "distill": 1.0,
        "seed": -3,
        "capture": True,
        "merge_threshold": 2.0,
        "symmetries": False,
        "fold_batchnorm": True,
        "codec": "han",
        "codebook_dtype": "bfloat16",
        "rest_dtype": "float16",
        "names": "none",
        "speed": "fastest",
        "compact": False,
    }
    others = {"mixing_prior", "zero_precision_prior", "free_precision_prior", "rules"}
    assert set(overrides) == {f.name for f in FIELDS} - others
    with pytest.raises(ConfigError, match="expected steps or epochs, got both: 900 and 7"):
        CompressConfig().override(**overrides)
    del overrides["steps"]
    assert CompressConfig().override(**overrides).retrain.seed == -3
    assert overrides_of() == {}
    assert overrides_of("--no-capture", "--symmetries") == {"capture": False, "symmetries": True}


def test_hyper_priors_and_rules_come_through() -> None:
    priors = ("--mixing-prior", "alpha=900,beta=0.5", "--zero-precision-prior", "alpha=5000,beta=2")
    assert overrides_of(*priors, "--free-precision-prior", "none") == {
        "mixing_prior": Beta(900, 0.5),
        "zero_precision_prior": Gamma(5000, 2),
        "free_precision_prior": None,
    }
    rules = overrides_of("--rule", "keep:*.bias", "--rule", "share:*", "--rule", "keep:a,b:c")
    assert rules == {"rules": (Rule("*.bias", False), Rule("*", True), Rule("a,b:c", False))}


def test_set_takes_any_setting_and_an_option_takes_precedence() -> None:
    args = ["--set", "tau=0.5", "--set", "width = none", "--set", "rules=keep:a,share:b", "--set", "capture=true"]
    given = {"tau": 0.5, "width": None, "rules": (Rule("a", False), Rule("b", True)), "capture": True}
    assert overrides_of(*args) == given
    assert overrides_of(*args, "--set", "tau=0.6") == {**given, "tau": 0.6}  # the last one counts
    assert overrides_of("--tau", "0.7", *args, "--no-capture") == {**given, "tau": 0.7, "capture": False}


def test_a_command_for_files_takes_rules_and_the_options_of_the_file() -> None:
    given = overrides_of("--rule", "keep:a", "--codec", "han", decorate=with_file_options)
    assert given == {"rules": (Rule("a", False),), "codec": "han"}
    for other in ("--tau", "--set"):
        with pytest.raises(Exception, match="No such option"):
            overrides_of(other, "1", decorate=with_file_options)


# Errors


def test_a_bad_value_is_refused_with_its_option() -> None:
    for args, message in (
        (
            ["--zero-precision-prior", "alpha=1"],
            "^--zero-precision-prior: expected 'alpha=A,beta=B', 'std=S,strength=K'",
        ),
        (["--mixing-prior", "zero=1,free=-2"], "^--mixing-prior: Dirichlet: free must be"),
        (["--width", "wide"], "^--width: expected a number or 'none', got 'wide'"),
        (["--codec", "zip"], "^--codec: expected one of han, adaptive, got 'zip'"),
        (
            ["--rule", "fc1.weight"],
            "^--rule: expected 'share:PATTERN', 'keep:PATTERN' or 'drop:PATTERN', got 'fc1.weight'",
        ),
        (["--set", "tau"], "^--set: expected NAME=VALUE, for example tau=0.01, got 'tau'"),
        (["--set", "Tau=1"], "^unknown setting 'Tau'; did you mean tau"),
        (["--set", "tau=x"], "^tau: expected a number, got 'x'"),
    ):
        with pytest.raises(ConfigError, match=message):
            overrides_of(*args)


def test_what_is_no_number_or_no_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--components", "x"], ["--tau", ""], ["--epochs", "1.5"], ["--bogus", "1"]):
        assert main(["compress", "lenet-300-100", *args]) == 2
        assert args[0] in capsys.readouterr().err
