"""The default codec: an adaptive binary range coder with a model of where the non-zeros are (docs/format.md 8)."""

from softshare.codec.adaptive.tensor import decode_tensor, encode_tensor

__all__ = ["decode_tensor", "encode_tensor"]
