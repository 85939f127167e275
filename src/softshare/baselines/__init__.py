"""Competitors in the same harness: a Task in, a `Compressed` out, which `softshare.measure` turns into a Result."""

from softshare.baselines.accounting import OWN_ACCOUNTING, published_ratio
from softshare.baselines.config import (
    DeepCompressionConfig,
    DnsConfig,
    LayerValue,
    PruneConfig,
    ShareConfig,
    SurgeryConfig,
)
from softshare.baselines.deep_compression import deep_compression, published_bytes
from softshare.baselines.dns import dns, nonzero_ratio
from softshare.baselines.kmeans import kmeans_linear

__all__ = [
    "OWN_ACCOUNTING",
    "DeepCompressionConfig",
    "DnsConfig",
    "LayerValue",
    "PruneConfig",
    "ShareConfig",
    "SurgeryConfig",
    "deep_compression",
    "dns",
    "kmeans_linear",
    "nonzero_ratio",
    "published_bytes",
    "published_ratio",
]
