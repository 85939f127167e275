"""The callback in the real Trainer of Hugging Face: the training of the route, files, checkpoints, refusals."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import softshare as ss
from softshare.errors import ConfigError
from softshare.integrations.evaluation import UNKNOWN
from softshare.integrations.huggingface import SoftShareCallback
from trained import BATCH, EPOCHS, RATE, N, Net, config, data, error, make_net, make_task, prior_gradients

pytestmark = [
    pytest.mark.slow,  # transformers takes seconds to import
    pytest.mark.filterwarnings("ignore:the run has .* steps"),
    pytest.mark.filterwarnings("ignore:the compressed network seems worse"),
]
WORDS, LENGTH = 12, 6


def as_callback(settings: ss.CompressConfig) -> ss.CompressConfig:
    """For a run of the route like that of a callback: as long, with tau relative to the data."""
    return settings.override(steps=EPOCHS * N // BATCH, scaling="paper")


def make_callback(file: Path, settings: ss.CompressConfig, n_examples: int | None = None) -> SoftShareCallback:
    """One with the settings as they are."""
    return SoftShareCallback(file, as_callback(settings), n_examples, gentleness=0.0)


class Items(Dataset[dict[str, Tensor]]):
    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def points(seed: int = 0) -> Items:
    x, labels = data(seed)
    return Items(x=x, labels=labels)


class InOrder(Trainer):  # type: ignore[misc]
    """Keeps the batches in the order of the route's list."""

    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def make_trainer(
    model: nn.Module, folder: Path, *callbacks: TrainerCallback, train: Items | None = None, **options: Any
) -> Trainer:
    values = {
        "output_dir": str(folder),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": N,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **options,
    }
    arguments = TrainingArguments(**values)
    return InOrder(
        model=model,
        args=arguments,
        train_dataset=train or points(),
        eval_dataset=points(1),
        callbacks=list(callbacks),
    )


def test_it_ends_as_the_route_does(tmp_path: Path) -> None:
    """Half batches, two to a step, give what `compress` gives on whole ones."""
    settings = config(zeroing=30.0, schedule="cosine")
    callback = make_callback(tmp_path / "model.sws", settings)
    options: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "per_device_train_batch_size": BATCH // 2,
        "gradient_accumulation_steps": 2,
    }
    make_trainer(make_net(), tmp_path, callback, **options).train()
    assert callback.compressed is not None
    for name, wanted in ss.compress(make_task(), as_callback(settings), target=None).retrained.items():
        torch.testing.assert_close(callback.compressed.retrained[name], wanted, atol=1e-3, rtol=1e-3)


def test_the_file_is_sparse_and_the_model_is_what_it_decodes_to(tmp_path: Path) -> None:
    model, file = make_net(), tmp_path / "model.sws"
    before = error(model)
    callback = make_callback(file, config())
    make_trainer(model, tmp_path, callback).train()
    assert error(model) <= before + 2
    fresh = make_net()
    ss.load_into_(fresh, file)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, fresh.state_dict()[name])
    assert callback.compressed is not None
    assert file.read_bytes() == callback.compressed.to_bytes()
    weight = fresh.state_dict()["first.weight"]
    assert 0 < int((weight != 0).sum()) < 0.25 * weight.numel()


class Before(TrainerCallback):  # type: ignore[misc]
    """Notes the gradients of the task alone, and computes those of the prior."""

    def __init__(self, callback: SoftShareCallback) -> None:
        self.callback = callback
        self.task: list[Tensor] = []
        self.expected: list[Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, **others: Any) -> None:
        assert self.callback.prior
        self.task = [w.grad.clone() for w in self.callback.prior.view.tensors if w.grad is not None]
        self.expected = prior_gradients(self.callback.prior, tau=0.5)


class After(TrainerCallback):  # type: ignore[misc]
    def __init__(self, before: Before) -> None:
        self.before, self.added = before, 0.0

    def on_pre_optimizer_step(self, *args: Any, **others: Any) -> None:
        assert self.before.callback.prior
        weights = self.before.callback.prior.view.tensors
        for w, task, expected in zip(weights, self.before.task, self.before.expected, strict=True):
            assert w.grad is not None
            torch.testing.assert_close((w.grad - task).double(), expected, atol=1e-6, rtol=1e-3)
            self.added = max(self.added, float(expected.abs().max()))


def test_what_is_added_to_the_gradients_is_the_priors_and_is_not_clipped(tmp_path: Path) -> None:
    callback = make_callback(tmp_path / "model.sws", config(tau=0.5, tau_warmup=0.0, hard_from=1.0))
    before = Before(callback)
    after = After(before)
    make_trainer(make_net(), tmp_path, before, callback, after, max_steps=8, max_grad_norm=1e-4).train()
    assert after.added > 1e-3
    assert sum(float(g.square().sum()) for g in before.task) ** 0.5 < 1.1e-4


class Watched(Net):
    def __init__(self) -> None:
        super().__init__()
        self.load_state_dict(make_net().state_dict())
        self.n_values: dict[bool, list[int]] = {True: [], False: []}  # of the first layer, in training or evaluation

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.n_values[self.training].append(len(self.first.weight.unique()))
        return super().forward(x, labels)


def test_evaluation_is_of_the_quantized_network_and_checkpoints_are_not(tmp_path: Path) -> None:
    model = Watched()
    callback = make_callback(tmp_path / "model.sws", config(hard_from=0.5))
    each: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "eval_on_start": True,
        "num_train_epochs": 4,
    }
    trainer = make_trainer(model, tmp_path, callback, **each)
    trainer.train()
    assert [n > 100 for n in model.n_values[False]] == [True, True, True, False, False]
    assert [n > 100 for n in model.n_values[True]] == [True] * 32 + [False] * 32
    folders = sorted(tmp_path.glob("checkpoint-*"))
    assert len(folders) == 4
    for folder in folders:
        assert len(safetensors.torch.load_file(folder / "model.safetensors")["first.weight"].unique()) > 100
    decoded = ss.load(tmp_path / "model.sws")
    trainer.evaluate()
    assert model.n_values[False][-1] == len(decoded["first.weight"].unique())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_resumed_run_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = config(schedule="cosine", zeroing=30.0)
    results = []
    for name, checkpoint in (("whole", None), ("again", str(tmp_path / "checkpoint-48"))):
        callback = make_callback(tmp_path / f"{name}.sws", settings)
        saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 48, "num_train_epochs": 6}
        make_trainer(make_net(), tmp_path, callback, **saving).train(resume_from_checkpoint=checkpoint)
        assert callback.compressed
        results.append(callback.compressed.retrained)
    for name, tensor in results[0].items():
        assert torch.equal(results[1][name], tensor), name
    assert (tmp_path / "again.sws").read_bytes() == (tmp_path / "whole.sws").read_bytes()


def test_it_returns_what_compress_returns(tmp_path: Path) -> None:
    """A run that goes on has one history and one film, and its outcome is that of the whole run."""
    settings, made = config(tau=1e-4), []
    for name, checkpoint in (("whole", None), ("again", str(tmp_path / "checkpoint-40"))):
        callback = SoftShareCallback(tmp_path / f"{name}.sws", as_callback(settings), gentleness=4.0)
        often: dict[str, Any] = {"save_strategy": "steps", "save_steps": 40, "eval_strategy": "epoch"}
        trainer = make_trainer(make_net(), tmp_path, callback, num_train_epochs=6, **often)
        before = trainer.evaluate()["eval_loss"]
        trainer.train(resume_from_checkpoint=checkpoint)
        assert callback.compressed
        made.append(callback.compressed)
        assert callback.compressed.outcome
        assert callback.compressed.outcome.before == pytest.approx(before)
        assert callback.compressed.outcome.after == callback.compressed.history[-1].validation_error
        assert callback.compressed.summary()
        assert callback.compressed.report(tmp_path / name).exists()
    whole, again = ([dataclasses.replace(record, seconds=0.0) for record in each.history] for each in made)
    assert len(whole) == 11
    assert repr(whole) == repr(again)  # there are NaNs
    assert made[0].outcome == made[1].outcome


def accuracy_of(answers: Any) -> dict[str, float]:
    logits = answers.predictions
    return {"accuracy": float((logits.argmax(-1) == answers.label_ids).mean()), "half": 0.5}


@pytest.mark.parametrize("when", ["around the training", "at its start and end", "again from a checkpoint"])
def test_the_verdict_is_that_of_the_accuracy_that_the_user_measures(tmp_path: Path, when: str) -> None:
    options: dict[str, Any] = {"num_train_epochs": 4}
    if when != "around the training":
        options |= {"eval_strategy": "epoch", "eval_on_start": True}
    if when == "again from a checkpoint":
        options |= {"save_strategy": "steps", "save_steps": 20}
    callback = SoftShareCallback(tmp_path / "model.sws", as_callback(config(tau=1e-4)), gentleness=4.0)
    trainer = make_trainer(make_net(), tmp_path, callback, **options)
    trainer.compute_metrics = accuracy_of
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    if when == "again from a checkpoint":
        callback = SoftShareCallback(tmp_path / "model.sws", as_callback(config(tau=1e-4)), gentleness=4.0)
        trainer = make_trainer(make_net(), tmp_path, callback, **options)
        trainer.compute_metrics = accuracy_of
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert callback.compressed
    assert (callback.compressed.outcome is None) == (UNKNOWN in callback.compressed.messages)
    assert (callback.compressed.outcome is None) == (when == "around the training")
    after = trainer.evaluate()["eval_accuracy"]
    compressed = callback.compressed
    assert compressed.outcome
    result = compressed.record.result
    assert (compressed.outcome.before, compressed.outcome.after) == pytest.approx((100 * before, 100 * after))
    assert (result.error_before, result.error_after) == pytest.approx((100 * before, 100 * after))
    assert result.noise == compressed.outcome.noise == pytest.approx(100 * (before * (1 - before) / N) ** 0.5, abs=0.1)
    assert result.others["half"] == [0.5, 0.5]
    said = " ".join(compressed.summary().partition("\n  ")[0].split())  # the sentence before the rows
    assert f"accuracy {100 * before:.2f}% -> {100 * after:.2f}%" in said
    assert "where one standard error is" in said
    assert UNKNOWN not in compressed.messages
    trainer.evaluate()  # the next run's affair
    assert callback.compressed is compressed


def test_a_checkpoint_in_another_folder(tmp_path: Path) -> None:
    """The arguments must name it, because the Trainer does not. Without its file, the mixture starts again.

    It was saved at the last step of an epoch, before the epoch ended.
    """
    settings, elsewhere = config(schedule="cosine", zeroing=30.0), str(tmp_path / "old" / "checkpoint-16")
    first = make_callback(tmp_path / "first.sws", settings)
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 16, "num_train_epochs": 2}
    make_trainer(make_net(), tmp_path / "old", first, **saving).train()

    named = make_callback(tmp_path / "named.sws", settings)
    again: dict[str, Any] = {"num_train_epochs": 2, "resume_from_checkpoint": elsewhere}
    make_trainer(make_net(), tmp_path / "new", named, **again).train(resume_from_checkpoint=elsewhere)
    assert (tmp_path / "named.sws").read_bytes() == (tmp_path / "first.sws").read_bytes()

    fresh = make_callback(tmp_path / "fresh.sws", settings)
    trainer = make_trainer(make_net(), tmp_path / "new", fresh, num_train_epochs=2)
    with pytest.warns(UserWarning, match=r"no .*new/checkpoint-16/softshare\.pt: the mixture starts again"):
        trainer.train(resume_from_checkpoint=elsewhere)
    assert fresh.compressed
    (tmp_path / "old" / "checkpoint-16" / "softshare.pt").unlink()
    without = make_callback(tmp_path / "without.sws", settings)
    trainer = make_trainer(make_net(), tmp_path / "old", without, num_train_epochs=2)
    with pytest.warns(UserWarning, match="the mixture starts again"):
        trainer.train(resume_from_checkpoint=elsewhere)
    assert (tmp_path / "without.sws").read_bytes() == (tmp_path / "fresh.sws").read_bytes()


def words() -> Tensor:  # (N, LENGTH), each row the same word
    return torch.randint(WORDS, (N, 1), generator=torch.Generator().manual_seed(0)).repeat(1, LENGTH)


def test_a_language_model_with_tied_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tied = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(tied)
    train = Items(input_ids=words(), labels=words())
    settings = config(tau=0.005, lr_means=1e-3)
    callback = make_callback(tmp_path / "model.sws", settings, n_examples=N * (LENGTH - 1))
    make_trainer(model, tmp_path, callback, train=train, num_train_epochs=10).train()
    state = ss.load(tmp_path / "model.sws")
    assert torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"])
    assert ss.inspect(tmp_path / "model.sws").file_bytes < 4 * model.num_parameters() / 8
    fresh = LlamaForCausalLM(tied)
    ss.load_into_(fresh, tmp_path / "model.sws")
    found = fresh.eval()(input_ids=words()).logits[:, :-1].argmax(-1)
    assert float((found != words()[:, 1:]).float().mean()) < 0.1


def test_a_classifier_with_its_encoder_frozen_in_bfloat16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=WORDS, **sizes))
    model.bert.requires_grad_(False)
    before = {name: t.clone() for name, t in model.bert.state_dict().items()}
    train = Items(input_ids=words(), labels=words()[:, 0].contiguous())
    callback = make_callback(tmp_path / "model.sws", config())
    make_trainer(model, tmp_path, callback, train=train, num_train_epochs=2, bf16=True).train()
    state = ss.load(tmp_path / "model.sws")
    for name, tensor in before.items():
        assert torch.equal(state[f"bert.{name}"], tensor)
    assert len(state["classifier.weight"].unique()) <= 5


class Failing(Watched):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        if len(self.n_values[True]) == 2:
            raise RuntimeError("the data are gone")
        return super().forward(x, labels)


def test_a_new_run_after_an_error_starts_from_the_weights_behind(tmp_path: Path) -> None:
    model = Failing()
    callback = make_callback(tmp_path / "model.sws", config(hard_from=0.0))
    trainer = make_trainer(model, tmp_path, callback)
    with pytest.raises(RuntimeError, match="the data are gone"):
        trainer.train()
    assert not (tmp_path / "model.sws").exists()
    model.n_values[True].clear()
    trainer.args.max_steps = 1
    trainer.train()
    assert callback.compressed
    after, before = callback.compressed.retrained["first.weight"], make_net().first.weight.detach()
    assert float((after - before).abs().max()) < 4 * RATE  # three steps away


def test_unsupported_options_are_refused_before_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.training_args import ParallelMode

    best: dict[str, Any] = {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    trainer = make_trainer(make_net(), tmp_path, SoftShareCallback(tmp_path / "model.sws"), **best)
    with pytest.raises(ConfigError, match="load_best_model"):
        trainer.train()
    trainer = make_trainer(make_net(), tmp_path, SoftShareCallback(tmp_path / "model.sws"))
    monkeypatch.setattr(TrainingArguments, "parallel_mode", ParallelMode.NOT_DISTRIBUTED)
    with pytest.raises(ConfigError, match=r"expected one device for each process, .* got not_distributed"):
        trainer.train()


class Scaled(InOrder):
    """With the gradient scaler that Accelerate has for fp16 on a GPU."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"


@pytest.mark.parametrize("clipped", [0.0, 1e-4])
def test_what_is_added_is_not_scaled(clipped: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are the gradients of the task, when the optimizer's step begins."""
    monkeypatch.setattr(sys.modules[__name__], "InOrder", Scaled)
    callback = make_callback(tmp_path / "model.sws", config(tau=0.5, tau_warmup=0.0, hard_from=1.0))
    looking = Looking(callback)
    make_trainer(make_net(), tmp_path, looking, callback, max_steps=6, max_grad_norm=clipped).train()
    AcceleratorState._reset_state(reset_partial_state=True)
    assert looking.n_seen == 6


class Looking(TrainerCallback):  # type: ignore[misc]
    """Compares the sum of both gradients, after the optimizer's step, with those of the task and of the prior."""

    def __init__(self, callback: SoftShareCallback) -> None:
        self.callback, self.n_seen = callback, 0
        self.expected: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        others["optimizer"].optimizer.register_step_pre_hook(self.look)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        x, labels = data()
        rows = slice(BATCH * state.global_step, BATCH * (state.global_step + 1))
        assert self.callback.prior
        weights = self.callback.prior.view.tensors
        own = torch.autograd.grad(others["model"](x[rows], labels[rows])["loss"], weights)
        size = float(torch.stack([g.norm() for g in own]).norm())
        share = min(1.0, args.max_grad_norm / size) if args.max_grad_norm else 1.0
        expected = prior_gradients(self.callback.prior, tau=0.5)
        self.expected = [share * task.double() + added for task, added in zip(own, expected, strict=True)]

    def look(self, *_: Any) -> None:
        assert self.callback.prior
        for w, expected in zip(self.callback.prior.view.tensors, self.expected, strict=True):
            assert w.grad is not None
            torch.testing.assert_close(w.grad.double(), expected, atol=1e-5, rtol=2e-2)
        self.n_seen += 1


def test_without_transformers() -> None:
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from softshare.errors import NotAvailableError\n"
        "try: import softshare.integrations.huggingface\n"
        "except NotAvailableError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == ("the Trainer's callback needs transformers and accelerate: pip install 'softshare[huggingface]'\n")


def sentences(n: int, seed: int) -> Items:
    """Whether the values of the words of a sentence add up to more than 0, with some noise."""
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    found = torch.randint(100, (n, 8), generator=g)
    return Items(input_ids=found, labels=(values[found].sum(1) + torch.randn(n, generator=g) > 0).long())


@torch.no_grad()
def share_wrong(model: nn.Module, items: Items) -> float:
    model.eval()
    logits = model(input_ids=items.columns["input_ids"]).logits
    return 100 * float((logits.argmax(1) != items.columns["labels"]).float().mean())


def test_a_transformer_ends_as_it_began_or_the_callback_warns(tmp_path: Path) -> None:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    made = BertConfig(vocab_size=100, max_position_embeddings=8, **size)
    trained, others = BertForSequenceClassification(made), sentences(2000, seed=2)
    options: dict[str, Any] = {"learning_rate": 2e-3, "lr_scheduler_type": "cosine", "train": sentences(2400, seed=1)}
    make_trainer(trained, tmp_path, num_train_epochs=6, **options).train()
    before = share_wrong(trained, others)
    for gentleness, is_kept in ((None, True), (0.0, False)):
        model = BertForSequenceClassification(made)
        model.load_state_dict(trained.state_dict())
        callback = SoftShareCallback(tmp_path / "model.sws", gentleness=gentleness)
        trainer = make_trainer(model, tmp_path, callback, num_train_epochs=3, eval_strategy="epoch", **options)
        trainer.eval_dataset = others
        trainer.evaluate()
        with pytest.warns(UserWarning, match="the run has 225 steps") as caught:
            trainer.train()
        worse = [w for w in caught if "seems worse than before: validation loss" in str(w.message)]
        assert callback.compressed
        assert any(text.startswith("training loss") for text in callback.compressed.messages)
        assert (not worse) == is_kept
        assert (share_wrong(model, others) < before + 2) == is_kept
        assert (tmp_path / "model.sws").stat().st_size < 4 * model.num_parameters() / 3
