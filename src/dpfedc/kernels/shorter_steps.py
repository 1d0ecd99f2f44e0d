"""Steps of centres less what noise makes of them: the server's arithmetic on released sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[Any]

MOST_CUT = 1.0
"""No entry of a step is cut by more than so many standard deviations of its noise."""


def shortened(steps: Float, noise: Float, n_noisy: int) -> Float:
    """Return steps (rows) less what noise makes of their length.

    James and Stein's rule: where `n_noisy` of a row's entries have noise, of standard deviation
    `noise`, a step that is cut to this part of itself comes nearer to the true one, on the mean and
    wherever that is. It takes three entries. Steps that stand far out from the noise stay as they
    are. Efron and Morris's limit: a single entry that differs from all others is cut, too, but by
    no more than MOST_CUT times its noise.
    """
    lengths = (steps**2).sum(axis=1)
    made = max(n_noisy - 2, 0) * noise**2
    cut = np.minimum(made, lengths) / np.where(lengths > 0, lengths, 1.0)
    most = MOST_CUT * noise[:, None]
    return np.asarray(steps - np.clip(cut[:, None] * steps, -most, most))
