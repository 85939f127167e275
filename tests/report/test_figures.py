"""The data of each figure, compared with the run itself."""

from __future__ import annotations

import base64
import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn
from torch.distributions import Beta as TorchBeta
from torch.distributions import Gamma as TorchGamma

from report_runs import compress, make_task
from softshare import route
from softshare._util.run_folder import PRETRAINED, RETRAINED
from softshare.codec import inspect, load
from softshare.config import CompressConfig, MergeConfig
from softshare.errors import ConfigError
from softshare.network.checkpoint import load_checkpoint
from softshare.prior.prior import MixturePrior
from softshare.report.figures import masks
from softshare.report.figures.account import account_data
from softshare.report.figures.before_after import weights_data
from softshare.report.figures.catalogue import FIGURES, draw
from softshare.report.figures.curves import curves_data, draw_curves, prior_curves_data
from softshare.report.figures.dynamics import draw_dynamics, dynamics_data, joined
from softshare.report.figures.film import film_data, film_for_page
from softshare.report.figures.filters import filter_shapes, filters_data, kept_filters, tiled
from softshare.report.figures.hyperprior_curves import hyperpriors_data
from softshare.report.figures.masks import binned, masks_data
from softshare.report.figures.sizes import Bits, bits_data, draw_bits, sizes_data, spaced
from softshare.report.figures.speed import compared, draw_speed, speed_data
from softshare.report.figures.storage import storage_data
from softshare.report.page import render_page
from softshare.report.run import Run
from softshare.report.style import styled, to_png, to_svg
from softshare.result import Result
from softshare.simplify.speed import Speed, Timing
from softshare.target.limits import MaxBytes
from softshare.task import Metric

PAPER = ("--config", "paper", "--mixing-prior", "alpha=90,beta=2", "--merge-threshold", 0.5, "--init-std", 0.05)

# A hard run: each weight keeps its component from before the merge.
MERGES = ("--components", 16, "--merge-threshold", 1)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the defaults: a mixture for each layer."""
    return Run.load(compress(tmp_path_factory.mktemp("layers"), "--units", 1e-3))


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the paper's settings: one mixture of 16 components, and many of them merge."""
    return Run.load(compress(tmp_path_factory.mktemp("paper"), *PAPER, "--units", 1e-3))


@pytest.fixture(params=["layers", "one_for_all"])
def run(request: pytest.FixtureRequest) -> Run:
    """Both of them, for what depends on the number of mixtures."""
    value: Run = request.getfixturevalue(request.param)
    return value


@pytest.mark.slow
def test_every_figure_is_drawn_for_one_mixture_and_for_many(run: Run) -> None:
    for plot in FIGURES:
        pictures = []
        for figure in draw(run, plot):
            with styled():
                pictures.append(to_png(figure))
        assert pictures, plot.name
        assert all(p.startswith(b"\x89PNG") for p in pictures)


def test_a_run_without_a_result_or_without_a_film_shows_the_rest(layers: Run) -> None:
    begun = dataclasses.replace(layers, result=None, info=None, folder=Path("nowhere"))
    there = {plot.name for plot in FIGURES if plot.data(begun)}
    assert there == {"weights", "dynamics", "hyperpriors", "curves", "prior", "film"}
    there = {plot.name for plot in FIGURES if plot.data(dataclasses.replace(layers, frames=None))}
    assert there == {"account", "sizes", "bits", "curves", "prior", "masks", "storage", "speed"}


@pytest.mark.slow
def test_a_file_without_names_shows_what_needs_none(tmp_path: Path) -> None:
    run = Run.load(compress(tmp_path, "--names", "none", "--epochs", 1))
    there = {plot.name: plot.data(run) for plot in FIGURES}
    assert {name for name, data in there.items() if not data} == {"bits", "masks", "storage", "speed"}
    (sizes,) = there["sizes"]
    assert sum(layer.n_bytes for layer in sizes.layers) == (run.folder / "model.sws").stat().st_size


def test_a_folder_without_a_run_or_without_an_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        Run.load(tmp_path)
    (tmp_path / "history.csv").write_text("epoch,seconds\n")
    with pytest.raises(ConfigError, match=r"history\.csv has no epoch yet"):
        Run.load(tmp_path)


def test_weights_are_those_of_the_checkpoints(run: Run) -> None:
    before, after = load_checkpoint(run.folder / PRETRAINED), load_checkpoint(run.folder / RETRAINED)
    assert run.frames is not None
    for data, names in zip(weights_data(run), run.frames.about["tensors"], strict=True):
        for values, state, edges, counts in (
            (data.before, before, data.edges_before, data.counts_before),
            (data.after, after, data.edges_after, data.counts_after),
        ):
            truth = torch.cat([state[name].flatten() for name in names]).numpy()
            assert data.n == len(truth)
            np.testing.assert_allclose(values, truth, rtol=1e-3, atol=1e-7)  # kept in half precision
            assert np.abs(counts - np.histogram(truth, edges)[0]).sum() <= 4
        assert data.counts.sum() == data.n


@pytest.mark.slow
@pytest.mark.parametrize("soft", [(), ("--hard-from", 1, "--zeroing", 0)])
def test_zeros_are_those_of_the_file_and_lines_lead_where_components_merge(
    tmp_path: Path, soft: tuple[object, ...]
) -> None:
    run = Run.load(compress(tmp_path, "--components", 16, "--merge-threshold", 5, *soft, "--no-symmetries"))
    state = load(run.folder / "model.sws")
    assert run.frames is not None
    merged = []
    for data, own, names in zip(weights_data(run), dynamics_data(run), run.frames.about["tensors"], strict=True):
        zeros = torch.cat([state[name].flatten() for name in names]).numpy() == 0
        assert (data.is_zero != zeros).sum() <= 2  # rounding decides those on a border
        last = next(film for film in film_data(run) if film.name == data.name).held[-1]
        values = torch.cat([state[name].flatten() for name in names]).numpy()
        assert (~np.isclose(last.values[last.index], values, rtol=1e-2, atol=1e-4)).sum() <= 2  # as in the file
        assert last.counts.sum() == len(values)
        if not soft:  # otherwise merging also moves the borders
            assert own.counts[-1, own.onto == 0].sum() == zeros.sum()
        merged.append(own.counts[-1, 1:][own.onto[1:] == 0].sum())
        assert set(own.onto.tolist()) == set(range(len(own.merged)))
        assert own.onto[0] == 0
    assert sum(merged) > 0  # the mixture before merging has fewer zeros


def test_dynamics_end_at_the_values_of_the_file(run: Run) -> None:
    values = {v for t in load(run.folder / "model.sws").values() for v in t.flatten().tolist()}
    for data in dynamics_data(run):
        used = data.merged[sorted(set(data.onto[data.counts[-1] > 0].tolist()))]
        assert data.mean[:, 0].tolist() == [0.0] * 5
        for value in used:
            nearest = min(abs(value - v) for v in values)
            assert nearest <= 1e-3 * max(1e-3, abs(value))  # the codebook is in half precision


def test_components_that_end_up_together_are_joined() -> None:
    mean = np.array([[0, 1.0, 2.0, -1], [0, 1.2, 1.21, -1], [0, 1.0, 2.0, -1], [0, 1.5, 1.5, -1], [0, 1.4, 1.41, 0.01]])
    zeros = np.zeros_like(mean)
    found = joined(zeros, mean, zeros - 4, MergeConfig(0.01)).tolist()
    assert found == [-1, -1, 3, 4]  # the third is also joined at frame 1, but then apart again
    assert joined(zeros[:1], mean[:1], zeros[:1] - 4, MergeConfig(0.01)).tolist() == [-1] * 4
    assert joined(zeros, mean, zeros - 4, MergeConfig(1e9)).tolist() == [-1, 0, 0, 0]


def test_merges_of_the_paper_are_seen(one_for_all: Run) -> None:
    (data,) = dynamics_data(one_for_all)
    assert data.name == "all weights"
    assert data.mean.shape == (5, 17)
    assert (data.joined >= 0).sum() == 17 - len(data.merged) > 0


def test_hyperpriors_are_the_configured_ones(one_for_all: Run) -> None:
    zero, free, beta = hyperpriors_data(one_for_all)
    for data, alpha, rate in ((zero, 1000, 9.9), (free, 10_000, 11)):
        truth = TorchGamma(torch.tensor(alpha).double(), torch.tensor(rate).double()).log_prob(torch.from_numpy(data.x))
        np.testing.assert_allclose(data.curves[data.configured], (truth - truth.max()).exp(), atol=1e-6)
        assert data.x[data.curves[data.configured].argmax()] == pytest.approx((alpha - 1) / rate, rel=0.01)
    truth = TorchBeta(torch.tensor(90.0).double(), torch.tensor(2.0).double()).log_prob(torch.from_numpy(beta.x))
    np.testing.assert_allclose(beta.curves[beta.configured], (truth - truth.max()).exp(), atol=1e-6)
    for data in (zero, free, beta):  # a weaker density is broader, and a stronger one narrower
        widths = {label: (y > 0.5).sum() for label, y in data.curves.items()}
        assert widths["twice as strong"] < widths[data.configured] < widths["half as strong"]


def test_a_held_width_is_a_hyperprior_on_every_precision(layers: Run) -> None:
    (data,) = hyperpriors_data(layers)
    assert data.name == "Gamma: precision of every component"
    assert data.x[data.curves[data.configured].argmax()] == pytest.approx(1, abs=1e-3)


def test_filters_are_those_before(layers: Run) -> None:
    conv, conv_after, hidden, hidden_after = filters_data(layers)
    before = load_checkpoint(layers.folder / PRETRAINED)
    assert [(data.name, data.when) for data in (conv, conv_after)] == [
        ("conv.weight", "before"),
        ("conv.weight", "after"),
    ]
    assert conv.largest == conv_after.largest  # a colour means the same in both
    assert conv.picture.shape == conv_after.picture.shape == (7, 7)  # four filters of 3 x 3, with lines between them
    np.testing.assert_array_equal(conv.picture[:3, 4:], before["conv.weight"][1, 0])
    np.testing.assert_array_equal(conv.picture[4:, :3], before["conv.weight"][2, 0])
    assert np.isnan(conv.picture[3]).all()
    assert hidden.name == "hidden.weight"  # each of 16 units has four channels of 4 x 4
    assert hidden.picture.shape == hidden_after.picture.shape == (4 * 5 - 1, 16 * 5 - 1)
    np.testing.assert_array_equal(hidden.picture[5:9, 10:14], before["hidden.weight"].reshape(16, 4, 4, 4)[2, 1])


RUNS = {
    "merges": MERGES,
    "target": ("--max-bytes", 700),
    "soft, float32": ("--hard-from", 1, "--zeroing", 0, "--codebook-dtype", "float32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_filters_are_those_of_the_file_one_by_one(name: str, tmp_path: Path) -> None:
    run = Run.load(compress(tmp_path, *RUNS[name], "--no-symmetries"))  # so that units keep their order
    state = load(run.folder / "model.sws")
    assert run.frames is not None
    assert list(run.frames.filters) == ["conv.weight", "hidden.weight"]
    for tensor, values in run.frames.filters.items():
        assert np.count_nonzero(values)
        np.testing.assert_array_equal(values, state[tensor].reshape(values.shape))
    _, conv, *_ = filters_data(run)
    np.testing.assert_array_equal(conv.picture[:3, 4:], state["conv.weight"][1, 0])
    if name == "merges":  # here the merged mixture would show other values
        final = run.frames.final(0)
        assert final is not None
        w = load_checkpoint(run.folder / RETRAINED)["conv.weight"]
        assert (final.mean[final.assign(w)].half() != state["conv.weight"].flatten().half()).any()


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, MaxBytes(700)])
def test_units_that_the_file_moves_are_shown_where_they_were(target: MaxBytes | None) -> None:
    task = make_task()
    config = CompressConfig().override(epochs=4, tau=0.01, zero_mixing=0.6)
    compressed = route.compress(task, config, target=target)
    state = compressed.state_dict()
    placed = {t.name: compressed.in_place(t.name) for t in compressed.quantized.shared}
    assert not torch.equal(placed["hidden.weight"], state["hidden.weight"])
    rows = [sorted(map(tuple, s["hidden.weight"].count_nonzero(1)[:, None].tolist())) for s in (placed, state)]
    assert rows[0] == rows[1]
    images = torch.randn(64, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    outputs = []
    for own in (state, state | placed):
        task.model.load_state_dict(own)
        with torch.no_grad():
            outputs.append(task.model.eval()(images))
    torch.testing.assert_close(
        outputs[0], outputs[1]
    )  # the same function: each unit is where the next layer expects it
    kept = kept_filters(task.model, compressed)
    assert torch.equal(kept["conv.weight"], placed["conv.weight"])
    assert torch.equal(kept["hidden.weight"].flatten(), placed["hidden.weight"].flatten())


def test_layers_that_read_no_image_have_no_filters() -> None:
    def shapes(*layers: nn.Module) -> list[tuple[int, ...]]:
        return list(filter_shapes(nn.Sequential(*layers)).values())

    assert shapes(nn.Linear(784, 9), nn.Linear(64, 9)) == [(9, 1, 28, 28)]
    assert shapes(nn.BatchNorm1d(192), nn.Linear(192, 9)) == [(9, 3, 8, 8)]
    assert shapes(nn.Linear(16, 256), nn.Linear(256, 128)) == []  # a table
    assert shapes(nn.Embedding(100, 64), nn.Linear(64, 9)) == []
    assert shapes(nn.LSTM(64, 64), nn.Linear(64, 9)) == []
    convolutions = [nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5), nn.Conv2d(50, 64, 3)]
    assert shapes(*convolutions[:2], nn.Linear(800, 500)) == [(20, 1, 5, 5), (50, 20, 5, 5), (500, 50, 4, 4)]
    assert shapes(*convolutions, nn.Linear(64, 9)) == [(20, 1, 5, 5), (50, 20, 5, 5)]  # after a mean over places
    assert shapes(nn.Conv1d(1, 64, 3), nn.Linear(784, 9)) == []


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_a_layer_whose_weight_is_computed_has_a_shape_too() -> None:
    norms = torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.spectral_norm
    for norm in norms:
        model = nn.Sequential(norm(nn.Conv2d(1, 20, 5)), nn.ReLU(), norm(nn.Linear(320, 9, bias=False)))
        assert list(filter_shapes(model).values()) == [(20, 1, 5, 5), (9, 20, 4, 4)]
        assert kept_filters(model, MixturePrior(model).quantize()) == {}  # the file has what they are computed from


def test_the_first_of_many_filters_are_shown() -> None:
    model = nn.Sequential(nn.Conv2d(40, 60, 3), nn.Flatten(), nn.Linear(960, 3))
    prior = MixturePrior(model)
    kept = kept_filters(model, prior.quantize())
    assert [tuple(t.shape) for t in kept.values()] == [(50, 32, 3, 3), (3, 32, 4, 4)]


def test_tiles_have_lines_between_them() -> None:
    images = np.arange(24.0).reshape(2, 3, 2, 2)
    out = tiled(images)
    assert out.shape == (5, 8)
    assert out[3:, 6:].tolist() == [[20, 21], [22, 23]]
    assert np.isnan(out).sum() == 40 - 24


def test_curves_of_several_runs_are_apart(layers: Run) -> None:
    """A run starts with a record of its own, at the look where the one before ended."""
    looks = [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]
    history = tuple(
        dict(layers.history[0], epoch=float(look), validation_error=10.0 + k) for k, look in enumerate(looks)
    )
    assert layers.frames is not None
    film = dataclasses.replace(
        layers.frames, epochs=np.array([4, 5, 6, 7]), about={**layers.frames.about, "counted": "look"}
    )
    run = dataclasses.replace(layers, history=history, frames=film)
    assert run.counted == "look"
    curve = curves_data(run)[0]
    assert (curve.starts, curve.taken, curve.counted) == ((0, 5), 7.0, "look")
    with styled():
        axes = draw_curves(curve).axes[0]
    first, second = ([x.tolist() for x in line.get_data()] for line in axes.lines[:2])
    assert first == [looks[:5], [10, 11, 12, 13, 14]]
    assert second == [looks[5:], [15, 16, 17, 18, 19]]
    assert axes.get_xlabel() == "look"
    assert [line.get_xdata()[0] for line in axes.lines[2:]] == [4, 7]  # where the second run starts, what is taken
    alone = curves_data(layers)[0]
    assert (alone.starts, alone.taken, alone.counted) == ((0,), None, "epoch")


def test_what_a_run_counts_without_a_film(layers: Run) -> None:
    assert layers.result is not None
    for retrain, counted in (
        ({"steps": 600, "epochs": None}, "look"),
        ({"steps": 600, "epochs": 3}, "epoch"),
        ({}, "epoch"),
    ):
        result = dataclasses.replace(layers.result, config={"retrain": retrain})
        assert dataclasses.replace(layers, frames=None, result=result).counted == counted
    assert dataclasses.replace(layers, frames=None, result=None).counted == "epoch"


def test_bytes_are_those_of_the_file(layers: Run) -> None:
    (data,) = sizes_data(layers)
    parts = [part for layer in data.layers for part in layer.parts]
    assert sum(n for _, _, n in parts) == data.file_bytes == (layers.folder / "model.sws").stat().st_size
    info = {t.name: t for t in inspect(layers.folder / "model.sws").tensors}
    assert {name: n for name, _, n in parts if name in info} == {name: t.n_bytes for name, t in info.items()}
    about = {layer.name: layer.about for layer in data.layers}
    assert about["conv"] == "convolution 4 x 1 x 3 x 3"
    assert about["hidden"] == "matrix 16 x 64"
    assert about["norm"] == "vector 4"
    (bits,) = bits_data(layers)
    for name, n, density, per_weight in bits.points:
        assert per_weight == 8 * info[name].n_bytes / n
        assert density == pytest.approx(float((load(layers.folder / "model.sws")[name] != 0).float().mean()))


@pytest.mark.slow
def test_labels_overlap_nothing() -> None:
    close = [(f"layer{k}.weight", 10 ** (k % 6), 0.1 + 0.01 * k, 0.5 + 0.01 * k) for k in range(12)]
    with styled():
        figure = draw_bits(Bits(tuple(close)))
        figure.draw_without_rendering()  # computes the layout
    axes, boxes = figure.axes[0], [Text.get_window_extent(label) for label in figure.axes[0].texts]
    assert len(boxes) == 12
    assert not any(box.overlaps(axes.patch.get_window_extent()) for box in boxes)
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])
    assert figure.bbox.x1 >= max(box.x1 for box in boxes)


def test_heights_keep_a_gap() -> None:
    assert spaced([0.1, 0.5], 0.2) == [0.1, 0.5]
    assert spaced([0.1, 0.15, 0.6], 0.2) == pytest.approx([0.1, 0.3, 0.6])
    assert spaced([0.9, 0.95, 0.97], 0.2) == pytest.approx([0.6, 0.8, 1.0])


def test_the_account_is_the_result(layers: Run) -> None:
    result = layers.result
    assert isinstance(result, Result)
    (data,) = account_data(layers)
    rows = {label: (n, ratio) for label, n, ratio in data.rows}
    assert rows["the file"] == (result.file_bytes, result.ratio)
    assert rows["Han's format, the whole file"] == (result.han_bytes, result.han_ratio)
    assert rows["complexity cost, by the mixtures"][0] == result.complexity_bytes
    assert rows["error cost on the training set"] == (result.error_bits / 8, None)


def test_curves_are_the_history(layers: Run) -> None:
    curves = {curve.title: curve for curve in curves_data(layers)}
    error = curves["Validation error"]
    assert error.epochs.tolist() == [0, 1, 2, 3, 4]
    assert error.lines[""].tolist() == [row["validation_error"] for row in layers.history]
    assert math.isnan(curves["Task loss"].lines[""][0])
    assert (
        curves["Uncoded size, estimated by the mixtures"].lines[""][-1] == layers.history[-1]["complexity_bits"] / 8000
    )
    assert curves["Density"].lines["conv.weight"].tolist() == [row["density/conv.weight"] for row in layers.history]


def test_the_first_curve_is_the_tasks_metric(layers: Run) -> None:
    assert layers.result is not None
    for metric, title, unit in (
        (Metric(), "Validation error", "percent"),
        (Metric("accuracy", "%", True), "Validation accuracy", "percent"),
        (Metric("PSNR", "dB", True), "Validation PSNR", "dB"),
    ):
        result = dataclasses.replace(layers.result, metric=metric)
        curve = curves_data(dataclasses.replace(layers, result=result))[0]
        assert (curve.title, curve.unit) == (title, unit)


def test_a_run_under_way_has_its_metric_from_the_film(layers: Run) -> None:
    assert layers.frames is not None
    metric = Metric("PSNR", "dB", True)
    about = {**layers.frames.about, "metric": dataclasses.asdict(metric)}
    begun = dataclasses.replace(layers, result=None, frames=dataclasses.replace(layers.frames, about=about))
    assert begun.metric == metric
    assert curves_data(begun)[0].title == "Validation PSNR"
    del about["metric"]
    older = dataclasses.replace(begun, frames=dataclasses.replace(layers.frames, about=about))
    assert older.metric == dataclasses.replace(begun, frames=None).metric == Metric()
    about["metric"] = {"name": 3}
    with pytest.raises(ConfigError, match="the film's metric"):
        _ = older.metric


def test_densities_of_0_and_1_are_drawn() -> None:
    columns = ("epoch", "validation_error", "task_loss", "prior_loss", "complexity_bits", "components_alive", "tau")
    row = dict.fromkeys(columns, 0.0)
    for value in (0.0, 1.0):
        *_, density = curves_data(Run(Path(), (row | {"density/w": value},), None, None, None))
        assert density.log
        with styled():
            assert to_png(draw_curves(density)).startswith(b"\x89PNG")


def test_masks_are_those_of_the_file(layers: Run) -> None:
    state = load(layers.folder / "model.sws")
    for data in masks_data(layers):
        truth = state[data.name].reshape(len(state[data.name]), -1) != 0
        assert data.shape == tuple(truth.shape)
        assert np.array_equal(data.density, truth.numpy())


def test_a_large_mask_is_binned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "MOST_CELLS", 6)
    monkeypatch.setattr(masks, "_CHUNK", 50)
    for shape in ((1, 1), (7, 5), (5, 7), (100, 33), (33, 100)):
        matrix = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.3).float()
        out = binned(matrix)
        height, width = (math.ceil(n / 6) for n in shape)
        truth = [[float(cell.mean()) for cell in rows.split(width, 1)] for rows in matrix.split(height)]
        np.testing.assert_allclose(out, truth)
        assert max(out.shape) <= 6


def test_a_stored_row_is_read_back(layers: Run) -> None:
    (data,) = storage_data(layers)
    row = load(layers.folder / "model.sws")[data.name][data.row].flatten().numpy()
    assert data.name == "hidden.weight"
    filled = data.values == 0
    np.testing.assert_array_equal(row[data.columns], data.values)
    places = np.flatnonzero(row)[: (~filled).sum()]
    assert data.columns[~filled].tolist() == places.tolist()
    assert data.relative.max() < 32


def test_a_gap_too_long_is_filled(layers: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = torch.zeros(2, 64)
    sparse[0, 0], sparse[1, 40] = 0.5, -0.25
    monkeypatch.setattr("softshare.report.figures.storage.load", lambda *_, **__: {"hidden.weight": sparse})
    (data,) = storage_data(layers)
    assert (data.row, data.columns.tolist(), data.relative.tolist()) == (1, [31, 40], [31, 8])
    assert data.values.tolist() == [0, -0.25]


def test_no_two_components_have_one_colour(one_for_all: Run) -> None:
    (data,) = dynamics_data(one_for_all)
    with styled():
        lines = draw_dynamics(data).axes[0].collections
    assert len({tuple(line.get_facecolor()[0][:3]) for line in lines if len(line.get_facecolor())}) == 17


def test_the_phases_are_marked_on_every_curve_over_time(layers: Run, one_for_all: Run) -> None:
    history = tuple(row | {"hard": float(row["epoch"] > 2)} for row in layers.history)
    for run, hard, marks, phases in (
        (layers, ((0.0, 4.0),), {"hard phase"}, ("soft", *["hard"] * 4)),  # from the middle of the first epoch on
        (dataclasses.replace(layers, history=history), ((2.0, 4.0),), {"soft", "hard phase"}, None),
        (one_for_all, (), {"soft phase"}, ("soft",) * 5),
    ):
        assert run.hard_spans == hard
        curves = (*curves_data(run), *prior_curves_data(run))
        for figure in (*map(draw_curves, curves), *map(draw_dynamics, dynamics_data(run))):
            assert {text.get_text() for text in figure.axes[0].texts} == marks
        assert phases is None or {film.phases for film in film_data(run)} == {phases}
    unknown = tuple({name: v for name, v in row.items() if name != "hard"} for row in layers.history)
    older = dataclasses.replace(layers, history=unknown, result=None)  # a run that was stopped
    assert not draw_curves(curves_data(older)[0]).axes[0].texts
    assert {film.phases for film in film_data(older)} == {("",) * 5}


def test_the_film_for_the_page_holds_the_sample(run: Run) -> None:
    for data in film_data(run):
        page = film_for_page(data)
        low, high = page["limits"]
        for frame, truth in zip(page["sample"], data.sample, strict=True):
            steps = np.frombuffer(base64.b64decode(frame), "<u2")
            np.testing.assert_allclose(low + steps / 32767 * (high - low), truth, atol=1e-3 * (high - low))
        for index, own in zip(page["index"], data.held, strict=True):
            assert np.frombuffer(base64.b64decode(index), "u1").tolist() == own.index.tolist()
        assert page["histograms"] == data.histograms.tolist()
        assert len(page["epochs"]) == len(page["mean"]) == len(page["ends"]) == 5


def test_the_film_says_what_is_left_in_the_file(layers: Run) -> None:
    """Simplifying may remove units after the last frame, so the frame alone would count other weights."""
    assert layers.info is not None
    assert layers.frames is not None
    left = {t.name: t.n_nonzero for t in layers.info.tensors}
    films = film_data(layers)
    assert [film.left for film in films] == [
        sum(left[name] or 0 for name in names) for names in layers.frames.about["tensors"]
    ]
    assert film_for_page(films[0])["left"] == films[0].left
    assert {film.left for film in film_data(dataclasses.replace(layers, info=None))} == {None}


def test_the_speed_of_the_shrunk_network_is_a_figure_and_a_table(layers: Run, tmp_path: Path) -> None:
    assert layers.result is not None
    timings = (Timing("CPU, 1 thread", 1, 0.002, 0.001), Timing("<b>GPU</b>", 256, 0.5, 0.125))
    result = dataclasses.replace(layers.result, speed=Speed(1000, 250, 900, 90, timings))
    run = dataclasses.replace(layers, result=result)
    (data,) = speed_data(run)
    assert data.timings == timings
    with styled():
        figure = draw_speed(data)
        bars = [round(bar.get_width(), 6) for bar in figure.axes[0].patches]
        svg = to_svg(figure, "speed-1")
    assert bars == [100, 50, 100, 25]  # from 0, in percent of the whole network's: a length is a time
    assert figure.axes[0].get_xlim()[0] == 0
    assert [compared(times) for times in (2.0, 1.01, 0.8)] == ["2.0 times faster", "as fast", "1.2 times slower"]
    assert {">whole<", ">shrunk<"} <= set(re.findall(">[a-z]+<", svg))
    assert "2.0 times faster" in svg
    assert "4.0 times faster" in svg
    page = render_page(run, {"speed": [svg]})
    assert "<b>10%</b><span>of the multiply-adds, shrunk</span>" in page
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition('id="shrunk"')[2].partition("</table>")[0], re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert ["weights", "1,000", "250", "4.0"] in cells
    assert ["multiply-adds for one example", "900", "90", "10.0"] in cells
    assert ["ms for 256 examples, &lt;b&gt;GPU&lt;/b&gt;", "500", "125", "4.0"] in cells
    assert speed_data(dataclasses.replace(layers, result=dataclasses.replace(result, speed=None))) == ()
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json") == result
