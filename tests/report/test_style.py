"""The palette for every kind of eye: distances in CIELAB after simulating missing cones."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from softshare.report import style
from softshare.report.style import SERIES, VARIABLES

CSS = (Path(style.__file__).parent / "page.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in CSS.split("@media", 2)[:2])
SCHEMES = {"light": LIGHT, "dark": DARK}
# Machado, Oliveira and Fernandes (2009), at full severity, on linear sRGB.
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "deuteranope": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanope": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
LEAST_DISTANCE = 20  # about 2 is just visible side by side; thin lines far apart need more


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(colour: str, eye: str) -> np.ndarray:
    t = TO_XYZ @ np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1) / TO_XYZ.sum(1)
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(c)) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def test_the_colour_formulas_give_known_values() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    np.testing.assert_allclose(lab("#ff0000", "all cones"), [53.24, 80.09, 67.20], atol=0.02)
    old = [np.linalg.norm(lab("#d55e00", eye) - lab("#a87b00", eye)) for eye in EYES]
    assert old[0] > LEAST_DISTANCE > min(old)  # far apart for most readers, and not for all


def test_every_eye_can_tell_series_and_ink_apart() -> None:
    for scheme, eye in itertools.product(SCHEMES, EYES):
        colours = [value for name, value in SCHEMES[scheme].items() if name.startswith("series-") or name == "ink"]
        assert len(colours) == len(SERIES) + 1
        for a, b in itertools.combinations(colours, 2):
            assert np.linalg.norm(lab(a, eye) - lab(b, eye)) > LEAST_DISTANCE, (scheme, eye, a, b)


def test_lines_and_text_stand_out_from_the_ground() -> None:
    """WCAG asks for a contrast of 3 for graphics and 4.5 for text."""
    for colours in SCHEMES.values():
        for ground in (colours["ground"], colours["panel"]):
            assert min(contrast(colours[name], ground) for name in colours if name.startswith("series-")) >= 3
            assert min(contrast(colours[name], ground) for name in ("ink", "faint")) >= 4.5


def test_files_have_the_colours_of_the_light_page() -> None:
    assert {name: colour for colour, name in VARIABLES.items()}.items() <= LIGHT.items()
