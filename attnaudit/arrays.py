"""Type aliases for numpy arrays that several folders share. Imports numpy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Numbers per instance, per token or per resample.
Floats = NDArray[np.float64]
#: Class indices, cluster numbers or positions.
Integers = NDArray[np.int64]
#: An array over the whole data set, such as hidden states (float32), weights (float64) or instance positions (int64).
Table = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64]
