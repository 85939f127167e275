"""Targets of a run: which limits it can have, how training is steered to them, how the result is trimmed to fit."""
