"""Names of tensors and layers where there is little room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from softshare._util.printable import printable, shorten
from softshare.codec.info import TensorInfo

MOST_CHARACTERS = 200  # of a name, which comes from a file
IN_TITLE = 36  # characters of a name in the title of a panel
_GAP = "…"
_LEAST = 8  # characters of a long part that are worth showing


def tensor_names(tensors: Sequence[TensorInfo]) -> list[str]:
    """A tensor without a name has its number."""
    return [t.name or f"tensor {k}" for k, t in enumerate(tensors, 1)]


def short(name: str, most: int) -> str:
    """A name of at most `most` characters that keeps its last part and the numbers of its blocks, if they fit."""
    text = shorten(printable(name), MOST_CHARACTERS)
    parts = text.split(".")
    for k, part in enumerate(parts[:-1]):
        if len(text) <= most:
            break
        if not _is_number(part):
            parts[k] = _GAP
            text = _joined(parts)
            room = most - len(text) - 1
            if room >= _LEAST and len(part) > room:
                parts[k] = _GAP + part[-room:]
                text = _joined(parts)
    if len(text) <= most:
        return text
    head = most // 3
    return text[:head].rstrip(_GAP) + _GAP + text[head + 1 - most :].lstrip(_GAP)


def shortened(names: Sequence[str], most: int) -> list[str]:
    """Different names stay different: those that would be alike have a number behind them."""
    found = [short(name, most) for name in names]
    alike, seen, out = Counter(found), Counter[str](), []
    for name, text in zip(names, found, strict=True):
        seen[text] += 1
        behind = f" ({seen[text]})"
        out.append(text if alike[text] == 1 else short(name, most - len(behind)) + behind)
    return out


def _is_number(part: str) -> bool:
    """Of a block, or of several that are folded, as in `layer.{0-11}.weight`."""
    return part.isdecimal() or part.startswith("{")


def _joined(parts: Sequence[str]) -> str:
    text = ""
    for part in parts:
        if text.endswith(_GAP):
            text += part.removeprefix(_GAP)
        else:
            text += part if not text or part.startswith(_GAP) else f".{part}"
    return text
