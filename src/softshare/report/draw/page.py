"""Write the page to draw on: one HTML file with the `.sws` file, its decoder and the network's layers in it."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from softshare._util.files import read_bytes, write_atomic
from softshare._util.run_folder import DRAW, MODEL
from softshare._util.schema import to_plain
from softshare.codec.info import FileInfo
from softshare.report.draw.classifier import Classifier, from_film
from softshare.report.headline import said
from softshare.report.run import Run

MOST_BYTES = 1 << 22  # of a file inside a page
MOST_WEIGHTS = 1 << 23
MNIST_NOTICE = (
    "The images of digits are from MNIST, by Yann LeCun, Corinna Cortes and Christopher J.C. Burges, under CC BY-SA "
    "3.0 (creativecommons.org/licenses/by-sa/3.0)."
)
Known = Callable[[str], Classifier | str | None]  # by the name of an experiment


def nothing_known(experiment: str) -> None:
    """For runs whose film does not describe the network."""


def write_draw_page(run: Run, folder: Path, known: Known = nothing_known) -> Path | str:
    """Write the page into a folder that exists. Returns its path, or the reason why this run has none."""
    path = folder / DRAW
    found = drawable(run, known)
    if isinstance(found, str):
        path.unlink(missing_ok=True)  # of an earlier report
        return found
    write_atomic(path, render(run, found, read_bytes(run.folder / MODEL)).encode())
    return path


def drawable(run: Run, known: Known = nothing_known) -> Classifier | str:
    """The classifier of a run, or why there is none to draw for."""
    if run.info is None or run.result is None:
        return f"the run has no {MODEL} and no result yet"
    found = from_film(run.frames.about) if run.frames else None
    found = known(run.result.experiment) if found is None else found
    if found is None:
        return "the run does not describe its network; runs of earlier versions do not"
    return found if isinstance(found, str) else problem_of(found, run.info) or found


def problem_of(classifier: Classifier, info: FileInfo) -> str | None:
    """Why the file cannot be inside a page for this network."""
    if info.file_bytes > MOST_BYTES:
        return f"its file has {info.file_bytes:,} bytes, more than the {MOST_BYTES:,} that fit into a page"
    shapes = dict(zip(classifier.names, classifier.shapes, strict=True))
    held = {t.name: "x".join(map(str, t.shape or ())) for t in info.tensors if t.name is not None}
    if not held and len(info.tensors) != len(shapes):
        return f"its file has {len(info.tensors)} tensors, but the network has {len(shapes)}"
    for name in (name for layer in classifier.layers for name in (layer.weight, layer.bias) if name):
        own = classifier.tied.get(name, name)
        if own not in shapes or (held and held.get(own, held.get(name)) != shapes[own]):
            return f"its file does not hold {said(name)} as the network has it"
    n_weights = sum(t.n or 0 for t in info.tensors)
    return f"it has {n_weights:,} weights, more than {MOST_WEIGHTS:,}" if n_weights > MOST_WEIGHTS else None


def _notice(is_mnist: bool, classifier: Classifier) -> str:
    return f"<footer><p>{MNIST_NOTICE}</p></footer>" if is_mnist and classifier.examples else ""


def render(run: Run, classifier: Classifier, file: bytes) -> str:
    """The page. Texts are escaped: names come from files."""
    assert run.result is not None
    assert run.info is not None
    result, metric = run.result, run.result.metric
    is_mnist = result.dataset.partition(" ")[0].rstrip(",") == "MNIST"
    what = "a digit from 0 to 9" if is_mnist else "an image"
    plain = to_plain(classifier)
    names, shapes = plain.pop("names"), plain.pop("shapes")
    nameless = all(t.name is None for t in run.info.tensors)
    layout = (
        [[n, [int(x) for x in s.split("x") if x]] for n, s in zip(names, shapes, strict=True)] if nameless else None
    )
    data = {
        **plain,
        "file": base64.b64encode(file).decode(),
        "layout": layout,
        "hint": f"Draw {what}" + (", or choose an example." if classifier.examples else "."),
    }
    texts = {
        "title": f"softshare: {said(run.name)}, to draw on",
        "heading": "Draw a digit" if is_mnist else "Draw an image",
        "about": f"{said(result.experiment)} was trained on {said(result.dataset)} and compressed by softshare.",
        "bytes": f"{len(file):,}",
        "size": " x ".join(map(str, classifier.shape[1:])),
    }
    measured = f"{metric.name} on {result.dataset}"
    raw = {
        "css": _text("report", "page.css") + _text("report.draw", "draw.css"),
        "js": _text("report.draw", "sws.js") + _text("report.draw", "draw.js"),
        "notice": _notice(is_mnist, classifier),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "measured": f"<div><b>{html.escape(said(metric.text(result.error_after)))}</b>"
        f"<span>{html.escape(said(measured))}</span></div>",
    }
    parts = {**{name: html.escape(text) for name, text in texts.items()}, **raw}
    return re.sub(r"\{\{ (\w+) \}\}", lambda m: parts[m[1]], _text("report.draw", "draw.html"))


def _text(package: str, name: str) -> str:
    return files(f"softshare.{package}").joinpath(name).read_text("utf-8")
