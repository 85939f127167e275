"""One run counts its non-zero weights in one way, or its words say what else they count."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from report_runs import Net, compress
from softshare import load_into_
from softshare._util.run_folder import MODEL, PAGE, RESULT
from softshare.cli import main
from softshare.codec import inspect
from softshare.report.figures.film import film_data
from softshare.report.headline import cards
from softshare.report.run import Run
from softshare.result import Result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, str]:
    """A run of a network with a norm, which the file keeps, and what its command printed."""
    printed = StringIO()
    with redirect_stdout(printed):
        folder = compress(tmp_path_factory.mktemp("counts"), "--verbose")
    return Run.load(folder), printed.getvalue()


@pytest.fixture(scope="module")
def counted(finished: tuple[Run, str]) -> tuple[int, int, int]:
    """Non-zero shared weights, non-zero kept ones, and all weights, in the network that the file decodes to."""
    run, _ = finished
    net = Net()
    load_into_(net, run.folder / MODEL)
    shared = {t.name for t in inspect(run.folder / MODEL).tensors if t.kind == "shared"}
    left = {name: int(p.count_nonzero()) for name, p in net.named_parameters()}
    kept = sum(n for name, n in left.items() if name not in shared)
    assert kept > 0  # else the two ways could not differ
    return sum(left.values()) - kept, kept, sum(p.numel() for p in net.parameters())


def test_the_result_counts_all_weights(finished: tuple[Run, str], counted: tuple[int, int, int]) -> None:
    result, (shared, kept, n) = Result.load(finished[0].folder / RESULT), counted
    assert (result.n_nonzero, result.n_weights) == (shared + kept, n)
    row = next(line for line in finished[1].splitlines() if "this file" in line)
    assert "all non-zero %" in finished[1]
    assert f" {100 * (shared + kept) / n:.1f} " in row


def test_inspect_and_the_closing_table_count_shared_weights(
    finished: tuple[Run, str], counted: tuple[int, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = finished[0].folder / MODEL
    tensors = [t for t in inspect(file).tensors if t.kind == "shared"]
    assert sum(t.n_nonzero or 0 for t in tensors) == counted[0]
    said = f"Shared weights that are not 0: {counted[0]:,} of {sum(t.n or 0 for t in tensors):,} "
    assert said in finished[1]
    capsys.readouterr()
    assert main(["inspect", str(file)]) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert "Their values do not count as shared weights." in printed


def test_the_report_has_both_counts_each_by_its_name(
    finished: tuple[Run, str], counted: tuple[int, int, int], tmp_path: Path
) -> None:
    run, (shared, kept, n) = finished[0], counted
    share = f"{100 * (shared + kept) / n:.2f}%"
    assert cards(run)["of all weights are not zero"] == share
    assert main(["report", str(run.folder), "--out", str(tmp_path)]) == 0
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert re.search(rf"<b>{re.escape(share)}</b>\s*<span>of all weights are not zero</span>", page)
    assert sum(film.left or 0 for film in film_data(run)) == shared  # every shared tensor has a film here
