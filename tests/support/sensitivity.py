"""What one record can change in a release: exact releases with it, and with it nulled by mask."""

from dataclasses import dataclass, replace

import numpy as np

from dpfedc.clustering.bound import Bound
from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.quality import Quality
from dpfedc.clustering.residual_lloyd import ResidualSums
from dpfedc.clustering.stage import SiteBatch, Stage
from dpfedc.clustering.standardize import standardized_view
from dpfedc.clustering.subspace import Subspace
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.row_views import is_far
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.sampling import sampled_by_coins, sampled_by_slot
from dpfedc.privacy.sums import OuterSum
from dpfedc.randomness import Randomness

COINS = Randomness(5)
SYMMETRIC = (Subspace, Neighbors)


@dataclass(frozen=True)
class Case:
    """One round of one stage on some sites, and what the server has broadcast before it."""

    stage: Stage
    state: dict
    X: np.ndarray
    sizes: tuple
    t: int = 1
    q: float = 1.0
    coins: Randomness = COINS

    @property
    def offsets(self):
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @property
    def n_records(self):
        return len(self.X)

    @property
    def bound(self):
        """Return the stated sensitivity: what every record is clipped to."""
        return self.stage.sensitivity(self.state, self.t)

    def with_record(self, j, x):
        """Return the case with record j replaced."""
        X = self.X.copy()
        X[j] = x
        return replace(self, X=X)

    def with_coin(self, j, draw):
        """Return the case in which record j draws the given number in [0, 1), others as before."""
        return replace(self, coins=OneCoin(COINS.seed, j, draw))


@dataclass(frozen=True)
class OneCoin(Randomness):
    """Randomness in which one record's number is set by hand."""

    j: int = 0
    draw: float = 0.0

    def uniform(self, purpose, **where):
        drawn = super().uniform(purpose, **where)
        drawn[self.j] = self.draw
        return drawn


def batch_of(case, absent=()):
    """Return the case's records; those in `absent` are null, and keep their slot."""
    present = None
    if len(absent):
        present = np.ones(case.n_records, dtype=bool)
        present[list(absent)] = False
    sites = np.arange(len(case.sizes)) + 3
    batch = SiteBatch(case.X, case.offsets, sites, present)
    with np.errstate(all="ignore"):  # records as long as floats go overflow on purpose
        batch.memory = case.stage.prepare(batch, case.state, COINS)
    return batch


def dealing_of(case, batch):
    """Return which records are in the round: a record's coin does not depend on any other."""
    parts = case.stage.n_parts(case.t)
    if case.q == 1:
        return sampled_by_slot(batch, parts)
    return sampled_by_coins(
        batch, case.q, parts, randomness=case.coins, stage=case.stage.name, t=case.t
    )


def part_of(case, absent=()):
    """Return what the sites contribute, not yet released, with the batch and its dealing."""
    batch = batch_of(case, absent)
    sample = dealing_of(case, batch)
    with np.errstate(all="ignore"):
        contribution = case.stage.local(batch, case.state, case.t, sample, COINS)
    return contribution, batch, sample


def released_by(gate, case, absent=(), *, stage=None, t=None):
    """Return what the gate lets out of the case, as a round of its own stage unless told."""
    part = part_of(case, absent)
    place = {"stage": stage or case.stage.name, "t": t or case.t}
    with np.errstate(all="ignore"):
        return gate.release([part], part[1].sites, sensitivity=case.bound, **place)


def exact_release(case, absent=()):
    """Return what leaves the sites, clipped as by any gate, without noise."""
    return np.asarray(released_by(OpenGate(), case, absent).value, dtype=np.float64)


def distance(one, other, *, symmetric):
    """Return the norm that sensitivity is stated in.

    A symmetric matrix is released as its upper triangle, with noise 1/sqrt(2) of the diagonal's off
    the diagonal: there a change counts sqrt(2) times.
    """
    change = one - other
    if symmetric:
        weights = np.sqrt(2) * np.triu(np.ones_like(change), 1) + np.eye(len(change))
        change = np.triu(change) * weights
    return float(np.sqrt((change**2).sum()))


def movement(case, j):
    """Return how far nulling record j moves the exact release, over the stated sensitivity."""
    return change(case, case, absent=[j])


def change(case, other, absent=()):
    """Return how far apart two exact releases are, over the stated sensitivity."""
    one, two = exact_release(case), exact_release(other, absent)
    assert np.isfinite(one).all()
    assert np.isfinite(two).all()
    return distance(one, two, symmetric=isinstance(case.stage, SYMMETRIC)) / case.bound


def rounding(case):
    """Return what rounding may add to `movement`.

    A sum of N terms of total size T is off by at most N u T, u = eps / 2 (Higham 2002, section
    3.1). A release adds n records of m features in k clusters, T = sum of w_j s_j, s_j the size of
    the numbers that are added for record j before any of them cancel. Two releases are compared,
    and the clip's own weight and norm are rounded too.
    """
    contribution, batch, sample = part_of(case)
    n, m = case.X.shape
    chain = n + m + 2 * getattr(case.stage, "n_clusters", 0) + 8
    if not isinstance(contribution, OuterSum):
        # Formed in double precision. Each of Q2 steps rounds W_i once; the upload is n_i (W_i - W).
        size = 1 + np.abs(np.asarray(case.state["W"], dtype=np.float64)).sum()
        total = n * sample.n_parts * chain * size
        return float(2 * chain * np.finfo(np.float64).eps * total / case.bound)
    weights = clip_weights(contribution.norms, case.bound, batch.present)
    weights = np.asarray(weights, dtype=np.float64)
    used = weights > 0
    total = float((weights[used] * added_sizes(case, batch)[used]).sum())
    unit = float(np.finfo(case.X.dtype).eps) / 2
    return chain * unit * (2 + 2 * total / case.bound)


def added_sizes(case, batch):
    """Return s_j: how large the numbers are that a release adds up for each record."""
    stage, state, X = case.stage, case.state, case.X
    with np.errstate(all="ignore"):
        if isinstance(stage, Bound | Lengths | Neighbors):
            sizes = np.full(case.n_records, 2.0)
        elif isinstance(stage, Quality):
            sizes = np.full(case.n_records, 4.0)
        elif isinstance(stage, Mean):
            sizes = centered_lengths(X, state["origin"], state["bound"])
        elif isinstance(stage, Scale):
            sizes = length(X - state["data_mean"])
        elif isinstance(stage, Subspace):
            sizes = wide(batch.memory["squared_norms"])
        elif isinstance(stage, LloydSums):
            lengths = centered_lengths(X, state["origin"], state["bound"])
            sizes = wide(batch.memory["factors"]) * lengths + 1
        elif isinstance(stage, Centers):
            sizes = centered_sizes(case, batch) + 1 + wide(batch.memory["plain_squares"])
        elif isinstance(stage, ResidualSums):
            sizes = centered_sizes(case, batch) + length(state["centers"]).max()
            sizes = sizes / float(state["residual_bounds"].min()) + 2
        elif isinstance(stage, SumsAndGram):
            sizes = centered_sizes(case, batch) + stage.constant + 1
        else:
            h = length(memberships(case))
            fitted = h * length(state["W"]).sum()
            sizes = 2 * h * (fitted + centered_sizes(case, batch) + stage.constant)
    return sizes


def centered_sizes(case, batch):
    """Return the size of what enters sums for x - center, rescaled."""
    lengths = centered_lengths(case.X, case.state["data_mean"], case.state["scale"])
    sizes = wide(batch.memory["factors"]) * lengths
    if "basis" in case.state:
        sizes = sizes * np.abs(wide(case.state["basis"])).sum()
    return sizes


def centered_lengths(X, center, scale):
    """Return |x - center| of each record; |x| + |center| where they enter sums apart and cancel."""
    if is_far(center, scale):
        return length(X - center)
    return length(X) + length(center)


def memberships(case, absent=()):
    """Return H as the sites of the case compute it."""
    with np.errstate(all="ignore"):
        batch = batch_of(case, absent)
        view = standardized_view(batch, case.state, case.stage.constant)
        W, rho = case.state["W"], case.stage.orthogonality(case.t)
        return case.stage.memberships(view, W, W @ W.T, rho)[1]


def length(rows):
    """Return the norm of each row, in double precision."""
    return np.sqrt((wide(rows) ** 2).sum(axis=-1))


def wide(values):
    """Return the values in double precision."""
    return np.asarray(values, dtype=np.float64)
