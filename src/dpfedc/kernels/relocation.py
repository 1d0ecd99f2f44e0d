"""Moving centres that are badly placed: the server's arithmetic on released sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[Any]


def relocated_centers(
    centers: Float,
    counts: Float,
    spread: Float,
    directions: Float,
    *,
    margin: float = 1.5,
    noise: float = 0.0,
) -> Float:
    """Move centres from where two share a cluster to where one serves two.

    `spread` is the sum of squared distances within each cluster. Merging clusters a and b costs
    n_a n_b / (n_a + n_b) |c_a - c_b|^2. Splitting cluster l gains about what its spread exceeds the
    typical one. While the best gain exceeds `margin` times the least cost by `noise`, the pair
    becomes one centre and the freed centre joins cluster l, both placed along directions_l. Lloyd's
    algorithm cannot make such a move. Uses released statistics only.
    """
    k = len(centers)
    centers, n = centers.copy(), np.maximum(counts, 0.0)
    spread = np.maximum(spread, 0.0)
    gain = spread - n * np.median(spread / np.maximum(n, 1.0))
    gaps = ((centers[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
    cost = n[:, None] * n[None, :] / np.maximum(n[:, None] + n[None, :], 1.0) * gaps
    free = np.ones(k, dtype=bool)
    cost[np.diag_indices(k)] = np.inf
    while free.sum() >= 3:
        split = int(np.argmax(np.where(free, gain, -np.inf)))
        usable = free.copy()
        usable[split] = False
        pairs = np.where(usable[:, None] & usable[None, :], cost, np.inf)
        a, b = divmod(int(np.argmin(pairs)), k)
        if not gain[split] > margin * pairs[a, b] + noise:
            break
        total = max(n[a] + n[b], 1.0)
        reach = 0.7 * np.sqrt(spread[split] / max(n[split], 1.0)) * directions[split]
        centers[a] = (n[a] * centers[a] + n[b] * centers[b]) / total
        centers[b] = centers[split] - reach
        centers[split] = centers[split] + reach
        free[[a, b, split]] = False
    return centers


REACH = 0.5
"""How far apart two directions begin that were one: the tangent of half the angle."""

LEAST_LENGTH = 1e-3
"""A shorter row has no direction but that of its rounding."""


def revived_directions(W: Float, held: Float, least: float, rng: np.random.Generator) -> Float:
    """Move unit rows that hold too few records to where one holds very many.

    Noise turns a direction of few records away from all of them, and it does not come back: in many
    dimensions a random direction is far from everything. So it takes half of the records of the
    direction that holds most. Both are turned apart, along a random mixture of all that hold some.
    """
    W, held = W.copy(), held.copy()
    live = (held >= least) & (np.linalg.norm(W, axis=1) > 0)
    if live.sum() < 2:
        return W
    others = W[live]
    for empty in np.flatnonzero(~live).tolist():
        widest = int(np.argmax(held))
        if held[widest] < 2 * least:
            break
        apart = rng.standard_normal(len(others)) @ others
        apart *= REACH / np.linalg.norm(apart)
        parted = np.stack([W[widest] + apart, W[widest] - apart])
        if not np.linalg.norm(parted, axis=1).min() > LEAST_LENGTH:
            continue  # all of them are one direction, or nothing is left of them
        W[[empty, widest]] = parted
        held[[empty, widest]] = held[widest] / 2
    return W
