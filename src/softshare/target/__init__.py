"""Targets of a run: what may be asked for, how training is steered there, how the end is trimmed to it."""
