"""The tensors of a file as a table of the page, where repeated blocks are one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from softshare._util.folding import fold
from softshare.codec.info import FileInfo, TensorInfo
from softshare.codec.rows import Row
from softshare.report.figures.sizes import kind_by_shape, shape_text
from softshare.report.headline import said
from softshare.report.names import tensor_names
from softshare.report.ruined import ruined_data, some_of
from softshare.report.run import Run
from softshare.report.table import MOST_ROWS, Cell, Table

HEADS = ("tensor", "type", "shape", "weights", "non-zero %", "components", "bits per weight", "bytes", "share %")


def tensor_table(run: Run, info: FileInfo) -> Table:
    tensors = info.tensors[:MOST_ROWS]
    ruined = {found.name: found.since for found in ruined_data(run)}
    names = tensor_names(tensors)
    rows, marks, inside = [], {}, {}
    for at, (name, places) in enumerate(fold(names, [(t.kind, t.shape) for t in tensors])):
        text, dead = said(name), [ruined[names[k]] for k in places if names[k] in ruined]
        if dead:
            marks[at] = "ruined"
            text += f": {dead[0] if len(places) == 1 else some_of(len(dead), len(places))}"
        if len(places) > 1:
            inside[at] = [_about(names[k], tensors[k], ruined) for k in places]
        row = Row(name, tuple(tensors[k] for k in places))
        first: Cell = (said(name) if tensors[places[0]].name else places[0], text)
        rows.append([first, *_cells(row, info.file_bytes)])
    more = f", the first {MOST_ROWS:,} of {len(info.tensors):,}" if len(info.tensors) > MOST_ROWS else ""
    return Table("tensors", f"Tensors{more}", HEADS, rows, marks, inside=inside)


def _cells(row: Row, file_bytes: int) -> Sequence[Cell]:
    """Sums over the tensors of the row. Non-zeros and bits are shares of their weights."""
    first = row.tensors[0]
    kind = f"{kind_by_shape(first.shape)}, {first.kind}".removeprefix(", ")
    density = 100 * row.n_nonzero / row.n if row.n and row.n_nonzero is not None else None
    bits = 8 * row.n_bytes / row.n if row.n else None
    least, most = (pick(t.n_components for t in row.tensors) for pick in (min, max))
    share = 100 * row.n_bytes / file_bytes
    return [
        (kind, kind),
        (first.n or 0, "scalar" if first.shape == () else shape_text(first.shape)),
        (row.n, "" if row.n is None else f"{row.n:,}"),
        (density, "" if density is None else f"{density:.2f}"),
        (most, str(most or "") if least == most else f"{least}-{most}"),
        (bits, "" if bits is None else f"{bits:.3f}"),
        (row.n_bytes, f"{row.n_bytes:,}"),
        (share, f"{share:.1f}"),
    ]


def _about(name: str, tensor: TensorInfo, ruined: Mapping[str, str]) -> str:
    density = "" if tensor.density is None else f"{100 * tensor.density:.2f}% non-zero, "
    return f"{said(name)}: {ruined[name] + ', ' if name in ruined else density}{tensor.n_bytes:,} bytes"
