"""Model adapters: the interface through which an audit uses a model."""

from attnaudit.adapters.pooled.pooled_adapter import Encoding, PooledAttentionAdapter
from attnaudit.adapters.protocol import Capabilities, Inputs, Intervention, ModelAdapter, Site, Trace

__all__ = [
    "Capabilities",
    "Encoding",
    "Inputs",
    "Intervention",
    "ModelAdapter",
    "PooledAttentionAdapter",
    "Site",
    "Trace",
]
