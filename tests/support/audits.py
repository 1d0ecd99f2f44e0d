"""What an attacker who tells two worlds apart shows of epsilon."""

import math

import numpy as np
from scipy.stats import beta

DOUBT = 0.001
"""The rate at which a bound is above the true epsilon."""


def lower_bound(with_it, without, *, delta):
    """Return the epsilon that the best of a few thresholds shows, each at its share of doubt.

    These are the attacker's scores of runs with a record and without it.
    """
    n, doubt, best = len(with_it), DOUBT / 20, 0.0
    for threshold in np.quantile(np.concatenate([with_it, without]), np.linspace(0.05, 0.95, 10)):
        for hits, alarms in (
            ((with_it > threshold).sum(), (without > threshold).sum()),
            ((without <= threshold).sum(), (with_it <= threshold).sum()),
        ):
            true = beta.ppf(doubt, hits, n - hits + 1) if hits else 0.0
            false = beta.ppf(1 - doubt, alarms + 1, n - alarms) if alarms < n else 1.0
            if true > delta:
                best = max(best, math.log((true - delta) / false))
    return best
