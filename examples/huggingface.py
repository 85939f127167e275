"""A Hugging Face model: a small BERT that finds the persons, places and dates in a sentence.

Nothing is downloaded. The model is made from a config and trained here, on sentences in a text file of lines
'word/TAG word/TAG ...' that is written on first use. This needs transformers: pip install 'softshare[huggingface]'.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForTokenClassification

import softshare as ss

CORPUS = Path(__file__).parent / "data" / "names.txt"
TAGS = ["O", "PERSON", "PLACE", "DATE"]
PAD, UNKNOWN = 0, 1  # word numbers
NO_LABEL = -100  # what transformers leaves out of its loss
Batch = dict[str, Tensor]  # what the model takes by name


def make_task(n: int = 3_000, epochs: int = 10) -> ss.Task:
    """The task; `n` sentences are written if there is no file yet. 70% of them train, 15% validate, 15% test."""
    if not CORPUS.exists():
        write_corpus(CORPUS, n)
    sentences = [[word.rsplit("/", 1) for word in line.split()] for line in CORPUS.read_text().splitlines()]
    random.Random(0).shuffle(sentences)
    first, second = int(0.7 * len(sentences)), int(0.85 * len(sentences))
    counts = Counter(word for sentence in sentences[:first] for word, _ in sentence)
    numbers = {word: k for k, (word, count) in enumerate(counts.most_common(), UNKNOWN + 1) if count > 1}
    examples = [
        (torch.tensor([numbers.get(word, UNKNOWN) for word, _ in s]), torch.tensor([TAGS.index(tag) for _, tag in s]))
        for s in sentences
    ]
    train: DataLoader[Any] = DataLoader(
        examples[:first],  # type: ignore[arg-type]
        batch_size=32,
        shuffle=True,
        collate_fn=collate,
    )
    validation, test = collate(examples[first:second]), collate(examples[second:])

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(numbers) + 2,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=len(TAGS),
    )
    model = BertForTokenClassification(config)  # or BertForTokenClassification.from_pretrained(FOLDER), trained
    train_(model, train, epochs)
    return ss.Task(
        model=model,
        train=train,
        loss=loss,
        evaluate=lambda model: error(model, validation),  # used during training
        test=lambda model: error(model, test),  # used once, for the result
        n_examples=sum(len(labels) for _, labels in examples[:first]),  # words, because the loss is a mean over them
        dataset=CORPUS.stem,
        outputs=lambda model, batch: model(**batch).logits.flatten(0, 1),
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean loss over the words of the batch. The model computes it, because the batch has labels."""
    value: Tensor = model(**batch).loss
    return value


def error(model: nn.Module, batch: Batch) -> float:
    """The share of wrong words, in percent."""
    labels = batch["labels"]
    wrong = (model(**batch).logits.argmax(-1) != labels)[labels != NO_LABEL]
    return 100 * int(wrong.sum()) / len(wrong)


def collate(examples: list[tuple[Tensor, Tensor]]) -> Batch:
    words, labels = (list(part) for part in zip(*examples, strict=True))
    input_ids = pad_sequence(words, batch_first=True, padding_value=PAD)
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != PAD).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL),
    }


def train_(model: nn.Module, train: DataLoader[Any], epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(epochs):
        for batch in train:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()


# A word may have several meanings: June is a person or a month, and Jordan a person or a country.
AMBIGUOUS = {
    "PERSON": ["April", "May", "June", "August", "Jordan", "Chelsea", "Sydney", "Florence"],
    "PLACE": ["Jordan", "Chelsea", "Sydney", "Florence"],
    "DATE": ["April", "May", "June", "August"],
}
DATES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "winter", "summer", "autumn", "spring"]
SENTENCES = [
    "PERSON met PERSON in PLACE on DATE",
    "in DATE PERSON moved from PLACE to PLACE",
    "PERSON and PERSON left PLACE before DATE",
    "the road from PLACE to PLACE was closed in DATE",
    "PERSON was born in PLACE",
    "PERSON told PERSON that PLACE was too hot in DATE",
    "it rained in PLACE until DATE said PERSON",
    "who knows PERSON of PLACE ?",
    "since DATE nobody has seen PERSON",
    "PERSON likes PLACE more than PERSON does",
    "PLACE is lovely in DATE",
    "PERSON has changed a lot",
    "PLACE has changed a lot",
    "a letter from PERSON came in DATE from PLACE",
]


def write_corpus(path: Path, n: int) -> None:
    """Write sentences of a few kinds with made-up names. The other words, or the name itself, give the tag away."""
    rng = random.Random(1)
    names = {
        "PERSON": _names(rng, ["a", "o", "ek", "in"]),
        "PLACE": _names(rng, ["ville", "ford", "ia", "ton"]),
        "DATE": DATES,
    }
    lines = []
    for _ in range(n):
        words = []
        for word in rng.choice(SENTENCES).split():
            if word in names:
                words.append(f"{rng.choice(AMBIGUOUS[word] if rng.random() < 0.5 else names[word])}/{word}")
            else:
                words.append(f"{word}/O")
        lines.append(" ".join(words) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def _names(rng: random.Random, ends: list[str]) -> list[str]:
    return [a + b + c + rng.choice(ends) for a in "BDFGHKLMNPRSTVW" for b in "aeiou" for c in "lmnrst"]
