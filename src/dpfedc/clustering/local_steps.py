"""Several steps on the centres at every site, as in the paper: Q2^t = floor(extra_steps / t) + 1.

Each step is on its own part of the site's records. A site contributes the change of its own copy of
the centres, and the server averages the changes with weights n_i (q n_i where records are sampled).
Simulation only: a change of centres has no exact sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from dpfedc.clustering.factorization import W_MAX, Factorization
from dpfedc.clustering.stage import SiteBatch, State, broadcast
from dpfedc.clustering.standardize import standardized_view
from dpfedc.errors import InvalidInput
from dpfedc.kernels import Array
from dpfedc.kernels.clipping import only_where
from dpfedc.kernels.segments import by_size
from dpfedc.kernels.site_steps import local_centroid_step
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import Contribution, SiteValues
from dpfedc.randomness import Randomness


def largest_batch_ratio(
    records_per_site: npt.NDArray[np.int64],
    extra_steps: int,
    n_rounds: int,
    *,
    probability: float,
    failure: float,
) -> float:
    """Return the largest size of a part over its expected size, at any site in any round.

    Dealt by slot a part has at most ceil(n_i / Q2) records, for certain. Drawn by coins it has more
    than b with the probability of a binomial tail; b is the least number for which all parts of all
    rounds of a site together exceed it with probability at most `failure`.
    """
    sizes = np.unique(records_per_site)
    steps = np.unique([extra_steps // t + 1 for t in range(1, n_rounds + 1)])
    n_parts = sum(extra_steps // t + 1 for t in range(1, n_rounds + 1))
    ratios = []
    for parts in steps[steps > 1].tolist():
        if probability == 1:
            most = -(-sizes // parts)
        else:
            from scipy.stats import binom

            most = np.maximum(binom.isf(failure / n_parts, sizes - 1, probability / parts), 1)
        ratios.append(float((most * parts / (probability * sizes)).max()))
    return max(ratios, default=1.0)


@dataclass(frozen=True)
class LocalSteps(Factorization):
    """Rounds in which sites take steps of their own.

    `batch_ratio` is the largest size of a part over its expected size.
    """

    extra_steps: int = 1
    batch_ratio: float = 1.0

    @property
    def deployed(self) -> bool:
        return False

    def n_parts(self, t: int) -> int:
        """Return Q2^t: one step of a site's own centres for each part of its records."""
        return self.extra_steps // t + 1

    def sensitivity(self, state: State, t: int) -> float:
        """Return C Q2 / eta: the Lemma's C / (expected size * eta), in units of q n_i."""
        parts = self.n_parts(t)
        return self.clip_norm if parts == 1 else self.clip_norm * parts / self.step_constant

    @property
    def step_constant(self) -> float:
        """Return an eta, the same for all sites, at which no local step expands (|h_j| <= 1).

        A step on b records, each weighted 1 / expected size, has curvature at most
        2 b / expected size + mu_w; 1 / eta may be up to 2 / curvature.
        """
        return self.batch_ratio + self.penalty.centroid_ridge / 2

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> Contribution:
        """Return q n_i (W_i - W) of every site: W_i has taken one step per part of its records.

        A null record keeps its slot. Memberships are projected to norm <= 1, which the step
        constant assumes. Zeroing one record moves W_i by at most C / (expected size * eta), and the
        expected size of a part is q n_i / Q2: in units of q n_i the same for all sites.

        Steps are taken in double precision: W_i - W is a small difference times n_i, and in single
        precision a large site's rounding would be as long as a record's share.
        """
        parts, q = sample.n_parts, sample.probability
        if parts != self.n_parts(t):  # the step constant holds for these parts alone
            raise InvalidInput(f"round {t} must have {self.n_parts(t)} parts, got {parts}")
        if parts == 1:
            return super().local(batch, state, t, sample, randomness)
        view = standardized_view(batch, state, self.constant)
        W = broadcast(state, "W", most=W_MAX)
        xp = array_namespace(W)
        _, H = self.memberships(view, W, W @ W.T, self.orthogonality(t))
        H = only_where(xp.isfinite(xp.sqrt(xp.sum(H * H, axis=1))), H)
        double = xp.float64
        W, H = xp.astype(W, double), xp.astype(H, double)
        H = H / xp.clip(xp.sqrt(xp.sum(H**2, axis=1)), min=1.0)[:, None]
        part_of = xp.asarray(np.array(sample.part), device=device(H))

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

        return SiteValues(by_size(changes, H, batch.offsets))

    def combine(self, state: State, released: Released, t: int) -> State:
        """Return the centres after one step against the sites' mean change.

        A local change is minus Q2/eta mean gradients: it is put in the same units as one gradient.
        """
        parts = self.n_parts(t)
        unit = 1.0 if parts == 1 else -self.step_constant / parts
        return self.stepped(state, released.value * (unit / released.n_records), t)

    def fused(self, X: Array, state: State) -> None:
        """Return none: the fused kernels take no local steps."""
        return
