"""Scalable k-means++ over sites (DK++) as a scikit-learn estimator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpfedc.clustering.run_plan import NO_NOISE, RunPlan
from dpfedc.clustering.stage import Stage, State
from dpfedc.engine.simulated import Sites
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.estimators.record_checks import check_records
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.research.rivals.assumed_noise import (
    ASSUMED_SENSITIVITY,
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.kmeans_parallel_stages import Candidates, Reclustering, StatedNoiseLloyd
from dpfedc.settings import require_bool, require_delta, require_integer, require_number


class KMeansParallel(FederatedClusterer):
    """Distributed k-means++ (k-means||): few rounds of oversampled seeding, then Lloyd rounds.

    Sites upload some of their records as candidates, and the server clusters these; Lloyd's
    algorithm from sums over sites follows. Nothing is proved about its privacy: records leave the
    sites.

    Reference: B. Bahmani, B. Moseley, A. Vattani, R. Kumar, S. Vassilvitskii, "Scalable k-means++"
    (2012).

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
    n_rounds : int, default=20
        Rounds of Lloyd's algorithm after the seeding; 0 for none.
    sites_per_round : int or None, default=None
        Sites that take part in a Lloyd round; None takes all. The seeding needs all of them.
    seeding_rounds : int, default=5
        How often candidates are drawn.
    oversampling : float, default=2.0
        A round of seeding draws oversampling * n_clusters records on average, at most.
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
    >>> model = KMeansParallel(n_clusters=3, random_state=0).fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    method_name = "k-means-parallel"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        epsilon_per_round: bool = False,
        n_rounds: int = 20,
        sites_per_round: int | None = None,
        seeding_rounds: int = 5,
        oversampling: float = 2.0,
        norm_bound: float | None = None,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.epsilon_per_round = epsilon_per_round
        self.n_rounds = n_rounds
        self.sites_per_round = sites_per_round
        self.seeding_rounds = seeding_rounds
        self.oversampling = oversampling
        self.norm_bound = norm_bound
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.on_round = on_round

    def _plan(self, sites: Sites) -> RunPlan:
        k = require_integer("n_clusters", self.n_clusters, least=1)
        n_rounds = require_integer("n_rounds", self.n_rounds, least=0)
        n_seeding = require_integer("seeding_rounds", self.seeding_rounds, least=1)
        expected = k * require_number("oversampling", self.oversampling, above=0)
        require_bool("diagnostics", self.diagnostics)
        require_bool("epsilon_per_round", self.epsilon_per_round)
        require_delta(self.delta)
        per_round = sites.n_sites
        if self.sites_per_round is not None:
            per_round = require_integer(
                "sites_per_round", self.sites_per_round, least=1, most=sites.n_sites
            )
        checked_bound(self.norm_bound, self.epsilon)
        check_records(sites.X, k, nonnegative=False)
        # A site uploads the first candidate, then costs and candidates in turn, counts, and sums.
        n_seeding = 1 + 2 * n_seeding
        n_uploads = n_seeding + 1 + most_rounds_of_a_site(sites.n_sites, per_round, n_rounds)
        z = assumed_multiplier(n_uploads, self.epsilon, self.delta, each=self.epsilon_per_round)
        stages = [Stage(Candidates(expected, n_seeding, z)), Stage(Reclustering(k, z))]
        if n_rounds:
            # As for DP-Lloyd: a count that noise alone may give does not move a centre.
            least = 1 + 2 * math.sqrt(2 * per_round) * z
            lloyd = StatedNoiseLloyd(k, n_rounds, least, noise_multiplier=z)
            stages.append(Stage(lloyd, per_round))
        stamp = NO_NOISE if self.epsilon is None else ASSUMED_SENSITIVITY
        return RunPlan(tuple(stages), stamps=(stamp,))

    def _declared(self, sites: Sites) -> State:
        if self.norm_bound is None:
            return {}
        return {"bound": sites.public.asarray(np.asarray(self.norm_bound))}
