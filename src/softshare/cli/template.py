"""A task for softshare: your network, its data, and how to train and judge it.

This file runs unchanged, on made-up data:

    softshare compress my_task.py:make_task && softshare report runs/my_task

Replace the parts marked YOURS, one by one. The folder examples/ of the project has more tasks: images, a table, text
and a Hugging Face model.
"""

import torch
from torch import nn
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


# YOURS: the mean loss over a batch, from the output of the network and the target of the batch.
LOSS = nn.CrossEntropyLoss()

# YOURS: what judges the network. Other names: accuracy, mse, mae, loss, perplexity. A metric of torchmetrics, or a
# function of all outputs and all targets, works too.
METRIC = "error"


def make_task() -> ss.Task:
    """`softshare compress my_task.py:make_task` calls this function."""
    torch.manual_seed(0)
    train_set, validation_set, test_set = torch.utils.data.random_split(make_data(), [4_000, 2_000, 2_000])
    train = DataLoader(train_set, batch_size=64, shuffle=True)
    validation, test = DataLoader(validation_set, batch_size=1_000), DataLoader(test_set, batch_size=1_000)

    # YOURS: a trained network. If you have its weights in a file, replace the training below by
    #     model.load_state_dict(torch.load("model.pt", weights_only=True))
    # or remove the training and give the file with --weights, which reads safetensors too. To use a GPU, give
    # --device cuda: batches follow.
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        for x, y in train:
            optimizer.zero_grad()
            LOSS(model(x), y).backward()
            optimizer.step()

    # If your batches or your loss have another form, write your own functions:
    #     ss.Task(model=model, train=train, loss=my_loss, evaluate=my_accuracy,
    #             metric=ss.Metric("accuracy", "%", higher_is_better=True))
    # where my_loss(model, batch) is the mean loss, and my_accuracy(model) a number from held-out data.
    return ss.Task.from_loaders(
        model,
        train,
        validation,  # read during training, so use held-out data
        LOSS,
        METRIC,
        test_loader=test,  # read only for the result; optional
        dataset="made-up points",  # for the tables
    )
