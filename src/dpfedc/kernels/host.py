"""Small arrays brought to NumPy, whatever library and device they are on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import is_cupy_array, is_torch_array, to_device

from dpfedc.kernels import Array


def on_host(x: Array) -> npt.NDArray[Any]:
    """Return a float64 copy of x in main memory: for the server's arithmetic on small arrays."""
    if isinstance(x, np.ndarray | np.generic):
        return np.array(x, dtype=np.float64)
    if is_torch_array(x) or is_cupy_array(x):
        # Memory of a GPU cannot be handed over as it is.
        return np.array(to_device(x, "cpu"), dtype=np.float64)
    return np.array(np.from_dlpack(x), dtype=np.float64)
