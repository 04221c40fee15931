"""Model adapters: the interface through which an audit uses a model."""

from attnaudit.adapters.donors import InDistribution
from attnaudit.adapters.pooled.bag_adapter import BagAdapter
from attnaudit.adapters.pooled.pooled_adapter import PooledAttentionAdapter
from attnaudit.adapters.pooled.several_sites import Attend, SeveralAttentionsAdapter
from attnaudit.adapters.pooled.text_pairs import PairAttentionAdapter
from attnaudit.adapters.pooled.token_streams import Encoding
from attnaudit.adapters.pooled.two_levels import HierarchicalAttentionAdapter
from attnaudit.adapters.protocol import Capabilities, Inputs, Intervention, ModelAdapter, Site, Trace

__all__ = [
    "Attend",
    "BagAdapter",
    "Capabilities",
    "Encoding",
    "HierarchicalAttentionAdapter",
    "InDistribution",
    "Inputs",
    "Intervention",
    "ModelAdapter",
    "PairAttentionAdapter",
    "PooledAttentionAdapter",
    "SeveralAttentionsAdapter",
    "Site",
    "Trace",
]
