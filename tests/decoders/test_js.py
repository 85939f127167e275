"""The JavaScript decoder against Python: the same bits of every file, and the same error for every broken one."""

from __future__ import annotations

import json
import math
import re
import struct
import subprocess
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fuzz
from attacks.make import ATTACKS
from attacks.make import FOLDER as ATTACKED
from golden.deltas.make import base as delta_base
from golden.make import EXPECTED, FILES, FOLDER, Net, codebook, indices
from node import NO_NODE, NODE, ask, by_python, comparable, options
from paths import ROOT
from softshare import codec
from softshare.codec import choice
from softshare.codec.adaptive import bands
from softshare.codec.adaptive.logistic import LIMIT as LARGEST
from softshare.codec.adaptive.logistic import SQUASH
from softshare.codec.base import open_base
from softshare.codec.static import code as static_code
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

PACKAGE = ROOT / "decoders" / "js"
KEPT = sorted(p for name in ("results", "docs/tuning", "benchmarks/networks") for p in (ROOT / name).rglob("*.sws"))
LIMIT = 1 << 20
MUTATED = 1500  # files in each test of them

pytestmark = [
    pytest.mark.skipif(NODE is None, reason=NO_NODE),
    pytest.mark.skipif(not PACKAGE.is_dir(), reason="needs the folder decoders of the repository"),
]


def like(stem: str) -> Net | None:
    return Net() if FILES[stem].names == "none" else None


def test_golden_files_have_the_recorded_values() -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    requests = [{"path": str(FOLDER / f"{stem}.sws"), "how": "load", **options(like(stem))} for stem in FILES]
    for stem, answer in zip(FILES, ask(requests), strict=True):
        assert dict(answer["digests"]) == expected[stem], stem


def test_golden_files_of_version_2_have_the_recorded_values() -> None:
    folder = FOLDER / "v2"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    assert sorted(expected) == sorted(path.stem for path in folder.glob("*.sws"))
    for stem, answer in zip(expected, ask([{"path": str(folder / f"{stem}.sws")} for stem in expected]), strict=True):
        assert dict(answer["digests"]) == expected[stem], stem


@pytest.mark.slow
def test_kept_files_have_the_same_bits() -> None:
    assert len(KEPT) > 70
    for path, answer in zip(KEPT, ask([{"path": str(path)} for path in KEPT]), strict=True):
        assert comparable(answer) == by_python(path.read_bytes()), path


@pytest.mark.slow
def test_attacks_end_in_the_same_error() -> None:
    """The section and the offset too. What is not refused has the same bits."""
    requests = [{"path": str(ATTACKED / f"{stem}.sws"), "maxBytes": LIMIT} for stem in ATTACKS]
    for stem, answer in zip(ATTACKS, ask(requests), strict=True):
        assert comparable(answer) == by_python(ATTACKS[stem].data, max_bytes=LIMIT), stem
        if "error" in answer:
            assert "expected" in answer["message"]
            assert "got" in answer["message"]


def test_a_table_by_floats_is_the_table_by_integers() -> None:
    """No value of SQUASH is near the middle between two integers, so the rounding of `exp` does not matter."""
    x = np.arange(-LARGEST, LARGEST + 1)
    values = 2**22 / (1 + np.exp(-x / 256))
    assert np.array_equal(np.round(values), SQUASH)
    assert np.abs(values - np.floor(values) - 0.5)[x != 0].min() > 3e-4


def test_headers_are_read_as_python_reads_them() -> None:
    paths = [FOLDER / f"{stem}.sws" for stem in FILES]
    for path, answer in zip(paths, ask([{"path": str(p), "how": "inspect"} for p in paths]), strict=True):
        found, info = answer["info"], codec.inspect(path)
        assert [found[k] for k in ("version", "codec", "fileBytes", "overheadBytes")] == [
            info.version, info.codec, info.file_bytes, info.overhead_bytes,
        ]  # fmt: skip
        for ours, theirs in zip(info.tensors, found["tensors"], strict=True):
            shape = None if ours.shape is None else list(ours.shape)
            expected = [ours.name, ours.kind, shape, ours.n, ours.n_nonzero, ours.n_components, ours.n_bytes]
            names = ("name", "kind", "shape", "n", "nNonzero", "nComponents", "nBytes")
            assert [theirs[k] for k in names] == expected


@pytest.mark.parametrize("chunk", [1, 100, 5000])
def test_a_stream_gives_the_stored_tensors_in_order(chunk: int) -> None:
    path = FOLDER / "han.sws"
    whole, streamed = ask([{"path": str(path)}, {"path": str(path), "how": "stream", "chunk": chunk}])
    stored = [pair for pair in whole["digests"] if pair[0] != "head.weight"]  # which is tied
    assert streamed["digests"] == stored


def test_some_tensors_by_name_and_in_a_worker() -> None:
    path, names = str(FOLDER / "adaptive.sws"), ["head.weight", "conv.weight"]
    whole, some, worker, streamed, unknown, text = ask(
        [
            {"path": path},
            {"path": path, "names": names},
            {"path": path, "how": "load", "names": names, "worker": True},
            {"path": path, "how": "stream", "names": names},
            {"path": path, "names": ["nothing"]},
            {"path": path, "names": "conv.weight"},
        ]
    )
    expected = [[name, dict(whole["digests"])[name]] for name in names]
    assert some["digests"] == worker["digests"] == expected
    assert dict(streamed["digests"]) == {"conv.weight": expected[1][1], "embed.weight": expected[0][1]}
    assert unknown["error"] == text["error"] == "ConfigError"
    assert "embed.weight" in unknown["message"]


def test_errors_in_a_worker_and_in_a_stream_are_those_of_load(tmp_path: Path) -> None:
    """A stream learns of a wrong checksum at its end, and of all else where it lies."""
    data = (FOLDER / "adaptive.sws").read_bytes()
    broken = tmp_path / "broken.sws"
    for changed in (data[:-1], data[:40], data[:3], data[:-1] + bytes([data[-1] ^ 1]), data + b"\0", b""):
        broken.write_bytes(changed)
        path = str(broken)
        plain, worker, stream = ask([{"path": path}, {"path": path, "how": "load", "worker": True},
                                     {"path": path, "how": "stream"}])  # fmt: skip
        assert plain == worker
        assert stream["error"] == plain["error"]
        assert stream["section"] == plain["section"]


def test_a_file_without_names_needs_the_layout() -> None:
    path, given = str(FOLDER / "adaptive-none.sws"), options(Net())
    without, short, state = ask([{"path": path}, {"path": path, **given, "layout": given["layout"][:3]},
                                 {"path": path, **given}])  # fmt: skip
    assert (without["error"], short["error"]) == ("ConfigError", "ModelError")
    assert list(dict(state["digests"])) == [*(name for name, _ in given["layout"]), "head.weight"]


@pytest.fixture(scope="module")
def second_version() -> list[fuzz.Seed]:
    """Files of version 2: static codes with one table and with several, of weights and of byte planes, and bands."""
    book, g = codebook([37 * (k + 2) ** 2 for k in range(8)]), torch.Generator().manual_seed(3)
    steps = (torch.arange(96)[:, None] % 7 + 1) * torch.rand(96, 70, generator=g) ** 2
    by_row = steps.long().clamp(0, 8).to(torch.uint8)
    floats = torch.randn(61, 8, generator=g)
    rest = {"a": floats, "b": floats.bfloat16(), "c": torch.arange(488).view(61, 8), "d": torch.ones(70).double()}
    scales = {
        "row_scales": torch.randint(-40, 40, (96,), generator=g, dtype=torch.int8),
        "column_scales": torch.full((70,), 9, dtype=torch.int8),
    }
    matrices = {"by row": by_row, "by column": by_row.T.contiguous(), "vector": by_row[0]}
    shared = [QuantizedTensor(n, tuple(t.shape), torch.float32, t.reshape(-1), book) for n, t in matrices.items()]
    shared.append(QuantizedTensor("scaled", (96, 70), torch.float16, by_row.reshape(-1), book, **scales))
    sparse = (by_row * (torch.rand(96, 70, generator=g) < 0.05)).view(-1)
    sparse[: 12 * 70] = 0  # a band of zeros
    banded = QuantizedTensor("bands", (96, 70), torch.bfloat16, sparse, book)
    config, found = EncodeConfig(speed="fastest"), list[fuzz.Seed]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "STATIC_FROM", 1)
        for lanes, chunk in ((4, 64), (32, 1 << 10), (1, 1 << 15)):
            patch.setattr(choice, "lanes_for", lambda _speed, lanes=lanes: lanes)
            patch.setattr(static_code, "CHUNK", chunk)
            found.append(fuzz.Seed(codec.encode(QuantizedWeights(tuple(shared), rest, {}), config), config))
        patch.setattr(choice, "STATIC_FROM", 1 << 16)
        patch.setattr(bands, "FROM", 1)
        found.append(fuzz.Seed(codec.encode(QuantizedWeights((banded,), {}, {}), config), config))
    assert all(seed.data[4] == 2 for seed in found)
    return found


def test_files_of_version_2_have_the_same_bits(second_version: list[fuzz.Seed]) -> None:
    for seed, answer in zip(second_version, ask([{"hex": s.data.hex()} for s in second_version]), strict=True):
        expected = by_python(seed.data)
        assert comparable(answer) == expected
        assert "digests" in expected


@pytest.mark.slow
def test_mutated_files_of_version_2(second_version: list[fuzz.Seed]) -> None:
    """Most changes fall into the sections, which are most of a file; those of the head of a code are most telling."""
    rng, files = np.random.default_rng(2), list[bytes]()
    for k in range(MUTATED):
        own = bytearray(second_version[int(rng.integers(0, len(second_version)))].data)
        for _ in range(rng.integers(1, 4)):
            own[int(rng.integers(5, len(own) if k % 2 else min(700, len(own))))] ^= 1 << int(rng.integers(0, 8))
        files.append(bytes(own[:-4]) + struct.pack("<I", zlib.crc32(own[:-4])))
    kinds: Counter[str] = Counter()
    for data, answer in zip(files, ask([{"hex": data.hex(), "maxBytes": 8 << 20} for data in files]), strict=True):
        expected = by_python(data, max_bytes=8 << 20)
        assert comparable(answer) == expected, data.hex()
        kinds[str(expected.get("section", "digests")).split(" ")[0].rstrip(",")] += 1
    assert min(kinds["digests"], kinds["tensor"], kinds["header"]) > MUTATED / 50


def test_the_golden_file_of_differences() -> None:
    """With its base, all ways to read it give the sums that Python gives; without it, or with another one, an error."""
    path, base, other = str(FOLDER / "deltas" / "delta.sws"), delta_base(), delta_base()
    other["b"][0] = 1
    data, given = Path(path).read_bytes(), options(None, base=open_base(base))
    shown, whole, worker, streamed, some, without, wrong, needless = ask(
        [
            {"path": path, "how": "inspect"},
            {"path": path, **given},
            {"path": path, "how": "load", "worker": True, **given},
            {"path": path, "how": "stream", **given},
            {"path": path, "names": ["h"], **given},
            {"path": path, "how": "stream"},
            {"path": path, **options(None, base=open_base(other))},
            {"path": str(FOLDER / "adaptive.sws"), **given},
        ]
    )
    assert shown["info"]["base"] == codec.inspect(path).base
    assert comparable(whole) == by_python(data, base=open_base(base))
    assert "digests" in whole
    assert dict(worker["digests"]) == dict(streamed["digests"]) == dict(whole["digests"])
    assert some["digests"] == [["h", dict(whole["digests"])["h"]]]
    assert (without["error"], wrong["error"], needless["error"]) == ("ConfigError", "ModelError", "ConfigError")
    assert comparable(wrong) == by_python(data, base=open_base(other))
    assert "differences" in without["message"]


FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("of", [*FLOATS, torch.int32])
def test_sums_of_base_and_difference_are_rounded_as_in_python(dtype: torch.dtype, of: torch.dtype) -> None:
    """Also of scaled differences, infinities, negative zeros, and tensors of which the base has another shape."""
    g = torch.Generator().manual_seed(22)
    values = torch.randn(60, 40, generator=g, dtype=torch.float64) * 2.0 ** torch.randint(
        -30, 12, (60, 40), generator=g
    )
    values[0, :4] = torch.tensor([math.inf, -math.inf, -0.0, 65504.0])
    values[1] = 1 + 2.0**-11 + 2.0**-40  # to float16 and bfloat16 by way of float32
    book, drawn = codebook([3 * (k + 1) ** 4 for k in range(12)]), torch.randint(0, 13, (60, 40), generator=g)
    drawn[1, ::2] = 0
    index = (drawn * (torch.rand(60, 40, generator=g) < 0.5)).to(torch.uint8)
    rows, columns = (torch.randint(-60, 9, (n,), generator=g, dtype=torch.int8) for n in (60, 40))
    base = {name: values.to(of) for name in ("plain", "scaled", "alone", "unchanged", "\uff5e", "\U0001f600")}
    base |= {"shape": values.to(of).reshape(40, 60), "one": torch.tensor(3)}
    plain = QuantizedTensor("plain", (60, 40), dtype, index.reshape(-1), book)
    shared = [replace(plain, name=name) for name in ("plain", "shape", "alone", "new")]
    shared.append(replace(plain, name="scaled", row_scales=rows, column_scales=columns))
    names = tuple(t.name for t in shared)
    under = open_base(base)
    weights = QuantizedWeights(tuple(shared), {}, {"tied": "scaled"}, names, base=under.digest, alone=("alone",))
    data = codec.encode(weights, EncodeConfig(compact=False))
    (answer,) = ask([{"hex": data.hex(), **options(None, base=under)}])
    assert comparable(answer) == by_python(data, base=under)
    assert set(dict(answer["digests"])) == {*base, *names, "tied"}


def seeds() -> list[fuzz.Seed]:
    """Those of the fuzzer, and a file whose tensor takes the fast model: small in bytes, large in weights."""
    book = codebook([37 * (k + 2) ** 2 for k in range(16)])
    found = fuzz.seeds()
    for per_mille in (1, 3):
        wide = QuantizedTensor("wide", (1100, 1024), torch.float16, indices((1100, 1024), 17, per_mille, 5), book)
        found.append(fuzz.Seed(codec.encode(QuantizedWeights((wide,), {}, {}), EncodeConfig()), EncodeConfig()))
    return found


def mutated(n: int, seed: int) -> list[tuple[bytes, fuzz.Seed]]:
    """Files with one to four changes each; two in three get a checksum that fits. Few are of the large tensor."""
    rng, corpus = np.random.default_rng(seed), seeds()
    found = [(s.data, s) for s in corpus]
    for k in range(n):
        s = corpus[int(rng.integers(0, len(corpus) - (k % 20 > 0) * 2))]
        data = fuzz.mutate(s.data, corpus, k % 2 == 0, rng)
        found.append((data[:-4] + struct.pack("<I", zlib.crc32(data[:-4])) if k % 3 else data, s))
    return found


@pytest.mark.slow
def test_mutated_files_end_in_the_same_bits_or_the_same_error() -> None:
    max_bytes = 8 << 20
    files = mutated(MUTATED, seed=22)
    kinds: Counter[str] = Counter()
    answers = ask([{"hex": data.hex(), **options(s.like, max_bytes, s.base)} for data, s in files])
    for (data, s), answer in zip(files, answers, strict=True):
        expected = by_python(data, s.like, max_bytes, s.base)
        assert comparable(answer) == expected, data.hex()
        kinds[str(expected.get("section", "digests")).split(" ")[0].rstrip(",")] += 1
    assert set(kinds) >= {"digests", "tensor", "header", "checksum", "prefix", "codebook"}
    assert kinds["digests"] > len(files) / 20
    assert kinds["tensor"] > len(files) / 10


def test_rounding_to_narrow_floats_is_that_of_torch() -> None:
    """Codebook values become float16 and bfloat16 with ties to even, in float16's subnormal range too."""
    halves = torch.arange(1, 0x7C00, 37, dtype=torch.int16).view(torch.float16).float()
    steps = torch.cat([halves, (halves[1:] + halves[:-1]) / 2, halves * (1 + 2**-11), halves * (1 + 2**-12)])
    values = torch.cat([steps, -steps, torch.tensor([65519.0, 1e-9, 6e-8])]).unique()
    values = values[(values != 0) & (values.abs() < 65520)]
    book = torch.cat([torch.zeros(1), values[values.abs().argsort(stable=True)]])
    index = torch.arange(len(book), dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float32):
        weights = QuantizedWeights((QuantizedTensor("a", (len(book),), dtype, index, book),), {}, {})
        data = codec.encode(weights, EncodeConfig(codec="han", codebook_dtype="float32"))
        (answer,) = ask([{"hex": data.hex()}])
        assert comparable(answer) == by_python(data)


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
def test_rest_tensors_are_widened_bit_by_bit(stored: Any) -> None:
    """All numbers of a kind, but no NaN: its sign and payload are not part of the format."""
    patterns = torch.arange(0, 1 << 16, 5, dtype=torch.int32).to(torch.int16)
    if stored == "float32":
        narrow = (patterns.int() * 65537 ^ 0x5A5A).view(torch.float32)
    else:
        narrow = patterns.view(getattr(torch, stored))
    narrow = narrow[~narrow.isnan()]
    wide = {"b": narrow.double()} | ({} if stored == "float32" else {"a": narrow.float()})
    data = codec.encode(QuantizedWeights((), wide, {}), EncodeConfig(rest_dtype=stored))
    assert len(data) < sum(t.nbytes for t in wide.values()) / 1.5  # it was narrowed
    (answer,) = ask([{"hex": data.hex()}])
    assert comparable(answer) == by_python(data)


# The package


def test_the_package_is_complete() -> None:
    """What package.json names is there, and the types declare what the module exports."""
    package = json.loads((PACKAGE / "package.json").read_text(encoding="utf-8"))
    assert all((PACKAGE / name).is_file() for name in package["files"])
    assert package["type"] == "module"
    assert package["private"] is True  # it is not published
    assert not {"dependencies", "devDependencies", "scripts"} & set(package)
    exported = re.findall(
        r"^export (?:async )?(?:function\*?|class|const) (\w+)", (PACKAGE / "sws.js").read_text(), re.M
    )
    declared = re.findall(
        r"^export (?:declare )?(?:function|class|const) (\w+)", (PACKAGE / "sws.d.ts").read_text(), re.M
    )
    assert sorted(set(declared)) == sorted(exported)


def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    """Those marked `js`, one after another in Node, beside a file with the name that they use."""
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```js\n(.*?)```", text, re.S)
    assert len(examples) >= 3
    (tmp_path / "model.sws").write_bytes((ROOT / "results/lenet-300-100/softshare/seed-0/model.sws").read_bytes())
    for k, example in enumerate(examples):
        program = tmp_path / f"example-{k}.mjs"
        program.write_text(example.replace('"softshare-sws"', json.dumps((PACKAGE / "sws.js").as_uri())))
        assert NODE is not None
        ran = subprocess.run([NODE, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
