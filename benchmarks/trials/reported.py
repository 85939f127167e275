"""Trials in which an early version did harm without a word: what becomes of each now. Prints a row for each.

python benchmarks/trials/reported.py --out reported.csv [digits imbalanced ...]

The digits are scikit-learn's (pip install scikit-learn).
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tasks
import torch
from torch import Tensor, nn

import softshare as ss
from softshare.errors import SoftShareError
from softshare.result import load_copy
from softshare.verdict import verdict

SEED = 0


class Row(NamedTuple):
    trial: str
    before: str
    after: str
    file_bytes: int | None
    words: str


def run(trial: str, task: ss.Task, target: Any = "default", **settings: Any) -> Row:
    """A row of one compression, with the verdict as a user reads it. An error is a verdict too."""
    config = ss.CompressConfig().override(seed=SEED, **settings)
    given = {} if target == "default" else {"target": target}
    try:
        return row_of(trial, task, ss.compress(task, config, quiet=True, **given))
    except SoftShareError as problem:
        return Row(trial, "-", "-", None, f"refused: {problem}")


def row_of(trial: str, task: ss.Task, compressed: ss.Compressed) -> Row:
    assert compressed.record is not None
    result, metric = compressed.record.result, task.metric
    words = f"{verdict(result).sentence} Validation: {compressed.outcome}"
    return Row(trial, metric.text(result.error_before), metric.text(result.error_after), result.file_bytes, words)


# Networks on scikit-learn's digits


def digits_splits() -> tasks.Splits:
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    data = load_digits()
    order = tasks.drawn(SEED, len(data.images))
    x, y = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]
    return tasks.in_parts(x, y, 1197, 300)


def digits_cnn() -> nn.Module:
    first, second = tasks.normed(1, 32), tasks.normed(32, 64)
    return nn.Sequential(first, second, nn.MaxPool2d(2), tasks.normed(64, 64), nn.Flatten(), nn.Linear(1024, 10))


def digits_task() -> ss.Task:
    return tasks.trained("sklearn-digits", SEED, digits_cnn, digits_splits(), tasks.Recipe(64, 30))


def digits() -> Iterator[Row]:
    task = digits_task()
    yield run("digits CNN, defaults", task)
    yield run("digits CNN, 100 epochs", task, epochs=100)


def digits_longer() -> Iterator[Row]:
    yield run("digits CNN, 300 epochs", digits_task(), epochs=300)


def digits_limit() -> Iterator[Row]:
    task = digits_task()
    yield run("digits CNN, at most +0.5", task, ss.MaxErrorIncrease(0.5))
    yield run("digits CNN, at most +0.5, without steering", task, None, tau=0.005, zero_mixing=0.95)


def wrong_way() -> Iterator[Row]:
    """The metric is an accuracy, but is declared as an error."""
    validation = digits_splits()[1]
    task = digits_task()
    accuracy = ss.Task(
        task.model, task.train, task.loss, lambda m: tasks.accuracy(m, validation), task.n_examples, name="wrong way"
    )
    yield run("accuracy taken for an error, at most +0.5", accuracy, ss.MaxErrorIncrease(0.5))


def lightning() -> Iterator[Row]:
    import pytorch_lightning as pl
    from torch.utils.data import DataLoader, TensorDataset

    from softshare.integrations.lightning import SoftShareCallback

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: tasks.Batch, index: int) -> Tensor:
            return tasks.cross_entropy(self.net, batch)

        def validation_step(self, batch: tasks.Batch, index: int) -> None:
            self.log("val_loss", tasks.cross_entropy(self.net, batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-3)

    train, validation, test = digits_splits()
    module = Module(digits_task().model)
    before = tasks.error(module.net.eval(), test)
    with tempfile.TemporaryDirectory() as folder:
        callback = SoftShareCallback(Path(folder) / "model.sws")
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        trainer = pl.Trainer(max_epochs=10, enable_checkpointing=False, callbacks=[callback], **quiet)
        held_out = DataLoader(TensorDataset(*validation), 300)
        trainer.validate(module, held_out, verbose=False)
        trainer.fit(module, DataLoader(TensorDataset(*train), 64, shuffle=True), held_out)
        yield of_callback(
            "Lightning's callback on the digits CNN", before, tasks.error(module.net.eval(), test), callback
        )


def of_callback(trial: str, before: float, after: float, callback: Any) -> Row:
    compressed = callback.compressed
    words = " | ".join([str(compressed.outcome), *compressed.messages])
    return Row(trial, f"{before:.2f}%", f"{after:.2f}%", len(compressed.to_bytes()), words)


def bert() -> Iterator[Row]:
    """Which of two halves of a sequence has the larger sum, by a BERT of about 190,000 weights."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from softshare.integrations.huggingface import SoftShareCallback

    g = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(1, 60, (4000, 12), generator=g)
    labels = (tokens[:, :6].sum(1) > tokens[:, 6:].sum(1)).long()
    rows = [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]
    torch.manual_seed(SEED)
    size = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 192}
    model = BertForSequenceClassification(BertConfig(vocab_size=60, max_position_embeddings=12, **size))

    def error() -> float:
        with torch.no_grad():
            return tasks.error(lambda x: model.eval()(x).logits, (tokens[3000:], labels[3000:]))  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as folder:
        options = {"output_dir": folder, "report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": SEED}
        options |= {"save_strategy": "no", "logging_strategy": "no", "per_device_train_batch_size": 32}
        data = {"train_dataset": rows[:2500], "eval_dataset": rows[2500:3000]}
        Trainer(model, TrainingArguments(num_train_epochs=25, learning_rate=1e-3, **options), **data).train()
        before, callback = error(), SoftShareCallback(Path(folder) / "model.sws")
        arguments = TrainingArguments(num_train_epochs=10, learning_rate=3e-4, eval_strategy="epoch", **options)
        trainer = Trainer(model, arguments, callbacks=[callback], **data)
        trainer.evaluate()
        trainer.train()
        yield of_callback("Hugging Face's callback on a BERT", before, error(), callback)


# Regressions


def regression() -> Iterator[Row]:
    yield run("regression, defaults", tasks.regression_small(SEED))
    for factor in (0.01, 10.0):
        yield run(f"regression, targets times {factor:g}", in_another_unit(factor))


def in_another_unit(factor: float) -> ss.Task:
    """Targets and predictions times the factor. A last layer that is not trained makes the network's."""
    task = tasks.regression_small(SEED)
    unit = nn.Linear(1, 1)
    with torch.no_grad():
        unit.weight.fill_(factor)
        unit.bias.zero_()
    x, y = task.train.data  # type: ignore[attr-defined]

    def rescaled(judge: Any) -> Callable[[nn.Module], float]:
        return lambda model: judge(model[:-1]) * factor**2  # type: ignore[index]

    return ss.Task(
        nn.Sequential(*task.model, unit.requires_grad_(False)),  # type: ignore[misc]
        tasks.Batches((x, y * factor), 32),
        tasks.squared_error,
        rescaled(task.evaluate),
        task.n_examples,
        test=rescaled(task.test),
        name=task.name,
        metric=task.metric,
    )


# Little data, small networks, and odd ones


def few() -> Iterator[Row]:
    data = tasks.digits(SEED, 500, 500, side=28)
    task = tasks.trained("mlp-500", SEED, lambda: tasks.mlp(784, 100, 10), data, tasks.Recipe(50, 40, 1e-3))
    yield run("image MLP on 500 examples, defaults", task)
    for allowed in (0.5, 2.0):
        yield run(f"image MLP on 500 examples, at most +{allowed:g}", task, ss.MaxErrorIncrease(allowed))


def small() -> Iterator[Row]:
    how = tasks.Recipe(32, 300, 5e-3)
    task = tasks.trained("small", SEED, lambda: tasks.mlp(2, 30, 30, 2), tasks.spirals(SEED), how)
    yield run("MLP of 1,082 weights on 512 examples, at most +1", task, ss.MaxErrorIncrease(1.0))


def two_methods() -> Iterator[Row]:
    task = tasks.two_heads(SEED)
    yield run("two methods that share a layer, defaults", task)
    yield run("two methods that share a layer, at most 1,500 bytes", task, ss.MaxBytes(1500))


def other_model() -> Iterator[Row]:
    task = tasks.tiny(SEED)
    other = tasks.tiny(SEED).model
    closed = ss.Task(task.model, task.train, lambda _, batch: tasks.cross_entropy(other, batch), task.evaluate, 512)
    yield run("a loss that closes over another model", closed)


def imbalanced() -> Iterator[Row]:
    """With the error of the five rarest classes, and of the five others, on the test set."""
    task = tasks.imbalanced(SEED)
    compressed = ss.compress(task, ss.CompressConfig().override(seed=SEED), quiet=True)
    after = load_copy(task.model, compressed.state_dict())
    test, order = tasks.mnist(14)[1], tasks.drawn(SEED, 10)
    told = []
    for name, classes in (("frequent", order[:5]), ("rare", order[5:])):
        part = tasks.take(test, torch.isin(test[1], classes).nonzero()[:, 0])
        told.append(f"{name} {tasks.balanced_error(task.model, part):.2f} -> {tasks.balanced_error(after, part):.2f}%")
    row = row_of("imbalanced classes, defaults", task, compressed)
    yield row._replace(words=f"{', '.join(told)}. {row.words}")


TRIALS = (
    digits,
    digits_longer,
    digits_limit,
    wrong_way,
    lightning,
    bert,
    regression,
    few,
    small,
    two_methods,
    other_model,
    imbalanced,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", help=f"some of {', '.join(t.__name__ for t in TRIALS)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("build/reported.csv"), help="CSV file to write")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for trial in TRIALS:
            if not options.trials or trial.__name__ in options.trials:
                for row in trial():
                    writer.writerow(row)
                    file.flush()
                    sys.stdout.write(" | ".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
