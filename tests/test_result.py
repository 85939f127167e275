from __future__ import annotations

import copy
import dataclasses
import json
import math
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import softshare
from softshare.codec import decode, load_into_
from softshare.compressed import Compressed
from softshare.config import CompressConfig, EncodeConfig, Gamma, MergeConfig, PriorConfig
from softshare.errors import ConfigError, FormatError, NotANumberError
from softshare.prior.mixture import Mixture
from softshare.prior.prior import MixturePrior
from softshare.quantization.description_length import complexity_bits, entropy_bits
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights
from softshare.result import Result, final_error, load_copy, measure
from softshare.target.limits import Outcome
from softshare.task import Metric, Task
from softshare.train.hooks import EpochRecord

Batch = tuple[Tensor, Tensor]
GLOBAL = PriorConfig(
    mixtures="global",
    components=4,
    init="range",
    width=None,
    init_std=0.1,
    zero_mixing=0.7,
    zero_precision_prior=Gamma(5000, 2),
    free_precision_prior=Gamma(250, 0.1),
)
N_WEIGHTS = (2 * 6 + 6) + (6 + 6) + (6 * 2 + 2)  # the batch-norm's 13 buffer values do not count


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.9)
        self.fc2 = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.drop(torch.tanh(self.norm(self.fc1(x)))))
        return out


def net() -> Net:
    """Values of the rest that float16 must round."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
        with torch.no_grad():
            model.norm.weight.copy_(torch.rand(6) + 0.1)
            model.norm.bias.zero_()
            model.fc1.weight[0] = 0.001
    return model


def data(n: int = 20) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 2, generator=generator), torch.arange(n) % 2


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def weighted_sum(model: nn.Module) -> float:
    """Stands for an error: a number that every bit of every tensor enters."""
    assert not model.training
    state = model.state_dict().values()
    return sum(float((t.double().reshape(-1) * torch.arange(1, t.numel() + 1)).sum()) for t in state)


def forbidden(model: nn.Module) -> float:
    raise AssertionError("the validation data must not serve for the final figure")


def make_task(**changes: Any) -> Task:
    x, y = data()
    train = list(zip(torch.split(x, 5), torch.split(y, 5), strict=True))
    task = Task(net(), train, cross_entropy, forbidden, 20, test=weighted_sum, name="tiny", dataset="none")
    return dataclasses.replace(task, **changes)


def compressed(task: Task, encode: EncodeConfig) -> Compressed:
    prior = MixturePrior(task.model, GLOBAL)
    history = tuple(EpochRecord(epoch, seconds, 0, 0, 0, 0, 0, 0) for epoch, seconds in enumerate((1.25, 2.0)))
    return dataclasses.replace(prior.quantize(MergeConfig(0.01)), config=encode, history=history)


def measured(task: Task, rest_dtype: Any = "float32") -> tuple[Result, Compressed]:
    config = CompressConfig().override(rest_dtype=rest_dtype, seed=7)
    out = compressed(task, config.encode)
    return measure(task, out, config, method="ours", error_before=12.5), out


def tensor(indices: list[int], codebook: list[float], name: str = "w") -> QuantizedTensor:
    narrow = torch.tensor(indices, dtype=torch.uint8)
    return QuantizedTensor(name, (len(indices),), torch.float32, narrow, torch.tensor(codebook))


# Entropy and complexity


def test_entropy_by_hand() -> None:
    """Shares 1/2, 1/4, 1/8, 1/8 of 8 weights are 1.75 bits each. Each tensor counts by itself: one value is free."""
    one = tensor([0, 0, 0, 0, 1, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
    constant = tensor([1, 1, 1], [0.0, 1.0])
    even = tensor([0, 2, 0, 2], [0.0, 1.0, 2.0])
    assert entropy_bits(QuantizedWeights((one,), {}, {})) == pytest.approx(14)
    assert entropy_bits(QuantizedWeights((constant,), {}, {})) == 0
    assert entropy_bits(QuantizedWeights((one, constant, even), {"r": torch.ones(9)}, {})) == pytest.approx(18)
    assert entropy_bits(QuantizedWeights((), {}, {})) == 0
    two_constants = tensor([0, 0], [0.0, 1.0], "a"), tensor([1, 1], [0.0, 1.0], "b")
    assert entropy_bits(QuantizedWeights(two_constants, {}, {})) == 0


def test_entropy_against_brute_force() -> None:
    indices = torch.randint(5, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    counts = Counter(indices)
    truth = sum(-math.log2(counts[k] / 300) for k in indices)
    assert entropy_bits(QuantizedWeights((tensor(indices, [0, 1, 2, 3, 4]),), {}, {})) == pytest.approx(truth)


def test_complexity_by_hand() -> None:
    """Mixings 1/2, 1/4, 1/8, 1/8: both components of mean 2 together have 1/4, so each weight costs 2 bits, not 3."""
    mixing = torch.tensor([0.5, 0.25, 0.125, 0.125])
    mixture = Mixture(mixing.log(), torch.tensor([0.0, -1.0, 2.0, 2.0]), torch.zeros(4))
    tensors = tensor([0, 0, 0, 1, 2, 2], [0.0, -1.0, 2.0]), tensor([0, 0], [0.0, -1.0, 2.0])
    assert complexity_bits(QuantizedWeights(tensors, {}, {}), {"w": mixture}) == pytest.approx(3 + 2 + 4 + 2, rel=1e-6)
    # A free component of mean 0 adds to the zero component.
    mixture = Mixture(torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.0, 0.0, 1.0]), torch.zeros(3))
    bits = complexity_bits(QuantizedWeights((tensor([0, 0, 1], [0.0, 1.0]),), {}, {}), {"w": mixture})
    assert bits == pytest.approx(2 * -math.log2(0.75) + 2, rel=1e-6)


# measure


def test_every_field_against_the_file(tmp_path: Path) -> None:
    """Recompute everything from the saved file, loaded into a fresh network."""
    task = make_task()
    result, out = measured(task)
    size = out.save(tmp_path / "model.sws")
    fresh = Net().eval()
    load_into_(fresh, tmp_path / "model.sws")

    assert result.file_bytes == size == (tmp_path / "model.sws").stat().st_size
    assert result.n_weights == N_WEIGHTS == 44
    assert result.ratio == 4 * 44 / size
    han = dataclasses.replace(out, config=dataclasses.replace(out.config, codec="han")).save(tmp_path / "han.sws")
    assert (result.han_bytes, result.han_ratio) == (han, 4 * 44 / han)
    assert han != size
    assert result.error_after == weighted_sum(fresh)
    assert result.n_nonzero == sum(int((p != 0).sum()) for p in fresh.parameters()) < 44
    shared = {name: p.detach().reshape(-1) for name, p in fresh.named_parameters() if name.startswith("fc")}
    values = {v for p in shared.values() for v in p.tolist()}
    assert result.n_components == len(values | {0.0})
    entropy = complexity = 0.0
    for name, p in shared.items():
        mixture = out.mixtures[name]
        counts = Counter(p.tolist())
        entropy -= sum(n * math.log2(n / p.numel()) for n in counts.values())
        for value, n in counts.items():
            of_value = mixture.mean.half() == value  # the file's codebook is in float16
            complexity -= n * math.log2(float(mixture.mixing.double()[of_value].sum()))
    assert result.entropy_bytes == pytest.approx(entropy / 8, rel=1e-9)
    assert result.complexity_bytes == pytest.approx(complexity / 8, rel=1e-6)
    x, y = data()
    bits = -torch.log_softmax(fresh(x).detach().double(), 1)[torch.arange(20), y].sum() / math.log(2)
    assert result.error_bits == pytest.approx(float(bits), rel=1e-5)


def test_what_measure_is_told() -> None:
    result, _ = measured(make_task())
    told = result.schema, result.experiment, result.method, result.dataset, result.seed
    assert told == (1, "tiny", "ours", "none", 7)
    assert (result.error_before, result.seconds, result.device) == (12.5, 3.25, "cpu")
    assert result.threads == torch.get_num_threads()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "softshare": softshare.__version__}
    assert result.versions == versions
    assert CompressConfig.from_dict(result.config) == CompressConfig().override(seed=7)


def test_the_error_is_that_of_the_rounded_rest() -> None:
    """The batch-norm is stored in float16. The error must show it, and the file must be smaller."""
    task = make_task()
    full, _ = measured(task)
    half, out = measured(task, "float16")
    state = {t.name: t.dense() for t in out.quantized.shared} | dict(out.quantized.rest)
    rounded = {k: v.half().float() if v.is_floating_point() else v for k, v in state.items()}  # as the codebook is
    expected = net().eval()
    expected.load_state_dict(rounded)
    assert half.error_after == weighted_sum(expected) != full.error_after
    assert full.file_bytes > half.file_bytes
    assert half.han_bytes < full.han_bytes


def test_a_task_without_a_test_is_measured_by_its_evaluation() -> None:
    seen: list[nn.Module] = []

    def evaluate(model: nn.Module) -> float:
        seen.append(model)
        return weighted_sum(model)

    task = make_task(evaluate=evaluate, test=None)
    result, _ = measured(task)
    assert len(seen) == 1
    assert result.error_after == weighted_sum(seen[0])


def test_the_tasks_model_is_left_alone() -> None:
    task = make_task()
    task.model.train()
    before = copy.deepcopy(task.model.state_dict())
    measured(task)
    assert task.model.training
    assert all(torch.equal(before[name], t) for name, t in task.model.state_dict().items())


def test_measuring_does_not_depend_on_the_random_state() -> None:
    """Neither the order of shuffled data with a short last batch nor the caller's state may enter the result."""
    results = []
    for seed in (1, 2):
        loader = DataLoader(TensorDataset(*data()), batch_size=7, shuffle=True)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        results.append(measured(make_task(train=loader))[0])
        assert torch.equal(torch.get_rng_state(), before)
    assert results[0] == results[1]


def test_error_before_is_that_of_the_tasks_model() -> None:
    task = make_task()
    config = CompressConfig()
    result = measure(task, compressed(task, config.encode), config)
    assert result.error_before == final_error(task, task.model)
    assert (result.method, result.seconds) == ("softshare", 3.25)


def test_the_config_must_be_that_of_the_file() -> None:
    task = make_task()
    with pytest.raises(ConfigError, match="expected the config that compressed the network"):
        measure(task, compressed(task, EncodeConfig(rest_dtype="float16")), CompressConfig())


def test_load_copy_and_test_error() -> None:
    task = make_task()
    state = {name: torch.ones_like(t) for name, t in task.model.state_dict().items()}
    out = load_copy(task.model, state)
    assert out is not task.model
    assert all(bool((t == 1).all()) for t in out.state_dict().values())
    assert not any(bool((p == 1).all()) for p in task.model.parameters())
    assert not out.training
    error = weighted_sum(out)  # which asserts the mode
    assert final_error(task, out.train()) == error
    assert out.training


# The JSON


def test_result_round_trip(tmp_path: Path) -> None:
    result, _ = measured(make_task())
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == result
    values = json.loads((tmp_path / "result.json").read_text())
    assert set(values) == {f.name for f in dataclasses.fields(Result)}
    assert values["file_bytes"] == result.file_bytes
    design = "schema experiment method dataset seed error_before error_after n_weights n_nonzero n_components "
    design += "file_bytes ratio han_bytes han_ratio entropy_bytes seconds device versions config"
    assert set(design.split()) <= set(values)


def test_what_is_not_a_result_is_refused(tmp_path: Path) -> None:
    path, values = tmp_path / "result.json", dataclasses.asdict(measured(make_task())[0])
    changes = (
        {"schema": 2},
        {"schema": None},
        {"surprise": 1},
        {"complexity_bytes": "12"},
        {"published_ratio": [1.0]},
        {"ratio": None},
    )
    without = {k: v for k, v in values.items() if k != "ratio"}
    changed = [json.dumps(v).encode() for v in (without, *(values | change for change in changes))]
    for content in (b"not JSON", b"", b"[]", b"3", b"\xff", b'{"schema": 1}', *changed):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"result\.json is not a result") as caught:
            Result.load(path)
        assert str(path) in str(caught.value)


def test_what_a_result_may_leave_open(tmp_path: Path) -> None:
    """A baseline has no mixture, and only a baseline has its own accounting. Older results do not mention it."""
    result, path = measured(make_task())[0], tmp_path / "result.json"
    for changes in ({"complexity_bytes": None}, {"complexity_bytes": 12}, {"published_ratio": 2.5}):
        changed = dataclasses.replace(result, **changes)
        changed.save(path)
        assert Result.load(path) == changed
    path.write_text(json.dumps({k: v for k, v in dataclasses.asdict(result).items() if k != "published_ratio"}))
    assert Result.load(path) == result
    path.write_text(json.dumps(dataclasses.asdict(result) | {"complexity_bytes": "12"}))
    with pytest.raises(FormatError, match="complexity_bytes: expected a number, got '12'"):
        Result.load(path)


def test_a_missing_result_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.json"):
        Result.load(tmp_path / "none.json")


# Metrics


def test_a_result_says_its_metric_and_the_other_measures(tmp_path: Path) -> None:
    def measures(model: nn.Module) -> dict[str, float]:
        return {"loss": 1.5, "score": weighted_sum(model), "size": 3}

    score = Metric("score", "dB", higher_is_better=True)
    task, config = make_task(test=measures, metric=score), CompressConfig()
    out = compressed(task, config.encode)
    result = measure(task, out, config)
    assert result.metric == score
    assert result.error_before == weighted_sum(task.model.eval())
    assert result.others == {"loss": [1.5, 1.5], "size": [3.0, 3.0]}
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == result
    values = json.loads((tmp_path / "result.json").read_text())
    assert values["schema"] == 1
    assert values["metric"] == {"name": "score", "unit": "dB", "higher_is_better": True}
    assert measure(task, out, config, error_before=7.5).others is None  # nothing else is known of before
    given = measure(task, out, config, error_before={"score": 7.5, "loss": 2})
    assert (given.error_before, given.others) == (7.5, {"loss": [2, 1.5]})


def test_results_without_a_metric_have_the_error_in_percent(tmp_path: Path) -> None:
    result, path = measured(make_task())[0], tmp_path / "result.json"
    assert (result.metric, result.others) == (Metric(), None)
    older = {k: v for k, v in dataclasses.asdict(result).items() if k not in ("metric", "others")}
    path.write_text(json.dumps(older))
    assert Result.load(path) == result
    path.write_text(json.dumps(older | {"metric": {"name": "loss", "unit": 3}}))
    with pytest.raises(FormatError, match=r"unit: expected text, got 3"):
        Result.load(path)


def test_the_noise_is_that_of_the_figures() -> None:
    """On the test set, from the examples that the network sees there; without one, the outcome's; of a rival, None."""
    x, _ = data(50)

    def tested(model: nn.Module) -> float:
        model(x)
        return 10.0

    task = make_task(evaluate=lambda model: 4.0, test=tested)
    found = compressed(task, EncodeConfig())
    assert measure(task, found, CompressConfig()).noise is None
    outcome = Outcome(None, Metric(), 4.0, 4.0, 0.75, math.inf, 100)
    found = dataclasses.replace(found, outcome=outcome)
    share = (0.1 * 50 + 0.5) / 51
    result = measure(task, found, CompressConfig())
    assert result.noise == pytest.approx(100 * math.sqrt(share * (1 - share) / 50))
    assert measure(dataclasses.replace(task, test=None), found, CompressConfig()).noise == 0.75
    assert measure(dataclasses.replace(task, noise=lambda model: 0.25), found, CompressConfig()).noise == 0.25


def test_a_metric_that_is_nan_in_the_end() -> None:
    task, config = make_task(test=lambda model: math.nan), CompressConfig()
    with pytest.raises(NotANumberError, match=r"Task\.test returned nan for the error of the network"):
        measure(task, compressed(task, config.encode), config, error_before=1.0)


@pytest.mark.parametrize("form", ["tuple", "dict", "unknown"])
def test_batches_count_by_their_size_in_the_training_loss(form: str) -> None:
    """Twenty examples in batches of 15 and 5. If sizes cannot be seen, both batches count the same."""
    x, y = data()
    pairs = [(x[:15], y[:15]), (x[15:], y[15:])]

    class Hidden:
        def __init__(self, pair: Batch) -> None:
            self.pair = pair

    forms: dict[str, Any] = {
        "tuple": pairs,
        "dict": [{"id": "a", "x": a, "y": b} for a, b in pairs],
        "unknown": [Hidden(pair) for pair in pairs],
    }

    def loss(model: nn.Module, batch: Any) -> Tensor:
        a, b = batch if form == "tuple" else (batch["x"], batch["y"]) if form == "dict" else batch.pair
        return F.cross_entropy(model(a), b)

    task = make_task(train=forms[form], loss=loss)
    result, out = measured(task)
    fresh = load_copy(task.model, decode(out.to_bytes(), like=task.model).state_dict())
    with torch.no_grad():
        first, second = (float(F.cross_entropy(fresh(a), b)) for a, b in pairs)
    mean = (first + second) / 2 if form == "unknown" else (15 * first + 5 * second) / 20
    assert first != pytest.approx(second)
    assert result.error_bits == pytest.approx(20 * mean / math.log(2), rel=1e-5)
