"""What one record can change in a release: exact releases with it, and with it nulled by mask."""

from dataclasses import dataclass, replace

import numpy as np

from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.stage import SiteBatch
from dpfedc.clustering.standardize import (
    Bound,
    Mean,
    Scale,
    Subspace,
    standardized_view,
)
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.standardized import is_far
from dpfedc.privacy.gate import Gate, RecordSum
from dpfedc.privacy.sampling import sampled_by_coins, sampled_by_slot
from dpfedc.randomness import Randomness

COINS = Randomness(5)


@dataclass(frozen=True)
class Case:
    """One round of one method on some sites, and what the server has broadcast before it."""

    method: object
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
        batch.memory = case.method.prepare(batch, case.state, COINS)
    return batch


def dealing_of(case, batch):
    """Return which records are in the round: a record's coin does not depend on any other."""
    parts = case.method.n_parts(case.t)
    if case.q == 1:
        return sampled_by_slot(batch, parts)
    return sampled_by_coins(
        batch, case.q, parts, randomness=case.coins, stage=case.method.name, t=case.t
    )


def contribution_of(case, absent=()):
    """Return the batch, its dealing, and what it would release."""
    batch = batch_of(case, absent)
    sample = dealing_of(case, batch)
    with np.errstate(all="ignore"):
        return batch, sample, case.method.local(batch, case.state, case.t, sample, COINS)


def exact_release(case, absent=()):
    """Return what leaves the sites, without noise, and its stated sensitivity."""
    batch, sample, contribution = contribution_of(case, absent)
    gate = Gate(COINS)
    with np.errstate(all="ignore"):
        released = gate.release(contribution, batch, sample, stage=case.method.name, t=case.t)
    return np.asarray(released.value, dtype=np.float64), gate.events[-1].sensitivity


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
    one, stated = exact_release(case)
    two, stated_for_two = exact_release(other, absent)
    assert np.isfinite(one).all()
    assert np.isfinite(two).all()
    assert stated == stated_for_two  # it is public, so no record may change it
    return distance(one, two, symmetric=isinstance(case.method, Subspace)) / stated


def rounding(case):
    """Return what rounding may add to `movement`.

    A sum of N terms of total size T is off by at most N u T, u = eps / 2 (Higham 2002, section
    3.1). A release adds n records of m features in k clusters, T = sum of w_j s_j, s_j the size of
    the numbers that are added for record j before any of them cancel. Two releases are compared,
    and the clip's own weight and norm are rounded too.
    """
    batch, sample, contribution = contribution_of(case)
    n, m = case.X.shape
    chain = n + m + 2 * getattr(case.method, "n_clusters", 0) + 8
    if not isinstance(contribution, RecordSum):
        # Formed in double precision. Each of Q2 steps rounds W_i once; the upload is n_i (W_i - W).
        size = 1 + np.abs(np.asarray(case.state["W"], dtype=np.float64)).sum()
        total = n * sample.n_parts * chain * size
        return float(2 * chain * np.finfo(np.float64).eps * total / contribution.sensitivity)
    weights = clip_weights(contribution.norms, contribution.bound, batch.present)
    weights = np.asarray(weights, dtype=np.float64)
    used = weights > 0
    total = float((weights[used] * added_sizes(case, batch)[used]).sum())
    unit = float(np.finfo(case.X.dtype).eps) / 2
    return chain * unit * (2 + 2 * total / contribution.bound)


def added_sizes(case, batch):
    """Return s_j: how large the numbers are that a release adds up for each record."""
    method, state, X = case.method, case.state, case.X
    with np.errstate(all="ignore"):
        if isinstance(method, Bound | Lengths):
            sizes = np.full(case.n_records, 2.0)
        elif isinstance(method, Mean):
            sizes = centerd_lengths(X, state["origin"], state["bound"])
        elif isinstance(method, Scale):
            sizes = length(X - state["center"])
        elif isinstance(method, Subspace):
            sizes = wide(batch.memory["squared_norms"])
        elif isinstance(method, LloydSums):
            lengths = centerd_lengths(X, state["origin"], state["bound"])
            sizes = wide(batch.memory["factors"]) * lengths + 1
        elif isinstance(method, Centers):
            sizes = centerd_sizes(case, batch) + 1 + wide(batch.memory["plain_squares"])
        elif isinstance(method, SumsAndGram):
            sizes = centerd_sizes(case, batch) + method.constant + 1
        else:
            h = length(memberships(case))
            fitted = h * length(state["W"]).sum()
            sizes = 2 * h * (fitted + centerd_sizes(case, batch) + method.constant)
    return sizes


def centerd_sizes(case, batch):
    """Return the size of what enters sums for x - center, rescaled."""
    lengths = centerd_lengths(case.X, case.state["center"], case.state["scale"])
    sizes = wide(batch.memory["factors"]) * lengths
    if "basis" in case.state:
        sizes = sizes * np.abs(wide(case.state["basis"])).sum()
    return sizes


def centerd_lengths(X, center, scale):
    """Return |x - center| of each record; |x| + |center| where they enter sums apart and cancel."""
    if is_far(center, scale):
        return length(X - center)
    return length(X) + length(center)


def memberships(case, absent=()):
    """Return H as the sites of the case compute it."""
    with np.errstate(all="ignore"):
        batch = batch_of(case, absent)
        view = standardized_view(batch, case.state, case.method.constant)
        W, rho = case.state["W"], case.method.orthogonality(case.t)
        return case.method._memberships(view, W, W @ W.T, rho)[1]


def length(rows):
    """Return the norm of each row, in double precision."""
    return np.sqrt((wide(rows) ** 2).sum(axis=-1))


def wide(values):
    """Return the values in double precision."""
    return np.asarray(values, dtype=np.float64)
