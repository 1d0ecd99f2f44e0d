"""What the accountant makes of the published noise: the paper's own, set against its true reach.

A site uploads W_local = W - (1/eta) (the sum of Q2 gradients). Where every gradient is clipped to
norm G, W_local lies within G Q2 / eta of W whatever the records are, so two neighbouring data sets
(one record replaced, or made null) move it by at most 2 G Q2 / eta: the paper's sensitivity. Each
round is then a Gaussian release with noise multiplier z_t = noise_std / (2 G Q2 / eta).

Where each record's part of a gradient is clipped to G instead, more can be said. A record is in at
most a = ceil(Q2 b / n_i) places of a round's batches, which coins alone decide. A clipped
part is the slope in W of a convex function with curvature at most 2 w |h_j|^2, w the batch's
weight; a batch holds a record at most ceil(b / n_i) times, so a step has curvature at most
2 w ceil(b / n_i) lambda_max(H'H). With eta = 5 lambda_max(H'H) and w ceil(b / n_i) <= 5 it is at
most 2 eta, and a step on the same records brings two W no farther apart. A record that is made null
then moves W_local by at most G / eta for each place it had: a G / eta in all, and twice as much if
it is replaced (by way of null). Where w ceil(b / n_i) > 5 a step may drive two W apart, and nothing
is proved.

No amplification by sampling is claimed: the paper draws batches of fixed size without replacement,
which is not the sampling that the accountant knows. And eta is computed from private memberships,
which nothing here covers. So the epsilon below is for what the noise would give if eta were public.
As it is, the size of the noise alone can give a record away: at a site where it alone has a
membership, eta, and with it the noise, changes by any factor once it is null.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpfedc.errors import InvalidInput
from dpfedc.privacy.accountant import scaled_pld_epsilon
from dpfedc.research.published.algorithm import MINI_BATCH, NOTHING, STEP_FACTOR, Int64, Published
from dpfedc.settings import require_delta, require_integer


def worst_rounds(noise_multipliers: npt.ArrayLike, rounds_per_site: int) -> npt.NDArray[np.float64]:
    """Return the noise multipliers that the worst-off site can meet, least first.

    Rows are rounds, columns sites. Which rounds a site is in is left to chance, so a site is taken
    to be in the `rounds_per_site` rounds with the least noise. Gaussian releases compose to one
    with mu^2 = sum of 1 / z^2: the worst-off site has the largest.

    >>> worst_rounds([[1.0, 2.0], [4.0, 3.0], [2.0, 2.0]], 2).tolist()
    [1.0, 2.0]
    """
    z = np.asarray(noise_multipliers, dtype=np.float64)
    if z.ndim != 2 or z.size == 0 or not (np.isfinite(z) & (z >= 0)).all():
        raise InvalidInput(
            f"noise_multipliers must be a matrix of numbers >= 0, got shape {z.shape}"
        )
    require_integer("rounds_per_site", rounds_per_site, least=1, most=len(z))
    least = np.sort(z, axis=0)[:rounds_per_site]
    with np.errstate(divide="ignore"):
        site = int(np.argmax((1 / least**2).sum(axis=0)))
    return np.asarray(least[:, site])


def published_epsilon(
    noise_multipliers: npt.ArrayLike, *, rounds_per_site: int, delta: float, clipped: bool
) -> float:
    """Return, by the PLD accountant, the epsilon at delta of the published noise.

    `noise_multipliers` has a row per round and a column per site; see `worst_rounds`. It is
    infinite where no gradient is clipped, for one record can then move an upload by any amount.
    """
    import dp_accounting as dp

    require_delta(delta)
    worst = worst_rounds(noise_multipliers, rounds_per_site)
    if not clipped or worst[0] == 0:
        return math.inf
    mu = math.sqrt(float((1 / worst**2).sum()))
    # The published noise can be so weak that epsilon is in the thousands.
    return scaled_pld_epsilon(dp.GaussianDpEvent(1 / mu), mu, delta)


def reach(method: Published, sizes: Int64, steps: int) -> npt.NDArray[np.float64]:
    """Return how far one record made null can move each site's upload, in units of 2 G Q2 / eta.

    Infinite where nothing is proved; see above. Replacing one moves it as far where mini-batches
    are clipped, and twice as far where records are.

    >>> from dpfedc.settings import Penalty
    >>> closest = Published(
    ...     10, 100, Penalty(), constant_steps=5, cycling=True, scaled=False, bound_on="record"
    ... )
    >>> reach(closest, np.array([100]), 5).tolist()  # 3 G / eta
    [0.3]
    """
    if method.bound_on == NOTHING:
        return np.full(len(sizes), math.inf)
    if method.bound_on == MINI_BATCH:
        return np.ones(len(sizes))
    b = method.batch_sizes(sizes, steps)
    places = -(-steps * b // sizes)
    expands = method.weights(sizes, b) * -(-b // sizes) > STEP_FACTOR
    return np.where(expands, math.inf, places / (2 * steps))
