"""Rivals in the same harness: each compresses a Task into a `Compressed`, which `softshare.measure` measures."""

from softshare.paper.baselines.accounting import OWN_ACCOUNTING, published_ratio
from softshare.paper.baselines.deep_compression import deep_compression, published_bytes
from softshare.paper.baselines.dns import dns, nonzero_ratio
from softshare.paper.baselines.kmeans import kmeans_linear
from softshare.paper.baselines.rival_config import (
    DeepCompressionConfig,
    DnsConfig,
    LayerValue,
    PruneConfig,
    ShareConfig,
    SurgeryConfig,
)

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
