"""Training under the prior: soft, then hard steps, zeroing of weights, distillation, and hooks to watch it."""
