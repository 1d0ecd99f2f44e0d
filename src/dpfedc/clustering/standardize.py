"""The stages before clustering: how long records are, where they lie, and how far they spread."""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
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
from dpfedc.kernels.column_view import SPREAD
from dpfedc.kernels.devices import on_host, on_host_once
from dpfedc.kernels.row_views import Columns, Standardized, centered_norms, is_far
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

Float = npt.NDArray[Any]

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


def moved_mean_entry(n_features: int) -> Entry:
    """Return the entry of a mean that was measured again from an earlier one, in a few passes."""

    def within(mean: Array, state: State) -> bool:
        return float(np.linalg.norm(mean - state["origin"])) <= 2.0 ** (OCTAVES + 2)

    return Entry((n_features,), within, needs=("origin",))


def longest(state: State) -> Array | float:
    """Return the longest distance from the mean that counts: the radius, if it is known."""
    return state.get("radius", state.get("bound", math.inf))


def scale_entry(factor: float) -> Entry:
    """Return the entry of the scale, a public part of the longest distance at least and at most."""

    def within(scale: Array, state: State) -> bool:
        ratio = float(scale / longest(state))
        return MIN_SCALE / SLACK <= ratio <= factor * SLACK

    return Entry((), within, needs=("bound", "radius"))


MIN_SCALE = 2.0**-10
"""The scale is at least this part of the bound, so that noise cannot make it vanish."""


def beyond_noise(noise_std: float, n_bins: int) -> float:
    """Return a count that noise alone reaches in none of the bins, but once in 10,000 runs."""
    return noise_std * math.sqrt(2 * math.log(1e4 * n_bins))


@dataclass(frozen=True)
class Bound(Stage):
    """Release a histogram of the records' norms; `bound` becomes the longest norm in common use.

    Bins are half octaves on a public grid. A bin counts if it holds more than `min_count` records,
    which must be above the noise; the bound is the upper edge of the highest bin that counts. Where
    none does, two or four neighbours that do together serve. Longer records are clipped to it. A
    record is in one bin: sensitivity 1.

    Norms are measured from the point `around`: the origin, or a mean that was released.
    """

    min_count: float = 0.0
    min_share: float = 0.005
    """Bins with a smaller share of the records do not count, however little noise there is."""
    noise_std: float = 0.0
    around: str = "origin"
    name: str = "bound"
    n_rounds = 1
    purpose = "how long records are, as a histogram"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what norms are measured from."""
        return (self.around,)

    def starts(self, known: Known, n_features: int) -> Known:
        return {self.around: known.get(self.around, origin_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        made = {"bound": bound_entry()}
        # A mean may be farther from the origin than the new bound, which is measured from it.
        if self.around != "origin":
            made[self.around] = moved_mean_entry(n_features)
        return made

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
        least = max(self._beyond_noise(noise, 1), self.min_share * n_records)
        return replace(self, min_count=least, noise_std=noise)

    def hopeless(self, n_records: int) -> str:
        """Return why no bin can hold enough records."""
        if self.min_count < MAX_IN_A_BIN * n_records:
            return ""
        return (
            f"the length of the longest records cannot be found among {n_records:,} records: a bin "
            f"of the histogram needs more than {self.min_count:,.0f} of them to stand out from the "
            f"noise. {WHAT_TO_DECLARE}"
        )

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {self.around: public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        norms = centered_norms(batch.X, broadcast(state, self.around))
        octaves = xp.log2(xp.clip(norms, min=2.0**-OCTAVES, max=2.0**OCTAVES))
        octaves = xp.where(xp.isfinite(octaves), octaves, xp.zeros_like(octaves))
        bins = xp.clip(xp.floor((octaves + OCTAVES) * BINS_PER_OCTAVE), min=0, max=N_BINS - 1)
        members = one_hot(xp.astype(bins, xp.int64), N_BINS, batch.X)
        finite = xp.where(xp.isfinite(norms), xp.ones_like(norms), norms)
        return OuterSum(members, Columns.of(xp.ones_like(norms)), finite, shape=(N_BINS,))

    def combine(self, state: State, released: Released, t: int) -> State:
        bound = self._bound(on_host(released.value))
        if math.isinf(bound):
            return state
        return {**state, "bound": _alike(state[self.around], bound)}

    def _bound(self, counts: Float) -> float:
        """Return the upper edge of the highest bin, or of the highest neighbours, that count."""
        for width in WIDTHS:
            together = np.convolve(counts, np.ones(width), mode="valid")
            least = self.min_count
            if width > 1:
                least = max(least, self._beyond_noise(self.noise_std, width))
            above = np.flatnonzero(together > least)
            if self.noise_std == 0 and len(above) and above[-1] in (0, N_BINS - width):
                return math.inf  # beyond the grid, which nobody needs who adds no noise
            if len(above) and above[-1] + width == N_BINS:
                raise NotFound(
                    f"the length of the longest records was not found: it must be below 2^{OCTAVES}"
                    ", in the units of the records. Take larger units"
                )
            if len(above):
                return float(_edge(int(above[-1]) + width))
        raise NotFound(
            f"the length of the longest records was not found: no bin of the histogram holds "
            f"more than {self.min_count:,.0f} records, so none stands out from the noise. "
            f"{WHAT_TO_DECLARE}"
        )

    def _beyond_noise(self, noise: float, width: int) -> float:
        return beyond_noise(noise * math.sqrt(width), len(WIDTHS) * N_BINS)


MAX_IN_A_BIN = 0.75
"""More than this share of the records is hardly ever in one bin."""
WIDTHS = (1, 2, 4)
"""How many neighbouring bins are looked at together."""
REACH_SHARE = 0.1
"""The share of the records that may lie farther out than the `reach`."""
MAX_REACH_NOISE = 0.05
"""The reach is used if a bin with this share of the records stands out from the noise."""


@dataclass(frozen=True)
class Radius(Bound):
    """Release a histogram of the distances from the mean; `radius` becomes the longest in use.

    `reach` becomes the distance that a tenth of the records exceed, where noise is low enough to
    tell it. Clusters far from the mean, if they hold more than that, are then not clipped together.
    """

    around: str = "data_mean"
    name: str = "radius"
    purpose = "how far records are from that middle, as a histogram"

    def makes(self, known: Known, n_features: int) -> Known:
        return {"radius": Entry((), _is_radius, needs=("bound",))}

    def combine(self, state: State, released: Released, t: int) -> State:
        counts, like = on_host(released.value).astype(np.float64), state[self.around]
        radius = float(state.get("bound", math.inf))
        with suppress(NotFound):  # then the bound serves, which is there already
            radius = min(radius, self._bound(counts))
        if math.isinf(radius):
            return state
        found = {"radius": _alike(like, radius)}
        if self._beyond_noise(self.noise_std, 1) < MAX_REACH_NOISE * released.n_records:
            within = np.where(_edge(np.arange(N_BINS)) < radius, counts, 0.0)
            found["reach"] = _alike(like, self._reach(within, REACH_SHARE * released.n_records))
        return {**state, **found}

    def _reach(self, counts: Float, n_beyond: float) -> float:
        """Return the distance that so many records exceed, within a bin by its share of them."""
        counts = np.where(counts > REACH_NOISE * self.noise_std, counts, 0.0)
        beyond = np.cumsum(counts[::-1])[::-1]
        place = int(np.flatnonzero(beyond >= n_beyond)[-1]) if beyond[0] >= n_beyond else 0
        return float(_edge(place + min((beyond[place] - n_beyond) / max(counts[place], 1.0), 1.0)))


def _is_radius(radius: Array, state: State) -> bool:
    return 0 < float(radius) <= max(2.0**OCTAVES, float(state.get("bound", 0.0))) * SLACK


REACH_NOISE = 2.5
"""Bins with fewer records than so many standard deviations of the noise are taken for empty."""


def _edge(place: Any) -> Any:
    """Return the length at which a bin begins; a place between two bins is one between edges."""
    return 2.0 ** (place / BINS_PER_OCTAVE - OCTAVES)


def _alike(like: Array, value: float) -> Array:
    return array_namespace(like).asarray(value, dtype=like.dtype, device=device(like))


@dataclass(frozen=True)
class Mean(Stage):
    """Release the sum of the records; the state's `data_mean` becomes their mean.

    Records are clipped to the state's `bound` around the point `around`: that is the sensitivity.
    Without a bound nothing is clipped. Around the mean of an earlier pass records may turn out to
    be far shorter than around the origin, and the next mean far better.
    """

    around: str = "origin"
    name: str = "mean"
    n_rounds = 1
    purpose = "where the middle of all records lies"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return around which point records are clipped, and to which length."""
        return (self.around, "bound")

    def starts(self, known: Known, n_features: int) -> Known:
        return {self.around: known.get(self.around, origin_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        entry = mean_entry if self.around == "origin" else moved_mean_entry
        return {"data_mean": entry(n_features)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((n_features,))

    def sensitivity(self, state: State, t: int) -> float:
        """Return the bound."""
        return float(state.get("bound", math.inf))

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        return {self.around: public.asarray(np.zeros(public.n_features)), **state}

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp, origin = array_namespace(batch.X), broadcast(state, self.around)
        norms = centered_norms(batch.X, origin)
        ones = xp.ones_like(norms)
        far = is_far(origin, state.get("bound"))
        records = Standardized(batch.X, origin, ones, norms**2, 0.0, far=far)
        return OuterSum(ones[:, None], records, norms, shape=(int(batch.X.shape[1]),))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the state with the mean, no farther from that point than the bound.

        A mean of clipped records cannot be farther; noise can.
        """
        xp = array_namespace(released.value)
        mean = released.value / released.n_records
        if "bound" in state:
            length = xp.sqrt(xp.sum(mean**2))
            mean = mean * (state["bound"] / xp.maximum(length, state["bound"]))
        return {**state, "data_mean": state[self.around] + mean}


@dataclass(frozen=True)
class Scale(Stage):
    """Release the sum of |x_j - mean|; the state's `scale` becomes `factor` times its mean.

    Distances are clipped to the `radius`, or the `bound`: that is the sensitivity. Records farther
    out than the scale are clipped to it later, so the factor is a little over one, and the scale
    not below the state's `reach`, if it has one.
    """

    factor: float = 1.3
    name = "scale"
    n_rounds = 1
    purpose = "how far records are from that middle"
    reads = ("data_mean", "bound", "radius")

    def starts(self, known: Known, n_features: int) -> Known:
        return {"data_mean": known.get("data_mean", mean_entry(n_features))}

    def makes(self, known: Known, n_features: int) -> Known:
        return {"scale": scale_entry(self.factor)}

    def upload(self, known: Known, n_features: int) -> Form:
        return Form(())

    def sensitivity(self, state: State, t: int) -> float:
        """Return the longest distance that counts."""
        return float(longest(state))

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
        bound = float(longest(state))
        if math.isinf(bound):
            return {**state, "scale": xp.clip(scale, min=least)}
        least = max(MIN_SCALE * bound, float(state.get("reach", 0.0)))
        return {**state, "scale": xp.clip(scale, min=least, max=self.factor * bound)}

    def doubts(self, state: State) -> tuple[str, ...]:
        least = MIN_SCALE * float(longest(state))
        if math.isinf(least) or float(state["scale"]) > least * SLACK:
            return ()
        return (
            "the scale of the records is at its floor: they spread far less than the bound on "
            f"their length, or noise has swamped it. {WHAT_TO_DECLARE}",
        )


@dataclass(frozen=True)
class Subspace(Stage):
    """Release the sum of x~ x~'; the state's `basis` becomes its leading eigenvectors.

    All later stages work in that subspace, where there is less room for noise. |x~ x~'| <= 1. With
    `drops_noise` directions that noise may have made are zero. `variances` are what the records
    have along each direction, `outside` what they have along none, and `column_parts` along each
    feature.
    """

    n_dimensions: int
    drops_noise: bool = False
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
        moment, n = on_host(released.value).astype(np.float64), released.n_records
        values, vectors = np.linalg.eigh(moment)
        basis = vectors[:, : -self.n_dimensions - 1 : -1].T.copy()
        variances = np.maximum(values[: -self.n_dimensions - 1 : -1] / n, MIN_VARIANCE)
        if self.drops_noise:
            # The largest eigenvalue of noise alone is about sqrt(2 m) times its size.
            edge = NOISE_EDGE * released.event.noise_std * math.sqrt(2 * len(moment)) / n
            weak = variances <= edge
            weak[:MIN_DIRECTIONS] = False
            basis[weak], variances[weak] = 0.0, 0.0
        parts = np.clip(np.diag(moment), 0.0, None)
        found = {
            "basis": basis,
            "variances": variances,
            "outside": np.asarray(max(float(np.trace(moment)) / n - float(variances.sum()), 0.0)),
            "column_parts": parts / max(float(parts.sum()), MIN_VARIANCE),
        }
        xp, on = array_namespace(released.value), device(released.value)
        like = {"dtype": released.value.dtype, "device": on}
        return {**state, **{name: xp.asarray(v, **like) for name, v in found.items()}}

    def doubts(self, state: State) -> tuple[str, ...]:
        parts = on_host(state["column_parts"])
        largest = int(np.argmax(parts))
        if len(parts) < MANY_COLUMNS or parts[largest] < ONE_COLUMN or SPREAD[0] in state:
            return ()
        return (
            f"column {largest} takes {parts[largest]:.0%} of the length of the records, so it "
            "decides alone which records are alike. If that is a matter of units, scale the "
            "columns by what is known of them, or describe them in a schema, whose columns are "
            "brought to like spread",
        )


MIN_VARIANCE = 1e-6
"""Of a record of length one, along a direction."""
NOISE_EDGE, MIN_DIRECTIONS = 1.0, 2
"""A direction is kept if its variance is above so much of what noise alone would show."""
ONE_COLUMN, MANY_COLUMNS = 0.9, 3
"""One of so many columns that takes such a part of the records' length is worth a word."""
