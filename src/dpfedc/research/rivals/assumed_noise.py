"""Noise for uploads whose sensitivity is assumed, not proved: points and local centres."""

from __future__ import annotations

import math
from typing import Any

from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import gaussian_mu
from dpfedc.settings import plain, require_epsilon, require_number

ASSUMED_SENSITIVITY = "noise by an assumed sensitivity: not a proof"


def checked_bound(norm_bound: Any, epsilon: float | None) -> float:
    """Return the bound on records' norms (infinite for None), which noise cannot do without."""
    if norm_bound is not None:
        return require_number("norm_bound", norm_bound, above=0)
    if epsilon is not None:
        raise InvalidInput(
            "norm_bound must be a number when epsilon is set, got None: the noise is in "
            "proportion to it"
        )
    return math.inf


def assumed_multiplier(n_uploads: int, epsilon: float | None, delta: float, *, each: bool) -> float:
    """Return noise_std over sensitivity for n_uploads uploads of a site: sqrt(n_uploads) / mu.

    (epsilon, delta) is for all of a site's uploads together, or for `each` of them, IF the assumed
    sensitivity holds. 0 without epsilon: no noise.
    """
    if epsilon is None:
        return 0.0
    return math.sqrt(1 if each else n_uploads) / gaussian_mu(require_epsilon(epsilon), plain(delta))
