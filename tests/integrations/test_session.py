"""A training loop of another library, written by hand: what the callbacks call, without the libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import softshare as ss
from softshare.errors import ConfigError
from softshare.integrations.session import Sharing, checked
from trained import BATCH, RATE, N, batches, config, make_net, make_task

EPOCHS, STEPS = 2, N // BATCH
SETTINGS = config(epochs=EPOCHS, zeroing=30.0, hard_from=0.5)


def start(model: torch.nn.Module, steps: range = range(EPOCHS * STEPS)) -> tuple[Sharing, torch.optim.Optimizer]:
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    return Sharing(model, SETTINGS, steps, optimizer, batches(), 1, N), optimizer


def train_(model: torch.nn.Module, sharing: Sharing, optimizer: torch.optim.Optimizer, epochs: range) -> None:
    for epoch in epochs:
        for step, batch in enumerate(batches(), epoch * STEPS):
            sharing.quantize_(step)
            optimizer.zero_grad()
            model(*batch)["loss"].backward()
            sharing.step_(step)
            optimizer.step()
        assert sharing.is_at_an_end
        sharing.end_epoch_((epoch + 1) * STEPS)


def test_a_loop_ends_as_the_route_does_and_leaves_what_the_file_decodes_to(tmp_path: Path) -> None:
    model, file = make_net(), tmp_path / "model.sws"
    sharing, optimizer = start(model)
    train_(model, sharing, optimizer, range(EPOCHS))
    compressed = sharing.finish_(file)
    for name, wanted in ss.compress(make_task(), SETTINGS).retrained.items():
        torch.testing.assert_close(compressed.retrained[name], wanted, atol=1e-3, rtol=1e-3)
    assert file.read_bytes() == compressed.to_bytes()
    decoded = ss.load(file)
    assert all(torch.equal(t, decoded[name]) for name, t in model.state_dict().items())


def test_a_resumed_loop_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = make_net()
    sharing, optimizer = start(whole)
    train_(whole, sharing, optimizer, range(1))
    weights, saved = {k: t.clone() for k, t in whole.state_dict().items()}, sharing.state_dict()
    adam, path = optimizer.state_dict(), tmp_path / "state.pt"
    torch.save({"sharing": saved, "adam": adam}, path)
    train_(whole, sharing, optimizer, range(1, EPOCHS))

    model, state = make_net(), torch.load(path, weights_only=True)
    model.load_state_dict(weights)
    sharing, optimizer = start(model, range(STEPS, EPOCHS * STEPS))
    sharing.load_state_dict(state["sharing"])
    optimizer.load_state_dict(state["adam"])
    train_(model, sharing, optimizer, range(1, EPOCHS))
    assert all(torch.equal(t, whole.state_dict()[name]) for name, t in model.state_dict().items())


def test_the_network_is_quantized_only_between_quantize_and_restore() -> None:
    model = make_net()
    sharing, _ = start(model)
    before = model.first.weight.detach().clone()
    sharing.quantize_(EPOCHS * STEPS // 2 - 1)
    assert torch.equal(model.first.weight, before)  # the soft phase
    sharing.quantize_(EPOCHS * STEPS // 2)
    assert len(model.first.weight.unique()) <= 5
    sharing.restore_()
    assert torch.equal(model.first.weight, before)


def test_what_a_callback_cannot_do_is_refused(tmp_path: Path) -> None:
    for values in ({"distill": 0.5}, {"capture": True}):
        with pytest.raises(ConfigError, match=f"{next(iter(values))}: a callback does not support this; leave it out"):
            checked(config(**values), tmp_path / "model.sws")
    with pytest.raises(ConfigError, match=r"cannot write .*none/model\.sws: there is no folder .*none; create it"):
        checked(None, tmp_path / "none" / "model.sws")
    model = make_net()
    steps, head = range(1), torch.optim.Adam(model.last.parameters())
    with pytest.raises(ConfigError, match="n_examples: the training data have no length; give the number"):
        Sharing(model, SETTINGS, steps, head, iter(batches()), 1, None)
    with pytest.raises(ConfigError, match=r"first\.weight, first\.bias: the optimizer does not train these"):
        Sharing(model, SETTINGS, steps, head, batches(), 1, N)
