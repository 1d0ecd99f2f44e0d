"""DP-FedC with unit-norm centres: the default variant, and the one a guarantee can be proved for.

Round t: every site that takes part computes memberships H by `membership_steps` projected gradient
steps from zero, and contributes the sum of its records' clipped gradients in W. A record's gradient
2 (W'h_j - x~_j) h_j' has rank one, so its norm is a product of two norms. The server averages over
the round's records, steps against the average, and scales the centres back to norm one.

Memberships start at zero in every round, so they are a function of the record and the broadcast
centres alone: sites keep nothing between rounds (docs/decisions/0002-stateless-memberships.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.mean_and_scale import mean_entry, scale_entry
from dpfedc.clustering.stage import (
    Entry,
    Form,
    Known,
    Public,
    SiteBatch,
    Stage,
    State,
    at_most,
    broadcast,
)
from dpfedc.clustering.standardize import (
    VIEW,
    standardized_memory,
    standardized_view,
    with_mean_and_scale,
)
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import only_where
from dpfedc.kernels.devices import fused_kernels, on_host
from dpfedc.kernels.objective import (
    curvature_of_gram,
    membership_penalties,
    membership_steps,
    residual_norms,
    unit_rows,
)
from dpfedc.kernels.row_views import Columns, Residuals, Standardized
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import Contribution, KernelSum, OuterSum
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty

W_MAX = 2.0
"""Centres have unit rows. A site refuses larger ones: products with them would lose precision."""
COUNT_WEIGHT = 0.2
"""How much a record's count weighs beside its gradient, where a round has both."""
LEAST_HELD = 2.0
"""A direction holds records if their count is so many standard deviations of its noise."""
FIRST_MOVE, LAST_MOVE = 0.2, 0.7
"""Between these parts of the rounds directions of no records are moved: before, nothing is known of
them, and after, they could not settle."""


@dataclass(frozen=True)
class Factorization(Stage):
    """The rounds of the normalized variant.

    `step` is the most W can move for one round's gradient, in units of the mean clipped gradient:
    W <- unit rows of (W - (1 - momentum) step / clip_norm * velocity). The orthogonality penalty
    rises in even steps from `first_orthogonality` to the penalty's own: soft memberships first,
    hard ones last. From the part `settles` of the rounds on steps shorten evenly, to `last_step` of
    the first: centres that hardly move any more are the mean of many rounds, and so is their noise.
    Every setting is public.
    """

    n_clusters: int
    n_rounds: int
    penalty: Penalty = field(default_factory=Penalty)
    membership_steps: int = 10
    first_orthogonality: float = 0.1
    clip_norm: float = 0.03
    step: float = 24.0
    last_step: float = 1.0
    settles: float = 0.5
    momentum: float = 0.0
    constant: float = 0.0
    clamp: bool = False
    init: npt.NDArray[np.float64] | None = None
    opposite: bool = False
    """Whether the second of two random directions is the first one turned round: of two clusters
    around the mean one is to each side, and from other starts some searches never get there."""
    start_number: int = 0
    """Which of the seed's random starts it is."""
    sites_per_round: int | None = None
    sampling_probability: float = 1.0
    counted: bool = False
    """Whether a round also counts records, so that directions of none can be moved."""
    name = "factorisation"
    purpose = "the search for the clusters"
    reads = (*VIEW, "W")

    def starts(self, known: Known, n_features: int) -> Known:
        W = Entry((self.n_clusters, self._width(known, n_features)), at_most(W_MAX))
        return {"data_mean": mean_entry(n_features), "scale": scale_entry(1.0), **known, "W": W}

    def upload(self, known: Known, n_features: int) -> Form:
        k, width = known["W"].shape
        return Form((k, width + self.counted))

    def sensitivity(self, state: State, t: int) -> float:
        """Return the norm that gradients are clipped to."""
        return self.clip_norm

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        state = with_mean_and_scale(state, public)
        width = self._width(state, public.n_features)
        rng = randomness.generator("start", site=self.start_number)
        drawn = rng.standard_normal((self.n_clusters, width))
        W = public.asarray(np.stack([drawn[0], -drawn[0]]) if self.opposite else drawn)
        if self.init is not None:
            xp = array_namespace(W)
            given = (public.asarray(self.init) - state["data_mean"]) / state["scale"]
            if "basis" in state:
                given = given @ state["basis"].T
            W = xp.concat([given, xp.ones_like(W[:, :1]) * self.constant], axis=1)[:, :width]
        return {**state, "W": self.feasible(W), "velocity": W * 0}

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        memory = standardized_memory(batch, state, self.constant)
        kernels = self.fused(batch.X, state)
        if kernels is not None:
            center, factors = state["data_mean"], memory["factors"]
            memory["rounded_squares"] = kernels.rounded_squares(batch.X, center, factors)
        return memory

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        view = standardized_view(batch, state, self.constant)
        W = broadcast(state, "W", most=W_MAX)
        squares = batch.memory.get("rounded_squares")
        if squares is not None and batch.n_records >= fused_kernels(batch.X).MIN_RECORDS:
            rho, mu_h = self.orthogonality(t), self.penalty.membership_ridge
            steps = self.membership_steps
            kernels = fused_kernels(batch.X)
            one_pass = kernels.one_pass(view, squares, W, rho=rho, mu_h=mu_h, steps=steps)
            return KernelSum(one_pass, W)
        xp, gram = array_namespace(W), W @ W.T
        A, H = self.memberships(view, W, gram, self.orthogonality(t))
        sizes = xp.sqrt(xp.sum(H * H, axis=1))
        # A record whose numbers overflow is null: weight 0, and nothing that 0 would not cancel.
        H = only_where(xp.isfinite(sizes), H)
        lengths = residual_norms(view.squared_norms, A, H, gram)
        residuals, norms = Residuals(H, W, view), 2 * lengths * sizes
        if not self.counted:
            return OuterSum(H, residuals, norms, factor=2.0)
        # In proportion to its residual: once both are clipped, every record counts alike.
        counts = COUNT_WEIGHT * only_where(xp.isfinite(norms), lengths[:, None])
        norms = norms * math.sqrt(1 + COUNT_WEIGHT**2)
        return OuterSum(H, Columns.of(residuals, counts), norms, factor=2.0)

    def combine(self, state: State, released: Released, t: int) -> State:
        width = state["W"].shape[1]
        stepped = self.stepped(state, released.value[:, :width] / released.n_records, t)
        if not self.counted or not FIRST_MOVE <= t / self.n_rounds <= LAST_MOVE:
            return stepped
        from dpfedc.kernels.relocation import revived_directions  # no site needs it

        W, xp = stepped["W"], array_namespace(released.value)
        one = self.clip_norm * COUNT_WEIGHT / math.sqrt(1 + COUNT_WEIGHT**2)
        held = on_host(released.value[:, -1]).astype(np.float64) / one
        least = max(LEAST_HELD * released.event.noise_std / one, 1.0)
        rng = np.random.default_rng(t)  # on released values: no noise depends on it
        moved = revived_directions(on_host(W).astype(np.float64), held, least, rng)
        return {**stepped, "W": self.feasible(xp.asarray(moved, dtype=W.dtype, device=device(W)))}

    def stepped(self, state: State, mean: Array, t: int) -> State:
        """Return the centres after round t's step against a mean gradient."""
        mean = array_namespace(mean).astype(mean, state["W"].dtype)
        velocity = self.momentum * state["velocity"] + mean
        late = max((self._part(t) - self.settles) / (1 - self.settles), 0.0)
        reach = (1 - self.momentum) * self.step * self.last_step**late / self.clip_norm
        W = state["W"] - reach * velocity
        return {**state, "W": self.feasible(W), "velocity": velocity}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective, Theorem 4's two stationarity measures and the share of hard h_j.

        G_W is that of the problem solved here: centres on the unit sphere, so the gradient's part
        along each centre does not count.
        """
        from dpfedc.kernels.segments import segment_sum
        from dpfedc.kernels.stationarity import membership_stationarity

        view, W = standardized_view(batch, state, self.constant), state["W"]
        xp = array_namespace(W)
        rho, mu_h = self.penalty.orthogonality, self.penalty.membership_ridge
        gram = W @ W.T
        A, H = self.memberships(view, W, gram, rho)
        fit = residual_norms(view.squared_norms, A, H, gram) ** 2
        losses = fit + membership_penalties(H, rho=rho, mu_h=mu_h)
        G = 2 * ((H.T @ H) @ W - view.weighted_sums(H)) / len(batch.sites)
        G = G - xp.sum(G * W, axis=1, keepdims=True) * W
        return {
            "objective": float(xp.mean(segment_sum(losses, batch.offsets))),
            "stationarity_w": float(xp.sum(G**2)),
            **membership_stationarity(A, H, curvature_of_gram(gram, rho=rho, mu_h=mu_h)),
        }

    def orthogonality(self, t: int) -> float:
        """Return rho of round t."""
        first, last = self.first_orthogonality, self.penalty.orthogonality
        return first + (last - first) * self._part(t)

    def _part(self, t: int) -> float:
        """Return how far round t is on the way from the first to the last: 0 to 1."""
        return (t - 1) / max(self.n_rounds - 1, 1)

    def memory_factor(self, X: Array, state: State) -> float:
        """Return how much memory a record needs: next to none where one kernel does the round."""
        return 1.0 if self.fused(X, state) is None else 1 / 16

    def fused(self, X: Array, state: State) -> Any:
        """Return the kernels that do a round in one, or None: they know only the plain view."""
        kernels, k = fused_kernels(X), self.n_clusters
        if kernels is None or self.constant or self.counted or "basis" in state:
            return None
        fits = kernels.fits(X, k, steps=self.membership_steps, bound=self.clip_norm)
        return kernels if fits else None

    def memberships(
        self, view: Standardized, W: Array, gram: Array, rho: float
    ) -> tuple[Array, Array]:
        """Return A = X~ W' and the memberships after the stage's steps from zero."""
        A = view.products(W)
        M = curvature_of_gram(gram, rho=rho, mu_h=self.penalty.membership_ridge)
        return A, membership_steps(A, M, self.membership_steps)

    def feasible(self, W: Array) -> Array:
        """Return centres of norm one, with no negative entry where these are clamped."""
        return unit_rows(array_namespace(W).clip(W, min=0) if self.clamp else W)

    def _width(self, known: Mapping[str, Any], n_features: int) -> int:
        if "basis" in known:
            return int(known["basis"].shape[0])
        return n_features + (self.constant != 0)
