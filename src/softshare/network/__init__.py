"""The network: which of its tensors are shared, how its units are connected, and checkpoints of it."""
