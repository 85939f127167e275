"""Several processes under one prior: the result of one process, whoever holds the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import softshare as ss
from processes import run_together
from together import CASES, LAYERS, PRIOR, TARGETS, own_loop, problem, route


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each process found, by the case."""
    of = {n: run_together("together:own_loops", n, folder / str(n)) for n in (2, 4)}
    return {case: [own[case] for own in of[n]] for case, (n, *_) in CASES.items()}


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Any]:
    """The same loops in this process, with the same global batches."""
    return {case: own_loop(folder, case, alone=True) for case in CASES}


pytestmark = pytest.mark.slow
cases = pytest.mark.parametrize("case", CASES)


@cases
def test_the_losses_are_those_of_one_process(case: str, found: dict[str, Any], alone: dict[str, Any]) -> None:
    for own in found[case]:
        assert own["losses"] == pytest.approx(alone[case]["losses"], rel=1e-4, abs=1e-5)
        assert own["priors"] == pytest.approx(alone[case]["priors"], rel=1e-5, abs=1e-7)
        assert own["total"] == pytest.approx(alone[case]["total"], rel=1e-5)


@cases
def test_zeroing_judges_rows_and_columns_as_one_process_does(
    case: str, found: dict[str, Any], alone: dict[str, Any]
) -> None:
    shared = [s.name for s in ss.MixturePrior(problem(CASES[case][1]).model).view.shared]
    zeros = {name: alone[case]["state"][name] == 0 for name in shared}
    assert float(torch.cat([z.flatten() for z in zeros.values()]).float().mean()) > 0.02
    for name in shared:
        assert torch.equal(found[case][0]["state"][name] == 0, zeros[name]), name
        assert torch.allclose(found[case][0]["state"][name], alone[case]["state"][name], atol=1e-5), name


@cases
def test_the_file_is_that_of_one_process_byte_for_byte(case: str, found: dict[str, Any], folder: Path) -> None:
    _, name, _, settings = CASES[case]
    model = problem(name).model
    model.load_state_dict(found[case][0]["state"])
    prior = ss.MixturePrior(model, ss.PriorConfig(**PRIOR, **settings))
    prior.load_state_dict(found[case][0]["prior"])
    file = _file(case, folder).read_bytes()
    assert file == prior.quantize(hard=True).to_bytes()
    assert {own["n_bytes"] for own in found[case]} == {len(file)}


@cases
def test_a_sharded_model_loads_what_a_whole_one_does(case: str, found: dict[str, Any], folder: Path) -> None:
    for tensor, values in ss.load(_file(case, folder)).items():
        assert torch.equal(found[case][0]["loaded"][tensor], values), tensor


@cases
def test_the_message_of_a_step_does_not_grow_with_the_weights(case: str, found: dict[str, Any]) -> None:
    sent, parts = found[case][0]["sent"], found[case][0]["parts"]
    components, is_sharded = PRIOR["components"], CASES[case][2] != "ddp"  # else each process sweeps all
    assert sent == is_sharded * (24 * (components + 1) * parts + 8 + 8 * components * parts)  # docs/scale.md
    assert sent <= 8 * components * parts * 4 + 1024


def test_the_message_of_a_step_with_many_mixtures_and_with_units(tmp_path: Path) -> None:
    """Of the components of a mixture, one is zero."""
    j = PRIOR["components"]
    for own in run_together("together:messages", 2, tmp_path):
        assert {step["parts"] for step in own} == {LAYERS}
        assert [step["units"] > 0 for step in own] == [False, False, True, True]
        for step in own:
            soft = 24 * (j + 1) * LAYERS + 8 + 8 * step["units"]  # docs/scale.md
            assert step["sent"] == soft + (8 * j * LAYERS if step["hard"] else 0)
            assert step["sent"] <= 8 * (j + 1) * LAYERS * 4 + 8 * (step["units"] + 1)


@cases
def test_a_process_has_curvatures_and_indices_of_what_it_holds(case: str, found: dict[str, Any]) -> None:
    n = ss.MixturePrior(problem(CASES[case][1]).model).view.n_weights
    held = [own["held"] for own in found[case]]
    assert [own["curvature bytes"] for own in found[case]] == [4 * h for h in held]
    assert [own["hard bytes"] for own in found[case]] == [5 * h for h in held]
    assert max(held) < {"fsdp": 1.5 / len(held), "hsdp": 0.75, "fsdp of tp": 0.5}.get(CASES[case][2], 1.01) * n


@cases
def test_all_processes_have_the_same_mixture(case: str, found: dict[str, Any]) -> None:
    first, *others = (own["prior"] for own in found[case])
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def _file(case: str, folder: Path) -> Path:
    return folder / str(CASES[case][0]) / f"{case}.sws"


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_together("together:routes", 2, tmp_path_factory.mktemp("routed"))


@pytest.mark.filterwarnings("ignore:.*lost most of what it had learned:UserWarning")  # its units are pulled hard
@pytest.mark.parametrize("target", TARGETS)
def test_the_route_meets_the_targets_of_one_process(target: str, routed: list[Any]) -> None:
    """The first one has a prior over units instead of a target."""
    compressed, _ = route(None, target)
    for way in ("replicate", "shard"):
        first, second = (own[f"{target} {way}"] for own in routed)
        assert first["sharded"] is (way == "shard")
        assert first["file"] == second["file"]
        assert compressed.outcome is not None
        assert (first["met"], first["after"]) == (
            compressed.outcome.met,
            pytest.approx(compressed.outcome.after, abs=1),
        )
        losses = [r.task_loss for r in compressed.history]  # the look before training has none
        assert first["losses"] == pytest.approx(losses, rel=1e-3, abs=1e-4, nan_ok=True)
        assert len(first["file"]) == pytest.approx(len(compressed.to_bytes()), rel=0.01)


@pytest.mark.filterwarnings("ignore:.*lost most of what it had learned:UserWarning")
def test_one_process_alone_is_not_sharded(tmp_path: Path) -> None:
    """It would hold all weights in any case. On a GPU, steps are replayed from graphs, which takes plain tensors."""
    (found,) = run_together("together:routes", 1, tmp_path, "none")
    expected = route(None, "none")[0].to_bytes()
    assert [own["sharded"] for own in found.values()] == [False, False]
    assert [own["file"] for own in found.values()] == [expected, expected]
