"""Registered data sets, your own files, and the packaged movie reviews.

Importing this package does not import torch.
"""

from attnaudit.data.labels import label_indices, require_two_classes
from attnaudit.data.sampling import sample
from attnaudit.data.sources import load

__all__ = ["label_indices", "load", "require_two_classes", "sample"]
