"""The stages before clustering: how long records are, where they lie, and how far they spread."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Method, Public, SiteBatch, State, broadcast
from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot
from dpfedc.kernels.host import on_host, on_host_once
from dpfedc.kernels.rows import weighted_rows
from dpfedc.kernels.standardized import Standardized, centered_norms, is_far
from dpfedc.privacy.gate import RecordSum, Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness

BINS_PER_OCTAVE = 2
OCTAVES = 40
N_BINS = 2 * OCTAVES * BINS_PER_OCTAVE
"""Norms from 2^-40 to 2^40 are told apart; shorter and longer ones fall into the end bins."""


def fingerprint(state: State, constant: float) -> int:
    """Return a number that stands for what standardising depends on."""
    names = [name for name in ("center", "scale", "basis") if name in state]
    content = b"".join(name.encode() + on_host_once(state[name]).tobytes() for name in names)
    content += float(constant).hex().encode()
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def standardized_memory(batch: SiteBatch, state: State, constant: float) -> dict[str, Array]:
    """Return the per-record numbers of the standardised view, so that no round computes them.

    What an earlier stage left, made from the same numbers, is used again.
    """
    xp, on = array_namespace(batch.X), device(batch.X)
    number, memory = fingerprint(state, constant), batch.memory
    if "made_for" in memory and bool(xp.all(memory["made_for"] == number)):
        return {name: memory[name] for name in ("factors", "squared_norms", "made_for")}
    view = Standardized.of(
        batch.X,
        center=broadcast(state, "center"),
        scale=broadcast(state, "scale", above=0) if "scale" in state else None,
        constant=constant,
        basis=broadcast(state, "basis") if "basis" in state else None,
    )
    made_for = xp.full(batch.n_records, number, dtype=xp.int64, device=on)
    return {"factors": view.factors, "squared_norms": view.squared_norms, "made_for": made_for}


def standardized_view(batch: SiteBatch, state: State, constant: float) -> Standardized:
    """Return the batch's records as the method sees them, from what the sites remember.

    A server that moved the centre in mid-stage would make the remembered norms wrong, and clipping
    by them worthless: the site refuses.
    """
    memory = batch.memory
    xp = array_namespace(memory["made_for"])
    if not bool(xp.all(memory["made_for"] == fingerprint(state, constant))):
        raise InvalidInput("centre, scale and basis must be those that the stage began with")
    return Standardized(
        batch.X,
        state["center"],
        memory["factors"],
        memory["squared_norms"],
        constant,
        state.get("basis"),
        is_far(state["center"], state.get("scale")),
    )


def standardized_rows(view: Standardized, rows: slice) -> Array:
    """Return the standardised records of consecutive rows, formed in full."""
    xp, on = array_namespace(view.X), device(view.X)
    return view.rows(xp.arange(rows.start, rows.stop, device=on))


def outer_products(H: Array, rows: Array) -> Array:
    """Return h_j r_j' of every record (b x k x m) for H (b x k) and rows r (b x m)."""
    return H[:, :, None] * rows[:, None, :]


def with_place_and_scale(state: State, public: Public) -> State:
    """Return the state with a centre and a scale, which are declared ones if none was released.

    Undeclared, the centre is zero and records are taken to have norm at most 1.
    """
    return {
        "center": state.get("origin", public.asarray(np.zeros(public.n_features))),
        "scale": state.get("bound", public.asarray(np.asarray(1.0))),
        **state,
    }


@dataclass(frozen=True)
class Bound(Method):
    """Release a histogram of the records' norms; `bound` becomes the longest norm in common use.

    Bins are half octaves on a public grid. A bin counts if it holds more than `least_count`
    records, which the planner sets above the noise; the bound is the upper edge of the highest bin
    that counts. Longer records are clipped to it. A record is in one bin: sensitivity 1.
    """

    least_count: float
    name: str = "bound"
    sums_records = True
    n_rounds: int = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with the origin that norms are measured from."""
        return {"origin": public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> RecordSum:
        """Return the counts of norms in half octaves."""
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, broadcast(state, "origin"))
        octaves = xp.log2(xp.clip(norms, min=2.0**-OCTAVES, max=2.0**OCTAVES))
        octaves = xp.where(xp.isfinite(octaves), octaves, xp.zeros_like(octaves))
        bins = xp.clip(xp.floor((octaves + OCTAVES) * BINS_PER_OCTAVE), min=0, max=N_BINS - 1)
        members = one_hot(xp.astype(bins, xp.int64), N_BINS, batch.X)
        finite = xp.where(xp.isfinite(norms), xp.ones_like(norms), norms)
        return RecordSum(
            finite, 1.0, lambda weights: weights @ members, terms=lambda rows: members[rows, :]
        )

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the bound."""
        counts = on_host(released.value)
        above = np.flatnonzero(counts > self.least_count)
        highest = int(above[-1]) if len(above) else int(np.argmax(counts))
        bound = 2.0 ** ((highest + 1) / BINS_PER_OCTAVE - OCTAVES)
        like = state["origin"]
        xp = array_namespace(like)
        return {**state, "bound": xp.asarray(bound, dtype=like.dtype, device=device(like))}


@dataclass(frozen=True)
class Mean(Method):
    """Release the sum of the records; the state's `center` becomes their mean.

    Records are clipped to the state's `bound` around its `origin`: that is the sensitivity. Without
    a bound nothing is clipped.
    """

    name: str = "mean"
    sums_records = True
    n_rounds: int = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with an origin."""
        return {"origin": public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> RecordSum:
        """Return the sum of x_j - origin."""
        xp, origin = array_namespace(batch.X), broadcast(state, "origin")
        norms, far = centered_norms(batch.X, origin), is_far(origin, state.get("bound"))

        def total(weights: Array) -> Array:
            if far:
                return weighted_rows(weights[:, None], batch.X, origin)[0, :]
            return weights @ batch.X - xp.sum(weights) * origin

        def terms(rows: slice) -> Array:
            return batch.X[rows, :] - origin

        return RecordSum(norms, float(state.get("bound", math.inf)), total, terms=terms)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the mean as its centre, no farther from the origin than the bound.

        A mean of clipped records cannot be farther; noise can.
        """
        xp = array_namespace(released.value)
        mean = released.value / released.n_records
        if "bound" in state:
            length = xp.sqrt(xp.sum(mean**2))
            mean = mean * (state["bound"] / xp.maximum(length, state["bound"]))
        return {**state, "center": state["origin"] + mean}


@dataclass(frozen=True)
class Scale(Method):
    """Release the sum of |x_j - center|; the state's `scale` becomes `factor` times its mean.

    Distances are clipped to the `bound`: that is the sensitivity. Records farther out than the
    scale are clipped to it later, so the factor is a little over one.
    """

    name: str = "scale"
    sums_records = True
    n_rounds: int = 1
    factor: float = 1.3
    smallest: float = 2.0**-10
    """The scale is at least this part of the bound, so that noise cannot make it vanish."""

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with a centre if none was released."""
        origin = state.get("origin", public.asarray(np.zeros(public.n_features)))
        return {"center": origin, **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> RecordSum:
        """Return the sum of |x_j - center|."""
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, broadcast(state, "center"))
        finite = xp.where(xp.isfinite(norms), norms, xp.zeros_like(norms))
        bound = float(state.get("bound", math.inf))
        return RecordSum(
            norms, bound, lambda weights: xp.sum(weights * finite), terms=lambda rows: finite[rows]
        )

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the new scale, kept within public limits."""
        xp = array_namespace(released.value)
        scale = self.factor * released.value / released.n_records
        least = float(xp.finfo(released.value.dtype).smallest_normal) ** 0.5
        if "bound" not in state:
            return {**state, "scale": xp.clip(scale, min=least)}
        bound = float(state["bound"])
        return {
            **state,
            "scale": xp.clip(scale, min=self.smallest * bound, max=self.factor * bound),
        }


@dataclass(frozen=True)
class Subspace(Method):
    """Release the sum of x~ x~'; the state's `basis` becomes its leading eigenvectors.

    All later stages work in that subspace, where there is less room for noise. |x~ x~'| <= 1.
    """

    n_dimensions: int
    name: str = "subspace"
    sums_records = True
    n_rounds: int = 1

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with a centre and a scale."""
        return with_place_and_scale(state, public)

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return the standardised view's numbers."""
        return standardized_memory(batch, state, 0.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> RecordSum:
        """Return the second moment of the standardised records."""
        view = standardized_view(batch, state, 0.0)

        def terms(rows: slice) -> Array:
            x = standardized_rows(view, rows)
            return outer_products(x, x)

        return RecordSum(view.squared_norms, 1.0, view.second_moment, symmetric=True, terms=terms)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the basis (dimensions x features)."""
        _, vectors = np.linalg.eigh(on_host(released.value))
        basis = vectors[:, : -self.n_dimensions - 1 : -1].T.copy()
        moment = released.value
        xp, on = array_namespace(moment), device(moment)
        return {**state, "basis": xp.asarray(basis, dtype=moment.dtype, device=on)}
