"""Classify the rows of a table with numbers, categories and gaps, by a multilayer perceptron: which parcels are late?

The table is a CSV file, written on first use. To use your own, point CSV and TARGET to it. A column is numeric if every
cell is a number or empty; otherwise it is a category.
"""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss

CSV = Path(__file__).parent / "data" / "parcels.csv"
TARGET = "late"
Batch = tuple[Tensor, Tensor]  # (batch, inputs), (batch,)


def make_task(n: int = 10_000, epochs: int = 15) -> ss.Task:
    """The task; `n` rows are written if there is no file yet. 70% of them train, 15% validate, 15% test."""
    if not CSV.exists():
        write_table(CSV, n)
    with CSV.open(newline="") as file:
        rows = list(csv.DictReader(file))
    random.Random(0).shuffle(rows)
    first, second = int(0.7 * len(rows)), int(0.85 * len(rows))
    columns = read_columns(rows[:first])  # scales and categories are those of the training rows
    labels = sorted({row[TARGET] for row in rows})
    x = torch.tensor([[value for column in columns for value in column(row)] for row in rows])
    y = torch.tensor([labels.index(row[TARGET]) for row in rows])

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, len(labels))
    )
    train = DataLoader(TensorDataset(x[:first], y[:first]), batch_size=64, shuffle=True)
    train_(model, train, epochs)  # or load the weights of your trained network
    return ss.Task(
        model=model,
        train=train,
        loss=loss,
        evaluate=lambda model: error(model, x[first:second], y[first:second]),  # used during training
        test=lambda model: error(model, x[second:], y[second:]),  # used once, for the result
        n_examples=first,
        dataset=CSV.stem,
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean loss over the batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The error in percent."""
    return 100 * int((model(x).argmax(1) != y).sum()) / len(y)


def train_(model: nn.Module, train: DataLoader[tuple[Tensor, ...]], epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for x, y in train:
            optimizer.zero_grad()
            loss(model, (x, y)).backward()
            optimizer.step()


class Column:
    """How the cells of one column become inputs."""

    def __init__(self, name: str, cells: list[str]) -> None:
        self.name = name
        try:
            numbers = [float(cell) for cell in cells if cell]
        except ValueError:
            self.categories = sorted(set(cells))
        else:
            self.categories = []
            self.mean = sum(numbers) / len(numbers)
            self.std = math.sqrt(sum((v - self.mean) ** 2 for v in numbers) / len(numbers)) or 1.0

    def __call__(self, row: dict[str, str]) -> list[float]:
        cell = row[self.name]
        if self.categories:
            return [float(cell == category) for category in self.categories]
        return [(float(cell) - self.mean) / self.std, 0.0] if cell else [0.0, 1.0]  # the second says that it is missing


def read_columns(rows: list[dict[str, str]]) -> list[Column]:
    return [Column(name, [row[name] for row in rows]) for name in rows[0] if name != TARGET]


def write_table(path: Path, n: int) -> None:
    """Write made-up parcels. One is late if the way, the handling and some luck take longer than promised."""
    rng = random.Random(1)
    speeds = {"bike": 14.0, "van": 38.0, "truck": 55.0}
    delays = {"dry": 1.0, "rain": 1.2, "snow": 1.7}
    weekdays = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    header = ["distance_km", "weight_kg", "hour", "weekday", "weather", "vehicle", "promised_h", TARGET]
    rows: list[list[object]] = []
    for _ in range(n):
        vehicle, weather, weekday = rng.choice(list(speeds)), rng.choice(list(delays)), rng.choice(weekdays)
        distance, weight, hour = rng.lognormvariate(2.5, 0.8), rng.lognormvariate(1, 1), rng.randrange(6, 22)
        rush = 1.6 if hour in (7, 8, 16, 17, 18) and weekday not in ("Sat", "Sun") and vehicle != "bike" else 1.0
        slow = 1.5 if vehicle == "bike" and weight > 8 else 1.0  # more than one can carry
        hours = distance / speeds[vehicle] * delays[weather] * rush * slow + 0.05 * min(weight, 12)
        hours += 0.5 if weekday == "Mon" else 0.0  # the backlog of the weekend
        promised = round(hours * rng.uniform(0.3, 1.9), 1)
        late = hours * rng.lognormvariate(0, 0.05) > promised
        weighed = "" if rng.random() < 0.05 else f"{weight:.2f}"
        rows.append([f"{distance:.1f}", weighed, hour, weekday, weather, vehicle, promised, "yes" if late else "no"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
