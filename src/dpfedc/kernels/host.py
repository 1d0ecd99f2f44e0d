"""Small arrays brought to NumPy, whatever library and device they are on."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import is_cupy_array, is_torch_array

from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_accelerator

_brought: dict[int, tuple[weakref.ref[Any], int, npt.NDArray[Any]]] = {}


def as_numpy(x: Array) -> npt.NDArray[Any]:
    """Return x in main memory, in its own precision; a copy only if it was elsewhere."""
    if is_torch_array(x):
        return np.asarray(x.cpu().numpy())
    return np.asarray(x.get() if is_cupy_array(x) else x)


def on_host(x: Array) -> npt.NDArray[Any]:
    """Return a float64 copy of x in main memory: for the server's arithmetic on small arrays."""
    if isinstance(x, np.ndarray | np.generic) or is_torch_array(x) or is_cupy_array(x):
        return np.array(as_numpy(x), dtype=np.float64)
    return np.array(np.from_dlpack(x), dtype=np.float64)


def on_host_once(x: Array) -> npt.NDArray[Any]:
    """Return what `on_host` returns; a tensor is brought from an accelerator once while unchanged.

    Torch counts the writes to a tensor, so one that was written to is brought again. Bringing an
    array waits for all work that the accelerator has been given.
    """
    if not on_accelerator(x):
        return on_host(x)
    key, version = id(x), x._version
    known = _brought.get(key)
    if known is None or known[0]() is not x or known[1] != version:
        whose = weakref.ref(x, lambda _: _brought.pop(key, None))
        known = _brought[key] = (whose, version, on_host(x))
    return known[2]
