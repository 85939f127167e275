"""Compress a checkpoint without data: mixtures are fitted to its weights, and nothing is trained."""
