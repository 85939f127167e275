"""From quantized weights to the bytes of a `.sws` file, and back."""

from softshare.codec.budget import MAX_BYTES
from softshare.codec.container import check, decode, encode, inspect, load, load_into_, save
from softshare.codec.info import FileInfo, TensorInfo

__all__ = ["MAX_BYTES", "FileInfo", "TensorInfo", "check", "decode", "encode", "inspect", "load", "load_into_", "save"]
