"""Forge the files of a run, of a study and of a checkpoint: values, names, bytes and sizes that no program writes."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import fuzz
import gguf_files
from softshare import codec
from softshare.config import EncodeConfig
from softshare.quantization.quantized import QuantizedTensor, QuantizedWeights

NAMES = (
    "\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "\x9b31m", "a\r\nsoftshare: all is well", "\u202eexe", "\x00", "\ud800",
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", '"><svg onload=alert(1)>', "&lt;b&gt;",
    "[bold]x[/bold]", "[/nothing]", "[link=http://x]y[/link]", ":smile:", "$\\frac{$", "$x$", "$$", "\\$", "a$b$c_{",
    "../../escape", "/etc/passwd", "n" * 5000, "",
)  # fmt: skip
# Those that a file of ours may hold.
TENSOR_NAMES = [n for n in NAMES if n and not re.search("[\0-\x1f\x7f-\x9f\ud800]", n) and len(n) < 4000]
NUMBERS = (
    0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.0, -0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"),
    -float("inf"),
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, [], {}, [[]], {"a": {}}, [None], "text")

Files = dict[str, bytes]
Forge = Callable[[Files, np.random.Generator], Files]


def pick(values: Any, rng: np.random.Generator) -> Any:
    return values[int(rng.integers(0, len(values)))]


def nasty(rng: np.random.Generator) -> Any:
    return pick(pick((NAMES, NUMBERS, OTHERS), rng), rng)


def bytes_of(name: str) -> Forge:
    def forge(files: Files, rng: np.random.Generator) -> Files:
        return {
            name: fuzz.mutate(files[name], [fuzz.Seed(data, EncodeConfig()) for data in files.values()], False, rng)
        }

    return forge


def _change(value: Any, rng: np.random.Generator) -> Any:
    """The same JSON with one value or key replaced, removed or added, somewhere."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.8:
        copy = dict(value) if isinstance(value, dict) else list(value)
        key = pick(list(copy) if isinstance(copy, dict) else range(len(copy)), rng)
        match rng.integers(0, 8):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, dict):
                copy[str(pick(NAMES, rng))] = copy.pop(key)
            case 2 if isinstance(copy, dict):
                copy[str(pick(NAMES, rng))] = nasty(rng)
            case _:
                copy[key] = _change(copy[key], rng)
        return copy
    if isinstance(value, str) and rng.random() < 0.7:
        return pick(NAMES, rng)
    if isinstance(value, (int, float)) and rng.random() < 0.7:
        return pick(NUMBERS, rng)
    return nasty(rng)


def result_values(files: Files, rng: np.random.Generator) -> Files:
    values = json.loads(files["result.json"])
    for _ in range(rng.integers(1, 4)):
        values = _change(values, rng) if isinstance(values, dict) else values
    return {"result.json": _dumped(values, rng)}


def _dumped(values: Any, rng: np.random.Generator) -> bytes:
    with contextlib.suppress(ValueError):  # a whole number of more digits than Python writes
        return json.dumps(values).encode(errors="surrogatepass")
    return b"{" * 10


def result_nested(files: Files, rng: np.random.Generator) -> Files:
    depth = int(pick((10, 100, 900, 2000, 100_000), rng))
    deep = b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth
    text = files["result.json"].rstrip()
    return {
        "result.json": deep if rng.random() < 0.3 else re.sub(rb'"config": \{', b'"config": {"x": ' + deep + b",", text)
    }


def history_cells(files: Files, rng: np.random.Generator) -> Files:
    lines = [line.split(",") for line in files["history.csv"].decode().splitlines()]
    for _ in range(rng.integers(1, 4)):
        line = pick(lines, rng)
        match rng.integers(0, 6):
            case 0:
                line.append(str(nasty(rng)))
            case 1 if len(line) > 1:
                line.pop()
            case 2:
                line[int(rng.integers(0, len(line)))] = '"' * int(rng.integers(1, 4)) + "x" * int(
                    pick((1, 200_000), rng)
                )
            case _:
                line[int(rng.integers(0, len(line)))] = str(_text(nasty(rng)))
    return {"history.csv": "\n".join(",".join(line) for line in lines).encode(errors="replace")}


def _text(value: Any) -> str:
    with contextlib.suppress(ValueError):
        return str(value)
    return "1" * 5000


def film_arrays(files: Files, rng: np.random.Generator) -> Files:
    with np.load(io.BytesIO(files["frames.npz"])) as film:
        arrays: dict[str, Any] = {name: film[name] for name in film.files}
    for _ in range(rng.integers(1, 3)):
        name = str(pick([n for n in arrays if n != "about"] * 2 + ["about"], rng))
        values = arrays[name]
        if name == "about":
            arrays[name] = np.array(_dumped(_change(json.loads(str(values)), rng), rng).decode(errors="replace"))
            continue
        match rng.integers(0, 9):
            case 0:
                del arrays[name]
                return {"frames.npz": _npz(arrays)}
            case 1:
                arrays[name] = np.array([{"a": 1}, None], dtype=object)
            case 2:
                arrays[name] = values.astype(pick(("f8", "i4", "U8", "c8", "?", "S3"), rng))
            case 3:
                arrays[name] = values[..., :0]
            case 4:
                arrays[name] = np.repeat(values, 2, axis=int(rng.integers(0, values.ndim))) if values.ndim else values
            case 5:
                arrays[name] = values.reshape(-1)
            case _:
                with np.errstate(all="ignore"), contextlib.suppress(OverflowError, ValueError):
                    copy = values.copy().reshape(-1)
                    copy[int(rng.integers(0, max(1, len(copy)))) :] = pick(NUMBERS, rng)
                    arrays[name] = copy.reshape(values.shape)
    return {"frames.npz": _npz(arrays)}


def _npz(arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def film_bomb(files: Files, rng: np.random.Generator) -> Files:
    """An archive that unpacks to gigabytes, or an array whose header promises terabytes."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(files["frames.npz"])) as old,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        names = old.namelist()
        chosen = pick(names, rng)
        for name in names:
            data = old.read(name)
            if name == chosen:
                shape = pick(("(1099511627776,)", "(-1, 3)", "(" * 3000, "(True,)", "(10**9,)", "(2**62, 2**62)"), rng)
                head = f"{{'descr': '{pick(('<f8', '|O', '<U9'), rng)}', 'fortran_order': False, 'shape': {shape}, }}\n"
                data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data[:100]
                data += bytes(int(pick((0, 400 << 20), rng))) if rng.random() < 0.05 else b""
            new.writestr(name, data)
    return {"frames.npz": file.getvalue()}


def model_names(files: Files, rng: np.random.Generator) -> Files:
    """A valid file whose names are as bad as the format allows."""
    found = dict.fromkeys(str(pick(NAMES, rng)) for _ in range(5))
    return {"model.sws": _model({name: (3, 3) for name in found if name in TENSOR_NAMES})}


def _model(shapes: dict[str, tuple[int, int]]) -> bytes:
    book, one = torch.tensor([0.0, 0.5]), torch.ones((), dtype=torch.uint8)
    shared = [QuantizedTensor(name, s, torch.float32, one.expand(s).flatten(), book) for name, s in shapes.items()]
    return codec.encode(QuantizedWeights(tuple(shared), {}, {}))


def draw_names(files: Files, rng: np.random.Generator) -> Files:
    """A run with a page to draw on, and names of tensors, images and data that are as bad as each file allows."""
    first, second = (str(name) for name in rng.choice(TENSOR_NAMES, 2, replace=False))
    label, text = (str(pick(NAMES, rng)) for _ in range(2))
    classifier: Any = {
        "shape": [1, 8, 8],
        "low": 0.0,
        "high": 1.0,
        "classes": 3,
        "layers": [{"kind": "flatten"}, {"kind": "linear", "weight": first}, {"kind": "linear", "weight": text}],
        "names": [first, second],
        "shapes": ["5x64", "3x5"],
        "tied": {text: second},
        "examples": {label: text},
    }
    if rng.random() < 0.3:
        classifier = _change(classifier, rng)
    with np.load(io.BytesIO(files["frames.npz"])) as film:
        arrays = dict(film)
    about = {**json.loads(str(arrays["about"])), "classifier": classifier}
    arrays["about"] = np.array(_dumped(about, rng).decode(errors="replace"))
    values = json.loads(files["result.json"])
    values |= {key: str(pick(NAMES, rng)) for key in ("experiment", "dataset") if rng.random() < 0.8}
    if rng.random() < 0.5:
        values["metric"] = {"name": str(pick(NAMES, rng)), "unit": str(pick(NAMES, rng)), "higher_is_better": False}
    return {
        "model.sws": _model({first: (5, 64), second: (3, 5)}),
        "frames.npz": _npz(arrays),
        "result.json": _dumped(values, rng),
    }


def safetensors_header(files: Files, rng: np.random.Generator) -> Files:
    names = NAMES if rng.random() < 0.5 else [n for n in NAMES if n.isprintable() and 0 < len(n) < 4000]
    tensors = {str(pick(names, rng)).replace("\ud800", "?"): torch.randn(int(rng.integers(1, 5)), 4) for _ in range(3)}
    tensors |= {
        "w": torch.full((4, 4), float(pick([n for n in NUMBERS if abs(n) < 1e300 or n != n], rng)), dtype=torch.float64)
    }
    data = save(tensors)
    if rng.random() < 0.5:
        size = int.from_bytes(data[:8], "little")
        head = json.loads(data[8 : 8 + size])
        text = _dumped(_change(head, rng), rng)
        data = len(text).to_bytes(8, "little") + text + data[8 + size :]
    return {"pretrained.safetensors": data}


def pickled(files: Files, rng: np.random.Generator) -> Files:
    """A `.pt` file, whole or mutated. It must not be unpickled, whatever its name says."""
    file = io.BytesIO()
    torch.save({"w": torch.randn(3, 3), "x": _Loud()}, file)
    data = file.getvalue()
    return {"pretrained.safetensors": data if rng.random() < 0.3 else fuzz.mutate(data, fuzz.seeds()[:2], False, rng)}


def gguf(files: Files, rng: np.random.Generator) -> Files:
    """A GGUF file, whole or mutated: one float32 tensor `w` of 3 x 3, aligned to 32."""
    counts, shape = np.array([1, 0], np.uint64), np.array([3, 3], np.uint64)  # tensors and keys
    name = b"w" if rng.random() < 0.5 else str(pick(NAMES, rng)).encode(errors="replace")
    kind, offset = np.zeros(1, np.uint32), np.zeros(1, np.uint64)  # float32, at the start of the data
    head = b"GGUF" + np.uint32(3).tobytes() + counts.tobytes()
    head += np.uint64(len(name)).tobytes() + name + np.uint32(2).tobytes() + shape.tobytes() + kind.tobytes()
    head += offset.tobytes()
    data = head + bytes(-len(head) % 32) + rng.standard_normal(9).astype(np.float32).tobytes()
    return {"pretrained.safetensors": data if rng.random() < 0.3 else fuzz.mutate(data, fuzz.seeds()[:2], False, rng)}


def gguf_blocks(files: Files, rng: np.random.Generator) -> Files:
    """A GGUF file with tensors of several types, mutated. A scale may be NaN or infinite."""
    blocks = rng.integers(0, 256, (3, 144), np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = gguf_files.write(Path(folder, "m"), {"w": torch.randn(3, 3)}, {"q": (12, 3, blocks)})
        data = path.read_bytes()
    return {"pretrained.safetensors": fuzz.mutate(data, fuzz.seeds()[:2], bool(rng.random() < 0.5), rng)}


def onnx_model(files: Files, rng: np.random.Generator) -> Files:
    """A file of ONNX, whole or mutated, whose tensors may have odd names, and values in another file."""
    from onnx import TensorProto, helper, numpy_helper

    name = str(pick(NAMES, rng)).encode(errors="replace").decode()
    tensors = [numpy_helper.from_array(rng.standard_normal((3, 3)).astype(np.float32), name)]
    tensors.append(helper.make_tensor("ids", TensorProto.INT64, [2, 2], [1, -1, 1 << 40, 0]))
    if rng.random() < 0.3:
        tensors[0].ClearField("raw_data")
        tensors[0].data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", str(pick(NUMBERS, rng)))):
            tensors[0].external_data.add(key=key, value=value)
    data = helper.make_model(helper.make_graph([], "g", [], [], tensors)).SerializeToString()
    return {"pretrained.safetensors": data if rng.random() < 0.3 else fuzz.mutate(data, fuzz.seeds()[:2], False, rng)}


def index_of_shards(files: Files, rng: np.random.Generator) -> Files:
    """The index of a checkpoint in one shard, with values that no program writes."""
    where: Any = {"weight_map": {"w": "pretrained.safetensors"}}
    return {"shards/model.safetensors.index.json": _dumped(_change(where, rng), rng)}


def settings_file(files: Files, rng: np.random.Generator) -> Files:
    """A TOML file of settings with values and keys that no program writes."""
    lines = files["settings.toml"].decode().splitlines()
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(lines)))
        key, _, value = lines[at].lstrip("# ").partition("=")
        match rng.integers(0, 5):
            case 0:
                lines[at] = f"{json.dumps(str(pick(NAMES, rng)))} = {value or 1}"
            case 1:
                lines[at] = "[" * int(pick((1, 3, 5000), rng))
            case _:
                lines[at] = (
                    f"{key or 'x'} = {_text(nasty(rng)) if rng.random() < 0.5 else json.dumps(_text(nasty(rng)))}"
                )
    return {"settings.toml": "\n".join(lines).encode(errors="replace")}


class _Loud:
    """Says so if it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("unpickled",)


def summary_cells(files: Files, rng: np.random.Generator) -> Files:
    forged = history_cells({"history.csv": files["summary.csv"]}, rng)
    return {"summary.csv": forged["history.csv"]}


def study_result(files: Files, rng: np.random.Generator) -> Files:
    name = "front/trial-0000/result.json"
    return {name: result_values({"result.json": files[name]}, rng)["result.json"]}


def study_values(files: Files, rng: np.random.Generator) -> Files:
    """The database of a study with another value in some rows of some column."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.db")
        path.write_bytes(files["tuned/study.db"])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
            tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = pick(tables, rng)
            column = pick([row[1] for row in base.execute(f"PRAGMA table_info({table})")], rng)
            value = nasty(rng)
            if isinstance(value, list | dict):
                value = json.dumps(value)
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):  # not all fit into every column
                base.execute(f"UPDATE {table} SET {column} = ?", (value,))
        return {"tuned/study.db": path.read_bytes()}


def other_database(files: Files, rng: np.random.Generator) -> Files:
    """A database of another program, or a study's without one of its tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.db")
        if rng.random() < 0.7:
            path.write_bytes(files["tuned/study.db"])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as base:
            tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            base.execute(f"DROP TABLE {pick(tables, rng)}" if tables else "CREATE TABLE studies (mine TEXT)")
        return {"tuned/study.db": path.read_bytes()}


FORGERIES: dict[str, tuple[Forge, tuple[str, ...]]] = {  # and the commands that read the file
    "result values": (result_values, ("evaluate", "verify", "results", "settings", "figures")),
    "result bytes": (bytes_of("result.json"), ("evaluate", "verify", "results")),
    "result nested": (result_nested, ("evaluate", "verify", "results", "settings", "figures")),
    "history cells": (history_cells, ("figures",)),
    "history bytes": (bytes_of("history.csv"), ("figures",)),
    "film arrays": (film_arrays, ("figures",)),
    "film bytes": (bytes_of("frames.npz"), ("figures",)),
    "film bomb": (film_bomb, ("figures",)),
    "model bytes": (bytes_of("model.sws"), ("inspect", "decompress", "export", "verify", "figures")),
    "model names": (model_names, ("inspect", "decompress", "export", "verify", "figures")),
    "draw names": (draw_names, ("draw", "figures")),
    "settings file": (settings_file, ("settings file",)),
    "settings bytes": (bytes_of("settings.toml"), ("settings file",)),
    "safetensors header": (safetensors_header, ("quantize", "page", "lossless", "delta", "weights", "figures")),
    "safetensors bytes": (bytes_of("pretrained.safetensors"), ("quantize", "sum", "weights", "figures")),
    "pickle": (pickled, ("quantize", "delta", "weights")),
    "gguf": (gguf, ("quantize", "page", "sum", "weights")),
    "gguf blocks": (gguf_blocks, ("quantize", "lossless", "delta", "weights")),
    "onnx": (onnx_model, ("quantize", "page", "lossless", "sum", "weights")),
    "index": (index_of_shards, ("quantize shards",)),
    "summary cells": (summary_cells, ("study",)),
    "summary bytes": (bytes_of("summary.csv"), ("study",)),
    "study result": (study_result, ("study",)),
    "study bytes": (bytes_of("tuned/study.db"), ("tune",)),
    "study values": (study_values, ("tune",)),
    "study tables": (other_database, ("tune",)),
}
