"""The last stage: sums and counts of each cluster, which give the centres in data units.

With `refine` set the rounds are Lloyd's: records go to the nearest centre, centres to the mean of
their records. Between rounds the server may also move a centre from where two share a cluster to
where one serves two, and it keeps the centres with the least cost. Without `refine` the single
round is for display: clusters stay those of the memberships.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from array_api_compat import array_namespace

from dpfedc.kernels import Array
from dpfedc.kernels.factorization import membership_curvature, membership_steps
from dpfedc.kernels.lloyd import (
    cluster_means,
    one_hot,
    relocated_centres,
    squared_distances,
)
from dpfedc.kernels.standardized import Standardized
from dpfedc.methods.preprocessing import standardized_memory, standardized_view
from dpfedc.methods.protocol import Method, Public, SiteBatch, State
from dpfedc.privacy.mechanism import RecordSum, Released
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty


def membership_matrix(view: Standardized, W: Array, *, penalty: Penalty, steps: int) -> Array:
    """Return fresh memberships of the view's records for centres W."""
    M = membership_curvature(W, rho=penalty.orthogonality, mu_h=penalty.membership_ridge)
    return membership_steps(view.products(W), M, steps)


@dataclass(frozen=True)
class Centres(Method):
    """Release (x~_j, 1, |x~_j|^2) summed by cluster; the state's `centres` become the means."""

    n_clusters: int
    n_rounds: int = 1
    refine: bool = False
    penalty: Penalty = field(default_factory=Penalty)
    final_steps: int = 50
    constant: float = 0.0
    name: str = "centres"

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return the state with the centres' directions as first centres."""
        rng = randomness.generator("relocation")
        directions = rng.standard_normal((self.n_rounds, self.n_clusters, public.n_features))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        return {
            **state,
            "centres": state["W"][:, : public.n_features],
            "best_centres": state["W"][:, : public.n_features],
            "best_cost": public.asarray(np.asarray(np.inf)),
            "directions": public.asarray(directions),
        }

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return the standardised view's numbers."""
        return standardized_memory(batch, state, self.constant)

    def local(self, batch: SiteBatch, state: State, t: int, randomness: Randomness) -> RecordSum:
        """Return the sums; round 1 clusters by membership, later rounds by nearest centre."""
        full = standardized_view(batch, state, self.constant)
        xp = array_namespace(batch.X)
        squares = full.squared_norms - self.constant**2
        plain = Standardized(full.X, full.center, full.factors, squares, 0.0)
        if t == 1:
            H = membership_matrix(full, state["W"], penalty=self.penalty, steps=self.final_steps)
            labels = xp.argmax(H, axis=1)
        else:
            A = plain.products(state["centres"])
            labels = xp.argmin(squared_distances(A, squares, state["centres"]), axis=1)
        members = one_hot(labels, self.n_clusters, batch.X)

        finite = xp.where(xp.isfinite(squares), squares, xp.zeros_like(squares))

        def total(weights: Array) -> Array:
            V = members * weights[:, None]
            extra = xp.stack([xp.sum(V, axis=0), V.T @ finite], axis=1)
            return xp.concat([plain.weighted_sums(V), extra], axis=1)

        norms = xp.sqrt(squares + 1 + squares**2)
        return RecordSum(norms, float("inf"), total)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the new centres, and the best so far."""
        xp = array_namespace(released.value)
        value = np.asarray(released.value, dtype=np.float64)
        sums, counts, squares = value[:, :-2], value[:, -2], value[:, -1]
        before = np.asarray(state["centres"], dtype=np.float64)
        means = cluster_means(sums, counts, before)
        spread = squares - 2 * (sums * means).sum(axis=1) + counts * (means**2).sum(axis=1)
        cost, best = float(spread.sum()), float(state["best_cost"])
        best_centres = np.asarray(state["best_centres"], dtype=np.float64)
        if cost < best:
            best, best_centres = cost, means
        elif t % 2 == 0:
            means = best_centres  # the last move made things worse: take it back
        if self.refine and t % 2 == 1 and t + 2 <= self.n_rounds:
            directions = np.asarray(state["directions"], dtype=np.float64)[t - 1]
            means = relocated_centres(means, counts, spread, directions)
        dtype = released.value.dtype
        return {
            **state,
            "centres": xp.asarray(means, dtype=dtype),
            "best_centres": xp.asarray(best_centres, dtype=dtype),
            "best_cost": xp.asarray(best, dtype=dtype),
            "counts": xp.asarray(counts, dtype=dtype),
        }
