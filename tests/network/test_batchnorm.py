from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.errors import ConfigError, ModelError, TaskError


def forward(model: nn.Module, batch: Tensor) -> None:
    model(batch)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4))


def test_statistics_become_those_of_the_batches() -> None:
    """Compared with the layer before, by hand. Dropout is off, and other modules and modes do not change."""
    torch.manual_seed(0)
    model = net()
    first_norm = model[1]
    assert isinstance(first_norm, nn.BatchNorm1d)
    first_norm.momentum, first_norm.running_mean = 0.3, torch.full((4,), 99.0)
    model.eval()
    model[3].train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    batches = list(torch.randn(5, 16, 3))
    ss.reestimate_batch_norm_(model, batches, forward)

    first = [model[0](batch).detach() for batch in batches]
    torch.testing.assert_close(model[1].running_mean, torch.stack([x.mean(0) for x in first]).mean(0))
    torch.testing.assert_close(model[1].running_var, torch.stack([x.var(0) for x in first]).mean(0))
    normal = [(x - x.mean(0)) / (x.var(0, unbiased=False) + model[1].eps).sqrt() for x in first]
    second = torch.stack([model[3](x).mean(0) for x in normal]).mean(0).detach()
    torch.testing.assert_close(model[4].running_mean, second)
    assert model[1].num_batches_tracked == 5
    assert model[1].momentum == 0.3
    assert [m.training for m in model] == [False, False, False, True, False]
    for name, t in model.state_dict().items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(t, before[name])


def test_modes_and_statistics_are_restored_after_an_error() -> None:
    torch.manual_seed(0)
    model = net()
    model(torch.randn(8, 3))
    model.eval()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(TaskError, match="forward failed in batch 2: RuntimeError: mat1"):
        ss.reestimate_batch_norm_(model, [torch.ones(2, 3), torch.ones(2, 7)], forward)
    with pytest.raises(ConfigError, match="at least one batch"):
        ss.reestimate_batch_norm_(model, [], forward)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert not any(m.training for m in model.modules())
    assert model[1].momentum == 0.1


def test_a_network_without_statistics_is_refused() -> None:
    with pytest.raises(ModelError, match="no batch norm that keeps statistics"):
        ss.reestimate_batch_norm_(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), [], forward)
