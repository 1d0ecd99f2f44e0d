"""Small arrays brought to NumPy, whatever library and device they are on."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import is_cupy_array, is_torch_array, to_device

from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_accelerator

_brought: dict[int, tuple[weakref.ref[Any], int, npt.NDArray[Any]]] = {}


def as_numpy(x: Array) -> npt.NDArray[Any]:
    """Return x in main memory, in its own precision; a copy only if it was elsewhere."""
    if is_torch_array(x) or is_cupy_array(x):
        return np.asarray(to_device(x, "cpu"))
    return np.asarray(x)


def on_host(x: Array) -> npt.NDArray[Any]:
    """Return a float64 copy of x in main memory: for the server's arithmetic on small arrays."""
    if isinstance(x, np.ndarray | np.generic):
        return np.array(x, dtype=np.float64)
    if is_torch_array(x) or is_cupy_array(x):
        # Memory of a GPU cannot be handed over as it is.
        return np.array(to_device(x, "cpu"), dtype=np.float64)
    return np.array(np.from_dlpack(x), dtype=np.float64)


def on_host_once(x: Array) -> npt.NDArray[Any]:
    """Return what `on_host` returns; a tensor is brought from an accelerator once while unchanged.

    Torch counts the writes to a tensor, so one that was written to is brought again. Bringing an
    array waits for all work that the accelerator has been given.
    """
    if not on_accelerator(x):
        return on_host(x)
    key = id(x)
    known = _brought.get(key)
    if known is None or known[0]() is not x or known[1] != x._version:
        forget = weakref.ref(x, lambda _: _brought.pop(key, None))
        known = _brought[key] = (forget, x._version, on_host(x))
    return known[2]
