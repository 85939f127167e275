"""A result for tables and panels of the command line."""

from __future__ import annotations

from softshare.result import Result

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
