"""The palette for every kind of eye: distances in CIELAB after simulating missing cones."""

from __future__ import annotations

import itertools
import math
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

LEAST_DIFFERENCE = {"all cones": 20, "deuteranope": 13, "protanope": 13}  # by CIEDE2000


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(colour: str, eye: str) -> np.ndarray:
    t = TO_XYZ @ np.clip(np.array(EYES[eye]) @ linear(colour), 0, 1) / TO_XYZ.sum(1)
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(a: str, b: str, eye: str) -> float:
    """CIEDE2000, which does not take two blues for far apart as the plain distance in CIELAB does."""
    return ciede2000(lab(a, eye), lab(b, eye))


def ciede2000(first: np.ndarray, second: np.ndarray) -> float:
    (l1, a1, b1), (l2, a2, b2) = first, second
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    grey = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = math.hypot(grey * a1, b1), math.hypot(grey * a2, b2)
    h1, h2 = math.atan2(b1, grey * a1), math.atan2(b2, grey * a2)
    turn = (h2 - h1 + math.pi) % (2 * math.pi) - math.pi
    hue, light, chroma = math.degrees(h1 + turn / 2) % 360, (l1 + l2) / 2, (c1 + c2) / 2
    waves = ((-0.17, 1, 30), (0.24, 2, 0), (0.32, 3, -6), (-0.2, 4, 63))
    t = 1 + sum(size * math.cos(math.radians(k * hue - shift)) for size, k, shift in waves)
    x = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2))
    y = (c2 - c1) / (1 + 0.045 * chroma)
    z = 2 * math.sqrt(c1 * c2) * math.sin(turn / 2) / (1 + 0.015 * chroma * t)
    blue = math.radians(60) * math.exp(-(((hue - 275) / 25) ** 2))
    twist = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(blue)
    return math.sqrt(x * x + y * y + z * z + twist * y * z)


def contrast(a: str, b: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(c)) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def test_the_colour_formulas_give_known_values() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    np.testing.assert_allclose(lab("#ff0000", "all cones"), [53.24, 80.09, 67.20], atol=0.02)
    pairs = {
        (50, 2.6772, -79.7751, 50, 0, -82.7485): 2.0425,
        (50, 2.5, 0, 50, 0, -2.5): 4.3065,
        (50, 2.5, 0, 73, 25, -18): 27.1492,
    }  # fmt: skip  of Sharma, Wu and Dalal (2005)
    for pair, known in pairs.items():
        assert ciede2000(np.array(pair[:3]), np.array(pair[3:])) == pytest.approx(known, abs=1e-4)
    two_blues = ("#0072b2", "#0078f0")
    assert difference(*two_blues, "all cones") < LEAST_DIFFERENCE["all cones"]
    assert np.linalg.norm(np.subtract(*(lab(blue, "all cones") for blue in two_blues))) > LEAST_DISTANCE
    old = [np.linalg.norm(lab("#d55e00", eye) - lab("#a87b00", eye)) for eye in EYES]
    assert old[0] > LEAST_DISTANCE > min(old)  # far apart for most readers, and not for all


def test_every_eye_can_tell_series_and_ink_apart() -> None:
    for scheme, eye in itertools.product(SCHEMES, EYES):
        colours = [value for name, value in SCHEMES[scheme].items() if name.startswith("series-") or name == "ink"]
        assert len(colours) == len(SERIES) + 1
        for a, b in itertools.combinations(colours, 2):
            assert np.linalg.norm(lab(a, eye) - lab(b, eye)) > LEAST_DISTANCE, (scheme, eye, a, b)
        for a, b in itertools.combinations([*colours, SCHEMES[scheme]["bad"]], 2):
            assert difference(a, b, eye) > LEAST_DIFFERENCE[eye], (scheme, eye, a, b)


def test_lines_and_text_stand_out_from_the_ground() -> None:
    """WCAG asks for a contrast of 3 for graphics and 4.5 for text. On dark a thin line needs as much as text."""
    for scheme, colours in SCHEMES.items():
        least = 4.5 if scheme == "dark" else 3
        for ground in (colours["ground"], colours["panel"]):
            assert min(contrast(colours[name], ground) for name in colours if name.startswith("series-")) >= least
            assert min(contrast(colours[name], ground) for name in ("ink", "faint")) >= 4.5


def test_files_have_the_colours_of_the_light_page() -> None:
    assert {name: colour for colour, name in VARIABLES.items()}.items() <= LIGHT.items()
