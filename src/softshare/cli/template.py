"""A task for softshare: your network, its data, and how it is trained and judged.

It runs as it stands, on made-up data:

    softshare compress my_task.py:make_task && softshare report runs/my_task

Replace what is marked YOURS, part by part. More examples, of images, tables, text and Hugging Face models, are in the
folder examples/ of the project.
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
    """YOURS: any torch Dataset. Here: on which side of a saddle is a point? Some of its coordinates say nothing."""
    x = torch.randn(8_000, 8)
    y = (x[:, 0] * x[:, 1] + x[:, 2] + 0.3 * torch.randn(len(x)) > 0).long()
    return TensorDataset(x, y)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """YOURS: the loss of a batch, as your DataLoader gives it: the mean over the examples, a tensor without dimensions.

    The model is in training mode.
    """
    x, y = batch
    return F.cross_entropy(model(x), y)


def error(model: nn.Module, batches: DataLoader[tuple[Tensor, ...]]) -> float:
    """YOURS: a figure to judge the network by, less is better; percent of wrong answers, by habit.

    The model is in evaluation mode and no gradients are kept.
    """
    wrong = torch.cat([model(x).argmax(1) != y for x, y in batches])
    return 100 * int(wrong.sum()) / len(wrong)


def make_task() -> ss.Task:
    """What `softshare compress my_task.py:make_task` calls."""
    torch.manual_seed(0)
    train_set, validation_set, test_set = torch.utils.data.random_split(make_data(), [4_000, 2_000, 2_000])
    train = DataLoader(train_set, batch_size=64, shuffle=True)
    validation, test = DataLoader(validation_set, batch_size=1_000), DataLoader(test_set, batch_size=1_000)

    # YOURS: a network that is trained already. With weights in a file, for example
    #     model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
    # in place of the training below, or leave it untrained here and give the file by --weights.
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        for batch in train:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    # On a GPU: model.to("cuda"), and the same for the batches inside `loss` and `error`.
    return ss.Task(
        model=model,
        train=train,  # batches of any kind, gone through once an epoch: a DataLoader or a list, not a generator
        loss=loss,
        evaluate=lambda model: error(model, validation),  # after every epoch: on data that nothing is trained on
        test=lambda model: error(model, test),  # for the result alone; leave it out if you have no third part
        n_examples=len(train_set),  # that an epoch goes through; of words or pixels, if your loss is the mean of those
        dataset="made-up points",  # for the tables
    )
