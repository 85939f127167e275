"""Several processes that train one network: their group, and the part of each tensor that a process holds."""
