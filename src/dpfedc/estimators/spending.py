"""What the fits of this process have spent on the same records, added up.

A record is recognised by a key made of its values, so fits on parts of the rows (the folds of a
`GridSearchCV`) are found to share records. Of a fit at most 8,192 records are remembered, those
with the smallest keys, which are the same ones in every fit: 49 bytes each. Keys are made with
random numbers of this process, and are never written or sent.
"""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.errors import BudgetWarning, InvalidInput
from dpfedc.privacy.accountant import composed_mu, gaussian_epsilon, plan_epsilon, plan_reach
from dpfedc.privacy.gate import OnCharge
from dpfedc.privacy.ledger.trial_charges import charged_trial
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.statement import rounded_up
from dpfedc.randomness import Randomness, UInt64
from dpfedc.tables.trial_records import TrialRecords

MOST_KEYS = 2**13
_ROWS_AT_A_TIME, _VALUES_AT_A_TIME = 2**16, 2**16
"""Of which the smallest keys are found, and that are hashed and stay in the processor's cache."""
_SECRET = Randomness(secrets.randbits(128))
_NAN = np.uint64(0x7FF8000000000000)


@dataclass(frozen=True)
class Spent:
    """What the fits of this process would have cost in a deployment, this one included.

    It is that of the record that was used most, in `n_fits` fits. A `unit` is what epsilon
    protects: "record" or "person". Deltas are added up; epsilon is the smaller one of the ledger's
    two rules, basic and gaussian, at that delta. A fit counts as a whole from its first release on,
    whether it comes to an end or not.
    """

    n_fits: int
    epsilon: float
    delta: float
    unit: str


def record_keys(X: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, unit: str) -> UInt64:
    """Return the smallest keys of the records, in order, each once.

    A key is the sum of the values' bits, each times a random number of its column, modulo 2^64: in
    whole numbers, so that it does not depend on where a record stands. Nulls have no key.
    """
    rng = _SECRET.generator(f"keys of a {unit}")
    factors = rng.integers(2**64, size=X.shape[1], dtype=np.uint64)
    smallest = np.empty(0, dtype=np.uint64)
    for start in range(0, len(X), _ROWS_AT_A_TIME):
        block = [smallest]
        for chunk in _chunks(X, present, start, min(start + _ROWS_AT_A_TIME, len(X))):
            bits = chunk.view(np.uint64)
            if (gaps := np.isnan(chunk)).any():
                bits[gaps] = _NAN
            bits ^= bits >> np.uint64(32)  # short numbers have nothing in their low bits
            block.append(bits @ factors)
        keys = np.concatenate(block)
        if len(smallest) == MOST_KEYS:
            keys = keys[keys <= smallest[-1]]
        smallest = np.unique(keys)[:MOST_KEYS]
    return smallest


def _chunks(
    X: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, start: int, stop: int
) -> Iterator[npt.NDArray[np.float64]]:
    """Yield a copy of the rows that are not null, a few at a time."""
    step = max(_VALUES_AT_A_TIME // X.shape[1], 1)
    for first in range(start, stop, step):
        rows = slice(first, min(first + step, stop))
        few = X[rows] if present is None else X[rows][present[rows]]
        yield np.add(few, 0.0, dtype=np.float64)  # makes 0 of -0


def cost_of(plan: PrivacyPlan) -> npt.NDArray[np.float64]:
    """Return what a fit adds to each of its records: 1 fit, mu^2, epsilon, delta, spare delta."""
    mu = composed_mu(plan.releases, plan_reach(plan))
    return np.array([1.0, mu**2, plan_epsilon(plan), plan.delta, plan.spare_delta])


def spent_most(sums: npt.NDArray[np.float64], unit: str) -> Spent:
    """Return what was spent on the record that has lost most."""
    # Records of the same fits have the same sums, so there are few of them; mostly one.
    others = sums[(sums != sums[0]).any(axis=1)]
    each = [_spent(row, unit) for row in [sums[0].tolist(), *np.unique(others, axis=0).tolist()]]
    return max(each, key=lambda spent: spent.epsilon)


def _spent(sums: list[float], unit: str) -> Spent:
    n_fits, squares, epsilon, delta, spare = sums
    delta = min(delta, 1.0)
    together = gaussian_epsilon(math.sqrt(squares), delta - spare)
    return Spent(int(n_fits), min(epsilon, together), delta, unit)


class Tally:
    """Sums of costs, for the keys of records."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._keys = np.empty(0, dtype=np.uint64)
        self._sums = np.empty((0, 5))
        self._warned = np.empty(0, dtype=np.bool_)

    def add(self, keys: UInt64, cost: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add the cost of a fit to its records, and return their sums."""
        with self._lock:
            places, known = self._places(keys)
            sums = self._sums_with(cost, places, known)
            old, new = places[known], places[~known]
            warned = bool(self._warned[old].any())  # holds for all fits that share a record
            self._sums[old], self._warned[old] = sums[known], warned
            self._keys = np.insert(self._keys, new, keys[~known])
            self._sums = np.insert(self._sums, new, sums[~known], axis=0)
            self._warned = np.insert(self._warned, new, warned)
        return sums

    def to_warn_of(
        self, keys: UInt64, cost: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64] | None:
        """Return what the sums will be if some records are known, to the first who asks."""
        with self._lock:
            places, known = self._places(keys)
            if not known.any() or self._warned[places[known]].any():
                return None
            self._warned[places[known]] = True
            return self._sums_with(cost, places, known)

    def not_warned(self, keys: UInt64) -> None:
        """Let somebody else warn."""
        with self._lock:
            places, known = self._places(keys)
            self._warned[places[known]] = False

    def _places(self, keys: UInt64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return where the keys are or belong, and which are there."""
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        known[known] = self._keys[places[known]] == keys[known]
        return places, known

    def _sums_with(
        self,
        cost: npt.NDArray[np.float64],
        places: npt.NDArray[np.int64],
        known: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.float64]:
        sums = np.tile(cost, (len(known), 1))
        sums[known] += self._sums[places[known]]
        return sums


_TALLY = Tally()


class FitSpending:
    """One fit: counted at its first release, and charged to a ledger before each if there is one.

    `spent` is there from the first release on.
    """

    def __init__(
        self, plan: PrivacyPlan, records: TrialRecords, charge_ledger: OnCharge | None = None
    ) -> None:
        self._cost, self._unit, self._charge_ledger = cost_of(plan), plan.unit, charge_ledger
        self._keys = record_keys(records.X, records.present, plan.unit)
        self.spent: Spent | None = None

    def charge(self, stage: str, t: int) -> None:
        """Count a release that is about to be made; a ledger may refuse it."""
        if self._charge_ledger is not None:
            self._charge_ledger(stage, t)
        if self.spent is None:
            self.spent = spent_most(_TALLY.add(self._keys, self._cost), self._unit)

    def warn(self) -> None:
        """Warn before a second fit on some records, once; who has a ledger knows already."""
        if self._charge_ledger is not None:
            return
        sums = _TALLY.to_warn_of(self._keys, self._cost)
        if sums is None:
            return
        spent = spent_most(sums, self._unit)
        try:
            warnings.warn(
                f"this is fit {spent.n_fits} on the same {self._unit}s in this process: in a "
                f"deployment they would cost epsilon {rounded_up(spent.epsilon, 3)}, delta "
                f"{spent.delta:.3g} together, and every further fit adds to it. `spent_` has the "
                "sum; the parameter `ledger` holds it to a cap",
                BudgetWarning,
                stacklevel=4,
            )
        except BudgetWarning:  # made an error by the user: the next fit must meet it too
            _TALLY.not_warned(self._keys)
            raise


@contextmanager
def counted_fit(
    records: TrialRecords, plan: PrivacyPlan | None, ledger: str | os.PathLike[str] | None
) -> Iterator[FitSpending | None]:
    """Return what a gate is to tell its releases; None for a fit without a privacy plan."""
    if plan is None:
        if ledger is not None:
            raise InvalidInput(
                "ledger must be left out where nothing is proved (no epsilon, or the published "
                f"variant), got {ledger}"
            )
        yield None
        return
    with nullcontext() if ledger is None else charged_trial(ledger, plan) as charge_ledger:
        yield FitSpending(plan, records, charge_ledger)
