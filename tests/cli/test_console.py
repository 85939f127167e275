"""Where the lines of what is printed end."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.cells import cell_len
from rich.text import Text

from softshare.cli.console import wrapped
from terminals import lines_of

NOTE = "Tensors marked 'kept' are stored as they were. Their values do not count as shared weights."
NAME = "bert.encoder.layer.0.attention.output.dense.weight"


@pytest.mark.parametrize("width", [20, 40, 79, 80, 91, 120])
def test_a_message_breaks_between_words_on_a_terminal(width: int) -> None:
    lines = lines_of(lambda out: out.print(NOTE), width)
    assert " ".join(lines) == NOTE
    assert all(len(line) <= width for line in lines)
    # Each line has as many words as it can hold.
    assert all(len(f"{a} {b.split()[0]}") > width for a, b in itertools.pairwise(lines))


def test_a_message_is_one_line_elsewhere() -> None:
    for width in (20, 80):
        assert lines_of(lambda out: out.print(NOTE, style="red"), width, io.StringIO()) == [NOTE]


def test_a_word_is_never_broken() -> None:
    path = "/home/somebody/a-very-long-name-of-a-folder/runs/net/model.sws"
    assert lines_of(lambda out: out.print(f"Wrote 12 tensors to {path}."), 30) == ["Wrote 12 tensors to", f"{path}."]
    assert lines_of(lambda out: out.print(f"look 3: {NAME} and 28 more lost all weights"), 60) == [
        f"look 3: {NAME}",
        "and 28 more lost all weights",
    ]


@pytest.mark.parametrize(
    "command",
    [
        "softshare quantize 'my model.pt' --bits 4 --overwrite",
        "pip install 'softshare[report]'",
        "torchrun --nproc-per-node N -m softshare",
    ],
)
def test_a_command_is_one_line_to_copy(command: str) -> None:
    lines = lines_of(
        lambda out: out.print(f"expected a task. To compress a checkpoint without one, run: {command}"), 30
    )
    assert lines[-1] == command
    lines = lines_of(lambda out: out.print(f"The settings of `{command}` are expected here"), 30)
    assert f"`{command}`" in lines


def test_the_lines_of_a_text_and_of_a_message_stay_apart() -> None:
    table = Text("a" * 50 + " | " + "b" * 50)
    assert lines_of(lambda out: out.print(table)) == [table.plain]
    message = f"the file does not fit the model:\n  not in the model: {NAME}\n  short"
    assert lines_of(lambda out: out.print(message), 50) == [
        "the file does not fit the model:",
        "  not in the model:",
        f"  {NAME}",
        "  short",
    ]
    assert lines_of(lambda out: out.print()) == [""]


def test_widths_are_those_of_the_terminal() -> None:
    wide = "重み " * 30  # each character takes two columns
    assert all(cell_len(line) <= 20 for line in wrapped(wide.strip(), 20).split("\n"))
    escaped = lines_of(lambda out: out.print("\x1b[31m" * 3 + " " + "word " * 4), 30)
    assert all(len(line) <= 30 for line in escaped)
    assert escaped[0].startswith("\\x1b[31m")
