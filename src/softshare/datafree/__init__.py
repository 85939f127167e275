"""Compression of a checkpoint alone: mixtures fitted to its weights, nothing trained."""
