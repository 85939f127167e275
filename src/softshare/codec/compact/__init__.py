"""A small network in one range code: the header, then all tensors (docs/format.md 15)."""

from softshare.codec.compact.packing import packed
from softshare.codec.compact.unpacking import Compact, opened

__all__ = ["Compact", "opened", "packed"]
