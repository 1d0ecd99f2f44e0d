"""k-FED as a scikit-learn estimator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.run_plan import NO_NOISE, RunPlan
from dpfedc.clustering.stage import Stage
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.estimators.record_checks import check_records
from dpfedc.research.rivals.assumed_noise import (
    ASSUMED_SENSITIVITY,
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.k_fed_stages import KFedRound, assumed_center_sensitivity
from dpfedc.settings import require_bool, require_delta, require_integer


def fewest_local_clusters(records_per_site: npt.NDArray[np.int64], n_clusters: int) -> int:
    """Return the k' that is not below sqrt(k) and with which all sites together upload >= k.

    Site i uploads min(k', n_i) centres. For one site that is k.
    """
    fewest = math.isqrt(n_clusters - 1) + 1
    while np.minimum(records_per_site, fewest).sum() < n_clusters:
        fewest += 1
    return fewest


class KFed(FederatedClusterer):
    """One-shot federated clustering (k-FED).

    Each site clusters its own records and uploads the centres once; the server groups these. It is
    made for sites that hold a few of the clusters each. Where every site holds all of them, set
    clusters_per_site to n_clusters. Nothing is proved about its privacy.

    Reference: D. K. Dennis, T. Li, V. Smith, "Heterogeneity for the win: one-shot federated
    clustering" (2021); without its projection on singular vectors. Records go to the nearest
    global centre; the reference sends them where their local centre went.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters.
    epsilon : float or None, default=None
        Adds the noise that would give this loss if one record moved a site's centres no more than
        is assumed (the result is stamped so). None adds no noise.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail.
    clusters_per_site : int or None, default=None
        Clusters that a site looks for in its own records. None: the square root of n_clusters,
        rounded up, or more if all sites together would upload fewer than n_clusters centres; so
        n_clusters for a single site.
    local_steps : int, default=100
        The most steps of Lloyd's algorithm at a site.
    n_init : int, default=4
        How often a site starts its k-means; it keeps the cheapest result.
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
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    >>> model = KFed(n_clusters=3, random_state=0).fit(X, sites=np.arange(90) // 15)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    method_name = "k-fed"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        clusters_per_site: int | None = None,
        local_steps: int = 100,
        n_init: int = 4,
        norm_bound: float | None = None,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.clusters_per_site = clusters_per_site
        self.local_steps = local_steps
        self.n_init = n_init
        self.norm_bound = norm_bound
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.on_round = on_round

    def _plan(self, sites: Sites) -> RunPlan:
        k = require_integer("n_clusters", self.n_clusters, least=1)
        steps = require_integer("local_steps", self.local_steps, least=1)
        n_init = require_integer("n_init", self.n_init, least=1)
        bound = checked_bound(self.norm_bound, self.epsilon)
        require_bool("diagnostics", self.diagnostics)
        require_delta(self.delta)
        check_records(sites.X, k, nonnegative=False)
        records = np.diff(sites.offsets)
        local = self._clusters_per_site(records)
        noise = None
        if self.epsilon is not None:
            sensitivity = assumed_center_sensitivity(records, local, bound)
            noise = sensitivity * assumed_multiplier(1, self.epsilon, self.delta, each=True)
        method = KFedRound(k, local, steps, n_init, bound, noise)
        stamp = NO_NOISE if noise is None else ASSUMED_SENSITIVITY
        return RunPlan((Stage(method),), stamps=(stamp,))

    def _clusters_per_site(self, records_per_site: npt.NDArray[np.int64]) -> int:
        if self.clusters_per_site is None:
            return fewest_local_clusters(records_per_site, self.n_clusters)
        name, most = "clusters_per_site", self.n_clusters
        local = require_integer(name, self.clusters_per_site, least=1, most=most)
        total = int(np.minimum(records_per_site, local).sum())
        if total < self.n_clusters:
            raise InvalidInput(
                f"clusters_per_site must make all sites together upload at least "
                f"n_clusters={self.n_clusters} centres, got {total} from "
                f"clusters_per_site={local} at {len(records_per_site)} sites"
            )
        return local
