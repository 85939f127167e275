from __future__ import annotations

import dataclasses
import io
import re

from rich.console import Console
from rich.table import Table

from softshare.cli.tables import account_table, check_table, file_table, front_table, others_table, result_table
from softshare.codec import FileInfo, TensorInfo
from softshare.paper.verify import Check
from softshare.result import Result
from softshare.task import Metric
from softshare.tune.trials import Row
from softshare.zoo.experiments import PaperRow

RESULT = Result(
    schema=1,
    experiment="lenet-300-100",
    method="softshare",
    dataset="MNIST",
    seed=0,
    error_before=1.8949,
    error_after=1.9351,
    n_weights=266_610,
    n_nonzero=11_464,
    n_components=9,
    file_bytes=12_345,
    ratio=4 * 266_610 / 12_345,
    han_bytes=16_661,
    han_ratio=4 * 266_610 / 16_661,
    entropy_bytes=10_664.4,
    complexity_bytes=9_999.6,
    error_bits=80_002.0,
    seconds=61.5,
    device="cpu",
    versions={},
    config={},
)

LENET = FileInfo(
    version=1,
    codec="han",
    file_bytes=12_345,
    tensors=(
        TensorInfo("fc1.weight", "shared", (300, 784), 235_200, 8_400, 9, 10_000),
        TensorInfo("fc1.bias", "shared", (300,), 300, 100, 7, 125),
        TensorInfo("norm.weight", "rest", (300,), 300, None, 0, 1_200),
        TensorInfo("norm.count", "rest", (), 1, None, 0, 8),
        TensorInfo("unused", "shared", (0, 4), 0, 0, 0, 0),
    ),
)


def render(table: Table, width: int = 80) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(table)
    text = file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of each printed line, headers included."""
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in text.splitlines() if line[0] in "│┃"]


def column(text: str, i: int) -> str:
    """The text of a column, folded lines joined, without spaces."""
    return "".join(row[i].replace(" ", "") for row in rows(text))


# The file


def test_file_table() -> None:
    text = render(file_table(LENET, "model.sws"))
    assert text.splitlines()[0].rstrip() == "model.sws: version 1, codec han, 12,345 bytes"
    assert rows(text) == [
        ["tensor", "shape", "non-zero", "components", "bits", "bytes", "share"],
        ["fc1.weight", "300x784", "8,400 (3.6%)", "9", "0.340", "10,000", "81.0%"],  # 8 * 10,000 / 235,200
        ["fc1.bias", "300", "100 (33.3%)", "7", "3.333", "125", "1.0%"],
        ["norm.weight", "300", "-", "kept", "32.000", "1,200", "9.7%"],
        ["norm.count", "scalar", "-", "kept", "64.000", "8", "0.1%"],
        ["unused", "0x4", "0", "0", "-", "0", "0.0%"],
        ["overhead", "", "", "", "", "1,012", "8.2%"],  # 12,345 - 10,000 - 125 - 1,200 - 8
        ["file", "235,801", "8,500 (3.6%)", "", "0.419", "12,345", ""],  # of 235,500 shared; 8 * 12,345 / 235,801
    ]


def test_file_table_of_a_file_without_weights() -> None:
    text = render(file_table(FileInfo(1, "han", 60, ()), "model.sws"))
    assert rows(text)[1:] == [
        ["overhead", "", "", "", "", "60", "100.0%"],
        ["file", "?", "0", "", "-", "60", ""],
    ]


def test_file_table_of_a_file_without_names() -> None:
    tensors = (
        TensorInfo(None, "shared", None, None, 1_234, 9, 800),
        TensorInfo(None, "rest", None, None, None, 0, 100),
    )
    text = render(file_table(FileInfo(1, "adaptive", 1_000, tensors), "model.sws"))
    assert rows(text)[1:] == [
        ["#0", "?", "1,234", "9", "-", "800", "80.0%"],
        ["#1", "?", "-", "kept", "-", "100", "10.0%"],
        ["overhead", "", "", "", "", "100", "10.0%"],
        ["file", "?", "1,234", "", "-", "1,000", ""],
    ]


def test_nothing_of_a_long_file_table_is_cut_off() -> None:
    names = [f"transformer.encoder.layers.{i}.self_attention.in_proj_weight" for i in (0, 11)]
    info = FileInfo(
        version=1,
        codec="han",
        file_bytes=45_678_901,
        tensors=(
            TensorInfo(names[0], "shared", (50_257, 768), 38_597_376, 28_947_032, 257, 9_876_543),
            TensorInfo(names[1], "shared", (1024, 1024, 3, 3, 3), 28_311_552, 1_234_567, 4097, 3_456_789),
        ),
    )
    text = render(file_table(info, "/a/long/path/to/the/folder/of/a/run/with/a/long/name/model.sws"))
    for name in names:
        assert name in column(text, 0)
    assert "50257x7681024x1024x3x3x3" in column(text, 1)
    assert "28,947,032(75.0%)1,234,567(4.4%)" in column(text, 2)
    assert column(text, 3) == "components2574097"
    assert "2.0470.977" in column(text, 4)
    assert column(text, 5) == "bytes9,876,5433,456,78932,345,56945,678,901"
    title = "".join(line.strip() for line in text.partition("┏")[0].splitlines())
    assert "with/a/long/name/model.sws" in title
    assert "45,678,901" in title
    for figure in ("28,947,032", "1,234,567", "9,876,543", "3,456,789"):
        assert figure in text  # a folded number would be misread


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
        ["", "error %", "non-zero %", "bytes", "ratio"],
        ["the paper (estimated)", "1.89 -> 1.94", "4.3", "~16,663", "64.0"],  # 4 * 266,610 / 64
        ["softshare (the file)", "1.89 -> 1.94", "4.3", "12,345", "86.4"],
    ]


def test_result_table_without_a_row_of_the_papers() -> None:
    other = dataclasses.replace(RESULT, experiment="net.py:make_task", dataset="custom", error_before=100.0)
    text = render(result_table(other, None))
    assert text.splitlines()[0].rstrip() == "net.py:make_task on custom"
    assert rows(text)[1:] == [["softshare (the file)", "100.00 -> 1.94", "4.3", "12,345", "86.4"]]


def test_nothing_of_a_large_result_is_cut_off() -> None:
    large = dataclasses.replace(RESULT, n_weights=7_241_732_096, n_nonzero=7_241_732_096, file_bytes=3_210_987_654)
    for table in (result_table(large, None), result_table(large, PaperRow(1.89, 1.94, 4.3, 64)), account_table(large)):
        text = render(table)
        assert "3,210,987,654" in text
        assert "softshare (the file)" in text or "28,966,928,384" in text


def test_markup_in_a_name_is_shown() -> None:
    tensor = TensorInfo("heads.[bold].weight", "shared", (2, 2), 4, 1, 2, 3)
    text = render(file_table(FileInfo(1, "han", 60, (tensor,)), "runs/[red]/model.sws"))
    assert "heads.[bold].weight" in column(text, 0)
    assert "runs/[red]/model.sws" in text


# Other metrics


def test_a_result_of_another_metric() -> None:
    loss = dataclasses.replace(
        RESULT, metric=Metric("PSNR", "dB", True), error_before=31.234567, error_after=0.000123456
    )
    assert rows(render(result_table(loss, None))) == [
        ["", "PSNR dB", "non-zero %", "bytes", "ratio"],
        ["softshare (the file)", "31.23 -> 0.0001235", "4.3", "12,345", "86.4"],
    ]
    odd = dataclasses.replace(RESULT, metric=Metric("mAP[small]", ""))
    assert "mAP[small]" in render(result_table(odd, None))


def test_other_measures() -> None:
    text = render(others_table({"loss": [0.123456, 1.0], "[F1]": [0.5, 0.25]}))
    assert rows(text) == [["", "before", "after"], ["loss", "0.1235", "1"], ["[F1]", "0.5", "0.25"]]


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
