"""The baselines' ratios as their own papers count them, from what a file holds."""

from __future__ import annotations

from softshare.paper.baselines.deep_compression import published_bytes
from softshare.paper.baselines.dns import nonzero_ratio
from softshare.quantization.quantized import QuantizedWeights

OWN_ACCOUNTING = {
    "deep-compression": "4 bytes for each weight over the coded weights and float32 codebooks; no biases, no header",
    "dns": "all weights over those that are not zero",
}


def published_ratio(method: str, quantized: QuantizedWeights) -> float | None:
    """The ratio by the accounting of the method's paper; None for a method without one."""
    match method:
        case "deep-compression":
            return 4 * quantized.n_shared / published_bytes(quantized)
        case "dns":
            return nonzero_ratio(quantized)
    return None
