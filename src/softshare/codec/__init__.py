"""From quantized weights to the bytes of a `.sws` file, and back."""

from softshare.codec.container import FileInfo, TensorInfo, decode, encode, inspect, load, load_into_, save

__all__ = ["FileInfo", "TensorInfo", "decode", "encode", "inspect", "load", "load_into_", "save"]
