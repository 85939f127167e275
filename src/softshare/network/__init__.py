"""The network: which tensors are shared, how units are connected, batch norm, and checkpoints."""
