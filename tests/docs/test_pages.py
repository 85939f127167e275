"""The README and docs/ show only what works: Python runs as printed and keeps its networks, what is named exists."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import softshare
from paths import ROOT
from softshare.cli import app, main
from softshare.codec import inspect
from softshare.integrations.session import Sharing

README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
USERS = [ROOT / "README.md", ROOT / "examples/README.md", *sorted(DOCS.glob("*.md"))]
PAGES = [*USERS, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]  # which call other programs, too
PROGRAM = typer.main.get_command(app)
COMMANDS = PROGRAM.commands  # type: ignore[attr-defined]
FILES = {  # what the Python of a page leaves behind
    ROOT / "README.md": ["model.sws"],
    DOCS / "checkpoints.md": ["fitted.sws", "delta.sws", "small-encoder/model.sws", "cnn.sws"],
    DOCS / "integrations.md": ["lightning.sws", "bert.sws", "small-bert/model.sws"],
    DOCS / "own-network.md": ["model.sws", "small.sws", "head.sws", "own_loop.sws"],
    DOCS / "tuning.md": [],
    DOCS / "which-way.md": ["model.sws", "quantized.sws", "lightning.sws", "bert.sws", "own_loop.sws"],
}
OF_CALLBACKS = ("lightning.sws", "bert.sws")
SHORT = softshare.CompressConfig().override(steps=600)  # where a page has the defaults, to be quick
GOES_ON = {DOCS / "tuning.md": DOCS / "own-network.md"}  # its blocks use the task and the config of that page


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_every_page_with_python_is_run() -> None:
    assert {page for page in PAGES if blocks("python", page.read_text())} == set(FILES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:the run has .* steps")
@pytest.mark.filterwarnings("ignore:.*noload.*")  # MLflow asks SQLAlchemy for something old
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*'pin_memory' argument is set as true but no accelerator.*")
@pytest.mark.filterwarnings("ignore:.*number of training batches.*is smaller than the logging interval.*")
@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in FILES])
def test_python_runs_in_order_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each network that it compresses is trained, and as good in the end as it was, or as its target asks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    made: list[softshare.Compressed] = []

    def noting(*args: Any, **kwargs: Any) -> softshare.Compressed:
        if isinstance(args[0], nn.Module) or len(args) == 1:
            kwargs.setdefault("config", SHORT)
        made.append(compress(*args, **kwargs))
        return made[-1]

    compress = softshare.compress
    monkeypatch.setattr(softshare, "compress", noting)
    called_back: list[softshare.Compressed] = []

    def finishing(*args: Any) -> softshare.Compressed:
        called_back.append(finish(*args))
        return called_back[-1]

    finish = Sharing.finish_
    monkeypatch.setattr(Sharing, "finish_", finishing)
    before = blocks("python", GOES_ON[page].read_text())[:2] if page in GOES_ON else []
    namespace: dict[str, Any] = {"__name__": "page"}
    if page.name in ("README.md", "which-way.md"):
        namespace |= trained_network()
    if page.name == "which-way.md":
        namespace |= trainers_things(namespace["model"], tmp_path)
    for block in [*before, *blocks("python", page.read_text())]:
        exec(compile(block, name(page), "exec"), namespace)
    for file in FILES[page]:
        assert inspect(tmp_path / file).file_bytes == (tmp_path / file).stat().st_size
    for outcome in (compressed.outcome for compressed in made):
        assert outcome is not None
        assert outcome.before < 20  # it is trained
        assert outcome.met
        assert outcome.kept or not isinstance(outcome.target, softshare.WithinNoise)
    assert len(called_back) == len({*FILES[page]} & {*OF_CALLBACKS})
    for compressed in called_back:
        judge_callback(compressed, validated=page.name == "integrations.md")
    if page.name == "own-network.md":
        task, fresh = namespace["task"], namespace["fresh"]
        allowed = task.judge(task.model) + task.noise(task.model)
        for file in ("model.sws", "own_loop.sws"):
            softshare.load_into_(fresh, tmp_path / file)
            assert task.judge(fresh) <= allowed, file


def judge_callback(compressed: softshare.Compressed, validated: bool) -> None:
    """As good as it began: by its validation within the noise, which must be known, or else by its training loss.

    The chance in a training loss is not known: it may rise by 5%, or by a hundredth of a nat.
    """
    result, outcome = compressed.record.result, compressed.outcome
    assert (outcome is not None) == validated
    if outcome is None:
        most = max(1.05 * result.error_before, result.error_before + 0.01)
        assert result.error_after <= most, compressed.messages
    else:
        assert not outcome.guessed
        assert outcome.kept, str(outcome)


def trained_network() -> dict[str, Any]:
    """What the reader of the README has: a trained network, its loaders and its loss function."""
    torch.manual_seed(0)
    x = torch.randn(4096, 16)
    data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
    model, loss_fn = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)), nn.CrossEntropyLoss()
    train, held_out = torch.utils.data.random_split(data, [3072, 1024])
    loaders: list[DataLoader[Any]] = [DataLoader(train, 64, shuffle=True), DataLoader(held_out, 64)]
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for inputs, labels in [batch for _ in range(10) for batch in loaders[0]]:
        optimizer.zero_grad()
        loss_fn(model(inputs), labels).backward()
        optimizer.step()
    return {"model": model, "train_loader": loaders[0], "val_loader": loaders[1], "loss_fn": loss_fn}


def trainers_things(network: nn.Module, folder: Path) -> dict[str, Any]:
    """What the readers have who use Lightning or a `Trainer`."""
    import pytorch_lightning as pl
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = copy.deepcopy(network)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    words, values = torch.randint(100, (4000, 8)), torch.randn(100)
    labels = (values[words].sum(1) > 0).long()
    examples = [{"input_ids": row, "labels": label} for row, label in zip(words, labels, strict=True)]
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=8, **size))
    arguments = TrainingArguments(
        str(folder / "bert"),
        num_train_epochs=4,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=32,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(bert, arguments, train_dataset=examples).train()
    return {"module": Module(), "bert": bert, "arguments": arguments, "examples": examples}


def test_the_task_of_a_page_goes_through_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [b for b in blocks("python", (DOCS / "own-network.md").read_text()) if "def make_task" in b]
    (tmp_path / "my_task.py").write_text(block)
    assert (
        main(["compress", "my_task.py:make_task", "--out", "runs/mine", "--steps", "50", "--no-limit"]) == 4
    )  # far too few
    assert main(["evaluate", "runs/mine", "--trust"]) == 0


@pytest.mark.parametrize("page", USERS, ids=name)
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text()
    lines = "\n".join(blocks("sh", text)).replace(" && ", "\n")
    for line in re.findall(r"^(?:torchrun .*-m )?softshare ([a-z].*)", lines, re.MULTILINE):
        command, *arguments = shlex.split(line, comments=True)
        if ">" in arguments:
            arguments = arguments[: arguments.index(">")]
        COMMANDS[command].make_context(command, arguments)  # raises on an unknown option or a missing argument
    assert set(re.findall(r"`softshare ([a-z]\w*)", text)) <= set(COMMANDS)
    known = {o for c in (PROGRAM, *COMMANDS.values()) for p in c.params for o in (*p.opts, *p.secondary_opts)}
    shown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    assert shown <= known | {"--help", "--nproc-per-node", "--max-restarts"}  # the last two are of torchrun


def test_the_tour_shows_every_command() -> None:
    shown = "\n".join(blocks("sh", (DOCS / "get-started.md").read_text()))
    assert set(re.findall(r"^softshare ([a-z]\w*)", shown, re.MULTILINE)) == set(COMMANDS)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = page.read_text()
        shown = re.findall(r"^make ([a-z]+)", "\n".join(blocks("sh", text)), re.MULTILINE)
        for target in {*shown, *re.findall(r"`make ([a-z]+)", text)}:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (name(page), target)


def test_the_readme_is_one_screen() -> None:
    assert len(README.splitlines()) <= 120
    table = README.split("<!-- results -->")[1].split("<!-- /results -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert 1 <= len(rows) <= 6
    (python,) = blocks("python", README)
    assert len(python.splitlines()) <= 8
    assert len(re.findall(r"!\[", README)) == 1


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """In the repository. `make docs` checks those of the site."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text()), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """As GitHub makes them from headings."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_api_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: softshare\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(softshare.__all__)
