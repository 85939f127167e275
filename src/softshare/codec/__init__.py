"""From quantized weights to the bytes of a `.sws` file, and back."""

from softshare.codec.container import MAX_BYTES, check, decode, encode, inspect, load, load_into_, save
from softshare.codec.info import FileInfo, TensorInfo

__all__ = ["MAX_BYTES", "FileInfo", "TensorInfo", "check", "decode", "encode", "inspect", "load", "load_into_", "save"]
