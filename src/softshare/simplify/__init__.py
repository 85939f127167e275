"""Other weights for the same function: units in another order, units without effect removed."""
