from __future__ import annotations

import dataclasses
import io
import math
import re
from typing import Annotated, Any

import pytest
import typer

from softshare.cli import main
from softshare.cli.options import with_config_options
from softshare.config import Beta, CompressConfig, Dirichlet, Gamma, Rule
from softshare.errors import ConfigError

FIELDS = [f for stage in vars(CompressConfig()).values() for f in dataclasses.fields(stage)]


def flag_of(name: str) -> str:
    return "--rule" if name == "rules" else "--" + name.replace("_", "-")


def overrides_of(*args: str) -> dict[str, Any]:
    """What a command that takes the config's options is called with."""
    seen: list[dict[str, Any]] = []

    def command(overrides: dict[str, Any], other: Annotated[int, typer.Option()] = 3) -> None:
        """A command."""
        seen.append({**overrides, "other": other})

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(with_config_options(command))
    app(args=list(args), standalone_mode=False)
    assert seen[0].pop("other") == 3
    return seen[0]


# The help


@pytest.fixture(scope="module")
def compress_help() -> str:
    """The help of `softshare compress`, its frames and line breaks taken out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setattr("typer.rich_utils.FORCE_TERMINAL", None)
        capture = io.StringIO()
        patch.setattr("sys.stdout", capture)
        assert main(["compress", "--help"]) == 0
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", capture.getvalue()).split())


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.name)
def test_every_field_is_an_option_with_its_help_and_default(field: dataclasses.Field[Any], compress_help: str) -> None:
    kind = rf"--no-{flag_of(field.name)[2:]} \S+" if field.type == "bool" else r"\S+"
    default = "" if field.default in (None, ()) else f"Default: {field.default}."
    expected = rf"{flag_of(field.name)} {kind} {re.escape(field.metadata['help'])}.*?{re.escape(default)}"
    assert re.search(expected, compress_help), expected


def test_the_help_groups_options_by_stage_in_the_order_of_the_route(compress_help: str) -> None:
    order = ["--epochs", "--seed", "Prior", "--components", "Retraining", "--tau", "Merging", "--merge-threshold"]
    order += ["Simplifying", "--symmetries", "File", "--codec"]
    places = [re.search(rf"(?<![\w-]){word} ", compress_help[compress_help.index("Options") :]) for word in order]
    starts = [match.start() for match in places if match]
    assert len(starts) == len(order)
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("flag", "choices"),
    [
        ("--mixtures", "global, layer"),
        ("--init", "range, quantile"),
        ("--backend", "auto, triton, numba, torch"),
        ("--method", "auto, exact, table"),
        ("--optimizer", "adam, sgd"),
        ("--schedule", "constant, cosine"),
        ("--codec", "han, adaptive"),
        ("--codebook-dtype", "auto, float32, float16, bfloat16"),
        ("--rest-dtype", "float32, float16, bfloat16"),
        ("--names", "keep, none"),
    ],
)
def test_the_help_lists_choices(flag: str, choices: str, compress_help: str) -> None:
    assert re.search(rf"{flag} \S+ .*?One of: {choices}\.", compress_help)


# Parsing


def test_without_options_nothing_is_overridden() -> None:
    assert overrides_of() == {}


def test_numbers_and_choices_come_through_as_they_are() -> None:
    args = (
        "--mixtures global --components 4 --init quantile --width none --init-std 0.25 "
        "--zero-mixing 0.5 --lr-means 0 --lr-log-vars 1e-3 --lr-mixing 1 --backend torch "
        "--method table --sample-one-in 3 "
        "--epochs 7 --tau 0 --tau-warmup 0.0 --lr-weights 1e-9 --optimizer sgd --weight-decay 0.5 "
        "--schedule constant --hard-from 0.25 --zeroing 0 --distill 1 --seed -3 --capture "
        "--merge-threshold 2 --no-symmetries "
        "--codec han --codebook-dtype bfloat16 --rest-dtype float16 --names none"
    )
    overrides = overrides_of(*args.split())
    assert overrides == {
        "mixtures": "global",
        "components": 4,
        "init": "quantile",
        "width": None,
        "init_std": 0.25,
        "zero_mixing": 0.5,
        "lr_means": 0.0,
        "lr_log_vars": 1e-3,
        "lr_mixing": 1.0,
        "backend": "torch",
        "method": "table",
        "sample_one_in": 3,
        "epochs": 7,
        "tau": 0.0,
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
        "codec": "han",
        "codebook_dtype": "bfloat16",
        "rest_dtype": "float16",
        "names": "none",
    }
    assert set(overrides) == {f.name for f in FIELDS} - {
        "mixing_prior",
        "zero_precision_prior",
        "free_precision_prior",
        "rules",
    }
    assert CompressConfig().override(**overrides).retrain.seed == -3


@pytest.mark.parametrize("name", ["zero_precision_prior", "free_precision_prior"])
def test_gammas_are_given_in_two_forms_or_none(name: str) -> None:
    assert overrides_of(flag_of(name), "alpha=5000,beta=2") == {name: Gamma(5000, 2)}
    assert overrides_of(flag_of(name), " beta = 1e-1, alpha= 250 ") == {name: Gamma(250, 0.1)}
    assert overrides_of(flag_of(name), "none") == {name: None}
    gamma = overrides_of(flag_of(name), "std=0.03,strength=70")[name]
    # Appendix B: the mode of the precision is 1 / std^2, its standard deviation that over the strength.
    assert math.isclose((gamma.alpha - 1) / gamma.beta, 0.03**-2, rel_tol=1e-12)
    assert math.isclose(math.sqrt(gamma.alpha) / gamma.beta, 0.03**-2 / 70, rel_tol=1e-12)


def test_the_mixing_prior_is_a_beta_a_dirichlet_or_none() -> None:
    assert overrides_of("--mixing-prior", "alpha=900,beta=0.5") == {"mixing_prior": Beta(900, 0.5)}
    assert overrides_of("--mixing-prior", "zero=900,free=0.5") == {"mixing_prior": Dirichlet(900, 0.5)}
    assert overrides_of("--mixing-prior", "none") == {"mixing_prior": None}


@pytest.mark.parametrize("name", ["width", "init_std"])
def test_an_optional_number_is_a_number_or_none(name: str) -> None:
    assert overrides_of(flag_of(name), "0.5") == {name: 0.5}
    assert overrides_of(flag_of(name), "none") == {name: None}
    with pytest.raises(ConfigError, match=rf"{flag_of(name)}: expected a number or 'none', got 'wide'"):
        overrides_of(flag_of(name), "wide")


@pytest.mark.parametrize("name", ["capture", "symmetries"])
def test_a_switch_is_a_flag_and_its_opposite(name: str) -> None:
    for flag, value in ((f"--{name}", True), (f"--no-{name}", False)):
        overrides = overrides_of(flag)
        assert overrides == {name: value}
        config = CompressConfig().override(**overrides)
        assert {"capture": config.retrain.capture, "symmetries": config.simplify.symmetries}[name] is value


def test_none_takes_a_hyper_prior_away() -> None:
    config = CompressConfig.paper().override(
        **overrides_of("--zero-precision-prior", "none", "--free-precision-prior", "none")
    )
    assert CompressConfig.paper().prior.zero_precision_prior is not None
    assert (config.prior.zero_precision_prior, config.prior.free_precision_prior) == (None, None)


def test_rules_keep_their_order_and_may_hold_colons() -> None:
    overrides = overrides_of("--rule", "keep:*.bias", "--rule", "share:*", "--rule", "keep:a:b")
    assert overrides == {"rules": (Rule("*.bias", False), Rule("*", True), Rule("a:b", False))}


# Errors


@pytest.mark.parametrize("flag", ["--zero-precision-prior", "--free-precision-prior", "--mixing-prior"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "None",
        "alpha=1",
        "alpha=1,beta",
        "alpha=1,beta=x",
        "alpha=1,beta=2,",
        "alpha=1;beta=2",
        "alpha=1,beta=2,std=3",
        "alpha=1,std=3",
        "alpha=1=2,beta=3",
        "alpha=1,alpha=2,beta=3",
        "ALPHA=1,BETA=2",
    ],
)
def test_a_bad_hyper_prior_is_refused_with_the_option_and_its_forms(flag: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        overrides_of(flag, text)
    message = str(error.value)
    assert message.startswith(f"{flag}: ")
    assert "'alpha=A,beta=B'" in message
    assert "'none'" in message
    assert repr(text) in message


def test_each_hyper_prior_takes_its_own_forms_only() -> None:
    with pytest.raises(ConfigError, match=r"--mixing-prior.*'zero=A,free=B'"):
        overrides_of("--mixing-prior", "std=1,strength=2")
    with pytest.raises(ConfigError, match=r"--zero-precision-prior.*'std=S,strength=K'"):
        overrides_of("--zero-precision-prior", "zero=1,free=2")


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--zero-precision-prior", "alpha=-1,beta=2"),
        ("--zero-precision-prior", "alpha=1,beta=nan"),
        ("--free-precision-prior", "std=0,strength=1"),
        ("--free-precision-prior", "std=1,strength=inf"),
        ("--free-precision-prior", "std=1e-200,strength=1"),
        ("--free-precision-prior", "std=1e200,strength=1"),
        ("--free-precision-prior", "std=1,strength=1e200"),
        ("--mixing-prior", "alpha=0,beta=2"),
        ("--mixing-prior", "zero=1,free=-2"),
    ],
)
def test_a_hyper_prior_out_of_range_is_refused_with_the_option(flag: str, text: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        overrides_of(flag, text)


@pytest.mark.parametrize("text", ["", "fc1.weight", "drop:fc1.weight", "keep:", ":fc1", "Keep:fc1"])
def test_a_bad_rule_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--rule: expected 'share:PATTERN' or 'keep:PATTERN'") as error:
        overrides_of("--rule", text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("args", [["--components", "x"], ["--tau", ""], ["--epochs", "1.5"], ["--bogus", "1"]])
def test_what_is_no_number_or_no_option_is_a_usage_error(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compress", "lenet-300-100", *args]) == 2
    assert args[0] in capsys.readouterr().err
