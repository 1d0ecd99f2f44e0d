"""Averaged local means against plain loops, and the noise that is assumed for them."""

import math

import numpy as np
import pytest
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpfedc.errors import InvalidInput
from dpfedc.privacy.schedule import schedule
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.assumed_noise import ASSUMED_SENSITIVITY
from dpfedc.research.rivals.averaged_kmeans import AveragedKMeans


@parametrize_with_checks([AveragedKMeans(n_clusters=3, n_rounds=5)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def records(sizes, seed=0):
    rng = np.random.default_rng(seed)
    sites = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.random((3, 4))[rng.integers(3, size=len(sites))]
    return X + 0.1 * rng.standard_normal(X.shape), sites


def by_loops(
    X, sites, randomness, *, k, n_rounds, per_round, epsilon=None, delta=None, bound=math.inf
):
    """Return the centres, site by site and record by record."""  # fmt: skip
    N, m = sites.max() + 1, X.shape[1]
    W = randomness.generator("start").random((k, m))
    cohorts = schedule(
        N, per_round, n_rounds, rng=randomness.generator("participation averaged-means")
    )
    for t, cohort in enumerate(cohorts, start=1):
        uploads = []
        for i in cohort:
            groups = [[] for _ in range(k)]
            own = [x * min(1, bound / np.linalg.norm(x)) for x in X[sites == i]]
            for x in own:
                groups[int(np.argmin([np.linalg.norm(x - w) for w in W]))].append(x)
            means = np.array(
                [np.mean(g, axis=0) if g else w for g, w in zip(groups, W, strict=True)]
            )
            if epsilon is not None:
                each = epsilon / math.sqrt(per_round / N * n_rounds)
                std = bound * k / len(own) * math.sqrt(2 * math.log(1.25 / delta)) / each
                rng = randomness.generator("noise averaged-means", site=int(i), t=t)
                means = means + std * rng.standard_normal((k, m))
            uploads.append(means)
        W = np.mean(uploads, axis=0)
    return W


@pytest.mark.parametrize("noise", [{}, {"epsilon": 50.0, "delta": 1e-4, "norm_bound": 1.2}])
def test_rounds_agree_with_plain_loops(noise):
    X, sites = records([9, 1, 14, 6, 11])
    how = {"n_rounds": 6, "sites_per_round": 3}
    model = AveragedKMeans(3, random_state=5, **how, **noise).fit(X, sites=sites)
    randomness = Randomness(int(check_random_state(5).randint(2**31 - 1)))
    arguments = {"epsilon": noise.get("epsilon"), "delta": noise.get("delta")}
    bound = noise.get("norm_bound", math.inf)
    expected = by_loops(
        X, sites, randomness, k=3, n_rounds=6, per_round=3, bound=bound, **arguments
    )
    np.testing.assert_allclose(model.cluster_centers_, expected, atol=1e-9)
    assert (ASSUMED_SENSITIVITY in model.history_.stamps) == bool(noise)


def test_noise_needs_a_bound():
    X, sites = records([9, 9])
    with pytest.raises(InvalidInput, match="norm_bound must be a number when epsilon is set"):
        AveragedKMeans(3, epsilon=1.0).fit(X, sites=sites)
