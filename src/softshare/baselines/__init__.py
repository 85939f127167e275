"""Competitors in the same harness: a Task in, a `Compressed` out, which `softshare.measure` turns into a Result."""

from softshare.baselines.config import (
    DeepCompressionConfig,
    DnsConfig,
    LayerValue,
    PruneConfig,
    ShareConfig,
    SurgeryConfig,
)
from softshare.baselines.deep_compression import deep_compression, published_bytes
from softshare.baselines.dns import dns, published_ratio
from softshare.baselines.kmeans import kmeans_linear

__all__ = [
    "DeepCompressionConfig",
    "DnsConfig",
    "LayerValue",
    "PruneConfig",
    "ShareConfig",
    "SurgeryConfig",
    "deep_compression",
    "dns",
    "kmeans_linear",
    "published_bytes",
    "published_ratio",
]
