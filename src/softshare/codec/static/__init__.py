"""The static code of dense tensors: interleaved rANS with a few tables, in chunks (docs/format.md 13)."""
