from __future__ import annotations

import dataclasses
import io
import re

from rich.console import Console, RenderableType

from cli_results import RESULT
from softshare.cli.tables import account_table, check_table, front_table, result_table
from softshare.paper.verify import Check
from softshare.task import Metric
from softshare.tune.trials import Row
from softshare.zoo.experiments import PaperRow


def render(table: RenderableType, width: int = 80) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(table)
    text = file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of each printed line, headers included."""
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines() if line[0] in "│┃"]


# The result


def test_account_table() -> None:
    text = render(account_table(RESULT))
    assert "Description length" in text
    assert rows(text) == [
        ["", "bytes", "ratio"],
        ["float32", "1,066,440", "1.0"],
        ["complexity cost, by the mixture", "10,000", "106.6"],
        ["order-0 entropy of the indices", "10,664", "100.0"],
        ["Han's format, the whole file", "16,661", "64.0"],
        ["the file, measured", "12,345", "86.4"],
        ["error cost on the training set", "10,000", ""],  # 80,002 bits are 10,000.25 bytes
    ]


def test_account_table_of_a_network_that_is_all_zero() -> None:
    text = render(account_table(dataclasses.replace(RESULT, entropy_bytes=0.0)))
    assert ["order-0 entropy of the indices", "0", "-"] in rows(text)


def test_result_table_beside_the_papers_row() -> None:
    text = render(result_table(RESULT, PaperRow(1.89, 1.94, 4.3, 64)))
    assert text.splitlines()[0].rstrip() == "lenet-300-100 on MNIST"
    assert rows(text) == [
        ["", "error %", "all non-zero %", "bytes", "ratio"],
        ["paper, estimated", "1.89 -> 1.94", "4.3", "~16,663", "64.0"],  # 4 * 266,610 / 64
        ["this file", "1.89 -> 1.94", "4.3", "12,345", "86.4"],
    ]


def test_result_table_without_a_row_of_the_papers() -> None:
    other = dataclasses.replace(RESULT, experiment="net.py:make_task", dataset="custom", error_before=100.0)
    text = render(result_table(other, None))
    assert text.splitlines()[0].rstrip() == "net.py:make_task on custom"
    assert rows(text)[1:] == [["this file", "100.00 -> 1.94", "4.3", "12,345", "86.4"]]


def test_nothing_of_a_large_result_is_cut_off() -> None:
    large = dataclasses.replace(RESULT, n_weights=7_241_732_096, n_nonzero=7_241_732_096, file_bytes=3_210_987_654)
    for table in (result_table(large, None), result_table(large, PaperRow(1.89, 1.94, 4.3, 64)), account_table(large)):
        text = render(table)
        assert "3,210,987,654" in text
        assert "this file" in text or "28,966,928,384" in text


# Other metrics


def test_a_result_of_another_metric() -> None:
    loss = dataclasses.replace(
        RESULT, metric=Metric("PSNR", "dB", True), error_before=31.234567, error_after=0.000123456
    )
    assert rows(render(result_table(loss, None))) == [
        ["", "PSNR dB", "all non-zero %", "bytes", "ratio"],
        ["this file", "31.23 -> 0.0001235", "4.3", "12,345", "86.4"],
    ]
    odd = dataclasses.replace(RESULT, metric=Metric("mAP[small]", ""))
    assert "mAP[small]" in render(result_table(odd, None))


def test_the_front_of_a_study_by_its_metric() -> None:
    best = Row(3, "complete", "", 97.5, 96.25, 1_000, 20.0, 15.0, 9.0, {}, True, 97.0, 95.0)
    assert rows(render(front_table([best], "front", Metric("accuracy", "%", True)))) == [
        ["trial", "validation accuracy %", "test accuracy %", "bytes", "ratio"],
        ["3", "97.50 -> 96.25", "97.00 -> 95.00", "1,000", "20.0"],
    ]
    untested = dataclasses.replace(best, test_error_before=None, test_error=None)
    assert rows(render(front_table([untested], "front", Metric("loss", ""))))[1][1:3] == ["97.5 -> 96.25", "-"]


def test_checks_of_one_metric_and_of_several() -> None:
    error, loss = Check("a", 10, 1.5), Check("b", 20, 0.25, metric=Metric("loss", ""))
    assert [row[:3] for row in rows(render(check_table([error, Check("c", None, None)], "runs")))] == [
        ["file", "bytes", "error %"],
        ["a", "10", "1.50"],
        ["c", "-", "-"],
    ]
    assert [row[2] for row in rows(render(check_table([loss], "runs")))] == ["loss", "0.25"]
    assert [row[2] for row in rows(render(check_table([error, loss], "runs")))] == [
        "metric",
        "error 1.50%",
        "loss 0.25",
    ]


def test_a_run_of_another_network_is_a_few_lines() -> None:
    names = [f"layers.{k}.{name}" for k in range(12) for name in ("query", "key", "value", "dense", "norm")]
    problem = "\n  ".join(["the decoded file does not fit the model:", *(f"not in the model: {n}" for n in names)])
    assert [row[3] for row in rows(render(check_table([Check("a", 10, None, (problem,))], "runs"), 400))[1:]] == [
        "the decoded file does not fit the model: not in the model: layers.{0-11}.query x12, not in the model: "
        "layers.{0-11}.key x12, not in the model: layers.{0-11}.value x12, not in the model: layers.{0-11}.dense x12 "
        "and 12 more"
    ]


def test_a_title_that_is_wider_than_its_table_is_not_broken() -> None:
    folder = "results/lenet-300-100/softshare-default/of-another-day"
    check = Check("a", 10, 1.5, not_checked=("error: the data are not in the package. Give their folder by --data",))
    for text in (render(check_table([check], folder)), render(front_table([], folder, Metric()))):
        assert text.splitlines()[0].rstrip() == folder
    notes = render(check_table([check], folder)).splitlines()[-1]
    assert notes.rstrip() == "not checked: error: the data are not in the package. Give their folder by --data"
