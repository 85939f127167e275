"""decoders/c/sws.h decodes and refuses what the Python package does: under sanitizers, and with little memory."""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import c_decoder
import fuzz
from paths import ROOT
from softshare import codec
from softshare.zoo.datasets import load_mnist
from softshare.zoo.models import LeNet5Caffe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("cc") or not shutil.which("make"), reason="needs a C compiler and make"),
]
FOLDER = ROOT / "decoders" / "c"
SMALL_LENET = FOLDER / "lenet-5.sws"  # of version 1
KEPT = (  # one of each kind; `make -C decoders/c test` compares all
    "benchmarks/networks/lenet-300-100.sws", "results/lenet-5-caffe/softshare-small/seed-0/model.sws",
    "results/wrn-16-4/softshare-smallest/seed-0/model.sws",
)  # fmt: skip


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs are built on demand, with the flags of the Makefile: warnings are errors."""
    return tmp_path_factory.mktemp("c")


def made(build: Path, program: str) -> Path:
    done = subprocess.run(
        ["make", "-s", "-C", str(FOLDER), f"B={build}", str(build / program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return build / program


def dumped(program: Path, files: list[str], *options: str) -> str:
    done = subprocess.run([program, *options], input="\n".join(files) + "\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Golden files, attacks, and files of version 2."""
    large = "/results/", "/docs/", "/networks/"
    kept = [text for text in c_decoder.kept_files() if not any(folder in text for folder in large)]
    return [*kept, *c_decoder.second_version(tmp_path_factory.mktemp("second"))]


@pytest.mark.parametrize("program", ["dump-checked", "dump-small-checked"])
def test_the_same_bits_and_the_same_errors_under_sanitizers(program: str, build: Path, small_files: list[str]) -> None:
    printed = dumped(made(build, program), small_files)
    assert c_decoder.differences(small_files, printed, brief=False) == []
    assert printed.count("refused in") > 90
    assert printed.count("version 2") > 40


def test_make_test_compares_every_file_of_the_repository() -> None:
    listed = {Path(text.split("\t")[0]) for text in c_decoder.kept_files()}
    kept = {path for folder in ("benchmarks", "docs", "results", "tests") for path in (ROOT / folder).rglob("*.sws")}
    assert listed == kept


def test_kept_files(build: Path) -> None:
    files = [c_decoder.line(ROOT / path) for path in KEPT]
    printed = dumped(made(build, "dump"), files, "brief")
    assert c_decoder.differences(files, printed, brief=True) == []
    assert printed.startswith(dumped(made(build, "dump-small"), files[:2], "brief"))


def test_mutated_files_are_refused_in_the_same_place(build: Path, small_files: list[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    seeds = [s for s in fuzz.seeds() if s.like is None]
    seeds += [fuzz.Seed(Path(text.split("\t")[0]).read_bytes(), seeds[0].config) for text in small_files[-40:]]
    files = []
    for k in range(300):
        data = fuzz.mutate(seeds[int(rng.integers(0, len(seeds)))].data, seeds, k % 4 == 0, rng)
        path = tmp_path / f"{k}.sws"
        path.write_bytes(data[:-4] + struct.pack("<I", zlib.crc32(data[:-4])) if k % 8 else data)
        if data[5:6] and data[5] & 2:  # with names: others need a network
            files.append(c_decoder.line(path, fuzz.MAX_BYTES))
    printed = dumped(made(build, "dump-checked"), files)
    assert c_decoder.differences(files, printed, brief=False) == []
    assert printed.count("refused in header") > 50
    assert printed.count("refused in tensor") > 20


def test_a_difference_is_seen(build: Path) -> None:
    files = [c_decoder.line(ROOT / KEPT[0])]
    printed = dumped(made(build, "dump"), files, "brief").replace("own ", "own 1")
    assert len(c_decoder.differences(files, printed, brief=True)) == 1


def test_a_short_run_of_the_fuzzer(build: Path, tmp_path: Path) -> None:
    seeds = "\n".join(c_decoder.mutated_seeds(tmp_path, few_are_many=False)) + "\n"
    done = subprocess.run([made(build, "fuzz-small"), "2000", "7"], input=seeds, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"2000 files, \d{3} opened, 0 findings\n", done.stdout)


def test_the_example_of_the_readme(build: Path) -> None:
    printed = subprocess.run([made(build, "readme"), SMALL_LENET], capture_output=True, text=True, check=True).stdout
    state = codec.load(SMALL_LENET)
    for text, (name, tensor) in zip(printed.splitlines(), state.items(), strict=True):
        got_name, n, total = text.split()
        assert (got_name, int(n)) == (name, tensor.numel())
        assert float(total) == pytest.approx(float(tensor.sum()), rel=1e-3, abs=1e-3)


def test_the_readme_names_every_function() -> None:
    header, readme = (FOLDER / "sws.h").read_text(), (FOLDER / "README.md").read_text()
    public = header[: header.index("#ifdef SWS_IMPLEMENTATION")]
    functions = set(re.findall(r"^\w+ (sws_\w+)\(", public, re.MULTILINE))
    assert len(functions) > 15
    assert functions == set(re.findall(r"`(sws_\w+)`", readme.split("| function |")[1].split("\n\n")[0]))
    assert set(re.findall(r"SWS_WITHOUT_\w+", header)) == set(re.findall(r"SWS_WITHOUT_\w+", readme))


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="needs Linux on x86-64")
def test_a_digit_without_a_c_library(build: Path) -> None:
    """Its answers are PyTorch's, and its memory is what the README says."""
    images = load_mnist()[1].images[:10]
    network = LeNet5Caffe()
    codec.load_into_(network, SMALL_LENET)
    scores = network(images)
    pixels = (images * 255).round().to(torch.uint8).numpy().tobytes()
    done = subprocess.run([made(build, "digit")], input=pixels, capture_output=True, check=True)
    *answers, memory = [[int(word) for word in text.split()] for text in done.stdout.decode().splitlines()]
    assert [digit for digit, _ in answers] == scores.argmax(1).tolist()
    assert [score / 1000 for _, score in answers] == pytest.approx(scores.amax(1).tolist(), abs=2e-3)
    assert sum(memory) <= 16 << 10  # workspace and stack
    assert f"{memory[0]:,} bytes of workspace" in (FOLDER / "README.md").read_text()
