"""The stages that find how long records are: `Bound` from the origin, `Radius` from the mean."""

from __future__ import annotations

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
    broadcast,
)
from dpfedc.clustering.standardize import distances, distances_memory
from dpfedc.errors import NotFound
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.row_views import Columns
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


def origin_entry(n_features: int) -> Entry:
    """Return the entry of the point that norms are measured from."""
    return Entry((n_features,))


def bound_entry() -> Entry:
    """Return the entry of the longest norm in common use."""
    return Entry((), lambda bound, _: 2.0**-OCTAVES <= float(bound) <= 2.0**OCTAVES)


def moved_mean_entry(n_features: int) -> Entry:
    """Return the entry of a mean that was measured again from an earlier one, in a few passes."""

    def within(mean: Array, state: State) -> bool:
        return float(np.linalg.norm(mean - state["origin"])) <= 2.0 ** (OCTAVES + 2)

    return Entry((n_features,), within, needs=("origin",))


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

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return distances_memory(batch, broadcast(state, self.around))

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp = array_namespace(batch.X)
        norms = distances(batch, broadcast(state, self.around))
        octaves = xp.log2(xp.clip(norms, min=2.0**-OCTAVES, max=2.0**OCTAVES))
        octaves = xp.where(xp.isfinite(octaves), octaves, xp.zeros_like(octaves))
        bins = xp.clip(xp.floor((octaves + OCTAVES) * BINS_PER_OCTAVE), min=0, max=N_BINS - 1)
        members = one_hot(xp.astype(bins, xp.int64), N_BINS, batch.X)
        finite = xp.where(xp.isfinite(norms), xp.ones_like(norms), norms)
        return OuterSum(members, Columns.of(xp.ones_like(norms)), finite, shape=(N_BINS,))

    def combine(self, state: State, released: Released, t: int) -> State:
        try:
            bound = self._bound(on_host(released.value))
        except NotFound:
            if "bound" not in state:
                raise
            return state  # that of an earlier pass serves
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
