"""Classify sentences of any length with an embedding and an LSTM: is the review good or bad?

The corpus is a text file of lines 'label, tab, words', written on first use. To use your own, point CORPUS to it.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss

CORPUS = Path(__file__).parent / "data" / "reviews.tsv"
PAD, UNKNOWN = 0, 1  # word numbers
Batch = tuple[Tensor, Tensor]  # (batch, longest), (batch,)


class Reader(nn.Module):
    """Reads the words from left to right and classifies by its state after the last one."""

    def __init__(self, n_words: int, n_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, 32, padding_idx=PAD)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, n_classes)

    def forward(self, words: Tensor) -> Tensor:
        last = (words != PAD).sum(1) - 1
        states, _ = self.lstm(self.embedding(words))
        out: Tensor = self.head(states[torch.arange(len(words)), last])
        return out


def make_task(n: int = 8_000, epochs: int = 10) -> ss.Task:
    """The task; `n` reviews are written if there is no file yet. 70% of them train, 15% validate, 15% test."""
    if not CORPUS.exists():
        write_corpus(CORPUS, n)
    lines = [line.split("\t") for line in CORPUS.read_text().splitlines()]
    random.Random(0).shuffle(lines)
    first, second = int(0.7 * len(lines)), int(0.85 * len(lines))
    counts = Counter(word for _, text in lines[:first] for word in text.split())
    numbers = {word: k for k, (word, count) in enumerate(counts.most_common(), UNKNOWN + 1) if count > 1}
    labels = sorted({label for label, _ in lines})
    texts = [torch.tensor([numbers.get(word, UNKNOWN) for word in text.split()]) for _, text in lines]
    x = pad_sequence(texts, batch_first=True, padding_value=PAD)
    y = torch.tensor([labels.index(label) for label, _ in lines])

    torch.manual_seed(0)
    model = Reader(len(numbers) + 2, len(labels))
    train = DataLoader(TensorDataset(x[:first], y[:first]), batch_size=64, shuffle=True)
    train_(model, train, epochs)  # or load the weights of your trained network
    return ss.Task(
        model=model,
        train=train,
        loss=loss,
        evaluate=lambda model: error(model, x[first:second], y[first:second]),  # used during training
        test=lambda model: error(model, x[second:], y[second:]),  # used once, for the result
        n_examples=first,
        dataset=CORPUS.stem,
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean loss over the batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The error in percent."""
    return 100 * int((model(x).argmax(1) != y).sum()) / len(y)


def train_(model: nn.Module, train: DataLoader[tuple[Tensor, ...]], epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for x, y in train:
            optimizer.zero_grad()
            loss(model, (x, y)).backward()
            optimizer.step()


GOOD = ["good", "great", "fine", "lovely", "superb", "friendly", "fresh", "warm", "tasty", "quick", "charming"]
BAD = ["bad", "awful", "poor", "dreadful", "stale", "rude", "cold", "bland", "slow", "gloomy", "filthy"]
THINGS = ["food", "service", "room", "view", "staff", "soup", "coffee", "music", "garden", "bread", "price", "kitchen"]
OPENINGS = ["", "we came on a rainy evening .", "my friends had told me of it .", "it was our third visit ."]
DEGREES = {"": 2, "quite": 1, "really": 3}


def write_corpus(path: Path, n: int) -> None:
    """Write made-up reviews. Order matters: 'not' negates a word, and words after 'but' count twice."""
    rng = random.Random(1)
    lines: list[str] = []
    while len(lines) < n:
        score, words = 0, rng.choice(OPENINGS).split()
        for k in range(rng.randint(1, 3)):
            link = rng.choice(["and", "but", "."]) if k else ""
            degree, negated, good = rng.choice(list(DEGREES)), rng.random() < 0.3, rng.random() < 0.5
            score += (2 if link == "but" else 1) * DEGREES[degree] * (1 if good != negated else -1)
            was = ["was", "not"] if negated else ["was"]
            words += [link, "the", rng.choice(THINGS), *was, degree, rng.choice(GOOD if good else BAD)]
        if score:
            seen_so = score + rng.gauss(0, 0.6) > 0  # readers disagree on close ones
            lines.append(f"{'good' if seen_so else 'bad'}\t{' '.join(word for word in words if word)}\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))
