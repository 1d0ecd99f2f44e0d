"""Records as the stages of the clustering see them: centred, scaled, and in a subspace."""

from __future__ import annotations

import hashlib

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Public, SiteBatch, State, broadcast
from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host_once
from dpfedc.kernels.row_views import Standardized, centered_norms, is_far

VIEW = ("data_mean", "scale", "basis")
"""What the standardised view of the records depends on."""


def fingerprint(state: State, constant: float, longest: float) -> int:
    """Return a number that stands for what standardising depends on."""
    names = [name for name in VIEW if name in state]
    content = b"".join(name.encode() + on_host_once(state[name]).tobytes() for name in names)
    return _number(content + float(constant).hex().encode() + float(longest).hex().encode())


def _number(content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def distances_memory(batch: SiteBatch, center: Array) -> dict[str, Array]:
    """Return how far each record is from a centre, and from which: the next stage may ask again."""
    xp, on = array_namespace(batch.X), device(batch.X)
    number = _number(on_host_once(center).tobytes())
    made_from = xp.full(batch.n_records, number, dtype=xp.int64, device=on)
    return {"distances": distances(batch, center), "distances_from": made_from}


def distances(batch: SiteBatch, center: Array) -> Array:
    """Return |x_j - center|, from what the sites remember if it is of the same centre."""
    memory = batch.memory
    if "distances_from" in memory:
        number = _number(on_host_once(center).tobytes())
        if bool(array_namespace(batch.X).all(memory["distances_from"] == number)):
            return memory["distances"]
    return centered_norms(batch.X, center)


def standardized_memory(
    batch: SiteBatch, state: State, constant: float, longest: float = 1.0
) -> dict[str, Array]:
    """Return the per-record numbers of the standardised view, so that no round computes them.

    What an earlier stage left, made from the same numbers, is used again.
    """
    xp, on = array_namespace(batch.X), device(batch.X)
    number, memory = fingerprint(state, constant, longest), batch.memory
    if "made_for" in memory and bool(xp.all(memory["made_for"] == number)):
        return {name: memory[name] for name in ("factors", "squared_norms", "made_for")}
    center = broadcast(state, "data_mean")
    view = Standardized.of(
        batch.X,
        center=center,
        norms=distances(batch, center),
        scale=broadcast(state, "scale", above=0) if "scale" in state else None,
        constant=constant,
        basis=broadcast(state, "basis") if "basis" in state else None,
        longest=longest,
    )
    made_for = xp.full(batch.n_records, number, dtype=xp.int64, device=on)
    return {"factors": view.factors, "squared_norms": view.squared_norms, "made_for": made_for}


def standardized_view(
    batch: SiteBatch, state: State, constant: float, longest: float = 1.0
) -> Standardized:
    """Return the batch's records as the stage sees them, from what the sites remember.

    A server that moved the mean in mid-stage would make the remembered norms wrong, and clipping
    by them worthless: the site refuses.
    """
    memory = batch.memory
    xp = array_namespace(memory["made_for"])
    if not bool(xp.all(memory["made_for"] == fingerprint(state, constant, longest))):
        raise InvalidInput("mean, scale and basis must be those that the stage began with")
    return Standardized(
        batch.X,
        state["data_mean"],
        memory["factors"],
        memory["squared_norms"],
        constant,
        state.get("basis"),
        is_far(state["data_mean"], state.get("scale")),
    )


def with_mean_and_scale(state: State, public: Public) -> State:
    """Return the state with a mean and a scale, which are declared ones if none was released.

    Undeclared, the mean is zero and records are taken to have norm at most 1.
    """
    return {
        "data_mean": state.get("origin", public.asarray(np.zeros(public.n_features))),
        "scale": state.get("bound", public.asarray(np.asarray(1.0))),
        **state,
    }
