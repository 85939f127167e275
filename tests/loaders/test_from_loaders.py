"""`Task.from_loaders`: every figure is compared with one computed by hand."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import softshare as ss
from softshare.errors import ConfigError, NotANumberError

N = 10  # examples, in batches of 4, 4 and 2
PARTS = [slice(0, 4), slice(4, 8), slice(8, 10)]


class Same(nn.Module):
    """Returns its input, so a test chooses the outputs. The parameter is for what must have one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def loader(*tensors: Tensor, size: int = 4) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(*tensors), batch_size=size)


def of_loaders(val: Any, loss_fn: Any = None, metric: Any = None, **options: Any) -> ss.Task:
    return ss.Task.from_loaders(Same(), options.pop("train", val), val, loss_fn, metric, **options)


def logits(classes: list[int], n_classes: int = 3) -> Tensor:
    """Outputs whose largest entry is at these classes."""
    values = torch.zeros(len(classes), n_classes)
    values[torch.arange(len(classes)), torch.tensor(classes)] = 2.0
    return values


GUESSES = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 0, 1]  # the last two are missed, and they are a batch of their own


def classification() -> DataLoader[tuple[Tensor, ...]]:
    return loader(logits(GUESSES), torch.tensor(LABELS))


# Classification


def test_the_error_counts_examples_not_batches() -> None:
    """Two of ten are missed: 20%. The mean of the batches' errors would be 33.3%."""
    task = of_loaders(classification(), nn.CrossEntropyLoss())
    assert task.metric == ss.Metric("error", "%", False)
    assert task.evaluate(task.model) == 20.0
    assert task.judge(task.model) == 20.0
    assert task.n_examples == N


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(),
        nn.NLLLoss(),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        lambda output, target: F.cross_entropy(output, target) ** 2,
    ],
)
def test_a_classifier_is_judged_by_its_error(loss_fn: Any) -> None:
    task = of_loaders(classification(), loss_fn)
    assert task.metric == ss.Metric()
    assert task.judge(task.model) == 20.0
    batch = next(iter(task.train))
    assert torch.equal(task.loss(task.model, batch), loss_fn(logits(GUESSES[:4]), torch.tensor(LABELS[:4])))


def test_the_noise_of_an_error_is_binomial() -> None:
    task = of_loaders(classification(), nn.CrossEntropyLoss())
    share = 2.5 / 11
    assert task.noise is not None
    assert task.noise(task.model) == pytest.approx(100 * math.sqrt(share * (1 - share) / 10))
    perfect = of_loaders(loader(logits(GUESSES), torch.tensor(GUESSES)), nn.CrossEntropyLoss())
    assert perfect.judge(perfect.model) == 0
    assert perfect.noise is not None
    assert perfect.noise(perfect.model) == pytest.approx(100 * math.sqrt(0.5 / 11 * (10.5 / 11) / 10))


def test_accuracy() -> None:
    task = of_loaders(classification(), nn.CrossEntropyLoss(), "accuracy")
    assert task.metric == ss.Metric("accuracy", "%", True)
    assert task.judge(task.model) == 80.0
    assert task.noise is not None
    assert task.noise(task.model) == pytest.approx(100 * math.sqrt(8.5 / 11 * 2.5 / 11 / 10))


@pytest.mark.parametrize("last", [False, True])
def test_labels_of_many_places(last: bool) -> None:
    """Four words, of which one has no label and one is missed. Classes are in dimension 1 or in the last one."""
    guesses, labels = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1], [-100, 0]])
    output = F.one_hot(guesses, 5).float()  # (2, 2, 5)
    if not last:
        output = output.movedim(-1, 1)
    task = of_loaders(loader(output, labels, size=1), nn.CrossEntropyLoss())
    assert task.judge(task.model) == pytest.approx(100 / 3)
    flat = F.one_hot(guesses, 5).float().flatten(0, 1)
    batch = (output, labels)
    assert task.loss(task.model, batch).item() == pytest.approx(float(F.cross_entropy(flat, labels.flatten())))
    assert task.outputs is not None
    assert torch.equal(task.outputs(task.model, batch), flat[[0, 1, 3]])


def test_another_ignored_label() -> None:
    labels = torch.tensor([0, 9, 1, 9])
    for loss_fn in (nn.CrossEntropyLoss(ignore_index=9), functools.partial(F.cross_entropy, ignore_index=9)):
        task = of_loaders(loader(logits([0, 1, 2, 0]), labels), loss_fn)
        assert task.judge(task.model) == 50.0


def test_targets_that_are_probabilities() -> None:
    targets = torch.tensor([[0.8, 0.2, 0.0], [0.1, 0.2, 0.7]])
    task = of_loaders(loader(logits([0, 1]), targets), nn.CrossEntropyLoss())
    assert task.judge(task.model) == 50.0


def test_distillation_has_its_logits() -> None:
    task = of_loaders(classification(), nn.CrossEntropyLoss(), "loss")
    assert task.outputs is not None
    assert torch.equal(task.outputs(task.model, next(iter(task.train))), logits(GUESSES[:4]))
    regression = of_loaders(loader(torch.randn(4, 2), torch.randn(4, 2)), F.mse_loss)
    assert regression.outputs is None


# Regression and losses


def test_mean_squared_and_absolute_error() -> None:
    x, y = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(N, 3)
    for name, each in (("mse", x.double() ** 2), ("mae", x.double().abs())):
        task = of_loaders(loader(x, y), F.mse_loss, name)
        assert task.metric == ss.Metric(name, "", False)
        assert task.judge(task.model) == pytest.approx(float(each.mean()))
        assert task.noise is not None
        assert task.noise(task.model) == pytest.approx(float(each.mean(1).std()) / math.sqrt(N))


def test_batches_of_different_lengths() -> None:
    """A sequence of 4 counts twice as much as one of 2, as it does in the mean over all elements."""
    batches = [(torch.full((1, 4), 3.0), torch.zeros(1, 4)), (torch.zeros(1, 2), torch.zeros(1, 2))]
    task = of_loaders(batches, F.mse_loss, "mse")
    assert task.judge(task.model) == pytest.approx(36 / 6)
    assert task.n_examples == 2


def test_other_networks_are_judged_by_their_mean_loss() -> None:
    x, y = torch.arange(10.0)[:, None], torch.zeros(10, 1)
    task = of_loaders(loader(x, y), F.l1_loss)
    assert task.metric == ss.Metric("loss", "", False)
    assert task.judge(task.model) == pytest.approx(4.5)
    means = [1.5, 5.5, 8.5]
    spread = math.sqrt(sum((m - sum(means) / 3) ** 2 for m in means) / 2)
    assert task.noise is not None
    assert task.noise(task.model) == pytest.approx(spread / math.sqrt(3))
    single = of_loaders(loader(x, y, size=10), F.l1_loss)
    assert single.noise is not None
    assert single.noise(single.model) == pytest.approx(4.5 / math.sqrt(10))


def test_perplexity_is_that_of_all_words() -> None:
    """Batches of 3 and 1 words that count: the mean is over four words, not over two batches."""
    values = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 2, 3], [4, -100, -100]])
    task = of_loaders(loader(values, labels, size=1), nn.CrossEntropyLoss(), "perplexity")
    truth = F.cross_entropy(values.flatten(0, 1), labels.flatten())
    assert task.metric.name == "perplexity"
    assert task.judge(task.model) == pytest.approx(math.exp(float(truth)), rel=1e-5)
    loss = of_loaders(loader(values, labels, size=1), nn.CrossEntropyLoss(), "loss")
    assert loss.judge(loss.model) == pytest.approx(float(truth), rel=1e-5)


def test_a_batch_without_any_label_that_counts() -> None:
    labels = torch.tensor([0, 1, -100, -100])
    task = of_loaders(loader(logits([0, 2, 0, 0]), labels, size=2), nn.CrossEntropyLoss(), {"e": "error", "l": "loss"})
    found = task.judge_all(task.model)
    assert found["e"] == 50.0
    assert found["l"] == pytest.approx(float(F.cross_entropy(logits([0, 2]), labels[:2])))


# Forms of batches


def test_an_autoencoder_has_its_input_as_target() -> None:
    x = torch.randn(N, 3)
    for batches in (list(x.split(4)), loader(x)):
        task = of_loaders(batches, F.mse_loss)
        assert task.judge(task.model) == 0.0
        assert task.n_examples == N
        assert task.loss(nn.Sequential(task.model, nn.ReLU()), next(iter(task.train))).item() > 0


def test_several_inputs() -> None:
    class Sum(Same):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            assert y is not None
            return (x + y) * self.scale

    x, y, target = torch.ones(N, 2), torch.ones(N, 2), torch.full((N, 2), 5.0)
    task = ss.Task.from_loaders(Sum(), loader(x, y, target), loader(x, y, target), F.mse_loss)
    assert task.judge(task.model) == 9.0


def test_named_tuples_and_nested_parts() -> None:
    pair = namedtuple("pair", "inputs labels")

    class Nested(nn.Module):
        def forward(self, parts: dict[str, list[Tensor]]) -> Tensor:
            return parts["x"][0]

    batches = [pair({"x": [logits([0, 1])]}, torch.tensor([0, 0]))]
    task = ss.Task.from_loaders(Nested(), batches, batches, nn.CrossEntropyLoss())
    assert task.judge(task.model) == 50.0
    assert task.n_examples == 2


class Hugging(nn.Module):
    """Takes and returns what Hugging Face models do."""

    def __init__(self, output: Callable[..., Any] = dict) -> None:
        super().__init__()
        self.scale, self.make = nn.Parameter(torch.ones(())), output

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        values = x * self.scale
        if labels is None:
            return self.make(logits=values)
        return self.make(loss=F.cross_entropy(values, labels), logits=values)


def named_batches() -> list[dict[str, Tensor]]:
    x, labels = logits(GUESSES), torch.tensor(LABELS)
    return [{"x": x[part], "labels": labels[part]} for part in PARTS]


class Output(UserDict[str, Any]):
    """Has its parts as attributes, too."""

    def __getattr__(self, name: str) -> Any:
        return self.data.get(name)


@pytest.mark.parametrize("output", [dict, Output])
def test_a_model_with_its_own_loss(output: Callable[..., Any]) -> None:
    batches = named_batches()
    task = ss.Task.from_loaders(Hugging(output), batches, batches)
    assert task.metric == ss.Metric()
    assert task.judge(task.model) == 20.0
    assert task.n_examples == N
    truth = F.cross_entropy(logits(GUESSES[:4]), torch.tensor(LABELS[:4]))
    assert torch.equal(task.loss(task.model, batches[0]), truth)
    assert task.outputs is not None
    assert torch.equal(task.outputs(task.model, batches[0]), logits(GUESSES[:4]))
    mean = ss.Task.from_loaders(Hugging(output), batches, batches, metric="loss")
    assert mean.judge(mean.model) == pytest.approx(float(F.cross_entropy(logits(GUESSES), torch.tensor(LABELS))))


def test_a_dict_for_a_model_that_does_not_take_the_label() -> None:
    batches = [{"x": b["x"], "label": b["labels"]} for b in named_batches()]
    task = of_loaders(batches, nn.CrossEntropyLoss())
    assert task.judge(task.model) == 20.0


def test_a_language_model_is_judged_by_the_next_word() -> None:
    """GPT-2 compares each output with the label one place on, inside the model. So must the error."""
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install 'softshare[huggingface]'"
    )
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=7, n_positions=6, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    words = torch.randint(7, (6, 6))
    labels = words.clone()
    labels[0, 4:] = -100
    batches = [{"input_ids": w, "labels": y} for w, y in zip(words.split(2), labels.split(2), strict=True)]
    metrics = {"error": "error", "perplexity": "perplexity"}
    task = ss.Task.from_loaders(model, batches, batches, metric=metrics)
    with torch.no_grad():
        guesses, following = model(input_ids=words).logits[:, :-1], labels[:, 1:]
    counts = following != -100
    wrong = (guesses.argmax(-1) != following)[counts].double()
    found = task.judge_all(task.model)
    assert found["error"] == pytest.approx(100 * float(wrong.mean()))
    truth = F.cross_entropy(guesses[counts], following[counts])
    assert found["perplexity"] == pytest.approx(math.exp(float(truth)), rel=1e-4)


# Other metrics


class Best:
    """A metric in the shape of torchmetrics': the share of guesses that are right, from 0 to 1."""

    higher_is_better: bool | None = True

    def __init__(self) -> None:
        self.right = self.n = 77  # so that a metric that is not reset shows

    def reset(self) -> None:
        self.right = self.n = 0

    def to(self, device: torch.device) -> Best:
        self.device = device
        return self

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        assert outputs.device == self.device
        self.right += int((outputs.argmax(1) == targets).sum())
        self.n += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.right / self.n)


def test_an_object_that_is_updated() -> None:
    metric = Best()
    task = of_loaders(classification(), nn.CrossEntropyLoss(), metric)
    assert task.metric == ss.Metric("Best", "", True)
    for _ in range(2):
        assert task.judge(task.model) == pytest.approx(0.8)
    assert (metric.right, metric.n) == (77, 77)  # the user's own is left alone
    assert task.noise is not None
    shares = [1.0, 1.0, 0.0]
    spread = math.sqrt(sum((s - 2 / 3) ** 2 for s in shares) / 2)
    assert task.noise(task.model) == pytest.approx(spread / math.sqrt(3))


def test_whether_higher_is_better_must_be_known() -> None:
    class Unsure(Best):
        higher_is_better = None

    def spread(outputs: Tensor, targets: Tensor) -> float:
        return float(outputs.std())

    for metric, name in ((Unsure(), "Unsure"), (spread, "spread"), (lambda a, b: 0.0, "metric")):
        with pytest.raises(ConfigError, match=f"whether a higher {name} is better. Give higher_is_better=True"):
            of_loaders(classification(), nn.CrossEntropyLoss(), metric)
        task = of_loaders(classification(), nn.CrossEntropyLoss(), metric, higher_is_better=False)
        assert task.metric == ss.Metric(name, "", False)
    with pytest.raises(ConfigError, match=r"accuracy is better if it is higher\. Leave the argument out"):
        of_loaders(classification(), nn.CrossEntropyLoss(), "accuracy", higher_is_better=False)


def test_a_function_gets_everything_at_once() -> None:
    def largest(outputs: Tensor, targets: Tensor) -> Tensor:
        assert outputs.shape == (N, 1)
        assert targets.shape == (N, 1)
        return (outputs - targets).abs().max()

    x, y = torch.arange(10.0)[:, None], torch.zeros(10, 1)
    task = of_loaders(loader(x, y, size=10), F.mse_loss, largest, higher_is_better=False)
    assert task.metric == ss.Metric("largest", "", False)
    assert task.judge(task.model) == 9.0
    assert task.noise is not None
    assert task.noise(task.model) == pytest.approx(9 / math.sqrt(10))


def test_several_metrics_of_which_the_first_judges() -> None:
    def top(outputs: Tensor, targets: Tensor) -> float:
        return float(outputs.max())

    task = of_loaders(classification(), nn.CrossEntropyLoss(), {"F1": Best(), "loss": "loss", "top": top})
    assert task.metric == ss.Metric("F1", "", True)
    found = task.judge_all(task.model)
    assert list(found) == ["F1", "loss", "top"]
    assert found["F1"] == pytest.approx(0.8)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits(GUESSES), torch.tensor(LABELS))), rel=1e-6)
    assert found["top"] == 2.0


@pytest.mark.filterwarnings("ignore")
def test_torchmetrics_own() -> None:
    classes = pytest.importorskip("torchmetrics.classification", reason="needs torchmetrics")
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")
    metric = classes.MulticlassAccuracy(3, average="micro")
    task = of_loaders(classification(), nn.CrossEntropyLoss(), metric)
    assert task.metric == ss.Metric("MulticlassAccuracy", "", True)
    assert task.judge(task.model) == pytest.approx(0.8)
    both = torchmetrics.MetricCollection({"accuracy": metric, "F1": classes.MulticlassF1Score(3, average="micro")})
    task = of_loaders(classification(), nn.CrossEntropyLoss(), both)
    assert task.metric.higher_is_better
    assert sorted(task.judge_all(task.model).values()) == pytest.approx([0.8, 0.8])


# The rest of the task


def test_the_test_loader_gives_the_final_figures() -> None:
    test = loader(logits([0, 0]), torch.tensor([0, 1]))
    task = of_loaders(classification(), nn.CrossEntropyLoss(), test_loader=test)
    assert task.judge(task.model) == 20.0
    assert task.judge(task.model, final=True) == 50.0
    assert of_loaders(classification(), nn.CrossEntropyLoss()).test is None


def test_the_mode_and_the_random_state_are_kept() -> None:
    model = nn.Sequential(Same(), nn.Dropout(0.5)).train()
    shuffled = DataLoader(TensorDataset(logits(GUESSES), torch.tensor(LABELS)), batch_size=4, shuffle=True)
    before = torch.get_rng_state()
    task = ss.Task.from_loaders(model, shuffled, shuffled, nn.CrossEntropyLoss())
    assert torch.equal(torch.get_rng_state(), before)
    assert task.evaluate(model) == 20.0
    assert task.noise is not None
    task.noise(model)
    assert model.training
    assert model[1].training


def test_examples_are_counted() -> None:
    data = TensorDataset(logits(GUESSES), torch.tensor(LABELS))
    for train, n in (
        (DataLoader(data, batch_size=4), 10),
        (DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(range(7))), 7),
        (list(DataLoader(data, batch_size=3)), 10),
    ):
        task = of_loaders(classification(), nn.CrossEntropyLoss(), train=train)
        assert (task.n_examples, len(task.train)) == (n, len(train))  # type: ignore[arg-type]
    assert of_loaders(classification(), nn.CrossEntropyLoss(), n_examples=500).n_examples == 500

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([(torch.zeros(3), 0)] * 8)

    stream = DataLoader(Stream(), batch_size=4)
    with pytest.raises(ConfigError, match=r"batches without a length cannot be counted\. Give n_examples"):
        of_loaders(classification(), nn.CrossEntropyLoss(), train=stream)
    task = of_loaders(classification(), nn.CrossEntropyLoss(), train=stream, n_examples=8)
    assert len(list(task.train)) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_are_moved_to_the_models_device() -> None:
    task = ss.Task.from_loaders(Same().cuda(), classification(), classification(), nn.CrossEntropyLoss(), Best())
    assert task.judge(task.model) == pytest.approx(0.8)
    batch = next(iter(task.train))
    assert batch[0].is_cuda
    assert task.loss(task.model, batch).is_cuda


def test_batches_are_moved_wherever_they_are_nested() -> None:
    """On the device `meta`, which every machine has."""
    from softshare.loaders.batches import moved

    pair = namedtuple("pair", "a b")
    found = moved({"x": pair(torch.ones(2), [torch.ones(1)]), "name": "text"}, torch.device("meta"))
    assert type(found["x"]) is pair
    assert found["x"].a.is_meta
    assert found["x"].b[0].is_meta
    assert found["name"] == "text"


def test_a_task_of_loaders_is_compressed() -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = x[:, :3].argmax(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    train = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(10):
        for inputs, labels in train:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    task = ss.Task.from_loaders(model, train, loader(x, y, size=100), nn.CrossEntropyLoss())
    config = ss.CompressConfig().override(epochs=3, distill=0.3)
    compressed = ss.compress(task, config)
    result = ss.measure(task, compressed, config)
    with torch.no_grad():
        error = 100 * float((model(x).argmax(1) != y).double().mean())
    assert result.error_before == pytest.approx(error)
    assert math.isfinite(result.error_after)


# What is refused


def test_what_cannot_be_understood_is_refused() -> None:
    good, entropy = classification(), nn.CrossEntropyLoss()
    x = torch.randn(4, 2)
    all_dropped: Any = DataLoader(TensorDataset(x), batch_size=5, drop_last=True)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: of_loaders([{1, 2}], entropy), "expected batches that are tuples .* got set. Change the loader's"),
        (lambda: of_loaders([()], entropy), "expected batches that are tuples .* got tuple"),
        (lambda: of_loaders([], entropy, train=good), "^val_loader: expected at least one batch, got none"),
        (lambda: of_loaders(good, entropy, train=[]), "^train_loader: expected at least one batch, got none"),
        (lambda: of_loaders(good, entropy, train=all_dropped), "^train_loader: expected at least one batch, got none"),
        (lambda: of_loaders(iter(good), entropy), "train_loader: expected batches that can be iterated again"),
        (lambda: of_loaders(5, entropy), "train_loader: expected an iterable of batches, got int"),
        (lambda: of_loaders(good, nn.CrossEntropyLoss), r"got the class CrossEntropyLoss. Give CrossEntropyLoss\(\)"),
        (
            lambda: of_loaders(good, "mse"),
            "the loss function: expected a function of output and target, or None, got 'mse'",
        ),
        (lambda: of_loaders(good, nn.CrossEntropyLoss(reduction="sum")), "got reduction='sum'. Use reduction='mean'"),
        (lambda: of_loaders(good), "expected a loss function, or a model whose output has a loss, got no function"),
        (lambda: of_loaders(good, entropy, "f1"), "expected one of error, accuracy, mse, mae, .* got 'f1'"),
        (lambda: of_loaders(good, entropy, ss.Metric()), "metric: expected one of .* got Metric"),
        (lambda: of_loaders(good, entropy, Best), "metric: expected one of .* an object with update"),
        (lambda: of_loaders(good, entropy, {}), "expected at least one metric in the dict, got none"),
        (lambda: of_loaders(good, entropy, "mse"), r"need an output and a target of one size, got .*\(4, 3\)"),
        (lambda: of_loaders([(x, x)], F.mse_loss, "error"), r"need logits \(batch, classes, ...\) and whole numbers"),
        (lambda: of_loaders([{"x": x}], F.mse_loss), "expected a target in each batch, by .* labels, label, targets"),
        (lambda: ss.Task.from_loaders(3, good, good, entropy), "expected a torch.nn.Module, got int"),  # type: ignore
    ]
    for make, message in cases:
        with pytest.raises(ConfigError, match=message):
            make()


def test_a_loss_that_is_no_mean_is_refused() -> None:
    task = of_loaders(classification(), lambda output, target: F.cross_entropy(output, target, reduction="none"))
    with pytest.raises(ConfigError, match=r"a tensor without dimensions, got a tensor of shape \(4,\)"):
        task.loss(task.model, next(iter(task.train)))


def test_a_metric_that_gives_no_number() -> None:
    values = of_loaders(classification(), nn.CrossEntropyLoss(), lambda a, b: a, higher_is_better=True)
    with pytest.raises(ConfigError, match="metric 'metric': expected one number, got a tensor of shape"):
        values.judge(values.model)
    nan = dataclasses.replace(values, evaluate=lambda model: math.nan)
    with pytest.raises(NotANumberError, match="returned nan for the metric"):
        nan.judge(nan.model)
    batches = [(torch.zeros(1, n), torch.zeros(1, n)) for n in (2, 3)]
    lengths = of_loaders(batches, F.mse_loss, lambda a, b: 0.0, higher_is_better=True)
    with pytest.raises(ConfigError, match="batches of different shapes cannot be put together"):
        lengths.judge(lengths.model)
