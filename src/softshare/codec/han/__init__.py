"""The paper's codec (appendix A): sparse rows with relative indices, Huffman-coded."""

from softshare.codec.han.csr import decode_tensor, encode_tensor

__all__ = ["decode_tensor", "encode_tensor"]
