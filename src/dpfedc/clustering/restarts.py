"""The factorisation from several random starts at once, and the choice among them.

Starts share the records, so a round of r starts is a round with r times as many centres: one
product with the records gives all memberships, and one gives all sums. Without noise only: every
start would be charged for its releases, and choosing one needs a release of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from dpfedc.clustering.factorization import W_MAX, Factorization
from dpfedc.clustering.stage import Public, SiteBatch, Stage, State, broadcast
from dpfedc.clustering.standardize import standardized_memory, standardized_view
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import (
    curvature_of_gram,
    membership_penalties,
    residual_norms,
)
from dpfedc.kernels.row_views import Columns, Standardized
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness


@dataclass(frozen=True)
class Memberships:
    """A = W X~' and memberships H of all starts (r x k x n), with W W' of each start."""

    A: Array
    H: Array
    gram: Array

    @classmethod
    def of(
        cls, view: Standardized, W: Array, *, rho: float, mu_h: float, steps: int
    ) -> Memberships:
        """Return memberships after `steps` projected steps from zero, for W (r x k x m).

        A record whose memberships overflow has none: zeros, in that start.
        """
        xp = array_namespace(W)
        r, k, m = W.shape
        gram = xp.matmul(W, xp.matrix_transpose(W))
        M = curvature_of_gram(gram, rho=rho, mu_h=mu_h)
        # The step sizes of all starts at once; small eigenproblems are the host's.
        gamma = np.maximum(0.51 * np.linalg.eigvalsh(on_host(M))[:, -1], 1e-30)
        inverse = xp.asarray(1 / gamma, dtype=W.dtype, device=device(W))[:, None, None]
        A = xp.reshape(view.products(xp.reshape(W, (r * k, m))).T, (r, k, -1))
        eye = xp.eye(k, dtype=W.dtype, device=device(W))
        shrink, drive = eye - M * inverse, A * (2 * inverse)
        H = xp.clip(drive, min=0)
        for _ in range(steps - 1):
            if is_torch_array(H):
                H = xp.baddbmm(drive, shrink, H).clamp_(min=0)
            else:
                H = xp.matmul(shrink, H)
                H += drive
                H = xp.clip(H, min=0)
        finite = xp.isfinite(xp.sum(H, axis=1, keepdims=True))
        return cls(A, xp.where(finite, H, xp.zeros_like(H)), gram)

    def residual_norms(self, squared_norms: Array) -> Array:
        """Return |x_j - W'h_j| for every start (r x n), rounded up."""
        turned = array_namespace(self.H).matrix_transpose
        return residual_norms(squared_norms, turned(self.A), turned(self.H), self.gram)


@dataclass(frozen=True)
class StackedSum:
    """Unreleased: the sums of all starts, of the same records, each clipped for itself (r x n)."""

    norms: Array
    total: Callable[[Array], Array]
    symmetric: bool = False

    @property
    def like(self) -> Array:
        """Return an array of the sum's library, precision and device."""
        return self.norms

    def clipped(self, bound: float, keep: Array | None) -> Array:
        """Return the sums; a record adds at most `bound` to all of them together."""
        each = bound / math.sqrt(self.norms.shape[0])
        return self.total(clip_weights(self.norms, each, keep))


@dataclass(frozen=True)
class Restarts(Stage):
    """The rounds of `search` from starts 0 to r - 1 of the seed: the state's `starts`, r x k x m.

    Every start takes the steps that it would take alone, with the same sites in every round.
    """

    search: Factorization
    n_restarts: int
    sites_per_round: int | None = None
    purpose = "the search for the clusters, from several starts"
    proved = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the method, whose rounds these are."""
        return self.search.name

    @property
    def n_rounds(self) -> int:  # type: ignore[override]
        """Return the number of rounds of each start."""
        return self.search.n_rounds

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters of each start."""
        return self.search.n_clusters

    def sensitivity(self, state: State, t: int) -> float:
        """Return the norm that gradients are clipped to, of all starts together."""
        return self.search.clip_norm * math.sqrt(self.n_restarts)

    def memory_factor(self, X: Array, state: State) -> float:
        """Return the number of starts: each has its own numbers for every record."""
        return self.n_restarts

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        begun = [
            replace(self.search, start_number=i).start(state, public, randomness)
            for i in range(self.n_restarts)
        ]
        stack = array_namespace(begun[0]["W"]).stack
        rest = {name: value for name, value in begun[0].items() if name not in ("W", "velocity")}
        return {
            **rest,
            "starts": stack([one["W"] for one in begun]),
            "velocities": stack([one["velocity"] for one in begun]),
        }

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return standardized_memory(batch, state, self.search.constant)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> StackedSum:
        view = standardized_view(batch, state, self.search.constant)
        W = broadcast(state, "starts", most=W_MAX)
        xp = array_namespace(W)
        r, k, m = W.shape
        h = Memberships.of(
            view,
            W,
            rho=self.search.orthogonality(t),
            mu_h=self.search.penalty.membership_ridge,
            steps=self.search.membership_steps,
        )
        sizes = xp.sqrt(xp.sum(h.H**2, axis=1))
        norms = 2 * h.residual_norms(view.squared_norms) * sizes

        def total(weights: Array) -> Array:
            V = h.H * (2 * weights)[:, None, :]
            sums = view.weighted_sums(xp.reshape(V, (r * k, -1)).T)
            return xp.matmul(V, xp.matrix_transpose(h.H)) @ W - xp.reshape(sums, (r, k, m))

        return StackedSum(norms, total)

    def combine(self, state: State, released: Released, t: int) -> State:
        one = {**state, "W": state["starts"], "velocity": state["velocities"]}
        moved = dict(self.search.combine(one, released, t))
        return {**state, "starts": moved["W"], "velocities": moved["velocity"]}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective of the best start, as the mean over sites."""
        xp = array_namespace(state["starts"])
        losses = self.losses(batch, state, self.search.membership_steps)
        totals = xp.sum(losses, axis=1) / len(batch.sites)
        return {"objective": float(xp.min(totals))}

    def losses(self, batch: SiteBatch, state: State, steps: int) -> Array:
        """Return each record's part of the objective in every start (r x n), with the final rho."""
        view, W = standardized_view(batch, state, self.search.constant), state["starts"]
        penalty = self.search.penalty
        rho, mu_h = penalty.orthogonality, penalty.membership_ridge
        h = Memberships.of(view, W, rho=rho, mu_h=mu_h, steps=steps)
        return h.residual_norms(view.squared_norms) ** 2 + membership_penalties(
            h.H, rho=rho, mu_h=mu_h
        )


@dataclass(frozen=True)
class Choice(Stage):
    """Sum every start's objective over all records; `W` becomes the start with the least.

    Memberships take `final_steps`, as when records are assigned: after the few of a round they
    would tell how far a start has come rather than how good it is. The sum is exact and has no
    bound: a gate with a plan refuses it.
    """

    restarts: Restarts
    final_steps: int = 50
    name = "choice"
    n_rounds = 1
    purpose = "which of several starts has the least objective"
    proved = False

    def memory_factor(self, X: Array, state: State) -> float:
        """Return the number of starts."""
        return self.restarts.n_restarts

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        return self.restarts.prepare(batch, state, randomness)

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> OuterSum:
        losses = self.restarts.losses(batch, state, self.final_steps)
        xp = array_namespace(losses)
        finite = xp.where(xp.isfinite(losses), losses, xp.zeros_like(losses))
        ones = Columns.of(xp.ones_like(finite[0, :]))
        return OuterSum(finite.T, ones, xp.max(losses, axis=0), shape=(finite.shape[0],))

    def combine(self, state: State, released: Released, t: int) -> State:
        objectives = on_host(released.value)
        best = int(np.argmin(np.where(np.isfinite(objectives), objectives, np.inf)))
        rest = {n: value for n, value in state.items() if n not in ("starts", "velocities")}
        like = state["starts"]
        chosen = {"W": like[best, ...], "velocity": state["velocities"][best, ...]}
        return {**rest, **chosen, "objectives": released.value}
