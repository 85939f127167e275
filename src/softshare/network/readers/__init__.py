"""Readers of checkpoints: one file for each format. Every tensor is read when it is asked for."""
