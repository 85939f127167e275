"""The jobs for Slurm and Kubernetes: each file is read by what reads it there, and each option exists."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
from torch.distributed.run import get_args_parser

from paths import ROOT
from softshare.cli import app
from softshare.tune.storages import JOURNAL

FOLDER = ROOT / "examples/cluster"
SLURM, KUBERNETES = sorted(FOLDER.glob("*.slurm")), sorted(FOLDER.glob("*.yaml"))
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SBATCH = {  # of the manual page of sbatch, 24.05
    *("array", "cpus-per-task", "gpus-per-node", "job-name", "nodes", "ntasks-per-node", "open-mode", "requeue"),
    *("signal", "time"),
}


def checked(words: list[str]) -> dict[str, Any]:
    """The options of a `softshare` command. Raises on an unknown one, and on a missing argument."""
    command, *arguments = words
    return dict(COMMANDS[command].make_context(command, arguments).params)


SLURM_VARIABLES = {
    "SLURM_JOB_NODELIST": "node[07-08]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "4711",
    "SLURM_ARRAY_TASK_ID": "3",
    "HOME": "/home/me",
}


def started(script: Path, folder: Path) -> list[str]:
    """The words that the script gives to `srun`: bash runs it with programs in place of Slurm's."""
    for name, code in {
        "srun": f'printf "%s\\n" "$@" >> {folder}/words',
        "scontrol": "printf 'node07\\nnode08\\n'",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{code}\n")
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    subprocess.run(["bash", "-eu", script], check=True, env={**SLURM_VARIABLES, "PATH": path})
    return (folder / "words").read_text().splitlines()


@pytest.mark.parametrize("script", SLURM, ids=lambda path: path.name)
def test_slurm(script: Path, tmp_path: Path) -> None:
    given = re.findall(r"^#SBATCH --([\w-]+)", script.read_text(), re.MULTILINE)
    assert given
    assert set(given) <= SBATCH
    assert len(re.findall("^#SBATCH", script.read_text(), re.MULTILINE)) == len(given)
    words = started(script, tmp_path)
    if words[0] == "torchrun":
        given_to = get_args_parser().parse_args(words[1:])
        assert (given_to.module, given_to.training_script) == (True, "softshare")
        assert (given_to.nnodes, given_to.rdzv_endpoint, given_to.rdzv_id) == ("2", "node07:29500", "4711")
        words = ["softshare", *given_to.training_script_args]
    assert words[0] == "softshare"
    options = checked(words[1:])
    assert options["task"] == "my_task.py:make_task"
    if script.stem == "tune":
        assert options["storage"] == JOURNAL + "/home/me/study.log"
        assert str(options["folder"]) == "runs/worker-3"
        assert options["weights"] is not None, "workers with folders of their own need the same network"


@pytest.mark.parametrize("file", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes(file: Path) -> None:
    yaml = pytest.importorskip("yaml")
    service, database, job = yaml.safe_load_all(file.read_text())
    assert [part["kind"] for part in (service, database, job)] == ["Service", "StatefulSet", "Job"]
    assert service["spec"]["selector"] == database["spec"]["template"]["metadata"]["labels"]
    assert database["spec"]["serviceName"] == service["metadata"]["name"]
    spec = job["spec"]["template"]["spec"]
    (worker,) = spec["containers"]
    assert worker["command"] == ["softshare"]
    options = checked(worker["args"])
    assert options["storage"].startswith("postgresql://")
    assert f"@{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/" in options["storage"]
    assert set(re.findall(r"\$\((\w+)\)", " ".join(worker["args"]))) == {variable["name"] for variable in worker["env"]}
    assert str(options["folder"]).startswith(worker["volumeMounts"][0]["mountPath"] + "/")
    assert worker["volumeMounts"][0]["name"] == spec["volumes"][0]["name"]
    assert options["weights"] is not None


def test_there_is_one_of_each() -> None:
    assert [path.name for path in SLURM] == ["compress.slurm", "tune.slurm"]
    assert [path.name for path in KUBERNETES] == ["tune.yaml"]
