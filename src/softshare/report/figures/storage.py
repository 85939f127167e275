"""How appendix A stores a row: relative column indices, and a filled-in zero if a gap is too long for their bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softshare._util.run_folder import MODEL
from softshare.codec import load
from softshare.codec.han.csr import index_bits, to_csr, to_relative
from softshare.report.frames import Array
from softshare.report.names import short
from softshare.report.run import Run
from softshare.report.style import DOTS, FAINT, NEGATIVE, new_figure

MOST_ENTRIES = 9
_MOST_WEIGHTS = 1 << 20  # searched for a row


@dataclass(frozen=True, eq=False)
class Storage:
    """The first entries of a row of a matrix."""

    name: str
    row: int
    bits: int  # of a relative index
    columns: Array  # (n,) of each entry
    relative: Array  # (n,) zeros between it and the previous entry
    values: Array  # (n,) 0 for a filled-in entry


def storage_data(run: Run) -> tuple[Storage, ...]:
    """A row of the largest matrix, with a filled-in zero if any row has one. A file without names gives none."""
    tensors = run.info.tensors if run.info else ()
    named = [t for t in tensors if t.kind == "shared" and t.name and t.n_nonzero and len(t.shape or ()) > 1]
    if not named:
        return ()
    info = max(named, key=lambda t: t.n or 0)
    name, shape = str(info.name), info.shape or ()
    values = load(run.folder / MODEL, [name])[name].float().numpy()
    matrix = values.reshape(len(values), -1)
    matrix = matrix[: max(1, _MOST_WEIGHTS // matrix.shape[1])]
    book, indices = np.unique(matrix, return_inverse=True)
    indices = np.where(book == 0, -1, np.arange(len(book)))[indices.reshape(-1)] + 1  # 0 is a pruned weight
    bits = index_bits(shape)
    csr = to_relative(to_csr(indices, *matrix.shape), bits)
    filled = [int((csr.a[first:end][:MOST_ENTRIES] == 0).sum()) for first, end in zip(csr.ir, csr.ir[1:], strict=False)]
    lengths = np.minimum(np.diff(csr.ir), MOST_ENTRIES)
    row = int(np.lexsort((lengths, np.array(filled) > 0))[-1])
    own = slice(csr.ir[row], min(csr.ir[row + 1], csr.ir[row] + MOST_ENTRIES))
    relative = csr.ic[own]
    kept = np.concatenate([[0.0], book])[csr.a[own]]
    return (Storage(name, row, bits, np.cumsum(relative + 1) - 1, relative, kept),)


def draw_storage(data: Storage) -> Any:
    figure = new_figure(4.8, 2.3)
    axes = figure.subplots()
    axes.axis("off")
    n = len(data.columns)
    filler = data.values == 0
    rows = {
        "column": [str(c) for c in data.columns],
        "diff": [str(r) for r in data.relative],
        "value": ["0" if f else f"{v:.2f}" for f, v in zip(filler, data.values, strict=True)],
    }
    orange = tuple(v / 255 for v in NEGATIVE)
    for y, (label, texts) in enumerate(rows.items()):
        axes.text(-0.2, -y, label, ha="right", va="center")
        for x, text in enumerate(texts):
            edge = orange if filler[x] else FAINT
            axes.add_patch(_box(x, -y, edge, 1.8 if filler[x] else 0.8, bool(filler[x]) or label != "value"))
            axes.text(x + 0.5, -y, text, ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.6, n), ylim=(-len(rows) + 0.3, 0.8))
    most = (1 << data.bits) - 1
    axes.set_title(f"{short(data.name, 28)}, row {data.row}: {data.bits} bits for a diff, at most {most}", fontsize=9)
    return figure


def _box(x: float, y: float, edge: Any, width: float, clear: bool) -> Any:
    from matplotlib.patches import Rectangle

    face = "none" if clear else DOTS
    return Rectangle((x + 0.04, y - 0.38), 0.92, 0.76, facecolor=face, edgecolor=edge, linewidth=width, alpha=0.5)
