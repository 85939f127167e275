from __future__ import annotations

from softshare._util.printable import printable, shorten


def test_printable_escapes_what_a_terminal_obeys() -> None:
    assert printable("conv1.weight é 重") == "conv1.weight é 重"
    assert printable("a\x1b[31m\x9b\u202eb\r\n\x7f") == "a\\x1b[31m\\x9b\\u202eb\\r\\n\\x7f"
    assert printable("a\n\x07", keep="\n") == "a\n\\x07"
    assert printable("\ud800") == "\\ud800"


def test_shorten_keeps_the_end() -> None:
    assert shorten("layer.0.weight", 20) == "layer.0.weight"
    assert shorten("a" * 50 + ".weight", 10) == "…aa.weight"
