"""The paper's networks, data and experiments: Tasks like any other."""
