"""Frozen tensors that the file leaves out: the network that loads it has them already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import softshare as ss
from softshare.errors import ConfigError, ModelError
from softshare.network.weights import WeightView, kept_message
from softshare.paper.verify import verify
from softshare.simplify.shrink import shrink

BODY = ss.Rule("body.*", drop=True)
CONFIG = ss.CompressConfig().override(epochs=2, rules=(BODY,))


class Net(nn.Module):
    """A frozen body with batch norm, and a head that is trained. `again` repeats a weight of the body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
        self.again = self.body[0]
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def make_task(model: nn.Module | None = None) -> ss.Task:
    torch.manual_seed(0)
    x = torch.randn(128, 4)
    y = (x[:, 0] > x[:, 1]).long()
    return ss.Task(
        model=Net() if model is None else model,
        train=list(zip(x.split(32), y.split(32), strict=True)),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: float(F.cross_entropy(model(x), y)),
        n_examples=128,
        metric=ss.Metric("loss", ""),
    )


def test_a_dropped_parameter_is_in_no_part_of_the_view() -> None:
    view = WeightView.of(Net(), [BODY])
    names = ("body.0.weight", "body.0.bias", "again.weight", "again.bias", "body.1.weight", "body.1.bias")
    assert set(view.dropped) == set(names)
    statistics = ["body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"]
    assert list(view.rest) == statistics  # buffers stay: training changes these
    assert view.order == (*statistics, "head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias")
    assert view.tied == {}
    assert set(view.state_dict()) == set(Net().state_dict())  # the whole state still
    assert kept_message(view) == [
        "112 values are left out of the file: body.0.weight, again.weight, body.0.bias and 3 more; load it with "
        "strict=False into a network that has them"
    ]


def test_only_what_is_frozen_can_be_dropped() -> None:
    with pytest.raises(ConfigError, match=r"rule drop:head\.\*: head\.0\.weight is trained.*requires_grad_\(False\)"):
        ss.compress(make_task(), CONFIG.override(rules=(ss.Rule("head.*", drop=True),)))
    with pytest.raises(ConfigError, match=r"rule drop:\*running\*: it matches only buffers"):
        WeightView.of(Net(), [ss.Rule("*running*", drop=True)])
    with pytest.raises(ConfigError, match=r"rule drop:tail: no tensor matches; the names are body\.0\.weight"):
        WeightView.of(Net(), [ss.Rule("tail", drop=True)])


def test_the_first_rule_that_matches_decides() -> None:
    view = WeightView.of(Net(), [ss.Rule("body.0.weight"), BODY])
    assert "body.0.weight" in view.rest
    assert view.tied == {"again.weight": "body.0.weight"}


def test_a_file_without_the_body_completes_the_network(tmp_path: Path) -> None:
    task, file = make_task(), tmp_path / "model.sws"
    before = {name: t.clone() for name, t in task.model.state_dict().items()}
    compressed = ss.compress(task, CONFIG)
    size = compressed.save(file)
    assert not any(name.startswith(("body.0", "again")) for name in ss.load(file))
    assert any("112 values are left out of the file" in line for line in compressed.messages)

    fresh = Net()
    fresh.load_state_dict(before)
    with pytest.raises(ModelError, match=r"missing from the file: body\.0\.weight\n(.*\n)*.*strict=False"):
        ss.load_into_(fresh, file)
    ss.load_into_(fresh, file, strict=False)
    state = fresh.state_dict()
    assert all(torch.equal(state[name], before[name]) for name in WeightView.of(fresh, [BODY]).dropped)
    assert all(torch.equal(state[name], t) for name, t in ss.load(file).items())
    assert not torch.equal(state["body.1.running_mean"], before["body.1.running_mean"])

    result = ss.measure(task, compressed, CONFIG)
    assert result.error_after == pytest.approx(task.judge(fresh))
    assert result.error_after == pytest.approx(compressed.history[-1].validation_error, rel=0.01)
    assert result.n_weights == sum(p.numel() for p in fresh.head.parameters())  # what the file does not hold is no gain
    assert (result.file_bytes, result.ratio) == (size, 4 * result.n_weights / size)


def test_a_run_that_drops_tensors_is_verified_over_the_tasks_network(tmp_path: Path) -> None:
    task = make_task()
    compressed = ss.compress(task, CONFIG)
    result = ss.measure(task, compressed, CONFIG)
    compressed.save(tmp_path / "model.sws")
    (tmp_path / "result.json").write_text(result.to_json(), encoding="utf-8")
    (check,) = verify(tmp_path, task=task)
    assert check.differences == ()
    assert check.error == pytest.approx(result.error_after)


def test_a_partial_file_may_lack_tensors_but_not_have_others(tmp_path: Path) -> None:
    ss.compress(make_task(), CONFIG).save(tmp_path / "model.sws")
    other = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"not in the model: head\.0\.weight"):
        ss.load_into_(other, tmp_path / "model.sws", strict=False)


def test_a_file_without_names_needs_every_tensor() -> None:
    with pytest.raises(ConfigError, match=r"names='none': .* body\.0\.weight by a drop rule\. Use names='keep'"):
        ss.compress(make_task(), CONFIG.override(names="none"))


def test_shrink_takes_weights_that_lack_the_dropped_ones() -> None:
    task = make_task()
    compressed = ss.compress(task, CONFIG)
    x = torch.randn(5, 4)
    whole = Net()
    whole.load_state_dict(task.model.state_dict() | compressed.quantized.state_dict())
    torch.testing.assert_close(shrink(task.model, compressed.quantized).eval()(x), whole.eval()(x))


@pytest.mark.parametrize("as_file", [False, True])
def test_a_checkpoint_without_data(as_file: bool, tmp_path: Path) -> None:
    """Nothing is trained here, so anything may be dropped, also buffers."""
    from safetensors.torch import save_file

    model = Net()
    source: Any = {name: t.clone() for name, t in model.state_dict().items()}
    if as_file:
        save_file(source, tmp_path / "model.safetensors")
        source = tmp_path / "model.safetensors"
    fitted = ss.compress_weights(source, rules=[BODY, ss.Rule("again.*", drop=True)])
    fitted.save(tmp_path / "model.sws")
    assert sorted(ss.load(tmp_path / "model.sws")) == [f"head.{k}.{p}" for k in (0, 2) for p in ("bias", "weight")]
    ss.load_into_(model, tmp_path / "model.sws", strict=False)
