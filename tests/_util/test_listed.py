from __future__ import annotations

from softshare._util.words import listed


def test_a_list_of_names_is_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"name{k}" for k in range(1000)]) == "name0, name1, name2, name3 and 996 more"


def test_names_of_repeated_blocks_are_one_and_each_counts() -> None:
    blocks = [f"layer.{k}.{name}" for k in range(12) for name in ("query", "key", "value", "dense", "norm")]
    assert listed(["embedding", *blocks]) == (
        "embedding, layer.{0-11}.query x12, layer.{0-11}.key x12, layer.{0-11}.value x12 and 24 more"
    )
