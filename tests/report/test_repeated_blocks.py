"""Networks of repeated blocks and long names: figures fold them, and no text is cut."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from report_runs import compress
from softshare.codec.info import TensorInfo
from softshare.report.figures.before_after import draw_weights, weights_data
from softshare.report.figures.curves import Curve, curves_data, draw_curves
from softshare.report.figures.dynamics import draw_dynamics, dynamics_data
from softshare.report.figures.film import draw_film, film_data
from softshare.report.figures.sizes import Layer, Sizes, draw_sizes, label_heights, sizes_data
from softshare.report.page import render_page
from softshare.report.run import Run
from softshare.report.style import styled
from softshare.report.tensor_table import tensor_table


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.load(compress(tmp_path_factory.mktemp("layers")))


def with_tensors(run: Run, tensors: Sequence[TensorInfo], **values: Any) -> Run:
    assert run.info is not None
    info = dataclasses.replace(run.info, tensors=tuple(tensors))
    info = dataclasses.replace(info, file_bytes=1000 + sum(t.n_bytes for t in tensors))
    return dataclasses.replace(run, info=info, **values)


def test_small_layers_are_summed_in_one_bar(layers: Run) -> None:
    assert layers.info is not None
    one = layers.info.tensors[0]
    many = [dataclasses.replace(one, name=f"layer{k}.weight", n_bytes=100 - k) for k in range(30)]
    dead = [dataclasses.replace(one, name=f"dead{k}.weight", n_bytes=3, n_nonzero=0) for k in range(9)]
    (data,) = sizes_data(with_tensors(layers, [*many, *dead]))
    assert [layer.n_bytes for layer in data.layers] == [1000, *range(100, 91, -1), 3, 3, 3, 3, 15, sum(range(71, 92))]
    assert [(layer.name, layer.ruined) for layer in data.layers[-2:]] == [("5 others", "all zero"), ("21 others", "")]
    assert sum(layer.n_bytes for layer in data.layers) == data.file_bytes


def blocks() -> list[TensorInfo]:
    """Twelve blocks of two layers: the tensors of one have 4 + k and 2 bytes. Two of the matrices are all zero."""
    return [
        TensorInfo(f"net.layer.{k}.{layer}.{kind}", "shared", shape, math.prod(shape), left, 5, n_bytes)
        for k in range(12)
        for layer in ("attention.output.dense", "output.dense")
        for kind, shape, left, n_bytes in (
            ("weight", (8, 8), 0 if k in (3, 7) and layer[0] == "o" else 16, 4 + k),
            ("bias", (8,), 1, 2),
        )
    ]


def test_repeated_blocks_share_a_bar(layers: Run) -> None:
    tensors = blocks()
    (data,) = sizes_data(with_tensors(layers, tensors))
    _, first, second = data.layers
    assert first.name == "net.layer.{0-11}.attention.output.dense x12"
    assert first.parts == (
        ("net.layer.{0-11}.attention.output.dense.weight x12", "shared", sum(range(4, 16))),
        ("net.layer.{0-11}.attention.output.dense.bias x12", "shared", 24),
    )
    assert (first.ruined, second.ruined) == ("", "2 of 12 all zero")
    (alone,) = sizes_data(with_tensors(layers, tensors[:12]))  # few enough to have a bar each
    assert "net.layer.2.output.dense" in {layer.name for layer in alone.layers}
    with styled():
        labels = [label.get_text() for label in draw_sizes(data).axes[0].get_yticklabels()]
    assert labels[1:] == [
        "…{0-11}…output.dense x12\nmatrix 8 x 8",
        "…{0-11}.output.dense x12\nmatrix 8 x 8\n2 of 12 all zero",
    ]


@pytest.mark.parametrize("n_bytes", [17, 11_183, 1_250_000])
def test_the_numbers_on_the_axis_of_bytes_are_apart(n_bytes: int) -> None:
    with styled():
        figure = draw_sizes(Sizes(n_bytes, (Layer("a" * 40, "matrix 300 x 784", (("a", "shared", n_bytes),)),)))
        figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) > 2
    assert all(a.x1 + 4 < b.x0 for a, b in itertools.pairwise(boxes))


def test_densities_of_repeated_blocks_are_one_line(layers: Run) -> None:
    tensors = blocks()
    names = [f"density/{t.name}" for t in tensors]
    plain = {name: value for name, value in layers.history[0].items() if not name.startswith("density/")}
    history = tuple(plain | {name: 0.01 * e + 0.001 * k for k, name in enumerate(names)} for e in range(3))
    run = with_tensors(layers, tensors, history=history)
    *_, curve = curves_data(run)
    label = "net.layer.{0-11}.output.dense.weight x12"
    assert len(curve.lines) == 4
    own = [k for k, t in enumerate(tensors) if ".output.dense.weight" in str(t.name) and "attention" not in str(t.name)]
    np.testing.assert_allclose(curve.lines[label], 0.01 * np.arange(3) + 0.001 * np.mean(own))
    assert curve.ruined == {label: "2 of 12 all zero"}
    *_, unknown = curves_data(dataclasses.replace(run, info=None))  # shapes are not known: layers may differ
    assert len(unknown.lines) == 7
    assert not any("{" in name for name in unknown.lines)


def test_a_legend_of_long_names_is_whole_and_has_no_name_twice() -> None:
    names = [f"bert.encoder.layer.{k}.attention.{part}.dense.weight" for k in (0, 11) for part in ("self", "output")]
    names += ["encoder_with_a_rather_long_name_for_a_module.layers." * 2 + f"{k}.weight" for k in range(3)]
    dead = dict.fromkeys(names, "7 of 12 all zero")
    for ruined in ({}, dead):
        curve = Curve("Density", "", np.arange(3), {name: np.full(3, 0.5) for name in names}, ruined=ruined)
        with styled():
            figure = draw_curves(curve)
            figure.draw_without_rendering()
        texts = figure.legends[0].get_texts()
        assert len({text.get_text() for text in texts}) == 7
        for box in (text.get_window_extent() for text in texts):
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1


def test_titles_of_long_names_are_whole(layers: Run) -> None:
    name = "bert.encoder.layer.11.attention.a_rather_long_name_for_a_module.output.dense"
    weights, dynamics, film = weights_data(layers)[0], dynamics_data(layers)[0], film_data(layers)[0]
    drawings: list[Callable[[], Any]] = [
        lambda: draw_weights(dataclasses.replace(weights, name=name)),
        lambda: draw_dynamics(dataclasses.replace(dynamics, name=name)),
        lambda: draw_film(dataclasses.replace(film, name=name)),
    ]
    for drawing in drawings:
        with styled():
            figure = drawing()
            figure.draw_without_rendering()
        titles = [
            text for axes in figure.axes for text in [*axes.texts, axes.title, axes._left_title, axes._right_title]
        ]
        boxes = [text.get_window_extent() for text in titles if text.get_text()]
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert any("11" in text.get_text() for text in titles)


def test_no_leader_of_a_label_meets_another_point() -> None:
    """Two points as high as each other, as in a small network: the left one's label is not behind the right one."""
    assert [k for k, _ in label_heights([(0.37, 0.43), (0.66, 0.43)])] == [1, 0]
    assert [k for k, _ in label_heights([(0.66, 0.43), (0.37, 0.43)])] == [0, 1]
    assert [k for k, _ in label_heights([(0.37, 0.2), (0.66, 0.6), (0.5, 0.9)])] == [0, 1, 2]


def test_repeated_blocks_are_a_row_of_the_table_and_each_tensor_is_inside(layers: Run) -> None:
    run = with_tensors(layers, blocks())
    assert run.info is not None
    table = tensor_table(run, run.info)
    assert len(table.rows) == 4
    name, _, shape, weights, density, components, bits, n_bytes, _ = table.rows[2]
    assert name[1] == "net.layer.{0-11}.output.dense.weight x12: 2 of 12 all zero"
    n = sum(range(4, 16))
    assert (shape[1], weights[1], components[1], n_bytes[1]) == ("8 x 8", "768", "5", f"{n}")
    assert density[0] == pytest.approx(100 * 10 * 16 / 768)
    assert bits[0] == pytest.approx(8 * n / 768)
    assert table.marks == {2: "ruined"}
    assert table.inside[2][3] == "net.layer.3.output.dense.weight: all zero, 7 bytes"
    assert table.inside[2][4] == "net.layer.4.output.dense.weight: 25.00% non-zero, 8 bytes"
    page = render_page(run, {})
    rows = page.partition('id="tensors"')[2].partition("</table>")[0]
    assert rows.count("<details>") == 4
    assert rows.count("<div>net.layer.") == 48
    assert "x12 means 12 tensors: weights, bytes and share are sums" in rows
    assert "means" not in render_page(layers, {}).partition('id="tensors"')[2].partition("</table>")[0]
