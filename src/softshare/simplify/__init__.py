"""Other weights of the same function: units reordered, units without effect removed."""
