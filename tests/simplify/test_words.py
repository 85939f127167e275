from __future__ import annotations

from softshare.network.chains import Link
from softshare.simplify.words import done, left_alone

CHAIN = [Link(str(2 * k), str(2 * k + 2), 24, True, ()) for k in range(12)]


def test_what_became_of_units_is_one_line() -> None:
    one = CHAIN[:1]
    assert done(one, {"0": 2}, ["0"], 5) == (
        "between 0 and 2: 2 of 24 units did nothing and were removed, and the rest were sorted; this saves 5 bytes"
    )
    assert done(one, {"0": 1}, [], 1) == "between 0 and 2: 1 of 24 units did nothing and was removed; this saves 1 byte"
    assert done(one, {"0": 0}, ["0"], 1234) == "between 0 and 2: the 24 units were sorted; this saves 1,234 bytes"
    nothing = "between 0 and 2: no unit was removed or moved, because that would save no byte"
    assert done(one, {"0": 0}, [], 0) == nothing


def test_layers_where_nothing_changed_are_not_named() -> None:
    removed = {link.source: 0 for link in CHAIN} | {"4": 3, "8": 1}
    assert done(CHAIN, removed, ["8"], 7) == (
        "between 4 and 6, 8 and 10: 4 of 48 units did nothing and were removed, and the rest were sorted; this saves 7 "
        "bytes"
    )


def test_many_layers_share_a_line() -> None:
    everywhere = done(CHAIN, {link.source: 1 for link in CHAIN}, [], 100)
    assert everywhere.startswith("between 0 and 2, 2 and 4, 4 and 6, 6 and 8 and 8 more: 12 of 288 units did nothing")


def test_layers_of_one_reason_share_a_message() -> None:
    many = {f"block.{k}": "it is tied" for k in range(1000)} | {"head": "it is empty"}
    assert left_alone(many) == [
        "block.{0-999} x1000: units left as they are, because it is tied",
        "head: units left as they are, because it is empty",
    ]
