"""DP-FedC's factorisation with another update of the centres: least squares from two sums.

Given memberships, the centres that minimise |X - H W|^2 are W = (H'H)^-1 H'X. Both factors are sums
over records, so a round can release them in place of a gradient and jump to the minimum. The price
is their sensitivity: h_j is not clipped to a small norm as a gradient is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device

from dpfedc.clustering.factorization import W_MAX, Factorization
from dpfedc.clustering.stage import Form, Known, SiteBatch, State, broadcast
from dpfedc.clustering.standardize import standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import only_where
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.row_views import Columns
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

GRAM_WEIGHT = 0.5
"""h h' is released at half size: k x k numbers need less precision than k x m."""


@dataclass(frozen=True)
class SumsAndGram(Factorization):
    """Rounds that release (h_j x~_j', a h_j h_j'), |h_j| <= 1 and |x~_j| <= 1.

    Each record's part has norm |h| sqrt(|x~|^2 + a^2 |h|^2) <= sqrt(1 + a^2): the sensitivity.
    `ridge` keeps the least squares solvable: it is added to the mean of h h'.
    """

    ridge: float = 1e-3

    def upload(self, known: Known, n_features: int) -> Form:
        k, width = known["W"].shape
        return Form((k, width + k))

    def sensitivity(self, state: State, t: int) -> float:
        """Return the longest that one record's part can be; a constant feature adds to |x~|."""
        return math.sqrt(1 + self.constant**2 + GRAM_WEIGHT**2)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        view = standardized_view(batch, state, self.constant)
        W = broadcast(state, "W", most=W_MAX)
        xp = array_namespace(W)
        _, H = self.memberships(view, W, W @ W.T, self.orthogonality(t))
        H = only_where(xp.isfinite(xp.sum(H, axis=1)), H)
        H = H / xp.clip(xp.sqrt(xp.sum(H**2, axis=1)), min=1.0)[:, None]
        squares = xp.sum(H**2, axis=1)
        norms = xp.sqrt(squares * (view.squared_norms + GRAM_WEIGHT**2 * squares))
        return OuterSum(H, Columns.of(view, GRAM_WEIGHT * H), norms)

    def fused(self, X: Array, state: State) -> None:
        """Return none: the fused kernels sum gradients, which are not what is released here."""
        return

    def combine(self, state: State, released: Released, t: int) -> State:
        k = self.n_clusters
        value = on_host(released.value) / released.n_records
        gram = value[:, -k:] / GRAM_WEIGHT
        gram = (gram + gram.T) / 2
        # Noise may make a direction's share negative; a share is never below the ridge.
        shares, vectors = np.linalg.eigh(gram)
        inverse = vectors / np.maximum(shares, self.ridge) @ vectors.T
        W = inverse @ value[:, :-k]
        xp, like = array_namespace(released.value), released.value
        W = xp.asarray(W, dtype=like.dtype, device=device(like))
        return {**state, "W": self.feasible(W)}
