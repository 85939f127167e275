"""The command `softshare config`, and the settings that `--config` reads from a file or a preset."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softshare import zoo
from softshare.config import CompressConfig
from softshare.config.text import from_toml, to_toml
from softshare.errors import ConfigError

if TYPE_CHECKING:
    from softshare.result import Result
    from softshare.target.limits import Target

PAPER = "paper"
PRESETS = ("default", PAPER, *zoo.NAMES)
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Settings: a TOML file, a run's result.json, or a preset ({', '.join(PRESETS)}).",
    ),
]


def config(
    preset: Annotated[str, typer.Argument(help=f"One of: {', '.join(PRESETS)}.")] = "default",
) -> None:
    """Print the default settings, or those of a preset, as a TOML file with comments.

    Save the output with `softshare config > my.toml` and change it. `softshare compress TASK --config my.toml` uses it.
    """
    typer.echo(to_toml(preset_config(preset)), nl=False)


def preset_config(name: str) -> CompressConfig:
    if name == "default":
        return CompressConfig()
    if name == PAPER:
        return CompressConfig.paper()
    if name not in PRESETS:
        raise ConfigError(f"expected a preset ({', '.join(PRESETS)}), got {name!r}")
    from softshare.zoo.experiments import get_experiment

    return get_experiment(name).compress


@dataclass(frozen=True)
class Settings:
    """What `--config` gives: a preset's whole config, some settings from a TOML file, or a recorded run."""

    whole: CompressConfig | None = None
    some: dict[str, Any] = field(default_factory=dict)
    is_paper: bool = False
    result: Result | None = None

    def applied(self, base: CompressConfig, overrides: dict[str, Any]) -> CompressConfig:
        lengths = {"steps", "epochs"}
        some = {k: v for k, v in self.some.items() if k not in lengths or not lengths & overrides.keys()}
        return (self.whole or base).override(**{**some, **overrides})

    @property
    def method(self) -> str:
        return self.result.method if self.result else PAPER if self.is_paper else "softshare"


def read_settings(source: str | None) -> Settings:
    """Read a preset, a TOML file or a result.json."""
    if source is None:
        return Settings()
    if source in PRESETS:
        return Settings(whole=preset_config(source), is_paper=source == PAPER)
    path = Path(source)
    if not path.is_file():
        raise ConfigError(
            f"--config: expected a file or a preset ({', '.join(PRESETS)}), but there is no file {source}"
        )
    if path.suffix == ".json":
        return _from_result(path)
    from softshare._util.files import read_bytes

    try:
        return Settings(some=from_toml(read_bytes(path).decode(), str(path)))
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{path} is not a TOML file: {problem}") from None


def _from_result(path: Path) -> Settings:
    from softshare.result import Result

    result = Result.load(path)
    settings = {name: value for name, value in result.config.items() if name not in ("task", "pretrain")}
    try:
        return Settings(whole=CompressConfig.from_dict(settings), result=result)
    except ConfigError as problem:
        raise ConfigError(f"{path}: expected settings of `softshare compress`: {problem}") from None


def recorded_target(result: Result) -> Target | None:
    """The target of a recorded run. Older runs without one had none."""
    from softshare.target.limits import MaxBytes, MaxError, MaxErrorIncrease, MaxMacs, WithinNoise

    match (result.outcome or {}).get("target"):
        case None:
            return None
        case {"kind": "WithinNoise"}:
            return WithinNoise()
        case {"max_bytes": limit}:
            return MaxBytes(limit)
        case {"max_error": limit}:
            return MaxError(limit)
        case {"max_error_increase": limit}:
            return MaxErrorIncrease(limit)
        case {"max_macs_ratio": limit}:
            return MaxMacs(limit)
        case other:
            raise ConfigError(
                f"--config: expected a target of `softshare compress` in the result, got {json.dumps(other)}"
            )
