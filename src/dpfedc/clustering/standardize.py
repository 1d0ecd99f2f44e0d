"""The stages before clustering: how long records are, where they lie, and how far they spread."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import (
    SLACK,
    Entry,
    Form,
    Known,
    Public,
    SiteBatch,
    Stage,
    State,
    at_most,
    broadcast,
)
from dpfedc.errors import InvalidInput, NotFound
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot
from dpfedc.kernels.devices import on_host, on_host_once
from dpfedc.kernels.row_views import Columns, Standardized, centered_norms, is_far
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

BINS_PER_OCTAVE = 2
OCTAVES = 40
N_BINS = 2 * OCTAVES * BINS_PER_OCTAVE
"""Norms from 2^-40 to 2^40 are told apart; shorter and longer ones fall into the end bins."""
WHAT_TO_DECLARE = (
    "Declare the range of each column (a schema, or feature_ranges) or the length of the longest "
    "record (norm_bound, --norm-bound), as far as they are known without a look at the records; or "
    "ask for a larger epsilon"
)
VIEW = ("data_mean", "scale", "basis")
"""What the standardised view of the records depends on."""


def fingerprint(state: State, constant: float) -> int:
    """Return a number that stands for what standardising depends on."""
    names = [name for name in VIEW if name in state]
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
        center=broadcast(state, "data_mean"),
        scale=broadcast(state, "scale", above=0) if "scale" in state else None,
        constant=constant,
        basis=broadcast(state, "basis") if "basis" in state else None,
    )
    made_for = xp.full(batch.n_records, number, dtype=xp.int64, device=on)
    return {"factors": view.factors, "squared_norms": view.squared_norms, "made_for": made_for}


def standardized_view(batch: SiteBatch, state: State, constant: float) -> Standardized:
    """Return the batch's records as the stage sees them, from what the sites remember.

    A server that moved the mean in mid-stage would make the remembered norms wrong, and clipping
    by them worthless: the site refuses.
    """
    memory = batch.memory
    xp = array_namespace(memory["made_for"])
    if not bool(xp.all(memory["made_for"] == fingerprint(state, constant))):
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


def origin_entry(n_features: int) -> Entry:
    """Return the entry of the point that norms are measured from."""
    return Entry((n_features,))


def bound_entry() -> Entry:
    """Return the entry of the longest norm in common use."""
    return Entry((), lambda bound, _: 2.0**-OCTAVES <= float(bound) <= 2.0**OCTAVES)


def mean_entry(n_features: int) -> Entry:
    """Return the entry of the records' mean, which is no farther from the origin than the bound."""

    def within(mean: Array, state: State) -> bool:
        away = np.linalg.norm((mean - state["origin"]) / state["bound"])
        return float(away) <= SLACK

    return Entry((n_features,), within, needs=("origin", "bound"))


def scale_entry(factor: float) -> Entry:
    """Return the entry of the scale, a public part of the bound at least and at most."""

    def within(scale: Array, state: State) -> bool:
        ratio = float(scale / state["bound"])
        return MIN_SCALE / SLACK <= ratio <= factor * SLACK

    return Entry((), within, needs=("bound",))


MIN_SCALE = 2.0**-10
"""The scale is at least this part of the bound, so that noise cannot make it vanish."""


def beyond_noise(noise_std: float, n_bins: int) -> float:
    """Return a count that noise alone reaches in none of the bins, but once in 10,000 runs."""
    return noise_std * math.sqrt(2 * math.log(1e4 * n_bins))


@dataclass(frozen=True)
class Bound(Stage):
    """Release a histogram of the records' norms; `bound` becomes the longest norm in common use.

    Bins are half octaves on a public grid. A bin counts if it holds more than `min_count` records,
    which must be above the noise; the bound is the upper edge of the highest bin that counts.
    Longer records are clipped to it. A record is in one bin: sensitivity 1.
    """

    min_count: float = 0.0
    name = "bound"
    n_rounds = 1
    purpose = "how long records are, as a histogram"
    reads = ("origin",)

    def starts(self, known: Known, n_features: int) -> Known:
        return {"origin": known.get("origin", origin_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"bound": bound_entry()}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((N_BINS,))

    def sensitivity(self, state: State, t: int) -> float:
        """Return 1: a record is in one bin."""
        return 1.0

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with a count that noise alone does not reach.

        An empty bin passes for a full one once in 10,000 runs; and what is in bins with very few
        records may be clipped.
        """
        threshold = beyond_noise(noise, N_BINS)
        return replace(self, min_count=max(threshold, 0.005 * n_records))

    def hopeless(self, n_records: int) -> str:
        """Return why no bin can hold enough records."""
        if self.min_count < n_records:
            return ""
        return (
            f"the length of the longest records cannot be found among {n_records:,} records: a bin "
            f"of the histogram needs more than {self.min_count:,.0f} of them to stand out from the "
            f"noise. {WHAT_TO_DECLARE}"
        )

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {"origin": public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, broadcast(state, "origin"))
        octaves = xp.log2(xp.clip(norms, min=2.0**-OCTAVES, max=2.0**OCTAVES))
        octaves = xp.where(xp.isfinite(octaves), octaves, xp.zeros_like(octaves))
        bins = xp.clip(xp.floor((octaves + OCTAVES) * BINS_PER_OCTAVE), min=0, max=N_BINS - 1)
        members = one_hot(xp.astype(bins, xp.int64), N_BINS, batch.X)
        finite = xp.where(xp.isfinite(norms), xp.ones_like(norms), norms)
        return OuterSum(members, Columns.of(xp.ones_like(norms)), finite, shape=(N_BINS,))

    def combine(self, state: State, released: Released, t: int) -> State:
        counts = on_host(released.value)
        above = np.flatnonzero(counts > self.min_count)
        if not len(above):
            raise NotFound(
                f"the length of the longest records was not found: no bin of the histogram holds "
                f"more than {self.min_count:,.0f} records, so none stands out from the noise. "
                f"{WHAT_TO_DECLARE}"
            )
        highest = int(above[-1])
        bound = 2.0 ** ((highest + 1) / BINS_PER_OCTAVE - OCTAVES)
        like = state["origin"]
        xp = array_namespace(like)
        return {**state, "bound": xp.asarray(bound, dtype=like.dtype, device=device(like))}


@dataclass(frozen=True)
class Mean(Stage):
    """Release the sum of the records; the state's `data_mean` becomes their mean.

    Records are clipped to the state's `bound` around its `origin`: that is the sensitivity. Without
    a bound nothing is clipped.
    """

    name = "mean"
    n_rounds = 1
    purpose = "where the middle of all records lies"
    reads = ("origin", "bound")

    def starts(self, known: Known, n_features: int) -> Known:
        return {"origin": known.get("origin", origin_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"data_mean": mean_entry(n_features)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((n_features,))

    def sensitivity(self, state: State, t: int) -> float:
        """Return the bound."""
        return float(state.get("bound", math.inf))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {"origin": public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp, origin = array_namespace(batch.X), broadcast(state, "origin")
        norms = centered_norms(batch.X, origin)
        ones = xp.ones_like(norms)
        far = is_far(origin, state.get("bound"))
        records = Standardized(batch.X, origin, ones, norms**2, 0.0, far=far)
        return OuterSum(ones[:, None], records, norms, shape=(int(batch.X.shape[1]),))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the mean, no farther from the origin than the bound.

        A mean of clipped records cannot be farther; noise can.
        """
        xp = array_namespace(released.value)
        mean = released.value / released.n_records
        if "bound" in state:
            length = xp.sqrt(xp.sum(mean**2))
            mean = mean * (state["bound"] / xp.maximum(length, state["bound"]))
        return {**state, "data_mean": state["origin"] + mean}


@dataclass(frozen=True)
class Scale(Stage):
    """Release the sum of |x_j - mean|; the state's `scale` becomes `factor` times its mean.

    Distances are clipped to the `bound`: that is the sensitivity. Records farther out than the
    scale are clipped to it later, so the factor is a little over one.
    """

    factor: float = 1.3
    name = "scale"
    n_rounds = 1
    purpose = "how far records are from that middle"
    reads = ("data_mean", "bound")

    def starts(self, known: Known, n_features: int) -> Known:
        return {"data_mean": known.get("data_mean", mean_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"scale": scale_entry(self.factor)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form(())

    def sensitivity(self, state: State, t: int) -> float:
        """Return the bound."""
        return float(state.get("bound", math.inf))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        origin = state.get("origin", public.asarray(np.zeros(public.n_features)))
        return {"data_mean": origin, **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, broadcast(state, "data_mean"))
        finite = xp.where(xp.isfinite(norms), norms, xp.zeros_like(norms))
        return OuterSum(xp.ones_like(norms)[:, None], Columns.of(finite), norms, shape=())

    def combine(self, state: State, released: Released, t: int) -> State:
        xp = array_namespace(released.value)
        scale = self.factor * released.value / released.n_records
        least = float(xp.finfo(released.value.dtype).smallest_normal) ** 0.5
        if "bound" not in state:
            return {**state, "scale": xp.clip(scale, min=least)}
        bound = float(state["bound"])
        return {
            **state,
            "scale": xp.clip(scale, min=MIN_SCALE * bound, max=self.factor * bound),
        }

    def doubts(self, state: State) -> tuple[str, ...]:
        if (
            "bound" not in state
            or float(state["scale"]) > MIN_SCALE * float(state["bound"]) * SLACK
        ):
            return ()
        return (
            "the scale of the records is at its floor: they spread far less than the bound on "
            f"their length, or noise has swamped it. {WHAT_TO_DECLARE}",
        )


@dataclass(frozen=True)
class Subspace(Stage):
    """Release the sum of x~ x~'; the state's `basis` becomes its leading eigenvectors.

    All later stages work in that subspace, where there is less room for noise. |x~ x~'| <= 1.
    """

    n_dimensions: int
    name = "subspace"
    n_rounds = 1
    reads = VIEW

    @property
    def purpose(self) -> str:  # type: ignore[override]
        """Return what is found out."""
        return f"the {self.n_dimensions} directions in which records differ most"

    def starts(self, known: Known, n_features: int) -> Known:
        return {"data_mean": mean_entry(n_features), "scale": scale_entry(1.0), **known}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"basis": Entry((self.n_dimensions, n_features), at_most(1.0))}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((n_features, n_features), symmetric=True)

    def sensitivity(self, state: State, t: int) -> float:
        """Return 1: |x~| <= 1."""
        return 1.0

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return with_mean_and_scale(state, public)

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, state, 0.0)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        view = standardized_view(batch, state, 0.0)
        return OuterSum(view, view, view.squared_norms, symmetric=True)

    def combine(self, state: State, released: Released, t: int) -> State:
        _, vectors = np.linalg.eigh(on_host(released.value))
        basis = vectors[:, : -self.n_dimensions - 1 : -1].T.copy()
        moment = released.value
        xp, on = array_namespace(moment), device(moment)
        return {**state, "basis": xp.asarray(basis, dtype=moment.dtype, device=on)}
