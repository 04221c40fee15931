"""Model adapters: what makes a model auditable."""

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
