"""Names where there is little room."""

from __future__ import annotations

import pytest

from softshare.report.names import short, shortened

BERT = [f"bert.encoder.layer.{k}.{layer}" for k in range(12) for layer in ("attention.output.dense", "output.dense")]
LONG = [
    f"encoder_with_a_rather_long_name_for_a_module.layers.{k}.self_attention_projection_{kind}.weight"
    for k in range(12)
    for kind in ("query", "key")
]


@pytest.mark.parametrize("most", [20, 28, 36])
@pytest.mark.parametrize("names", [BERT, LONG, ["x" * 30 + f"{k}" + "y" * 30 for k in range(12)]])
def test_different_names_stay_different_and_fit(names: list[str], most: int) -> None:
    found = shortened(names, most)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= most


def test_a_name_keeps_the_number_of_its_block_and_its_end() -> None:
    assert short("conv1.weight", 28) == "conv1.weight"
    assert short("bert.encoder.layer.7.attention.output.dense", 28) == "…7.attention.output.dense"
    assert short("bert.encoder.layer.{0-11}.attention.output.dense x12", 28) == "…{0-11}…output.dense x12"
    assert short(LONG[-1], 40) == "…11.self_attention_projection_key.weight"
    assert short(LONG[-1], 28) == "…11…on_projection_key.weight"


def test_a_name_that_would_deceive_is_escaped_before_it_is_cut() -> None:
    assert short("a\u202eb", 28) == "a\\u202eb"
    assert len(short("a.0." * 100_000, 28)) <= 28
