"""A run stops before every operation, takes the result that it is given, and may be left."""

from __future__ import annotations

import threading

import pytest
import torch

from softshare.calibrate.running import Running

aten = torch.ops.aten


def to_the_end(run: Running) -> list[object]:
    seen = []
    while run.next is not None:
        seen.append(run.next.function)
        run.do()
    return seen


def test_views_and_results_are_those_of_an_ordinary_call() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    run = Running(lambda: (x.T[1:] @ x).relu_())
    assert aten.mm.default in to_the_end(run)
    assert torch.equal(run.output, (x.T[1:] @ x).relu())
    assert not run.output.requires_grad


def test_other_arguments_take_the_place_of_the_networks_own() -> None:
    x, y = torch.ones(2, 2), torch.full((2, 2), 3.0)
    run = Running(lambda: x.mm(x))
    assert run.next is not None
    run.do((y, x))
    assert run.next is None
    assert torch.equal(run.output, y @ x)


def test_a_failure_may_be_caught_by_the_network_or_ends_the_run() -> None:
    x = torch.ones(2, 3)

    def network() -> torch.Tensor:
        try:
            return x.mm(x)
        except RuntimeError:
            return x + 1

    run = Running(network)
    to_the_end(run)
    assert torch.equal(run.output, x + 1)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        to_the_end(Running(lambda: x.mm(x)))


def test_a_run_that_is_left_ends() -> None:
    before, passed = threading.active_count(), []

    def network() -> None:
        try:
            torch.ones(2) + 1
        finally:
            passed.append(True)

    run = Running(network)
    assert threading.active_count() == before + 1
    run.leave()
    assert passed
    assert threading.active_count() == before
    run.leave()  # it may be said twice
