"""Tasks on the command line: an experiment or a user's file, its options and its device."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softshare import zoo
from softshare._util.user_code import call
from softshare.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from softshare.task import Task
    from softshare.zoo.experiments import TaskConfig

NETWORK = "Network and data"  # a panel of --help
TASK_HELP = f"An experiment ({', '.join(zoo.NAMES)}) or FILE.py:make_task."
WEIGHTS_HELP = "Pre-trained weights, a file of safetensors or torch.save (.pt, .pth, .bin, .ckpt)."
TaskArgument = Annotated[str, typer.Argument(help=TASK_HELP)]
DeviceOption = Annotated[
    str,
    typer.Option(
        help="Where to compute: cpu, cuda or auto. With auto, an experiment uses a GPU if there is one, and a task of "
        "your own stays where its file has put it."
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what already exists.")]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the details too: each tensor, the parts of the file, messages.")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with a run that was stopped. If there is none, start one.")
]
EveryOption = Annotated[
    float,
    typer.Option("--checkpoint-every", metavar="SECONDS", min=0, help="How often to write what a run needs to go on."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel=NETWORK,
        help="Data of an experiment: the folder cifar-10-batches-bin or its parent. Default: the environment variable "
        "SOFTSHARE_DATA. MNIST is in the package.",
    ),
]
AugmentOption = Annotated[
    bool | None,
    typer.Option(
        "--augment/--no-augment",
        rich_help_panel=NETWORK,
        show_default=False,
        help="Shift the training images of an experiment at random. Always on for CIFAR-10.",
    ),
]
SmoothingOption = Annotated[
    float | None,
    typer.Option(
        "--label-smoothing",
        rich_help_panel=NETWORK,
        help="Smooth the training labels of an experiment by this share. Default: 0.05 for the LeNets, 0 for CIFAR-10 "
        "and with --augment or --config paper.",
    ),
]


@dataclass(frozen=True)
class TaskOptions:
    """Options for experiments only. None if an option was not given."""

    data: Path | None = None
    augment: bool | None = None
    label_smoothing: float | None = None
    from_scratch: bool = False

    def config(self, name: str) -> TaskConfig:
        from softshare.zoo.experiments import TaskConfig, get_experiment

        experiment, smoothing = get_experiment(name), self.label_smoothing
        if experiment.always_augmented and self.augment is False:
            raise ConfigError(f"--no-augment: {name} is always augmented, as in the paper. Leave the option out")
        if smoothing is None:
            smoothing = 0.0 if self.augment else experiment.label_smoothing
        return TaskConfig(bool(self.augment) and not experiment.always_augmented, smoothing)

    def require_none(self, spec: str) -> None:
        augment = "--no-augment" if self.augment is False else "--augment"
        given = {"--data": self.data, augment: self.augment, "--label-smoothing": self.label_smoothing}
        if flags := [flag for flag, value in given.items() if value is not None]:
            raise ConfigError(f"{', '.join(flags)}: {spec} has its own data and its own loss. Leave the option out")
        if self.from_scratch:
            raise ConfigError(f"--from-scratch: {spec} has its own model, trained or not. Leave the option out")

    def changes(self, name: str) -> dict[str, Any]:
        """The entry `task` of a result. Empty if nothing differs from the defaults."""
        from softshare.zoo.experiments import TaskConfig

        changed = self.config(name)
        if changed == TaskConfig() and not self.from_scratch:
            return {}
        return {"task": {**dataclasses.asdict(changed), "from_scratch": self.from_scratch}}


def find_device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: expected cpu, cuda or auto, got {name!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise NotAvailableError("--device cuda: expected a GPU, but torch finds none. Use cpu or auto")
    return device


def load_task(spec: str, device: str, seed: int, options: TaskOptions) -> Task:
    """Make an experiment by its name, or call the function that a user's file defines."""
    if spec in zoo.NAMES:
        from softshare.zoo.experiments import make_task

        return make_task(spec, find_device(device), seed, options.config(spec), options.data)
    file, colon, function = spec.rpartition(":")
    if not (colon and file.endswith(".py")):
        raise ConfigError(f"expected one of {', '.join(zoo.NAMES)}, or FILE.py:make_task, got {spec!r}")
    if not Path(file).is_file():
        raise ConfigError(f"{spec}: there is no file {file}")
    options.require_none(spec)
    if device == "auto":
        return _task(spec, file, function)
    from softshare.cli.own_device import moved

    to = find_device(device)
    return moved(_task(spec, file, function), to)


def load_calibration(spec: str) -> tuple[nn.Module, Iterable[Any], Any]:
    """The network, the batches and the loss, if any, that a function of a user's file returns."""
    from torch import nn

    file, colon, function = spec.rpartition(":")
    if not (colon and file.endswith(".py")):
        raise ConfigError(f"--calibrate: expected FILE.py:FUNCTION, got {spec!r}")
    if not Path(file).is_file():
        raise ConfigError(f"--calibrate: there is no file {file}")
    found = _call(spec, file, function, "a network, batches and perhaps a loss")
    if not (isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], nn.Module)):
        raise ConfigError(
            f"{spec}: expected {function}() to return a network, batches and perhaps a loss, got {type(found).__name__}"
        )
    return found[0], found[1], found[2] if len(found) == 3 else None


def _task(spec: str, file: str, function: str) -> Task:
    from softshare.task import Task

    task = _call(spec, file, function, "a softshare.Task")
    if not isinstance(task, Task):
        raise ConfigError(f"{spec}: expected {function}() to return a softshare.Task, got {type(task).__name__}")
    return dataclasses.replace(task, name=spec if task.name == "custom" else task.name)


def _call(spec: str, file: str, function: str, returns: str) -> Any:
    """Import a user's file and call its function."""
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that the file can import its neighbours, as a script can
    module_spec = importlib.util.spec_from_file_location(f"_softshare_task_{Path(file).stem}", file)
    if module_spec is None or module_spec.loader is None:
        raise ConfigError(f"{spec}: {file} cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    call(f"the import of {file}", module_spec.loader.exec_module, module)
    if not hasattr(module, function):
        raise ConfigError(f"{spec}: {file} defines no function {function!r}")
    make = getattr(module, function)
    if (got := _other_than_a_function(make)) is not None:
        raise ConfigError(f"{spec}: expected a function without arguments that returns {returns}, got {got}")
    return call(spec, make)


def _other_than_a_function(make: Any) -> str | None:
    """What it is, unless it can be called without arguments. A network can be called, but with an input."""
    from torch import nn

    if not callable(make) or isinstance(make, nn.Module):
        return f"an object of type {type(make).__name__}"
    try:
        signature = inspect.signature(make)
        signature.bind()
    except TypeError:
        return f"{getattr(make, '__name__', type(make).__name__)}{signature}"
    except ValueError:  # it does not say what it takes
        pass
    return None
