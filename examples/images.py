"""Classify PNG files, one folder per class, with a small convolutional network with batch norm: which shape is it?

The images are drawn on first use. To use your own, point FOLDER to a folder that holds one folder of images per class.
They are resized to SIZE by SIZE pixels. This example needs pillow, which comes with matplotlib.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss

FOLDER = Path(__file__).parent / "data" / "shapes"
SIZE = 24
SHAPES = {"triangle": 3, "square": 4, "hexagon": 6, "star": 10, "cross": 12, "disc": 24}  # name -> corners
Batch = tuple[Tensor, Tensor]  # (batch, 1, SIZE, SIZE), (batch,)


def make_task(n: int = 4_000, epochs: int = 12) -> ss.Task:
    """The task; `n` images are drawn if there are none yet. 70% of them train, 15% validate, 15% test."""
    if not FOLDER.exists():
        draw_folder(FOLDER, n)
    x, y, classes = read_folder(FOLDER)
    first, second = int(0.7 * len(x)), int(0.85 * len(x))

    torch.manual_seed(0)
    model = make_model(len(classes))
    # If the images do not fit into memory, use a Dataset that opens one file at a time, and workers in the DataLoader.
    train = DataLoader(TensorDataset(x[:first], y[:first]), batch_size=64, shuffle=True)
    train_(model, train, epochs)  # or load the weights of your trained network
    return ss.Task(
        model=model,
        train=train,
        loss=loss,
        evaluate=lambda model: error(model, x[first:second], y[first:second]),  # used during training
        test=lambda model: error(model, x[second:], y[second:]),  # used once, for the result
        n_examples=first,
        dataset=FOLDER.name,
    )


def make_model(n_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(64 * (SIZE // 8) ** 2, 128), nn.ReLU(), nn.Linear(128, n_classes)
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean loss over the batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The error in percent."""
    return 100 * int((model(x).argmax(1) != y).sum()) / len(y)


def train_(model: nn.Module, train: DataLoader[tuple[Tensor, ...]], epochs: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(epochs):
        for x, y in train:
            optimizer.zero_grad()
            loss(model, (x, y)).backward()
            optimizer.step()


def read_folder(folder: Path) -> tuple[Tensor, Tensor, list[str]]:
    """Images from -1 to 1 and their labels, shuffled with a fixed seed, and the name of each label's class."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [(path, label) for label, name in enumerate(classes) for path in sorted((folder / name).glob("*.png"))]
    random.Random(0).shuffle(files)
    images = [np.asarray(Image.open(path).convert("L").resize((SIZE, SIZE))) for path, _ in files]
    x = torch.from_numpy(np.stack(images))[:, None].float() / 127.5 - 1
    return x, torch.tensor([label for _, label in files]), classes


def draw_folder(folder: Path, n: int) -> None:
    """Draw bright shapes of any size, place and angle on a darker ground, with a line across and noise over all."""
    rng, noise, unfinished = random.Random(1), np.random.default_rng(1), folder.with_name(".unfinished")
    for k in range(n):
        name = list(SHAPES)[k % len(SHAPES)]
        image = Image.new("L", (SIZE, SIZE), rng.randrange(100))
        draw = ImageDraw.Draw(image)
        draw.polygon(_corners(name, rng), fill=rng.randrange(150, 256))
        draw.line([rng.uniform(0, SIZE) for _ in range(4)], fill=rng.randrange(256))
        pixels = np.asarray(image) + noise.normal(0, 10, (SIZE, SIZE))
        path = unfinished / name / f"{k:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    unfinished.rename(folder)


def _corners(name: str, rng: random.Random) -> list[tuple[float, float]]:
    corners, radius, turn = SHAPES[name], rng.uniform(6, 11), rng.uniform(0, math.tau)
    x, y = (rng.uniform(radius, SIZE - radius) for _ in range(2))
    radii = {"star": [radius, 0.45 * radius], "cross": [radius, radius, 0.45 * radius]}.get(name, [radius])
    return [
        (
            x + radii[k % len(radii)] * math.cos(turn + math.tau * k / corners),
            y + radii[k % len(radii)] * math.sin(turn + math.tau * k / corners),
        )
        for k in range(corners)
    ]
