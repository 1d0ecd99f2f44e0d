"""Torch's devices: arrays moved there and back, and where they are."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import device, is_cupy_array, is_torch_array

from dpfedc.errors import InvalidInput, MissingExtra
from dpfedc.kernels import Array


def torch_device(name: Any) -> Any:
    """Return Torch's device of that name, or say why it cannot be used.

    Tried here: a missing device is told before anything is planned or moved.
    """
    expected = "device must be None, 'cpu', 'cuda' or 'cuda:' with a number"
    if not isinstance(name, str):
        raise InvalidInput(f"{expected}, got {name!r}")
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(f"device={name!r} needs torch: pip install 'dpfedc[gpu]'") from error
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise InvalidInput(f"{expected}, got {name!r}") from error
    if found.type not in {"cpu", "cuda"}:
        raise InvalidInput(f"{expected}, got {name!r}")
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise InvalidInput(f"device must be one that torch can use, got {name!r}: {count} GPUs")
    return found


def moved(X: npt.NDArray[Any], name: str) -> Array:
    """Return the array as a tensor on Torch's device of that name; on the CPU without a copy."""
    import torch

    where = torch_device(name)
    if not X.flags.writeable and where.type == "cpu":
        X = X.copy()  # Torch has no arrays that cannot be written to
    return torch.asarray(X, device=where)


def fused_kernels(X: Array) -> Any:
    """Return the module of fused kernels, or None where they cannot run on X.

    They need CUDA, and Triton, which comes with Torch's CUDA builds.
    """
    if not is_torch_array(X) or device(X).type != "cuda":
        return None
    try:
        from dpfedc.kernels import fused
    except ImportError:
        return None
    return fused


def on_accelerator(x: Array) -> bool:
    """Return whether the array is a tensor that is not in main memory."""
    return is_torch_array(x) and device(x).type != "cpu"


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
