"""Distributed k-median by coresets (DKM) as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpfedc.clustering.run_plan import NO_NOISE, RunPlan
from dpfedc.clustering.stage import Stage, State
from dpfedc.engine.simulated import Sites
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.estimators.record_checks import check_records
from dpfedc.research.rivals.assumed_noise import (
    ASSUMED_SENSITIVITY,
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.coreset_kmedian_stages import Coreset
from dpfedc.settings import require_bool, require_delta, require_integer


class CoresetKMedian(FederatedClusterer):
    """Distributed k-median: sites upload a weighted sample of their records, the server clusters.

    Two rounds, all sites in both. Centres minimise the sum of distances, not of squared ones.
    Nothing is proved about its privacy: records leave the sites.

    Reference: M.-F. Balcan, S. Ehrlich, Y. Liang, "Distributed k-means and k-median clustering on
    general topologies" (2013).

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters.
    epsilon : float or None, default=None
        Adds the noise that would give this loss if one record moved a site's uploads no more than
        is assumed (the result is stamped so). None adds no noise.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail.
    epsilon_per_round : bool, default=False
        Spend epsilon on every upload, not on all of them together. This is how the paper has the
        noise of its rivals; after many rounds little is promised.
    coreset_size : int, default=1000
        Records drawn at all sites together; the sites' own medians come on top.
    local_steps : int, default=10
        Steps of a site towards the medians of its own records.
    norm_bound : float or None, default=None
        Public. Longer records are clipped to this norm. Needed when epsilon is set.
    random_state : int, RandomState or None, default=None
        Makes a run reproducible.
    diagnostics : bool, default=False
        Track exact measures of progress in `history_` (simulation only; nothing is released).
    on_round : callable or None, default=None
        Called after every round with its RoundRecord and the number of rounds of the whole run.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    >>> model = CoresetKMedian(n_clusters=3, random_state=0).fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    method_name = "coreset-k-median"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        epsilon_per_round: bool = False,
        coreset_size: int = 1000,
        local_steps: int = 10,
        norm_bound: float | None = None,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.epsilon_per_round = epsilon_per_round
        self.coreset_size = coreset_size
        self.local_steps = local_steps
        self.norm_bound = norm_bound
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.on_round = on_round

    def _plan(self, sites: Sites) -> RunPlan:
        k = require_integer("n_clusters", self.n_clusters, least=1)
        size = require_integer("coreset_size", self.coreset_size, least=1)
        steps = require_integer("local_steps", self.local_steps, least=0)
        require_bool("diagnostics", self.diagnostics)
        require_bool("epsilon_per_round", self.epsilon_per_round)
        require_delta(self.delta)
        checked_bound(self.norm_bound, self.epsilon)
        check_records(sites.X, k, nonnegative=False)
        z = assumed_multiplier(
            Coreset.n_rounds, self.epsilon, self.delta, each=self.epsilon_per_round
        )
        stamp = NO_NOISE if self.epsilon is None else ASSUMED_SENSITIVITY
        return RunPlan((Stage(Coreset(k, size, steps, z)),), stamps=(stamp,))

    def _declared(self, sites: Sites) -> State:
        if self.norm_bound is None:
            return {}
        return {"bound": sites.public.asarray(np.asarray(self.norm_bound))}
