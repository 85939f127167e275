"""A training loop of another library, written by hand: what the callbacks call, without the libraries."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.errors import ConfigError
from softshare.integrations.outcome import outcome_of
from softshare.integrations.session import Sharing, checked, gentleness_for
from softshare.integrations.watch import Losses
from softshare.train.hooks import EpochRecord, Hook
from softshare.verdict import Verdict, verdict
from trained import BATCH, RATE, N, batches, config, make_net, make_task, prior_gradients

EPOCHS, STEPS = 2, N // BATCH
SETTINGS = config(zero_mixing=0.9, hard_from=0.5, scaling="paper").override(steps=EPOCHS * STEPS)
pytestmark = [
    pytest.mark.filterwarnings("ignore:the run has .* steps"),
    pytest.mark.filterwarnings("ignore:the compressed network seems worse"),
]


def start(
    model: nn.Module,
    steps: range = range(EPOCHS * STEPS),
    settings: ss.CompressConfig = SETTINGS,
    state: dict[str, Any] | None = None,
    gentleness: float | None = 0.0,
    hooks: Sequence[Hook] = (),
) -> tuple[Sharing, torch.optim.Optimizer]:
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    return Sharing(model, settings, steps, optimizer, batches(), 1, N, gentleness, state, hooks), optimizer


def train_(model: torch.nn.Module, sharing: Sharing, optimizer: torch.optim.Optimizer, epochs: range) -> None:
    for epoch in epochs:
        for step, batch in enumerate(batches(), epoch * STEPS):
            sharing.quantize_(step)
            optimizer.zero_grad()
            loss = model(*batch)["loss"]
            loss.backward()
            sharing.note_(sharing.training, loss, step)
            sharing.step_(step)
            optimizer.step()
            sharing.end_step_(step + 1)
        sharing.end_epoch_()


def test_a_loop_ends_as_the_route_does_and_leaves_what_the_file_decodes_to(tmp_path: Path) -> None:
    model, file = make_net(), tmp_path / "model.sws"
    sharing, optimizer = start(model)
    train_(model, sharing, optimizer, range(EPOCHS))
    compressed = sharing.finish_(file)
    assert 0 < sum(t.n_nonzero for t in compressed.quantized.shared) < 200
    for name, wanted in ss.compress(make_task(), SETTINGS, target=None).retrained.items():
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
    sharing, optimizer = start(model, range(STEPS, EPOCHS * STEPS), state=state["sharing"])
    optimizer.load_state_dict(state["adam"])
    train_(model, sharing, optimizer, range(1, EPOCHS))
    assert all(torch.equal(t, whole.state_dict()[name]) for name, t in model.state_dict().items())
    records = sharing.finish_(tmp_path / "model.sws").history
    assert [record.epoch for record in records] == list(range(11))


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


def test_tau_counts_against_the_examples_of_the_recipe_whatever_the_data() -> None:
    model = make_net()
    sharing, optimizer = start(model, settings=config(tau=0.5, tau_warmup=0.0, hard_from=1.0))
    expected = [N / 60_000 * g for g in prior_gradients(sharing.prior, tau=0.5)]
    optimizer.zero_grad()
    for w in sharing.prior.view.tensors:
        w.grad = torch.zeros_like(w)
    sharing.step_(0)
    for w, wanted in zip(sharing.prior.view.tensors, expected, strict=True):
        assert w.grad is not None
        torch.testing.assert_close(w.grad.double(), wanted, atol=1e-7, rtol=1e-3)


@pytest.mark.parametrize(("n_steps", "looks"), [(16, 10), (3000, 15), (30_000, 30)])
def test_looks_are_spread_over_the_run_whatever_an_epoch_is(
    n_steps: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    done = 0
    monkeypatch.setattr("softshare.integrations.session.spare_bits_", lambda *_: seen.append(done))
    sharing, _ = start(make_net(), range(n_steps), config(hard_from=0.0))
    for done in range(1, n_steps + 1):
        sharing._is_stepping = True
        sharing.end_step_(done)
        sharing.end_step_(done)  # of a batch that ends no step
        sharing._steps_since_end = 1
    assert len(seen) == looks
    assert seen[-1] == n_steps


def test_a_short_run_is_gentle_and_says_so() -> None:
    settings = ss.CompressConfig()
    assert [gentleness_for(n, settings) for n in (20_000, 6000, 3000, 1500, 100, 0)] == [0, 1, 2, 3, 5, 5]
    assert gentleness_for(100, ss.CompressConfig.paper()) == 0
    with pytest.warns(UserWarning, match="the run has 100 steps, and the settings are made for 6000: .* larger file"):
        sharing, _ = start(make_net(), range(100), settings, gentleness=None)
    assert sharing.config.prior.components > settings.prior.components
    assert sharing.config.retrain.tau < settings.retrain.tau
    with pytest.warns(UserWarning, match="the run has 100 steps, .*: expect a loss"):
        assert start(make_net(), range(100), settings)[0].config == settings


@pytest.mark.filterwarnings("error")
def test_a_run_as_long_as_the_recipe_says_nothing() -> None:
    sharing, _ = start(make_net(), range(6000), ss.CompressConfig(), gentleness=None)
    assert sharing.gentleness == 1


def test_a_higher_loss_is_reported(tmp_path: Path) -> None:
    for last, validated in ((0.9, False), (0.1, False), (0.9, True)):
        sharing, _ = start(make_net())
        for step in range(EPOCHS * STEPS):
            sharing.note_(sharing.training, 0.1 if step < EPOCHS * STEPS // 2 else last, step)
        if validated:  # it decides
            sharing.validation.note_(0.2, 0.0, quantized=False)
            sharing.validation.note_(0.21, 1.0, quantized=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            messages = sharing.finish_(tmp_path / "model.sws").messages
        said = [str(w.message) for w in caught]
        assert [f"training loss 0.1 at the start, {last} at the end" in text for text in said] == (
            [True] if last == 0.9 and not validated else []
        )
        assert f"training loss 0.1 at the start, {last} at the end" in messages
        assert ("validation loss 0.2 at the start, 0.21 at the end" in messages) == validated
        assert any("the run has 32 steps" in text for text in messages)


def test_a_dead_layer_is_reported(tmp_path: Path) -> None:
    model = make_net()
    sharing, _ = start(model)
    nn.init.zeros_(model.last.weight)
    with pytest.warns(UserWarning, match=r"seems worse than before: last\.weight is all zero"):
        compressed = sharing.finish_(tmp_path / "model.sws")
    assert any("last.weight is all zero" in text for text in compressed.messages)


def test_losses_before_the_prior_has_an_effect_and_at_the_end_are_compared() -> None:
    losses = Losses("training")
    assert not losses.are_known
    for step in range(100):
        losses.note_(torch.tensor(float(step)), step / 100, quantized=step >= 20)
    assert str(losses) == "training loss 2 at the start, 97 at the end"
    again = Losses("training")
    again.load_state_dict(losses.state_dict())
    assert str(again) == str(losses)
    assert again.rose
    once = Losses("validation")
    once.note_(1.0, 0.0, quantized=False)  # nothing is known of the network at the end
    assert not once.are_known
    never = Losses("validation")
    never.note_(1.0, 0.5, quantized=True)  # nothing is known of the network before
    assert not never.are_known
    assert not never.rose
    nan = Losses("training")
    nan.note_(1.0, 0.0, quantized=False)
    nan.note_(float("nan"), 1.0, quantized=True)
    assert nan.rose


def validated(value: float, batches: list[float], losses: Losses | None = None) -> Losses:
    """One validation before training, of a loss of 1, and one at the end."""
    losses = losses or Losses("validation")
    losses.note_(1.0, 0.0, quantized=False)
    for loss in batches:
        losses.note_batch_(loss)
    losses.note_(value, 1.0, quantized=True)
    return losses


def test_how_much_a_loss_may_rise() -> None:
    """Two standard errors of a mean over the batches of the last validation; 15%, if too few of them were seen."""
    batches = [0.9, 1.1] * 50  # a standard deviation of 0.1
    assert not validated(1.019, batches).rose
    assert validated(1.021, batches).rose
    assert validated(1.021, batches).allowed == pytest.approx(0.02, rel=1e-4)
    assert not validated(1.021, batches).is_guessed
    assert validated(1.1, batches[:3]).is_guessed
    assert not validated(1.149, []).rose
    assert validated(1.151, []).rose


def test_a_run_that_goes_on_knows_how_exact_its_validation_is() -> None:
    before, again = validated(1.5, [0.9, 1.1] * 50), Losses("validation")
    again.load_state_dict(before.state_dict())
    assert (again.allowed, again.is_guessed) == (before.allowed, False)


def test_only_the_batches_of_the_last_validation_count() -> None:
    twice = validated(1.0, [0.9, 1.1] * 50, validated(1.0, [0.0, 9.0] * 50))
    assert twice.allowed == pytest.approx(0.02, rel=1e-4)


def test_an_outcome_says_that_its_noise_is_a_guess() -> None:
    found = outcome_of(validated(1.1, []), 100)
    assert found is not None
    assert found.guessed
    known = outcome_of(validated(1.1, [0.9, 1.1] * 50), 100)
    assert known is not None
    assert not known.guessed
    assert (found.kept, known.kept) == (True, False)


class Unbatched(nn.Module):
    """Its images have no batch dimension, so the flattened image is not one of whole channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(x).relu().flatten(1))
        return outputs


def test_units_stay_where_they_are_if_the_outputs_would_change(tmp_path: Path) -> None:
    for image, stays in ((torch.randn(2, 1, 2, 2), False), (torch.randn(1, 4, 4), True)):
        torch.manual_seed(0)
        model = Unbatched()
        sharing, _ = start(model, gentleness=4.0)
        model(image)
        compressed = sharing.finish_(tmp_path / "model.sws")
        assert any("with its units in another order" in text for text in compressed.messages) == stays
        assert not (stays and compressed.moved)
        assert not model._forward_pre_hooks


def test_a_dropped_tensor_is_not_in_the_file(tmp_path: Path) -> None:
    model = make_net()
    model.first.requires_grad_(False)
    before = model.first.weight.clone()
    sharing, _ = start(model, settings=SETTINGS.override(rules=(ss.Rule("first.*", drop=True),)))
    sharing.finish_(tmp_path / "model.sws")
    assert "first.weight" not in ss.load(tmp_path / "model.sws")
    assert torch.equal(model.first.weight, before)


class Watching(Hook):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.records: list[EpochRecord] = []
        self.result: ss.Result | None = None

    def on_prior(self, prior: ss.MixturePrior | None) -> None:
        self.calls.append("prior")

    def on_start(self, epochs: int, steps_per_epoch: int | None) -> None:
        self.calls.append("start")
        assert epochs == 10

    def on_epoch(self, record: EpochRecord) -> None:
        self.calls.append("epoch")
        self.records.append(record)

    def on_end(self) -> None:
        self.calls.append("end")

    def on_result(self, compressed: ss.Compressed, result: ss.Result) -> None:
        self.calls.append("result")
        self.result = result


def test_it_returns_what_compress_returns(tmp_path: Path) -> None:
    """The history, the outcome, the verdict, the summary and the report. Hooks see the run as they see the route's."""
    model, hook = make_net(), Watching()
    sharing, optimizer = start(model, hooks=[hook])
    sharing.note_before_(0.5)
    train_(model, sharing, optimizer, range(EPOCHS))
    sharing.note_(sharing.validation, 0.51, EPOCHS * STEPS - 1)
    compressed = sharing.finish_(tmp_path / "model.sws")
    assert hook.calls == ["prior", "start", *["epoch"] * 11, "end", "result"]
    assert tuple(hook.records) == compressed.history
    assert [record.epoch for record in compressed.history] == list(range(11))
    assert math.isnan(compressed.history[0].task_loss)
    assert all(record.task_loss > 0 for record in compressed.history[1:])
    assert [record.validation_error for record in compressed.history] == [0.5] * 10 + [0.51]
    assert compressed.history[-1].tau > compressed.history[1].tau > 0
    route = ss.compress(make_task(), SETTINGS, target=None).history
    assert compressed.history[0].density == route[0].density
    assert compressed.history[-1].density == pytest.approx(route[-1].density, abs=0.05)

    outcome, result = compressed.outcome, hook.result
    assert outcome is not None
    assert result is not None
    assert (outcome.before, outcome.kept, outcome.met) == (0.5, True, True)
    assert outcome.after == pytest.approx(0.51)
    assert outcome.n_bytes == result.file_bytes == (tmp_path / "model.sws").stat().st_size
    assert result.n_nonzero == sum(int(p.count_nonzero()) for p in model.parameters())
    assert result.others is not None
    assert list(result.others) == ["training loss"]
    assert verdict(result) == Verdict(
        "kept", "As good as before: loss 0.5 -> 0.51 is within the noise of the evaluation."
    )
    assert compressed.summary().startswith("As good as before: loss 0.5 -> 0.51")
    assert not any("no validation" in text for text in compressed.messages)
    page = compressed.report(tmp_path / "report")
    assert "As good as before: loss 0.5 -&gt; 0.51 is within the noise" in page.read_text()


def test_a_loss_and_what_is_not_known_are_said(tmp_path: Path) -> None:
    model = make_net()
    sharing, _ = start(model)
    sharing.note_before_(0.5)
    sharing.note_(sharing.validation, 0.9, EPOCHS * STEPS - 1)
    with pytest.warns(UserWarning, match="seems worse than before: validation loss"):
        compressed = sharing.finish_(tmp_path / "model.sws")
    assert verdict(compressed.record.result) == Verdict(
        "lost", "Got worse by 0.4 on the validation data: loss 0.5 -> 0.9, where 0.075 may be chance."
    )
    model = make_net()
    sharing, optimizer = start(model)
    train_(model, sharing, optimizer, range(EPOCHS))
    compressed = sharing.finish_(tmp_path / "model.sws")
    assert compressed.outcome is None
    assert verdict(compressed.record.result).fate == "unknown"
    assert compressed.summary().startswith("Measured: training loss ")
    assert any("no validation before training and at its end is known" in text for text in compressed.messages)
    assert compressed.report(tmp_path / "report").exists()
    sharing, _ = start(make_net())
    compressed = sharing.finish_(tmp_path / "model.sws")  # no loss was seen at all
    assert compressed.record is None
    assert compressed.history
