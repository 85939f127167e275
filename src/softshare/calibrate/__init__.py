"""Quantize a network with a little data: inputs of its layers, no labels, and no training."""
