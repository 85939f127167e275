"""The callbacks in several processes, by DDP and FSDP2: the result of one process, its checkpoints, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import softshare as ss
from callbacks_together import SETTINGS
from processes import run_together
from trained import make_net, make_task

pytestmark = pytest.mark.slow

TRAINERS = ("lightning", "huggingface")
CASES = [(trainer, way) for trainer in TRAINERS for way in ("ddp", "ddp again", "fsdp", "fsdp again")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("callbacks")
    return {trainer: run_together(f"{trainer}_together:runs", 2, folder / trainer) for trainer in TRAINERS}


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """The weights of the route, in one process, from the same batches."""
    return ss.compress(make_task(), SETTINGS, target=None, quiet=True).retrained


@pytest.mark.parametrize(("trainer", "way"), CASES)
def test_it_ends_as_the_route_does_in_one_process(
    trainer: str, way: str, found: dict[str, Any], expected: dict[str, Tensor]
) -> None:
    retrained = found[trainer][0][way]["retrained"]
    assert len(retrained) == len(expected)
    for name, values in retrained.items():
        torch.testing.assert_close(values, expected[name.removeprefix("net.")], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("trainer", "way"), CASES)
def test_one_process_has_the_result_and_all_have_the_network(trainer: str, way: str, found: dict[str, Any]) -> None:
    first, second = (own[way] for own in found[trainer])
    assert (first["has a result"], second["has a result"]) == (True, False)
    assert first["outcome"] == second["outcome"] is not None
    assert first["task losses"][1:] == second["task losses"][1:]
    fresh = torch.nn.ModuleDict({"net": make_net()}) if trainer == "lightning" else make_net()
    path = found[trainer][0][way]["path"]
    ss.load_into_(fresh, path)
    for name, values in fresh.state_dict().items():
        assert torch.equal(first["weights"][name], values), name


@pytest.mark.parametrize(("trainer", "way"), [case for case in CASES if case[1].endswith("again")])
def test_a_resumed_run_ends_like_an_uninterrupted_one(trainer: str, way: str, found: dict[str, Any]) -> None:
    whole, again = (found[trainer][0][name] for name in (way.removesuffix(" again"), way))
    assert again["file"] == whole["file"]
    for name, values in whole["retrained"].items():
        assert torch.equal(again["retrained"][name], values), name
    assert again["task losses"][1:] == pytest.approx(whole["task losses"][1:], rel=1e-6)


@pytest.mark.parametrize(
    ("way", "precision", "close"),
    [("ddp", "no", 1e-4), ("fsdp", "no", 1e-4), ("ddp", "bf16", 1e-3), ("fsdp", "bf16", 1e-2)],
)
def test_accelerate_in_an_own_loop(
    way: str, precision: str, close: float, found: dict[str, Any], tmp_path: Path
) -> None:
    """With accumulation and clipping, and the same batches, it ends as one process does.

    Under FSDP2 the weights themselves are bfloat16 in forward and backward, not only what is computed of them.
    """
    from huggingface_together import alone

    one, own = alone(tmp_path, precision), found["huggingface"][0][f"accelerate {way} {precision}"]
    for name, values in one["retrained"].items():
        torch.testing.assert_close(own["retrained"][name], values, atol=close, rtol=close)
    assert len(own["file"]) == pytest.approx(len(one["file"]), rel=0.01)


def test_hooks_see_a_run_in_one_process(found: dict[str, Any]) -> None:
    n = len(found["lightning"][0]["ddp"]["task losses"])
    assert [own["ddp"]["looks that hooks saw"] for own in found["lightning"]] == [n, 0]


def test_processes_that_train_apart_are_refused(found: dict[str, Any]) -> None:
    """A Trainer does not wrap the network for training if it has evaluated it before."""
    for own in found["huggingface"]:
        assert "the processes have different gradients" in own["apart"]
