from __future__ import annotations

import pytest

from softshare.codec import TensorInfo
from softshare.codec.rows import folded, unfolded


def tensors(*names: str | None, shape: tuple[int, ...] = (4, 4)) -> list[TensorInfo]:
    return [TensorInfo(name, "shared", shape, 16, 8, 3, 5) for name in names]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"layers.{k}.attn.weight" for k in range(12)], ["layers.{0-11}.attn.weight x12"]),
        (["0.weight", "2.weight"], ["0.weight", "2.weight"]),  # two are shown
        (["0.weight", "2.weight", "4.weight"], ["{0,2,4}.weight x3"]),
        ([f"b.{k}.w" for k in (0, 1, 2, 5, 7, 8)], ["b.{0-2,5,7-8}.w x6"]),
        ([f"s.{i}.b.{k}.w" for i in range(2) for k in range(3)], ["s.{0-1}.b.{0-2}.w x6"]),
        (  # no whole grid: the stages have 3 and 4 blocks
            [f"s.{i}.b.{k}.w" for i, n in enumerate((3, 4)) for k in range(n)],
            ["s.0.b.{0-2}.w x3", "s.1.b.{0-3}.w x4"],
        ),
        (["fc1", "fc2", "fc3"], ["fc1", "fc2", "fc3"]),  # a number within a word is part of it
        (["a.00.w", "a.01.w", "a.02.w"], ["a.00.w", "a.01.w", "a.02.w"]),
        ([None, None, None], ["#0", "#1", "#2"]),
    ],
)
def test_names_that_differ_in_numbers_fold(names: list[str | None], expected: list[str]) -> None:
    assert [row.name for row in folded(tensors(*names))] == expected


def test_only_tensors_of_one_shape_and_kind_fold() -> None:
    found = [*tensors("0.w", "1.w", "2.w"), *tensors("3.w", shape=(2, 8))]
    found.append(TensorInfo("4.w", "rest", (4, 4), 16, None, 0, 64))
    assert [row.name for row in folded(found)] == ["{0-2}.w x3", "3.w", "4.w"]


def test_rows_keep_the_order_of_their_first_tensors_and_all_bytes() -> None:
    names = ["embed", *(f"h.{k}.{part}" for k in range(3) for part in ("attn", "mlp")), "h.3.attn", "head"]
    found = tensors(*names)
    rows = folded(found)
    assert [row.name for row in rows] == ["embed", "h.{0-3}.attn x4", "h.{0-2}.mlp x3", "head"]
    assert sum(row.n_bytes for row in rows) == sum(t.n_bytes for t in found)
    assert (rows[1].n, rows[1].n_nonzero) == (64, 32)


def test_hostile_names_do_not_fold() -> None:
    deep = [".".join(["1"] * 2000 + [str(k)]) for k in range(5)]
    huge = [f"a.{'9' * 4000}{k}.w" for k in range(5)]
    found = tensors(*deep, *huge)
    assert folded(found) == unfolded(found)
