"""Training under the prior: soft steps, then hard steps, zeroing of weights, distillation, and hooks to watch it."""
