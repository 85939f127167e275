"""Layers without a weight, and how the page shows them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from report_runs import compress
from softshare.report.figures.catalogue import draw_svgs
from softshare.report.figures.sizes import draw_sizes, sizes_data
from softshare.report.page import IN_PAGE, render_page
from softshare.report.ruined import Ruined, ruined_data, ruined_in_words
from softshare.report.run import Run
from softshare.report.style import BAD, styled


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.load(compress(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def ruined(whole: Run) -> Run:
    """The same, with a layer that died in its third epoch."""
    assert whole.info is not None
    tensors = tuple(
        dataclasses.replace(t, n_nonzero=0) if t.name in ("<b>head.weight", "conv.bias") else t
        for t in whole.info.tensors
    )
    history = tuple(
        row | {"density/<b>head.weight": 0.0 if row["epoch"] >= 3 else row["density/<b>head.weight"]}
        for row in whole.history
    )
    return dataclasses.replace(whole, info=dataclasses.replace(whole.info, tensors=tensors), history=history)


def test_a_layer_that_lives_is_not_ruined(whole: Run) -> None:
    assert ruined_data(whole) == ()


def test_a_matrix_of_zeros_is_ruined_and_a_bias_is_not(ruined: Run) -> None:
    assert ruined_data(ruined) == (Ruined("<b>head.weight", 3.0, "epoch"),)


def test_during_training_it_is_so_in_the_hard_phase(ruined: Run) -> None:
    begun = dataclasses.replace(ruined, info=None, result=None)
    assert [found.name for found in ruined_data(begun)] == ["<b>head.weight"]
    soft = tuple(row | {"hard": 0.0} for row in begun.history)
    assert ruined_data(dataclasses.replace(begun, history=soft)) == ()


def test_a_file_without_names_does_not_know_when(ruined: Run) -> None:
    assert ruined.info is not None
    tensors = tuple(dataclasses.replace(t, name=None) for t in ruined.info.tensors)
    nameless = dataclasses.replace(ruined, info=dataclasses.replace(ruined.info, tensors=tensors))
    assert [found.since for found in ruined_data(nameless)] == ["all zero"]


def test_it_is_red_in_every_place(ruined: Run) -> None:
    (data,) = sizes_data(ruined)
    with styled():
        labels = draw_sizes(data).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels if label.get_color() == BAD] == [
        "<b>head\nmatrix 3 x 16\nall zero since epoch 3"
    ]
    svgs = {plot.name: draw_svgs(ruined, plot) for plot in IN_PAGE if plot.name in ("sizes", "curves")}
    page = render_page(ruined, svgs)
    said = "&lt;b&gt;head.weight is all zero since epoch 3: nothing passes through it."
    assert said in page.partition("</header>")[0]
    assert page.count('<tr class="ruined">') == 1
    assert "&lt;b&gt;head.weight: all zero since epoch 3</td>" in page
    assert any("var(--bad)" in svg for svg in page.split("<svg")[1:])


def test_many_ruined_layers_are_counted(ruined: Run) -> None:
    assert ruined.info is not None
    one = next(t for t in ruined.info.tensors if t.n_nonzero == 0 and len(t.shape or ()) > 1)
    tensors = tuple(dataclasses.replace(one, name=f"layer{k}.weight") for k in range(20))
    many = dataclasses.replace(ruined, info=dataclasses.replace(ruined.info, tensors=tensors), folder=Path("nowhere"))
    page = render_page(many, {})
    assert "layer7.weight is all zero" in page
    assert "12 more layers are all zero." in page


def test_lines_about_blocks_are_folded_and_the_first_to_die_comes_first() -> None:
    dead = [Ruined(f"layer.{k}.query.weight", 3.0 + k, "look") for k in (2, 0, 1, 5)]
    dead += [Ruined(f"layer.{k}.dense.weight", 2.0, "look") for k in range(3)]
    dead += [Ruined("head.weight", None, "look"), Ruined("emb.weight", 1.0, "look")]
    lines = [
        "emb.weight is all zero since look 1: nothing passes through it.",
        "layer.{0-2}.dense.weight x3 are all zero since look 2: nothing passes through them.",
        "layer.{0-2,5}.query.weight x4 are all zero, the first since look 3: nothing passes through them.",
        "head.weight is all zero: nothing passes through it.",
    ]
    assert ruined_in_words(dead, 8) == lines
    assert ruined_in_words(dead, 3) == [*lines[:3], "1 more layer is all zero."]
    assert ruined_in_words(dead, 1) == [*lines[:1], "8 more layers are all zero."]
