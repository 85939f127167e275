"""Forged films, histories and names: refused with one error, or shown as they are."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_runs import contents
from report_runs import compress
from softshare.errors import ConfigError, FormatError
from softshare.report.figures.hyperprior_curves import hyperpriors_data
from softshare.report.figures.sizes import MOST_POINTS, bits_data
from softshare.report.frames import MAX_BYTES, Frames
from softshare.report.run import Run, drawn_from
from softshare.report.style import MOST_TIPS, epoch_tips, for_page, new_figure, styled, to_png, to_svg
from softshare.report.write import write_report

Arrays = dict[str, Any]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return contents(compress(tmp_path_factory.mktemp("run")))


@pytest.fixture
def run(valid: dict[str, bytes], tmp_path: Path) -> Path:
    for name, data in valid.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def forge(run: Path, change: Callable[[Arrays], Any]) -> None:
    with np.load(run / "frames.npz") as film:
        arrays: Arrays = dict(film)
    change(arrays)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    (run / "frames.npz").write_bytes(file.getvalue())


def about(**values: Any) -> Callable[[Arrays], None]:
    def change(arrays: Arrays) -> None:
        arrays["about"] = np.array(json.dumps(json.loads(str(arrays["about"])) | values))

    return change


def put(name: str, of: Callable[[Any], Any]) -> Callable[[Arrays], None]:
    return lambda arrays: arrays.update({name: of(arrays[name])})


FILMS: dict[str, Callable[[Arrays], Any]] = {
    "missing": lambda arrays: arrays.pop("mean"),
    "pickle": put("mean", lambda a: np.array([{}], dtype=object)),
    "another shape": put("mean", lambda a: a[:, :, :-1]),
    "no dimensions": put("mean", lambda a: np.float32(1)),
    "no frames": lambda arrays: arrays.update({n: a[:0] for n, a in arrays.items() if n != "about" and a.ndim}),
    "nan": put("mean", lambda a: a * np.nan),
    "infinite": put("ends", lambda a: a + np.inf),
    "huge": put("log_var", lambda a: a + 1e30),
    "text": put("log_mixing", lambda a: a.astype("U8")),
    "counts below 0": put("counts", lambda a: a - 10**9),
    "counts that are no counts": put("histograms", lambda a: a.astype(float)),
    "a mixture that is not there": put("shown", lambda a: a + 1000),
    "an owner that is not there": put("owner", lambda a: a + 1000),
    "about": lambda arrays: arrays.update(about=np.array("[]")),
    "about nested": lambda arrays: arrays.update(about=np.array("[" * 5000)),
    "no names": about(parts=[]),
    "names that are none": about(parts=[{}] * 3),
    "tensors that are none": about(tensors=[[], [], []]),
    "sizes": about(sizes=["1", "2", "3"]),
    "priors": about(precision_priors=5),
    "filters": lambda arrays: arrays.update({"filters/x": np.zeros(3, np.float32)}),
    "bomb": lambda arrays: arrays.update(x=np.zeros(MAX_BYTES // 8 + 1)),
}


@pytest.mark.parametrize("forged", FILMS)
def test_a_forged_film_is_refused(run: Path, forged: str) -> None:
    Frames.load(run / "frames.npz")
    forge(run, FILMS[forged])
    with pytest.raises(FormatError, match=r"frames\.npz is not the film of a run"):
        Run.load(run)


@pytest.mark.parametrize(
    ("prior", "problem"),
    [({"alpha": "x", "beta": 1.0}, "a number"), ({"gamma": 1}, "expected"), ({"alpha": -1.0, "beta": 1.0}, "Gamma")],
)
def test_a_forged_prior_is_refused(run: Path, prior: dict[str, Any], problem: str) -> None:
    forge(run, about(precision_priors=[prior, None]))
    with pytest.raises(ConfigError, match=problem):
        hyperpriors_data(Run.load(run))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no epoch yet"),
        ("epoch,tau\n1,2\n", "is missing"),
        ("epoch\nx\n", "rows of numbers"),
        ("epoch\n1,2\n", "rows of numbers"),
        ('epoch\n"' + "1" * 200_000, "rows of numbers"),
        ("epoch\n" + "1\n" * 100_001, "at most 100,000 rows"),
    ],
    ids=["empty", "columns", "text", "cells", "long", "rows"],
)
def test_a_forged_history_is_refused(run: Path, text: str, problem: str) -> None:
    (run / "result.json").unlink()
    (run / "history.csv").write_text(text)
    with pytest.raises((FormatError, ConfigError), match=problem):
        Run.load(run)


def test_an_epoch_is_a_number(run: Path) -> None:
    first, second, *_ = (run / "history.csv").read_text().splitlines()
    (run / "history.csv").write_text(f"{first}\nnan{second[second.index(',') :]}\n")
    with pytest.raises(FormatError, match="expected epochs"):
        Run.load(run)


def test_what_cannot_be_drawn_is_an_error_of_the_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("softshare.report.write.render_page", broken)
    monkeypatch.setattr("softshare.report.write.FIGURES", ())
    with pytest.raises(FormatError, match=r"what they hold cannot be shown \(OverflowError\('too large'\)\)"):
        write_report(run, run / "report")
    with pytest.raises(ConfigError, match="mine"), drawn_from(run):
        raise ConfigError("mine")


NAME = "$\\frac{$ a$b$ <b onclick=x>&amp; \x1b[31m"


def test_names_in_figures_are_no_formulas_and_no_elements() -> None:
    with styled():
        figure = new_figure()
        axes = figure.subplots()
        axes.plot([1, 10], [1, 1000], label=NAME)
        axes.set(title=NAME, xlabel=NAME, yscale="log")
        axes.set_xticks([1, 2], [NAME.replace("\x1b", ""), "$\\bad$"])
        axes.annotate(NAME, (1, 1))
        figure.legend()
        figure.suptitle(NAME)
        svg = to_svg(figure, "x")
        assert to_png(figure).startswith(b"\x89PNG")
    assert (
        svg.count("$\\frac{$ a$b$ &lt;b onclick=x&gt;&amp;amp; \\x1b[31m") == 7
    )  # two are the title for screen readers
    assert "<b " not in svg
    assert "\x1b" not in svg
    (label,) = re.findall(r' aria-label="([^"]*)"', for_page(svg.replace("onclick=x", 'onclick="x"')))
    assert label.startswith("$\\frac{$ a$b$ &lt;b onclick=&quot;x&quot;&gt;")
    assert "<title>" not in for_page(svg)  # it would be a tooltip of the whole figure
    assert "<!-- $\\mathdefault{10^{0}}$ -->" in svg  # the ticks of a logarithmic axis are formulas as before


def test_many_epochs_and_tensors_cost_a_bounded_time(run: Path) -> None:
    with styled():
        axes = new_figure().subplots()
        epoch_tips(axes, np.arange(10_000), ["x"] * 10_000)
        assert len(axes.patches) <= MOST_TIPS
    loaded = Run.load(run)
    assert loaded.info is not None
    object.__setattr__(loaded.info, "tensors", loaded.info.tensors * 2000)
    (data,) = bits_data(loaded)
    assert len(data.points) == MOST_POINTS
