"""Type aliases for numpy arrays. Importing this module imports only numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: Numbers per instance, per token or per resample.
Floats = NDArray[np.float64]
#: Class indices, cluster numbers or positions.
Integers = NDArray[np.int64]
#: A floating-point array of any precision.
RealArray = NDArray[np.floating]
#: An array for a whole data set, such as hidden states (float32), weights (float64) or positions of instances (int64).
Table = NDArray[np.float64] | NDArray[np.float32] | NDArray[np.int64]
