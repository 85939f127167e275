"""From quantized weights to the bytes of a `.sws` file, and back."""

from softshare.codec.base import Base, BaseSource, open_base
from softshare.codec.budget import MAX_BYTES
from softshare.codec.decoding import decode, kinds, load, load_into_, stream
from softshare.codec.encoding import check, encode, save, write_to
from softshare.codec.info import FileInfo, TensorInfo
from softshare.codec.inspecting import inspect
from softshare.codec.opening import is_sws

__all__ = [
    "MAX_BYTES",
    "Base",
    "BaseSource",
    "FileInfo",
    "TensorInfo",
    "check",
    "decode",
    "encode",
    "inspect",
    "is_sws",
    "kinds",
    "load",
    "load_into_",
    "open_base",
    "save",
    "stream",
    "write_to",
]
