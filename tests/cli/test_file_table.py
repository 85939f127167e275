from __future__ import annotations

import io
import re

import pytest

from softshare.cli.console import SafeConsole
from softshare.cli.file_table import print_file_table
from softshare.codec import FileInfo, TensorInfo
from terminals import lines_of

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
HEAD = ["tensor", "shape", "non-zero", "components", "bits", "bytes", "share"]


def render(
    info: FileInfo, title: str = "m.sws", width: int = 80, file: io.StringIO | None = None, *, unfold: bool = False
) -> list[str]:
    """The lines in a terminal of this width, or in a file."""
    return lines_of(lambda out: print_file_table(out, info, title, unfold=unfold), width, file)


def rows(lines: list[str]) -> list[list[str]]:
    """The words of each line from the heads of the columns on."""
    return [re.split(r" {2,}", line.strip()) for line in lines[1:]]


def test_a_row_for_each_tensor() -> None:
    lines = render(LENET, "model.sws")
    assert lines[0] == "model.sws: version 1, codec han, 12,345 bytes"
    assert rows(lines) == [
        HEAD,
        ["fc1.weight", "300x784", "3.6%", "9", "0.340", "10,000", "81.0%"],  # 8,400 and 8 * 10,000 of 235,200
        ["fc1.bias", "300", "33.3%", "7", "3.333", "125", "1.0%"],
        ["norm.weight", "300", "-", "kept", "32.000", "1,200", "9.7%"],
        ["norm.count", "scalar", "-", "kept", "64.000", "8", "0.1%"],
        ["unused", "0x4", "0", "0", "-", "0", "0.0%"],
        ["overhead", "1,012", "8.2%"],  # 12,345 - 10,000 - 125 - 1,200 - 8
        ["file", "235,801", "0.419", "12,345"],  # 8 * 12,345 / 235,801
        ["Shared weights that are not 0: 8,500 of 235,500 (3.6%)."],
        ["In float32 the values take 943,204 bytes: the file is 76.4 times smaller."],  # 4 * 235,801
        ["Tensors marked 'kept' are stored as they were. Their values do not count as"],
        ["shared weights."],
    ]
    assert len({len(line) for line in lines[1:7]}) == 1  # numbers are to the right


def test_a_file_without_weights() -> None:
    assert rows(render(FileInfo(1, "han", 60, ())))[1:] == [
        ["overhead", "60", "100.0%"],
        ["file", "?", "-", "60"],
        ["Shared weights that are not 0: 0."],
    ]


def test_a_file_without_names_numbers_its_tensors_and_folds_none() -> None:
    unnamed = TensorInfo(None, "shared", None, None, 1_234, 9, 200)
    tensors = (*[unnamed] * 4, TensorInfo(None, "rest", None, None, None, 0, 100))
    assert rows(render(FileInfo(1, "adaptive", 1_000, tensors)))[1:-3] == [
        *(["#" + str(k), "?", "1,234", "9", "-", "200", "20.0%"] for k in range(4)),
        ["#4", "?", "-", "kept", "-", "100", "10.0%"],
        ["overhead", "100", "10.0%"],
        ["file", "?", "-", "1,000"],
    ]


PREFIX = "a.module.path.that.goes.on.and.on.through.many.wrappers.model."


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("stem", ["", "transformer.encoder.layers.", PREFIX + "transformer.encoder.layers."])
def test_no_name_and_no_number_is_broken(width: int, stem: str) -> None:
    tensors = (
        TensorInfo(
            f"{stem}0.self_attention.in_proj_weight", "shared", (50_257, 768), 38_597_376, 28_947_032, 257, 10**7
        ),
        TensorInfo(f"{stem}11.conv.weight", "shared", (1024, 1024, 3, 3, 3), 28_311_552, 1_234_567, 4097, 3_456_789),
        TensorInfo("head.bias", "shared", (10,), 10, 10, 2, 1),
    )
    info = FileInfo(version=1, codec="han", file_bytes=45_678_901, tensors=tensors)
    title = "/a/long/path/to/the/folder/of/a/run/with/a/long/name/model.sws"
    named = {t.name for t in tensors}
    for file in (None, io.StringIO()):
        lines = render(info, title, width, file)
        assert f"{title}: version 1" in lines[0]
        words = [word for line in lines[1:] for word in line.split()]
        for t in tensors:
            # A file has the whole name. A terminal would cut one that is wider.
            assert t.name in words or (file is None and len(t.name or "") > width)
            assert {"x".join(map(str, t.shape or ())), str(t.n_components), f"{t.n_bytes:,}"} <= {*words}
        assert all(len(line) <= width for line in lines[1:] if file is None or line not in named)
        assert any("…" in line for line in lines) == (file is None and any(len(name or "") > width for name in named))


def test_a_name_that_is_wider_than_the_terminal_keeps_its_blocks_and_its_end() -> None:
    names = [
        f"encoder_with_a_rather_long_name.transformer_layers.{k}.feed_forward_network_intermediate_dense.weight"
        for k in range(12)
    ]
    tensors = tuple(TensorInfo(name, "shared", (4, 4), 16, 8, 3, 100) for name in names)
    info = FileInfo(1, "han", 2_000, tensors)
    lines = render(info)
    assert lines[2] == "encoder_wi…_long_name.transformer_layers.{0-11}.feed_forwa…iate_dense.weight x12"
    assert names[0].replace(".0.", ".{0-11}.") + " x12" in render(info, file=io.StringIO())
    each = render(info, width=60, unfold=True)
    for k in range(12):
        (line,) = [line for line in each if f".{k}." in line]
        assert line.startswith("encode")
        assert line.endswith(".weight")
        assert len(line) <= 60
    chain = TensorInfo(".".join(["module"] * 25), "shared", (4, 4), 16, 8, 3, 100)  # no part is long
    (line,) = [line for line in render(FileInfo(1, "han", 2_000, (chain,)), width=60) if line.startswith("module")]
    assert len(line) == 60


def test_a_repeated_block_is_one_row_with_sums_and_means() -> None:
    block = [
        TensorInfo(f"layers.{k}.weight", "shared", (10, 10), 100, 10 + 10 * k, 3 + k, 100 + 100 * k) for k in range(3)
    ]
    info = FileInfo(1, "han", 1_000, (TensorInfo("first", "shared", (2, 5), 10, 5, 2, 10), *block))
    assert rows(render(info))[1:] == [
        ["first", "2x5", "50.0%", "2", "8.000", "10", "1.0%"],
        ["layers.{0-2}.weight x3", "10x10", "20.0%", "3-5", "16.000", "600", "60.0%"],
        ["overhead", "390", "39.0%"],
        ["file", "310", "25.806", "1,000"],
        ["Shared weights that are not 0: 65 of 310 (21.0%)."],
        ["In float32 the values take 1,240 bytes: the file is 1.2 times smaller."],
        ["x3 means 3 tensors: bytes and share are sums, non-zero and bits means."],
        ["To see each tensor: softshare inspect FILE --verbose"],
    ]
    each = rows(render(info, unfold=True))
    assert [row[0] for row in each[2:5]] == [f"layers.{k}.weight" for k in range(3)]
    assert [row[5] for row in each[2:5]] == ["100", "200", "300"]


def test_names_of_tensors_that_are_stored_once() -> None:
    stored = TensorInfo("embedding.weight", "shared", (2, 2), 4, 1, 2, 3)
    tied = dict.fromkeys(("head.weight", "b", "c", "d\x1b[31m", "e"), "embedding.weight")
    one = render(FileInfo(1, "han", 60, (stored,), tied={"head.weight": "embedding.weight"}))
    assert "Stored once: head.weight is embedding.weight." in one
    lines = render(FileInfo(1, "han", 60, (stored,), tied=tied))
    assert " ".join(lines[-2:]) == (
        "Stored once: head.weight is embedding.weight, b is embedding.weight, c is embedding.weight, and 2 more, which "
        "--json lists."
    )


def test_a_matrix_without_weights_is_red() -> None:
    dead, alive = TensorInfo("a", "shared", (2, 2), 4, 0, 2, 0), TensorInfo("b", "shared", (2, 2), 4, 1, 2, 5)
    bias = TensorInfo("c", "shared", (2,), 2, 0, 2, 0)  # biases of 0 are no harm
    file = io.StringIO()
    print_file_table(
        SafeConsole(file=file, force_terminal=True, color_system="standard"),
        FileInfo(1, "han", 60, (dead, alive, bias)),
        "m.sws",
    )
    assert [line[5] for line in file.getvalue().splitlines() if line.startswith("\x1b[31m")] == ["a"]


def test_names_are_shown_as_they_are_and_never_obeyed() -> None:
    tensor = TensorInfo("heads.[bold].\x1b[31m.weight", "shared", (2, 2), 4, 1, 2, 3)
    text = "\n".join(render(FileInfo(1, "han", 60, (tensor,)), "runs/[red]/model.sws"))
    assert "heads.[bold].\\x1b[31m.weight" in text
    assert "runs/[red]/model.sws" in text
