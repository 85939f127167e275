"""`@compiled`: numba compiles the coders' functions. Without numba they run as plain Python, with the same result."""

from __future__ import annotations

from pathlib import Path

from softshare._util.compiled import compiler

compiled = compiler(
    Path(__file__).parent,
    (
        "adaptive/logistic",
        "adaptive/rangecoder",
        "adaptive/full",
        "adaptive/fast",
        "planes",
        "static/counting",
        "static/rans",
        "static/tables",
    ),
)
