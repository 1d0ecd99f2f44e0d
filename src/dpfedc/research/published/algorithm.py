"""Algorithm 1 of the paper, corrected where it cannot be run (docs/differences-from-the-paper.md).

Every site updates its memberships in every round and keeps them. Sampled sites then take Q2^t
mini-batch steps on their own copy of the centres and upload it; the server takes the plain average.
Step sizes depend on private memberships, which is why results of this variant are stamped "as
published; not a proof".

The text leaves some of this open. `Published` has a field for each such choice, and its defaults
are the readings under which the paper's theorems have something to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.devices import on_host
from dpfedc.kernels.objective import (
    centroid_gradient,
    largest_eigenvalue,
    membership_curvature,
    membership_steps,
    record_losses,
)
from dpfedc.kernels.rows import by_columns, chunks
from dpfedc.kernels.segments import padded_rows, segment_products, segment_sum
from dpfedc.kernels.site_steps import local_centroid_step
from dpfedc.kernels.stationarity import membership_stationarity
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample, site_of_row, slot_of_row
from dpfedc.privacy.sums import SiteValues
from dpfedc.randomness import Randomness
from dpfedc.settings import Penalty

Float = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
STEP_FACTOR = 5
"""eta = 5 lambda_max(H'H), as the paper has it."""
MINI_BATCH, RECORD, NOTHING = BOUND_ON = ("mini-batch", "record", "nothing")
"""What is clipped to G: the gradient of a mini-batch, each record's part of it, or nothing."""
NoiseRule = Callable[[int, Float, Float], Float]
"""Returns each site's noise_std from Q2, the sites' sampling ratios and their step constants."""


def check_noise(noise_std: Float, most: float, t: int) -> None:
    """Refuse noise so large that the squares of centres would overflow.

    Theorem 2 divides the noise by eta = 5 lambda_max(H'H). A site whose records have no membership
    above zero has eta = 0; and large noise makes large centres, which make small memberships.
    """
    lost = ~(noise_std <= most)
    if lost.any():
        raise InvalidInput(
            f"the noise of Theorem 2 overflows in round {t}: noise_std must be at most {most:.0e}, "
            f"got {noise_std.max():.0e} at {lost.sum()} of {len(noise_std)} sites, where "
            "memberships are all near zero. A smaller gradient_bound, a larger epsilon or "
            "non-negative records may help"
        )


@dataclass(frozen=True)
class Published(Stage):
    """The rounds of Algorithm 1."""

    n_clusters: int
    n_rounds: int
    penalty: Penalty
    membership_steps: int = 10
    extra_steps: int = 10
    constant_steps: int | None = None
    """Q2 in every round; None: Q2^t = floor(extra_steps / t) + 1."""
    batch_size: int = 50
    cycling: bool = False
    """Batches have `batch_size` records however few a site has; it goes round again."""
    scaled: bool = True
    """A mini-batch gradient counts n_i / b times, and so stands for all of a site's records."""
    gradient_bound: float = math.inf
    bound_on: str = MINI_BATCH
    """What `gradient_bound` limits: one of BOUND_ON."""
    printed_slope: bool = False
    """Steps on H follow Appendix E's formula, not the derivative of the stated objective."""
    noise_rule: NoiseRule | None = None
    init: npt.NDArray[np.float64] | None = field(default=None)
    sites_per_round: int | None = None
    name = "factorisation"
    purpose = "the search for the clusters"
    proved = False
    listens = True
    sums_records = False

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        """Return random centres with entries in [0, 1), or the given ones."""
        rng = randomness.generator("start")
        W = rng.random((self.n_clusters, public.n_features))
        center = public.asarray(np.zeros(public.n_features))
        return {
            **state,
            "data_mean": center,
            "W": public.asarray(W if self.init is None else self.init),
        }

    def prepare(self, batch: SiteBatch, state: State, randomness: Randomness) -> dict[str, Array]:
        """Return each record's first membership: random, in [0, 1/k)."""
        xp = array_namespace(batch.X)
        sites = np.asarray(batch.sites)[site_of_row(batch.offsets)]
        slots = slot_of_row(batch.offsets)
        columns = [
            randomness.uniform(f"membership {cluster}", t=0, sites=sites, slots=slots)
            for cluster in range(self.n_clusters)
        ]
        H = np.stack(columns, axis=1) / self.n_clusters
        return {"H": xp.asarray(H, dtype=batch.X.dtype, device=device(batch.X))}

    def listen(self, batch: SiteBatch, state: State) -> None:
        """Update the memberships; release nothing."""
        W = state["W"]
        batch.memory["H"] = membership_steps(
            by_columns(batch.X, W), self._curvature(W), self.membership_steps, batch.memory["H"]
        )

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteValues:
        """Return every site's own centres after its mini-batch steps."""
        self.listen(batch, state)
        xp = array_namespace(batch.X)
        H, k = batch.memory["H"], self.n_clusters
        steps = self.centroid_steps(t)
        sizes = np.diff(batch.offsets)
        b = self.batch_sizes(sizes, steps)
        curvature = largest_eigenvalue(segment_products(H, H, batch.offsets))
        eta = STEP_FACTOR * xp.clip(curvature, min=float(xp.finfo(H.dtype).smallest_normal) ** 0.5)
        weight = xp.asarray(self.weights(sizes, b), dtype=H.dtype, device=device(H))
        bounds = {MINI_BATCH: "gradient_bound", RECORD: "share_bound"}
        bound = {bounds[self.bound_on]: self.gradient_bound} if self.bound_on in bounds else {}
        W = xp.broadcast_to(state["W"], (len(sizes), k, batch.X.shape[1]))
        for rows, real in self._mini_batches(batch, t, randomness, steps, b):
            index = xp.asarray(np.ravel(rows), device=device(H))
            W = local_centroid_step(
                xp.reshape(xp.take(batch.X, index, axis=0), (*rows.shape, -1)),
                W,
                xp.reshape(xp.take(H, index, axis=0), (*rows.shape, k)),
                xp.asarray(real, device=device(H)),
                weight=weight,
                eta=eta,
                mu_w=self.penalty.centroid_ridge,
                **bound,
            )
        std = None
        if self.noise_rule is not None:
            std = self.noise_rule(steps, self.stated_ratios(sizes, steps), on_host(eta))
            check_noise(std, float(xp.finfo(H.dtype).max) ** 0.25, t)
        return SiteValues(W, noise_std=std)

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the plain average of the uploads."""
        return {**state, "W": released.value / released.n_sites}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        """Return the objective, Theorem 4's two stationarity measures and the share of hard h_j."""
        W, H = state["W"], batch.memory["H"]
        xp = array_namespace(W, H)
        rho, mu_h = self.penalty.orthogonality, self.penalty.membership_ridge
        mu_w, n_sites = self.penalty.centroid_ridge, len(batch.sites)
        parts, slope = [], n_sites * mu_w * W
        for at, X in chunks(batch.X):  # of what is formed, a core's cache holds a part
            memberships = H[at : at + X.shape[0], :]
            slope = slope + centroid_gradient(X, W, memberships, mu_w=0.0)
            parts.append(record_losses(X, W, memberships, rho=rho, mu_h=mu_h))
        mean_loss = float(xp.mean(segment_sum(xp.concat(parts), batch.offsets)))
        curvature = membership_curvature(W, rho=rho, mu_h=mu_h)
        return {
            "objective": mean_loss + mu_w / 2 * float(xp.sum(W**2)),
            "stationarity_w": float(xp.sum((slope / n_sites) ** 2)),
            **membership_stationarity(by_columns(batch.X, W), H, curvature),
        }

    @property
    def slope(self) -> Penalty:
        """Return the penalty whose derivative the steps on H follow.

        Appendix E prints 2 rho 11'H + (mu_h - rho) H. That is the derivative for 2 rho in place of
        rho and mu_h + rho in place of mu_h.
        """
        stated = self.penalty
        if not self.printed_slope:
            return stated
        rho = stated.orthogonality
        return replace(
            stated, orthogonality=2 * rho, membership_ridge=stated.membership_ridge + rho
        )

    def centroid_steps(self, t: int) -> int:
        """Return Q2^t."""
        return self.constant_steps or self.extra_steps // t + 1

    def batch_sizes(self, sizes: Int64, steps: int) -> Int64:
        """Return b_i = min(b, floor(n_i / (2 Q2))), at least 1: the ratio Q2 b_i/n_i is <= 1/2.

        Cycling sites take b, and the ratio may be any number.
        """
        if self.cycling:
            return np.full_like(sizes, self.batch_size)
        return np.maximum(np.minimum(self.batch_size, sizes // (2 * steps)), 1)

    def weights(self, sizes: Int64, b: Int64) -> Float:
        """Return how often a mini-batch gradient counts at every site."""
        return sizes / b if self.scaled else np.ones(len(sizes))

    def ratios(self, sizes: Int64, steps: int) -> Float:
        """Return q = Q2 b_i / n_i, the part of a site's records that a round reads."""
        return np.asarray(steps * self.batch_sizes(sizes, steps) / sizes)

    def stated_ratios(self, sizes: Int64, steps: int) -> Float:
        """Return the q that Theorems 2 and 3 are given.

        They have nothing to say for q >= 1. Theorem 1 states no gain from q = 1/2 on, so cycling
        sites, which may read a record more than once in a round, are given 1/2 at most.
        """
        q = self.ratios(sizes, steps)
        return np.minimum(q, 0.5) if self.cycling else q

    def _curvature(self, W: Array) -> Array:
        slope = self.slope
        return membership_curvature(W, rho=slope.orthogonality, mu_h=slope.membership_ridge)

    def _mini_batches(
        self, batch: SiteBatch, t: int, randomness: Randomness, steps: int, b: Int64
    ) -> list[tuple[Int64, npt.NDArray[np.bool_]]]:
        """Return the rows of each step: every site draws Q2 b_i records without replacement.

        A site with fewer records than that goes round again, since a record must be had.
        """
        position = site_of_row(batch.offsets)
        keys = randomness.uniform(
            "mini-batch", t=t, sites=np.asarray(batch.sites)[position],
            slots=slot_of_row(batch.offsets),
        )  # fmt: skip
        order = np.lexsort((keys, position))
        starts, sizes = batch.offsets[:-1], np.diff(batch.offsets)
        batches = []
        for step in range(steps):
            drawn, real = padded_rows(step * b, b, int(b.max()))
            batches.append((order[starts[:, None] + drawn % sizes[:, None]], real))
        return batches
