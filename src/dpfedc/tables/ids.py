"""Columns that look like ids or codes: no measurements, whatever digits stand in them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_ROWS, MIN_DENSITY = 100, 0.1
"""Among so many whole numbers, as close together, no two are equal only if somebody saw to it."""
_NAME = re.compile(
    r"(^|[^a-z])(id|ids|uuid|guid|mrn|ssn|nr|no|num|number|code|zip|zipcode|postcode|plz|phone)$"
    r"|^(patient|person|customer|client|record|row|index)$"
    r"|^(patient|person|customer|client|member|case|record|row)_?(id|no|nr|number)$",
    re.IGNORECASE,
)


def is_id_name(name: str) -> bool:
    """Return whether a column is called like an id or a code.

    >>> [is_id_name(n) for n in ("patient_id", "patientId", "zip", "age", "humidity")]
    [True, True, True, False, False]
    """
    return _NAME.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)) is not None


def looks_like_id(name: str, values: npt.NDArray[Any]) -> bool:
    """Return whether a column looks like ids or codes: whole numbers, so called or never repeated.

    Ages, counts and years are whole numbers too; they repeat, and are not called an id.
    """
    filled = values[np.isfinite(values)]
    if len(filled) == 0 or (filled != np.round(filled)).any():
        return False
    if is_id_name(name):
        return True
    if len(filled) < MIN_ROWS or float(np.ptp(filled)) * MIN_DENSITY > len(filled):
        return False
    return len(np.unique(filled)) == len(filled)
