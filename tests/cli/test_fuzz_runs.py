"""A short run of the fuzzer of runs. `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fuzz_runs
import softshare as ss
from cli_runs import contents, copied
from forgeries import FORGERIES, NAMES, TENSOR_NAMES, draw_names
from softshare.report.figures.rates import rates_data
from softshare.report.page import render
from softshare.report.quantized_page import page_of


@pytest.mark.slow
def test_no_forged_folder_breaks_a_command() -> None:
    report = fuzz_runs.fuzz_runs(2 * len(FORGERIES), seed=1)
    assert report.failures == []
    assert sum(report.statuses.values()) > 50


def test_no_name_is_an_element_of_the_page_to_draw_on(finished: Path, tmp_path: Path) -> None:
    """Nor does any other name of a page break it. Most of the forged folders must have one."""
    rng, folder, pages = np.random.default_rng(0), copied(finished, tmp_path), 0
    valid = contents(folder)
    for _ in range(40):
        for name, data in draw_names(valid, rng).items():
            (folder / name).write_bytes(data)
        if fuzz_runs.draw_page(folder, tmp_path) == 0:
            assert fuzz_runs.page_problem((tmp_path / "draw.html").read_text()) is None
            pages += 1
    assert pages > 20


def test_no_name_is_an_element_of_the_page_of_a_checkpoint() -> None:
    fitted = ss.quantize({name: torch.randn(20, 20) for name in TENSOR_NAMES}, bits=4)
    assert len(rates_data(fitted)[0].points) == len(TENSOR_NAMES)
    for name in NAMES:
        assert fuzz_runs.page_problem(render(page_of(fitted, [], name))) is None


@pytest.mark.slow
def test_the_folder_is_valid_before_it_is_forged(tmp_path: Path) -> None:
    """Otherwise every command would refuse it for another reason."""
    statuses = fuzz_runs.Fuzzer(tmp_path).read_valid()
    on_purpose = {
        "settings": 2,
        "settings file": 2,
        "results": 1,
    }  # weights that do not exist, before it trains; no page yet
    assert statuses == dict.fromkeys(statuses, 0) | on_purpose


def test_the_fuzzer_sees_what_is_not_allowed() -> None:
    assert fuzz_runs._problem(0, "a\x1b[31m", "") is not None
    assert fuzz_runs._problem(2, "", "softshare: one\nsoftshare: two\n") is not None
    assert fuzz_runs._problem(2, "", "softshare: does not fit:\n  a\n  b\n") is None
    assert fuzz_runs._problem(3, "", "") == "status 3"
    page = "<script>1</script><script>2</script>"
    assert fuzz_runs.page_problem(page) is None
    for bad in ("<img src=x onerror=alert(1)>", "<script>3</script>", "<b onclick=x>", NAMES[7]):
        assert fuzz_runs.page_problem(page + bad) is not None
