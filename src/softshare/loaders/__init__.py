"""A Task from what people have: DataLoaders, a loss function and a metric."""

from softshare.loaders.make import task_from_loaders as task_from_loaders
