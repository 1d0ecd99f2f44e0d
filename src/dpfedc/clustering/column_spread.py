"""The stages before clustering a table: which ranges its columns have, and how far they spread.

Records come encoded by a public schema: numbers in [-1, 1], categories as shares of their values,
gaps as NaN (`tables/encode.py`). `ColumnRanges` finds out the ranges that nobody could declare.
`Spread` finds mean and spread of every column; from then on all stages see the records through
`kernels/column_view.py`: gaps at the mean, columns of like spread. With spreads that are known, the
length of a typical record is too, and mean, bound and scale of the records need no releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.bound import beyond_noise
from dpfedc.clustering.stage import SLACK, Entry, Form, Known, SiteBatch, Stage, State
from dpfedc.errors import NotFound
from dpfedc.kernels import Array
from dpfedc.kernels.cluster_sums import one_hot
from dpfedc.kernels.column_view import RANGE, SPREAD, FormedRows
from dpfedc.kernels.devices import on_host
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness
from dpfedc.tables.layout import GAPS, NUMBER, SHARES, Group, Layout, n_features

Float = npt.NDArray[np.float64]

LOW, HIGH, BINS_PER_OCTAVE = -10, 30, 8
HALF_BINS = (HIGH - LOW) * BINS_PER_OCTAVE
N_BINS = 2 * HALF_BINS + 1
"""Sizes from 2^-10 to 2^30 are told apart, an eighth of an octave at a time, by sign; what is
smaller counts as zero, what is larger falls into the end bins."""
WIDTHS = (1, 2, 4, 8, 16, 32)
"""How many neighbouring bins are looked at together."""
SCALE_FACTOR = 1.3
"""Records longer than this times the typical length are clipped: as in the stage `scale`."""
MIN_SPREAD, MIN_SHARE_VARIANCE = 0.01, 0.02
"""In encoded units: what noise cannot make vanish."""
NOISE_MARGIN = 3.0
"""A column with fewer values than so many standard deviations of noise is left out."""
MIN_LENGTH = 2.0**-20
TO_DECLARE = (
    "Declare it in the schema, as far as it is known without a look at the records, or ask for a "
    "larger epsilon"
)


@dataclass(frozen=True)
class ColumnRanges(Stage):
    """Release a histogram of each column whose range is not declared.

    The range becomes that of the bins which hold more than `min_count` records, or of neighbours
    that do together, and is made wider while the next few bins hold enough. Values outside are
    clipped to it. A record is in one bin of each column: sensitivity sqrt(columns).
    """

    layout: Layout
    min_count: float = 0.0
    """Of one bin; of several together it is as much more as their noise."""
    name = "ranges"
    n_rounds = 1
    purpose = "in which range most values of a column lie, as histograms"

    @property
    def columns(self) -> list[int]:
        """Return the places of the features whose ranges are not known."""
        return [group.start for group in self.layout if group.auto]

    def makes(self, known: Known, n_features: int) -> Known:
        middle, half = RANGE
        return {
            middle: Entry((n_features,), lambda v, _: bool((np.abs(v) <= 2.0**HIGH).all())),
            half: Entry((n_features,), lambda v, _: bool(((v > 0) & (v <= 2.0**HIGH)).all())),
        }

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((len(self.columns), N_BINS))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(columns)."""
        return math.sqrt(len(self.columns))

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with a count that noise alone does not reach: see `Bound`."""
        n_columns = len(self.columns)
        n_looks = len(WIDTHS) * N_BINS * n_columns
        threshold = beyond_noise(noise * math.sqrt(n_columns), n_looks)
        return replace(self, min_count=max(threshold, 0.001 * n_records))

    def hopeless(self, n_records: int) -> str:
        """Return why no bin can hold enough records."""
        if self.min_count < n_records:
            return ""
        return (
            f"the ranges of {len(self.columns)} columns cannot be found among {n_records:,} "
            f"records: a bin of a histogram needs more than {self.min_count:,.0f} of them to stand "
            f"out from the noise. {TO_DECLARE}"
        )

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp, X = array_namespace(batch.X), batch.X
        columns = self.columns

        def form(records: Array) -> Array:
            return xp.concat([_bins(records[:, c]) for c in columns], axis=1)

        n_filled = sum(xp.astype(xp.isfinite(X[:, c]), X.dtype) for c in columns)
        ones = xp.ones((X.shape[0], 1), dtype=X.dtype, device=device(X))
        shape = (len(columns), N_BINS)
        return OuterSum(ones, FormedRows(X, form), xp.sqrt(n_filled), shape=shape)

    def combine(self, state: State, released: Released, t: int) -> State:
        counts, m = on_host(released.value), n_features(self.layout)
        middle, half = np.zeros(m), np.ones(m)
        found = {c: self._range(few) for c, few in zip(self.columns, counts, strict=True)}
        lost = [c for c, bins in found.items() if bins is None]
        if lost:
            raise NotFound(
                f"a range was not found: no bin of a histogram holds more than "
                f"{self.min_count:,.0f} records, so none stands out from the noise. {TO_DECLARE}",
                lost,
            )
        for column, bins in found.items():
            assert bins is not None
            low, high = _edges(bins[0])[0], _edges(bins[1])[1]
            middle[column], half[column] = (low + high) / 2, (high - low) / 2
        return {**state, **_like(released.value, dict(zip(RANGE, (middle, half), strict=True)))}

    def _range(self, counts: npt.NDArray[Any]) -> tuple[int, int] | None:
        """Return the first and the last bin of a column's range; None if noise hides it."""
        for width in WIDTHS:
            together = np.convolve(counts, np.ones(width), mode="valid")
            above = np.flatnonzero(together > self.min_count * math.sqrt(width))
            if len(above):
                first, last = int(above[0]), int(above[-1]) + width - 1
                return first - self._more(counts[:first][::-1]), last + self._more(
                    counts[last + 1 :]
                )
        return None

    def _more(self, counts: npt.NDArray[Any]) -> int:
        """Return how many of the next bins belong to a range: as long as a few hold enough."""
        more, found = 0, True
        while found:
            found = False
            for width in WIDTHS:
                if counts[more : more + width].sum() > self.min_count * math.sqrt(width):
                    more, found = min(more + width, len(counts)), True
                    break
        return more


def _bins(x: Array) -> Array:
    """Return rows with a 1 in the bin of each value, none for a gap."""
    xp = array_namespace(x)
    there = xp.isfinite(x)
    x = xp.where(there, x, xp.zeros_like(x))
    size = xp.clip(xp.abs(x), min=2.0**LOW, max=2.0**HIGH * (1 - 1e-6))
    octave = xp.floor(xp.log2(size))
    part = xp.floor((size / 2.0**octave - 1) * BINS_PER_OCTAVE)
    place = xp.clip((octave - LOW) * BINS_PER_OCTAVE + part, min=0, max=HALF_BINS - 1) + 1
    place = xp.where(xp.abs(x) < 2.0**LOW, xp.zeros_like(x), xp.sign(x) * place)
    bins = xp.astype(place, xp.int64) + HALF_BINS
    return one_hot(xp.where(there, bins, -xp.ones_like(bins)), N_BINS, x)


def _edges(place: int) -> tuple[float, float]:
    """Return the ends of a bin, the lower first."""
    if place == HALF_BINS:
        return -(2.0**LOW), 2.0**LOW
    octave, part = divmod(abs(place - HALF_BINS) - 1, BINS_PER_OCTAVE)
    near, far = (2.0 ** (octave + LOW) * (1 + (part + i) / BINS_PER_OCTAVE) for i in (0, 1))
    return (near, far) if place > HALF_BINS else (-far, -near)


@dataclass(frozen=True)
class Spread(Stage):
    """Release (present, x, x^2) of every number and the shares of every category, summed.

    From it every column gets a mean, where gaps are put, and a factor that brings it to its weight.
    All entries of a record are at most 1 in size, and shares sum to 1: sensitivity
    sqrt(3 numbers + categories). What the schema says is typical is not released.
    """

    layout: Layout
    bounded: bool = False
    """Whether the scale is to be the records' bound, too."""
    noise_std: float = 0.0
    name = "spread"
    n_rounds = 1
    purpose = "mean and spread of each column, and how many values it has"
    reads = ()

    @property
    def released(self) -> list[Group]:
        """Return the groups that something must be released of."""
        return [g for g in self.layout if g.kind != GAPS and g.typical is None]

    @property
    def width(self) -> int:
        """Return how many numbers are released."""
        return sum(3 if group.kind == NUMBER else group.width for group in self.released)

    def makes(self, known: Known, n_features: int) -> Known:
        most = np.zeros(n_features)
        for group in self.layout:
            least = MIN_SPREAD if group.kind == NUMBER else math.sqrt(MIN_SHARE_VARIANCE)
            most[group.features] = group.weight / least

        def factors(values: Array, _: State) -> bool:
            return bool(((values >= 0) & (values <= most * SLACK)).all())

        def lengths(value: Array, _: State) -> bool:
            return MIN_LENGTH / SLACK <= float(value) <= most_length(self.layout) * SLACK

        mean, factor = SPREAD
        made = {
            mean: Entry((n_features,), lambda v, _: bool((np.abs(v) <= SLACK).all())),
            factor: Entry((n_features,), factors),
            "data_mean": Entry((n_features,), lambda v, _: not v.any()),
            "scale": Entry((), lengths),
        }
        return {**made, "bound": Entry((), lengths)} if self.bounded else made

    def upload(self, known: Known, n_features: int) -> Form:
        return Form((self.width,))

    def sensitivity(self, state: State, t: int) -> float:
        """Return sqrt(3 numbers + categories)."""
        return math.sqrt(sum(3 if group.kind == NUMBER else 1 for group in self.released))

    def told(self, noise: float, n_records: int) -> Self:
        """Return the stage with the noise of its sums."""
        return replace(self, noise_std=noise * self.sensitivity({}, 1))

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        xp, X = array_namespace(batch.X), batch.X
        groups = self.released

        def form(records: Array) -> Array:
            return xp.concat([_moments(records[:, g.features], g.kind) for g in groups], axis=1)

        squares = [xp.sum(_moments(X[:, g.features], g.kind) ** 2, axis=1) for g in groups]
        ones = xp.ones((X.shape[0], 1), dtype=X.dtype, device=device(X))
        return OuterSum(ones, FormedRows(X, form), xp.sqrt(sum(squares)), shape=(self.width,))

    def combine(self, state: State, released: Released, t: int) -> State:
        sums, at = on_host(released.value).astype(np.float64), 0
        found: dict[int, tuple[float, Float, float]] = {}
        for group in self.released:
            width = 3 if group.kind == NUMBER else group.width
            few = sums[at : at + width]
            at += width
            measure = self._number if group.kind == NUMBER else self._shares
            found[group.start] = measure(few)
        view = column_arrays(self.layout, found, released.n_records)
        if not self.bounded:
            del view["bound"]
        return {**state, **_like(released.value, view)}

    def doubts(self, state: State) -> tuple[str, ...]:
        factor = on_host(state[SPREAD[1]])
        groups = [group for group in self.released if not factor[group.features].any()]
        if not groups:
            return ()
        n, of = len(groups), len(self.released)
        return (
            f"{n} of {of} columns {'was' if n == 1 else 'were'} left out, since noise hides how "
            "many values they have. More records, fewer columns or a larger epsilon would help",
        )

    def _number(self, sums: Float) -> tuple[float, Float, float]:
        """Return how many values there are, their mean and their variance; at worst none."""
        n, total, squares = sums.tolist()
        if n < 1 + NOISE_MARGIN * self.noise_std:
            return 0.0, np.zeros(1), 1.0
        mean = min(max(total / n, -1.0), 1.0)
        least = max(MIN_SPREAD**2, self.noise_std / n)
        return n, np.array([mean]), min(max(squares / n - mean**2, least), 1.0)

    def _shares(self, counts: Float) -> tuple[float, Float, float]:
        n = float(counts.sum())
        if n < 1 + NOISE_MARGIN * self.noise_std * math.sqrt(len(counts)):
            return 0.0, np.zeros(len(counts)), 1.0
        shares = np.clip(counts, 0, None)
        shares /= shares.sum()
        return n, shares, max(1 - float((shares**2).sum()), MIN_SHARE_VARIANCE)


def _moments(x: Array, kind: str) -> Array:
    """Return what a record contributes of a group: zero for a gap."""
    xp = array_namespace(x)
    there = xp.isfinite(x)
    x = xp.where(there, x, xp.zeros_like(x))
    return x if kind == SHARES else xp.concat([xp.astype(there, x.dtype), x, x**2], axis=1)


def _typical_spread(group: Group) -> float:
    known = group.typical or ()
    if group.kind == NUMBER:
        return max(known[1], MIN_SPREAD)
    variance = 0.25 if group.kind == GAPS else 1 - sum(share**2 for share in known)
    return math.sqrt(max(variance, MIN_SHARE_VARIANCE))


def column_arrays(
    layout: Layout, found: dict[int, tuple[float, Float, float]], n_records: float
) -> dict[str, Float]:
    """Return the view's arrays and a typical record's length, from what was found or declared.

    `found` holds, by a group's first feature, how many values it has, their mean (or shares), and
    the variance that they have all together.
    """
    m = n_features(layout)
    mean, factor, squares = np.zeros(m), np.zeros(m), 0.0
    for group in layout:
        if group.typical is not None:
            middle = group.typical[:1] if group.kind == NUMBER else group.typical
            mean[group.features] = 0.0 if group.kind == GAPS else middle
            factor[group.features] = group.weight / _typical_spread(group)
            squares += group.weight**2
            continue
        if group.kind == GAPS:  # its number is the group before, and has been measured
            gaps = min(max(1 - found[group.start - 1][0] / n_records, 0.0), 1.0)
            n, center, variance = n_records, np.array([gaps]), gaps * (1 - gaps)
            variance = max(variance, MIN_SHARE_VARIANCE)
        else:
            n, center, variance = found[group.start]
        mean[group.features] = center
        factor[group.features] = group.weight / math.sqrt(variance) if n else 0.0
        squares += group.weight**2 * min(n / n_records, 1.0)
    length = np.asarray(max(SCALE_FACTOR * math.sqrt(squares), MIN_LENGTH))
    return {SPREAD[0]: mean, SPREAD[1]: factor, "data_mean": np.zeros(m), "scale": length,
            "bound": length}  # fmt: skip


def most_length(layout: Layout) -> float:
    """Return the largest scale that a table's records can get."""
    return SCALE_FACTOR * math.sqrt(sum(group.weight**2 for group in layout))


def _like(value: Array, arrays: dict[str, Float]) -> dict[str, Array]:
    xp, on = array_namespace(value), device(value)
    return {n: xp.asarray(array, dtype=value.dtype, device=on) for n, array in arrays.items()}


def column_stages(layout: Layout, *, bounded: bool = False) -> list[Stage]:
    """Return the stages that a table's columns need before they can be clustered."""
    stages: list[Stage] = []
    if any(group.auto for group in layout):
        stages.append(ColumnRanges(layout))
    spread = Spread(layout, bounded)
    return [*stages, spread] if spread.released else stages


def declared_columns(layout: Layout) -> dict[str, Float]:
    """Return the view where the schema says what is typical of every column; else nothing."""
    return {} if Spread(layout).released else column_arrays(layout, {}, 1)
