"""Files that a model reads instead of a text: arrays of feature vectors, pictures, and recordings of sound.

A row of a data set names such a file in the column `file`. Importing this package does not import torch.
"""

from attnaudit.input_files.array_files import UnitArray, read_array
from attnaudit.input_files.picture_files import read_picture
from attnaudit.input_files.recording_files import Recording, read_recording

__all__ = ["Recording", "UnitArray", "read_array", "read_picture", "read_recording"]
