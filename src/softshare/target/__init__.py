"""Targets: which limits a file can have, the searches that meet them, how a network is trimmed to fit."""
