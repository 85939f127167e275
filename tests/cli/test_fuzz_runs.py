"""A short run of the fuzzer of runs. `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzz_runs
from forgeries import FORGERIES


@pytest.mark.slow
def test_no_forged_folder_breaks_a_command() -> None:
    report = fuzz_runs.fuzz_runs(2 * len(FORGERIES), seed=1)
    assert report.failures == []
    assert sum(report.statuses.values()) > 50


@pytest.mark.slow
def test_the_folder_is_valid_before_it_is_forged(tmp_path: Path) -> None:
    """Otherwise every command would refuse it for another reason."""
    statuses = fuzz_runs.Fuzzer(tmp_path).read_valid()
    on_purpose = {"settings": 2, "results": 1}  # weights that do not exist, before it trains; no page yet
    assert statuses == dict.fromkeys(statuses, 0) | on_purpose


def test_the_fuzzer_sees_what_is_not_allowed() -> None:
    assert fuzz_runs._problem(0, "a\x1b[31m", "") is not None
    assert fuzz_runs._problem(2, "", "softshare: one\nsoftshare: two\n") is not None
    assert fuzz_runs._problem(2, "", "softshare: does not fit:\n  a\n  b\n") is None
    assert fuzz_runs._problem(3, "", "") == "status 3"
    page = "<script>1</script><script>2</script>"
    assert fuzz_runs.page_problem(page) is None
    for bad in ("<img src=x onerror=alert(1)>", "<script>3</script>", "<b onclick=x>"):
        assert fuzz_runs.page_problem(page + bad) is not None
