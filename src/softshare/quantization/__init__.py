"""From weights to indices into codebooks: merge components (4.3), assign weights, count description lengths."""
