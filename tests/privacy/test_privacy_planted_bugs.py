"""The checks of this suite find the bugs that privacy software is known for.

Every test first runs a check on the product, where it passes, then plants a bug and sees the very
same check fail.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering import factorization, neighbors, residual_lloyd
from dpfedc.clustering.local_steps import LocalSteps
from dpfedc.clustering.quality import Quality
from dpfedc.kernels.clipping import clip_weights
from dpfedc.kernels.row_views import Columns
from dpfedc.kernels.site_steps import local_centroid_step
from dpfedc.privacy.sampling import RoundSample, sampled_by_coins
from dpfedc.privacy.sums import SiteValues
from support import sensitivity
from support.planting import plant
from support.sensitivity import Case, batch_of, change, dealing_of, movement
from support.sensitivity_cases import local_steps, plain_case, stage_of


def farthest(case, records=None):
    """Return the farthest that nulling one of the records moves a release, over what is stated."""
    return max(movement(case, j) for j in records or range(case.n_records))


def is_bounded(case, records=None):
    return farthest(case, records) <= 1 + 1e-9


def steps_case(stage, X, sizes=None, *, W=((1.0, 0.0),), q=1.0, center=(0.0, 0.0)):
    """Return a case of local steps on records in standard units; memberships are h = x . w."""
    stage = replace(stage, membership_steps=120)
    state = {"data_mean": np.array(center), "scale": np.array(1.0), "W": np.array(W)}
    return Case(stage, state, np.asarray(X, dtype=float), sizes or (len(X),), q=q)


@pytest.mark.parametrize("stage", ["mean", "scale", "one step", "one step, counted", "three steps"])
def test_a_clip_that_is_missing(stage, monkeypatch):
    if stage == "three steps":
        case = plain_case(local_steps(3, 3, (4, 8), q=1.0, clip=0.03))
    else:
        case = plain_case(*stage_of(stage))
    assert is_bounded(case)
    plant(
        monkeypatch, clip_weights, lambda right, norms, _, keep=None: right(norms, math.inf, keep)
    )
    assert farthest(case) > 2


def test_a_count_that_is_not_in_the_norm(monkeypatch):
    """A record's count is clipped with its gradient: it must be in the norm that is clipped."""
    case = plain_case(*stage_of("one step, counted"))
    monkeypatch.setattr(factorization, "COUNT_WEIGHT", 3.0)
    assert is_bounded(case)
    right = factorization.OuterSum

    def forgetful(left, other, norms, **how):
        return right(left, other, norms / math.sqrt(1 + 3.0**2), **how)

    monkeypatch.setattr(factorization, "OuterSum", forgetful)
    assert farthest(case) > 2


@pytest.mark.parametrize("stage", ["residuals", "residuals in all features", "residuals by place"])
def test_residuals_that_are_not_clipped(stage, monkeypatch):
    """The stage clips residuals and states their norms: neither may trust the other's word."""
    case = plain_case(*stage_of(stage))
    case = replace(case, state={**case.state, "residual_bounds": np.full(3, 0.01)})
    assert is_bounded(case)
    right = residual_lloyd.residual_norms
    monkeypatch.setattr(residual_lloyd, "residual_norms", lambda *a: 0.1 * right(*a))
    assert farthest(case) > 2


def test_a_residual_of_one_centre_that_is_clipped_as_that_of_another(monkeypatch):
    """By place, a record's centre need not be the nearest: its length is that from its own."""
    case = plain_case(*stage_of("residuals by place"))
    assert is_bounded(case)
    right = residual_lloyd.residual_norms

    def of_the_nearest(squares, products, members, gram):
        lengths = np.sqrt(squares[:, None] - 2 * products + np.diag(gram))
        return right(squares, products, np.eye(len(gram))[lengths.argmin(axis=1)], gram)

    monkeypatch.setattr(residual_lloyd, "residual_norms", of_the_nearest)
    assert farthest(case) > 1.2


def test_a_record_that_is_nearest_to_two_prototypes(monkeypatch):
    """Of prototypes at one place a record has one nearest; a mark on each would count it twice."""
    case = plain_case(*stage_of("neighbours"))
    case = replace(case, state={**case.state, "prototypes": np.zeros((3, 3))})
    assert is_bounded(case)
    marks = {"all": lambda labels, k, like: np.ones((len(labels), k))}
    monkeypatch.setattr(neighbors, "one_hot", marks["all"])
    assert farthest(case) > 2


def test_a_link_that_is_not_in_the_norm(monkeypatch):
    """What a record adds to a link counts in its norm, or it would not be clipped."""
    case = plain_case(*stage_of("neighbours"))
    case = replace(case, state={**case.state, "prototypes": np.zeros((3, 3))})
    right = neighbors.OuterSum
    monkeypatch.setattr(neighbors, "SECOND", 2.0)
    assert is_bounded(case)  # longer than stated, and clipped by its norm

    def forgetful(left, other, norms, **how):
        return right(left, other, np.ones_like(norms), **how)

    monkeypatch.setattr(neighbors, "OuterSum", forgetful)
    assert farthest(case) > 2


@pytest.mark.parametrize("column", [1, 2])
@pytest.mark.parametrize("by_membership", [False, True])
def test_a_distance_or_a_silhouette_that_is_not_clipped(by_membership, column):
    """What is handed to the gate as the norm must be that of the row, whatever is in it."""

    class Wide(Quality):
        def local(self, *args):
            right = super().local(*args)
            rows = np.array(right.right.formed(slice(0, len(right.norms))))
            rows[:, column] *= 10
            return replace(right, right=Columns.of(rows))

    assert is_bounded(plain_case(Quality(3, 3, by_membership)))
    assert farthest(plain_case(Wide(3, 3, by_membership))) > 1.5


def test_a_record_that_counts_in_two_clusters():
    """The norm is that of one row: a record between two clusters must not add to both."""

    class Shared(Quality):
        def _members(self, *args):
            members = super()._members(*args)
            return members + np.roll(members, 1, axis=1)

    assert is_bounded(plain_case(Quality(3, 5)))
    assert farthest(plain_case(Shared(3, 5))) > 1.2


@pytest.mark.parametrize("n_parts", [2, 3, 4, 5])
def test_a_step_that_is_too_long(n_parts):
    """With eta at a third of what the lemma asks for, later steps magnify what a record did."""

    class Hasty(LocalSteps):
        @property
        def step_constant(self):
            return super().step_constant / 3

    X = np.tile([[0.9, 0.0]], (20 * n_parts, 1))
    X[0] = [0.5, 0.8]
    right = local_steps(1, n_parts, (len(X),), q=1.0, clip=0.3)
    assert is_bounded(steps_case(right, X), [0, 1])
    hasty = Hasty(1, 1, extra_steps=n_parts - 1, clip_norm=0.3)
    assert farthest(steps_case(hasty, X), [0, 1]) > 2


@pytest.mark.parametrize("stage", ["mean", "subspace", "one step", "lengths", "clusters"])
def test_a_null_that_becomes_the_zero_vector(stage, monkeypatch):
    """After centring a zero is a record like any other: it adds -center where it should nothing."""
    require_found_if_null_is(0.0, stage, 0.0, monkeypatch)


@pytest.mark.parametrize("stage", ["one step", "lengths", "clusters"])
def test_a_constant_feature_that_is_appended_to_null(stage, monkeypatch):
    """Null keeps no place: with a constant it becomes (0, constant) and joins a cluster."""
    require_found_if_null_is([3.0, 0.0, 0.0], stage, 0.5, monkeypatch)


def require_found_if_null_is(x, name, constant, monkeypatch):
    """Plant: a null record is written as x, the mask is forgotten."""
    stage, t = stage_of(name, constant=constant)
    rng = np.random.default_rng(0)
    center = np.array([3.0, 0.0, 0.0])
    W = np.array([[-0.8, 0.6, 0.0, 0.0], [0.0, 0.8, 0.6, 0.0], [0.6, 0.0, 0.0, 0.8]])
    state = {"data_mean": center, "origin": center, "scale": np.array(1.0), "bound": 1.0}
    state["W"] = W[:, : 3 + (constant > 0)]
    case = Case(stage, state, center + 5 * rng.standard_normal((20, 3)), (20,), t)
    assert is_bounded(case)
    right = sensitivity.batch_of

    def forgetful(case, absent=()):
        for j in absent:
            case = case.with_record(j, x)
        return right(case)

    monkeypatch.setattr(sensitivity, "batch_of", forgetful)
    assert farthest(case) > 1.05


def test_the_true_batch_size_in_place_of_the_expected_one(monkeypatch):
    """Nulling a record then reweighs all others of its batch."""
    X = [[0.4, 0.9]] + [[0.9, 0.4]] * 9
    case = steps_case(local_steps(1, 2, (10,), q=1.0, clip=0.05), X, W=[[0.8, 0.6]])
    assert is_bounded(case)

    def with_true_size(X, W, H, real, *, weight, **rest):
        return local_centroid_step(X, W, H, real, weight=1 / real.sum(axis=1), **rest)

    monkeypatch.setattr("dpfedc.clustering.local_steps.local_centroid_step", with_true_size)
    assert farthest(case) > 1.05


def test_a_sum_that_is_divided_by_the_true_number_of_records(monkeypatch):
    case = plain_case(*stage_of("mean"))
    X = np.tile([[9.0, 0.0, 0.0]], (12, 1)) + case.state["origin"]
    X[3] = case.state["origin"] - [9.0, 0.0, 0.0]
    case = replace(case, X=X)
    assert is_bounded(case)

    def normalized(right, *args):
        w = right(*args)
        return w * (len(w) / (w > 0).sum())

    plant(monkeypatch, clip_weights, normalized)
    assert farthest(case) > 1.05


def round_robin(rows, probability, n_parts, **keys):
    """Plant: records in the round are dealt in turn, so a coin shifts all records after it."""
    inside = sampled_by_coins(rows, probability, n_parts, **keys).in_round
    turn = np.cumsum(inside) - 1
    return RoundSample(probability, n_parts, np.where(inside, turn % n_parts, -1))


def test_dealing_in_turn(monkeypatch):
    """A record's own coin may move a release by its own share only."""
    n, q, inside, outside = 60, 0.9, 0.1, 0.99
    stage = local_steps(1, 2, (n,), q=q, clip=3.0)
    case = steps_case(stage, np.zeros((n, 2)), q=q)
    # Records that pull up and records that pull down, in turn: dealt in turn, one coin makes those
    # come first that came last before.
    turn = np.cumsum(dealing_of(case, batch_of(case)).in_round) % 2
    case = replace(case, X=np.stack([np.full(n, 0.6), np.where(turn, 0.8, -0.8)], axis=1))

    def moved_by_coin():
        return change(case.with_coin(0, inside), case.with_coin(0, outside))

    assert moved_by_coin() <= 1 + 1e-9
    monkeypatch.setattr(sensitivity, "sampled_by_coins", round_robin)
    assert moved_by_coin() > 2


def test_a_site_that_scales_by_its_own_number_of_records():
    """In its own units a small site's record weighs more than the common sensitivity."""

    class OwnUnits(LocalSteps):
        def local(self, batch, *rest):
            right, n = super().local(batch, *rest), np.diff(batch.offsets)
            return SiteValues(right.values * (n.mean() / n)[:, None, None])

    X = np.random.default_rng(0).standard_normal((24, 2))
    sizes = (4, 20)
    right = local_steps(1, 2, sizes, q=1.0, clip=0.05)
    assert is_bounded(steps_case(right, X, sizes))
    own = OwnUnits(1, 1, extra_steps=1, batch_ratio=right.batch_ratio, clip_norm=0.05)
    assert farthest(steps_case(own, X, sizes)) > 2
