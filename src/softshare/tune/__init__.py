"""A search over settings for small files at low errors, with Optuna (paper, section 6.2)."""
