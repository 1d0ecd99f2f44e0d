"""DP-FedC with unit-norm centres: the default variant, and the one a guarantee can be proved for.

Round t: every site that takes part computes memberships H by `membership_steps` projected gradient
steps from zero, and contributes the sum of its records' clipped gradients in W. A record's gradient
2 (W'h_j - x~_j) h_j' has rank one, so its norm is a product of two norms. The server averages over
the round's records, steps against the average, and scales the centres back to norm one.

With `extra_steps` a site instead takes Q2^t = floor(extra_steps / t) + 1 steps on its own copy of
the centres, each on its own part of the records, and contributes the change; the server averages
the changes with weights n_i (q n_i where records are sampled).

Memberships start at zero in every round, so they are a function of the record and the broadcast
centres alone: sites keep nothing between rounds (docs/decisions/0002-stateless-memberships.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Method, Public, SiteBatch, State, broadcast
from dpfedc.clustering.standardize import (
    outer_products,
    standardized_memory,
    standardized_rows,
    standardized_view,
    with_place_and_scale,
)
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import only_where
from dpfedc.kernels.devices import fused_kernels
from dpfedc.kernels.host import on_host_once
from dpfedc.kernels.local_steps import local_centroid_step
from dpfedc.kernels.objective import (
    curvature_of_gram,
    membership_penalties,
    membership_step_size,
    membership_steps,
    residual_norms,
    unit_rows,
)
from dpfedc.kernels.segments import by_size, segment_sum
from dpfedc.kernels.standardized import Standardized
from dpfedc.kernels.stationarity import membership_stationarity
from dpfedc.privacy.gate import ClippedSum, Contribution, RecordSum, Released, SiteValues
from dpfedc.privacy.sampling import RoundSample
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty

W_MAX = 2.0
"""Centres have unit rows. A site refuses larger ones: in W_i - W they would cost all precision."""


@dataclass(frozen=True)
class Factorization(Method):
    """The rounds of the normalized variant.

    `step` is the most W can move for one round's gradient, in units of the mean clipped gradient:
    W <- unit rows of (W - (1 - momentum) step / clip_norm * velocity). The orthogonality penalty
    rises in even steps from `first_orthogonality` to the penalty's own: soft memberships first,
    hard ones last. `batch_ratio` is the largest size of a part over its expected size (1 without
    `extra_steps`). Every setting is public.
    """

    n_clusters: int
    n_rounds: int
    penalty: Penalty = field(default_factory=Penalty)
    membership_steps: int = 10
    extra_steps: int = 0
    batch_ratio: float = 1.0
    first_orthogonality: float = 0.1
    clip_norm: float = 0.03
    step: float = 24.0
    momentum: float = 0.0
    constant: float = 0.0
    clamp: bool = False
    init: npt.NDArray[np.float64] | None = None
    start_number: int = 0
    """Which of the seed's random starts it is."""
    name: str = "factorisation"
    sums_records = True

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return random unit centres, or the given public ones as directions from the centre."""
        state = with_place_and_scale(state, public)
        width = public.n_features + (self.constant != 0)
        if "basis" in state:
            width = int(state["basis"].shape[0])
        rng = randomness.generator("start", site=self.start_number)
        W = public.asarray(rng.standard_normal((self.n_clusters, width)))
        if self.init is not None:
            xp = array_namespace(W)
            given = (public.asarray(self.init) - state["center"]) / state["scale"]
            if "basis" in state:
                given = given @ state["basis"].T
            W = xp.concat([given, xp.ones_like(W[:, :1]) * self.constant], axis=1)[:, :width]
        return {**state, "W": self._feasible(W), "velocity": W * 0}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return the standardised view's numbers, and those of the fused kernel where it serves."""
        memory = standardized_memory(batch, state, self.constant)
        kernels = self._fused(batch.X, state)
        if kernels is not None:
            center, factors = state["center"], memory["factors"]
            memory["rounded_squares"] = kernels.rounded_squares(batch.X, center, factors)
        return memory

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        """Return the sum of the records' gradients, to be clipped to `clip_norm` each."""
        view = standardized_view(batch, state, self.constant)
        W = broadcast(state, "W", most=W_MAX)
        xp = array_namespace(W)
        if "rounded_squares" in batch.memory:
            kernels = fused_kernels(batch.X)
            if batch.n_records >= kernels.MIN_RECORDS:
                return self._clipped_sum(kernels, view, batch.memory["rounded_squares"], W, t)
        gram = W @ W.T
        A, H = self._memberships(view, W, gram, self.orthogonality(t))
        sizes = xp.sqrt(xp.sum(H * H, axis=1))
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        H = only_where(xp.isfinite(sizes), H)
        if sample.n_parts > 1:
            return self._local_changes(batch, view, W, H, sample)
        norms = 2 * residual_norms(view.squared_norms, A, H, gram) * sizes

        def total(weights: Array) -> Array:
            V = H * (2 * weights)[:, None]
            return (V.T @ H) @ W - view.weighted_sums(V)

        def terms(rows: slice) -> Array:
            residuals = H[rows, :] @ W - standardized_rows(view, rows)
            return outer_products(2 * H[rows, :], residuals)

        return RecordSum(norms, self.clip_norm, total, terms=terms)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the centres after one step against the released mean gradient."""
        # A local change is minus Q2/eta mean gradients: put it in the same units as one gradient.
        parts = self.n_parts(t)
        unit = 1.0 if parts == 1 else -self.step_constant / parts
        mean = released.value * (unit / released.n_records)
        mean = array_namespace(mean).astype(mean, state["W"].dtype)
        velocity = self.momentum * state["velocity"] + mean
        reach = (1 - self.momentum) * self.step / self.clip_norm
        W = state["W"] - reach * velocity
        return {**state, "W": self._feasible(W), "velocity": velocity}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective, Theorem 4's two stationarity measures and the share of hard h_j.

        G_W is that of the problem solved here: centres on the unit sphere, so the gradient's part
        along each centre does not count.
        """
        view, W = standardized_view(batch, state, self.constant), state["W"]
        xp = array_namespace(W)
        weights = self.penalty
        gram = W @ W.T
        A, H = self._memberships(view, W, gram, weights.orthogonality)
        M = curvature_of_gram(gram, rho=weights.orthogonality, mu_h=weights.membership_ridge)
        fit = residual_norms(view.squared_norms, A, H, gram) ** 2
        losses = fit + membership_penalties(
            H, rho=weights.orthogonality, mu_h=weights.membership_ridge
        )
        G = 2 * ((H.T @ H) @ W - view.weighted_sums(H)) / len(batch.sites)
        G = G - xp.sum(G * W, axis=1, keepdims=True) * W
        return {
            "objective": float(xp.mean(segment_sum(losses, batch.offsets))),
            "stationarity_w": float(xp.sum(G**2)),
            **membership_stationarity(A, H, M),
        }

    def n_parts(self, t: int) -> int:
        """Return Q2^t: one step of a site's own centres for each part of its records."""
        return self.extra_steps // t + 1

    def orthogonality(self, t: int) -> float:
        """Return rho of round t."""
        first, last = self.first_orthogonality, self.penalty.orthogonality
        return first + (last - first) * (t - 1) / max(self.n_rounds - 1, 1)

    @property
    def step_constant(self) -> float:
        """Return an eta, the same for all sites, at which no local step expands (|h_j| <= 1).

        A step on b records, each weighted 1 / expected size, has curvature at most
        2 b / expected size + mu_w; 1 / eta may be up to 2 / curvature.
        """
        return self.batch_ratio + self.penalty.centroid_ridge / 2

    def _local_changes(
        self, batch: SiteBatch, view: Standardized, W: Array, H: Array, sample: RoundSample
    ) -> SiteValues:
        """Return q n_i (W_i - W) of every site: W_i has taken one step per part of its records.

        A null record keeps its slot. Memberships are projected to norm <= 1, which the step
        constant assumes. Zeroing one record moves W_i by at most C / (expected size * eta), and the
        expected size of a part is q n_i / Q2: in units of q n_i the same for all sites.

        Steps are taken in double precision: W_i - W is a small difference times n_i, and in single
        precision a large site's rounding would be as long as a record's share.
        """
        xp, parts, q = array_namespace(H), sample.n_parts, sample.probability
        double = xp.float64
        W, H = xp.astype(W, double), xp.astype(H, double)
        H = H / xp.clip(xp.sqrt(xp.sum(H**2, axis=1)), min=1.0)[:, None]
        part_of = xp.asarray(sample.part, device=device(H))

        def changes(rows: Array, real: Array) -> Array:
            n = xp.sum(xp.astype(real, H.dtype), axis=1)
            shape, flat = rows.shape, xp.reshape(rows, (-1,))
            used = real
            if batch.present is not None:
                used = used & xp.reshape(xp.take(batch.present, flat), shape)
            X = xp.astype(xp.reshape(view.rows(flat), (*shape, W.shape[1])), double)
            memberships = xp.reshape(xp.take(H, flat, axis=0), (*shape, W.shape[0]))
            dealt = xp.reshape(xp.take(part_of, flat), shape)
            moved = xp.broadcast_to(W, (shape[0], *W.shape))
            for part in range(parts):
                moved = local_centroid_step(
                    X,
                    moved,
                    memberships,
                    used & (dealt == part),
                    weight=parts / (q * n),
                    eta=xp.ones_like(n) * self.step_constant,
                    mu_w=self.penalty.centroid_ridge,
                    record_bound=self.clip_norm,
                )
            return (moved - W) * (q * n)[:, None, None]

        sensitivity = self.clip_norm * parts / self.step_constant
        return SiteValues(by_size(changes, H, batch.offsets), sensitivity)

    def weight(self, X: Array, state: State) -> float:
        """Return how much memory a record needs: next to none where one kernel does the round."""
        return 1.0 if self._fused(X, state) is None else 1 / 16

    def _fused(self, X: Array, state: State) -> Any:
        """Return the kernels that do a round in one, or None: they know only the plain view."""
        kernels, k = fused_kernels(X), self.n_clusters
        if kernels is None or self.constant or self.extra_steps or "basis" in state:
            return None
        fits = kernels.fits(X, k, steps=self.membership_steps, bound=self.clip_norm)
        return kernels if fits else None

    def _clipped_sum(
        self, kernels: Any, view: Standardized, squares: Array, W: Array, t: int
    ) -> ClippedSum:
        """Return the sum of the records' gradients from one pass over the records."""
        centers = on_host_once(W)
        mu_h = self.penalty.membership_ridge
        M = curvature_of_gram(centers @ centers.T, rho=self.orthogonality(t), mu_h=mu_h)
        gamma = membership_step_size(M)

        def clipped(bound: float, keep: Array | None) -> Array:
            return kernels.clipped_gradients(
                view.X,
                center=view.center,
                factors=view.factors,
                squares=squares,
                W=W,
                curvature=M,
                gamma=gamma,
                steps=self.membership_steps,
                bound=bound,
                keep=keep,
            )

        return ClippedSum(self.clip_norm, clipped, W)

    def _memberships(
        self, view: Standardized, W: Array, gram: Array, rho: float
    ) -> tuple[Array, Array]:
        A = view.products(W)
        M = curvature_of_gram(gram, rho=rho, mu_h=self.penalty.membership_ridge)
        return A, membership_steps(A, M, self.membership_steps)

    def _feasible(self, W: Array) -> Array:
        return unit_rows(array_namespace(W).clip(W, min=0) if self.clamp else W)
