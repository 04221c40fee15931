"""Files that a model reads instead of a text: arrays of feature vectors, and pictures.

A row of a data set names such a file in the column `file`. Importing this package does not import torch.
"""

from attnaudit.input_files.array_files import UnitArray, read_array
from attnaudit.input_files.picture_files import read_picture

__all__ = ["UnitArray", "read_array", "read_picture"]
