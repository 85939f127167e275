"""A task for softshare: your network, its data, and how to train and judge it.

This file runs unchanged, on made-up data:

    softshare compress my_task.py:make_task && softshare report runs/my_task

Replace the parts marked YOURS, one by one. The folder examples/ of the project has more tasks: images, a table, text
and a Hugging Face model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import softshare as ss


def make_model() -> nn.Module:
    """YOURS: the network, any nn.Module."""
    return nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))


def make_data() -> TensorDataset:
    """YOURS: any torch Dataset. Here: on which side of a saddle is a point? Some coordinates are noise."""
    x = torch.randn(8_000, 8)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * torch.randn(len(x)) > 0).long()
    return TensorDataset(x, y)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """YOURS: the mean loss over a batch of your DataLoader, as a tensor without dimensions.

    The model is in training mode.
    """
    x, y = batch
    return F.cross_entropy(model(x), y)


def error(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """YOURS: a number that judges the network. Lower is better. Usually it is the percentage of wrong answers.

    The model is in evaluation mode, without gradients.
    """
    wrong = torch.cat([model(x).argmax(1) != y for x, y in batches])
    return 100 * int(wrong.sum()) / len(wrong)


def make_task() -> ss.Task:
    """`softshare compress my_task.py:make_task` calls this function."""
    torch.manual_seed(0)
    train_set, validation_set, test_set = torch.utils.data.random_split(make_data(), [4_000, 2_000, 2_000])
    train = DataLoader(train_set, batch_size=64, shuffle=True)
    validation, test = DataLoader(validation_set, batch_size=1_000), DataLoader(test_set, batch_size=1_000)

    # YOURS: a trained network. If you have its weights in a file, replace the training below by
    #     model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
    # or remove the training and give the file with --weights.
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        for batch in train:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    # On a GPU, call model.to("cuda") here, and move the batches inside `loss` and `error`.
    return ss.Task(
        model=model,
        train=train,  # batches, iterated once per epoch: a DataLoader or a list, not a generator
        loss=loss,
        evaluate=lambda model: error(model, validation),  # called after every epoch, so use held-out data
        test=lambda model: error(model, test),  # called only for the result; optional
        n_examples=len(train_set),  # in one epoch; count words or pixels if your loss is a mean over those
        dataset="made-up points",  # for the tables
    )
