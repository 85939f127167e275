"""Other ways to store a checkpoint in few bits. Each returns the weights that come back, and the bits of all of them.

RTN rounds to the nearest of 2^bits levels between the least and the largest weight of a group of 64. HQQ is the package
hqq, with groups of 64. GPTQ has groups of 128 and is written by its equations: see `gptq.py`. A group has a scale in
half precision. RTN and GPTQ have a whole zero in as many bits as a weight, HQQ has a zero in half precision. Tensors
that groups do not fit stay in half precision, or whole if that cannot hold a value. NNCodec 2.1.3 is a program in an
environment of its own.

`widths` has the bits of each tensor.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]
Widths = Mapping[str, int]
HALF = 16
NNCODEC = Path(__file__).parents[1] / "nncodec_rows.py"


def whole_groups(state: Mapping[str, Tensor], group: int) -> set[str]:
    """Names of the tensors that groups fit. Groups that cross rows are taken only where half precision would cost."""
    least = 0.01 * sum(t.numel() for t in state.values())
    return {
        name
        for name, t in state.items()
        if t.dim() > 1 and t[0].numel() >= group and t.numel() % group == 0
        if t[0].numel() % group == 0 or t.numel() > least
    }


def kept(state: Mapping[str, Tensor]) -> tuple[State, dict[str, int]]:
    """In half precision, if that holds all values, and the bits of each tensor."""
    out, bits = {}, {}
    for name, t in state.items():
        half = t.half()
        holds = t.is_floating_point() and torch.equal(half.isfinite(), t.isfinite())
        out[name] = half.to(t.dtype) if holds else t.clone()
        bits[name] = t.numel() * (HALF if holds else 8 * t.element_size())
    return out, bits


def grid(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:  # (n, group) -> scale, zero of (n, 1)
    low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-7).half().float()
    return scale, (-low / scale).round().clamp(0, 2**bits - 1)


def rounded(values: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    return ((values / scale + zero).round().clamp(0, 2**bits - 1) - zero) * scale


def rtn(
    state: Mapping[str, Tensor], widths: Widths, group: int = 64, names: set[str] | None = None
) -> tuple[State, int]:
    out, bits_of = kept(state)
    names = whole_groups(state, group) if names is None else names
    for name, tensor in state.items():
        bits = widths[name]
        if name in names:
            groups = tensor.float().reshape(-1, group)
            out[name] = rounded(groups, *grid(groups, bits), bits).reshape(tensor.shape)
            bits_of[name] = tensor.numel() * bits + len(groups) * (HALF + bits)
    return out, sum(bits_of.values())


def hqq(state: Mapping[str, Tensor], widths: Widths, axis: int, group: int = 64) -> tuple[State, int]:
    """Its own optimizer, with its defaults. Groups of axis 1 lie in rows, those of axis 0 across them."""
    from hqq.core.quantize import Quantizer  # type: ignore[import-not-found]

    out, bits_of = kept(state)
    names = whole_groups(state, group)
    for name, tensor in state.items():
        bits = widths[name]
        if name in names:
            matrix = tensor.float().reshape(len(tensor), -1)
            coded, meta = Quantizer.quantize(
                matrix,
                nbits=bits,
                group_size=group,
                axis=axis,
                optimize=True,
                round_zero=bits == 4,
                device="cpu",
                bitpack=False,
            )
            meta |= {"compute_dtype": torch.float32, **{k: meta[k].half().float() for k in ("scale", "zero")}}
            out[name] = Quantizer.dequantize(coded, meta).reshape(tensor.shape)
            bits_of[name] = tensor.numel() * bits + tensor.numel() // group * 2 * HALF
    return out, sum(bits_of.values())


def nncodec(state: Mapping[str, Tensor], qp: int, python: str) -> tuple[State, int]:
    """With the defaults of `nncodec.nn.encode`, such as dependent quantization. `qp` is the step of all tensors."""
    with tempfile.TemporaryDirectory() as folder:
        arrays, request = Path(folder) / "in.npz", Path(folder) / "request.json"
        np.savez(arrays, **{n: t.float().numpy() for n, t in state.items() if t.is_floating_point()})
        settings = {"qp": qp, "use_dq": True, "row_skipping": True, "nonweight_qp": -75}
        job = {"arrays": str(arrays), "jobs": [{"settings": settings}], "repeats": 1, "clock": "process_time"}
        request.write_text(json.dumps(job | {"out": folder}))
        done = subprocess.run([python, str(NNCODEC), str(request)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"NNCodec failed: {done.stderr.strip().splitlines()[-1:]}")
        bits = 8 * json.loads((Path(folder) / "rows.json").read_text())["rows"][0]["n_bytes"]
        back = {name: torch.from_numpy(array) for name, array in np.load(Path(folder) / "0.npz").items()}
    return {n: back[n].reshape(t.shape) if n in back else t for n, t in state.items()}, bits
