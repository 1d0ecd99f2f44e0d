"""Lloyd's algorithm over sites: federated k-means (FKM) and DP-Lloyd."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dpfedc.clustering.registry import declared_state, proved_plan
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import State
from dpfedc.engine.simulated import Sites
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.estimators.record_checks import check_records
from dpfedc.privacy.accountant import gaussian_epsilon, gaussian_mu
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import PrivacyTarget, require_bool, require_integer


class FederatedKMeans(FederatedClusterer):
    """Federated k-means: Lloyd's algorithm from sums over sites (FKM).

    Without noise it gives what pooled Lloyd gives from the same start. With epsilon set, sums and
    counts are released with noise, proved like every release here, and the start is data-free.

    Parameters
    ----------
    n_clusters : int, default=8
    epsilon : float or None, default=None
        How much may be learnt about any one record; None adds no noise.
    delta : float, default=1e-5
    epsilon_per_round : bool, default=False
        Spend epsilon on every Lloyd round of a site, not on the whole run: the paper's noise for
        this method. `privacy_` then states what the run has spent in all, which is far more.
    trust : {"local", "secure-aggregation", "trusted-server"}, default="secure-aggregation"
    n_rounds : int, default=30
    sites_per_round : int or None, default=None
        Sites that take part in a round; None takes all.
    init : array of shape (n_clusters, n_features) or None, default=None
        Public centres to start from. None: k-means++ over the sites, or data-free with epsilon.
    norm_bound : float or "auto", default="auto"
        No record is longer than this, or is clipped to it; "auto" buys a bound. Not used when
        epsilon is None.
    min_survivors, colluding_sites : see DPFedC
    random_state : int, RandomState or None, default=None
    diagnostics : bool, default=False
    on_round : callable or None, default=None
    """

    method_name = "federated-k-means"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        epsilon_per_round: bool = False,
        trust: str = "secure-aggregation",
        n_rounds: int = 30,
        sites_per_round: int | None = None,
        init: Any = None,
        norm_bound: float | str = "auto",
        min_survivors: int | None = None,
        colluding_sites: int = 0,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.epsilon_per_round = epsilon_per_round
        self.trust = trust
        self.n_rounds = n_rounds
        self.sites_per_round = sites_per_round
        self.init = init
        self.norm_bound = norm_bound
        self.min_survivors = min_survivors
        self.colluding_sites = colluding_sites
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.on_round = on_round

    def _plan(self, sites: Sites) -> RunPlan:
        k = require_integer("n_clusters", self.n_clusters, least=1)
        check_records(sites.X, k, nonnegative=False)
        facts = Federation(int(sites.X.shape[1]), np.diff(sites.offsets))
        target = self._target_of_run(sites.n_sites)
        return proved_plan(self.method_name, self.get_params(deep=False), facts, target)

    def _target_of_run(self, n_sites: int) -> PrivacyTarget | None:
        """Return what all rounds together may spend."""
        target = self._target()
        if target is None or not require_bool("epsilon_per_round", self.epsilon_per_round):
            return target
        n_rounds, per_round = require_integer("n_rounds", self.n_rounds, least=1), n_sites
        if self.sites_per_round is not None:
            per_round = require_integer(
                "sites_per_round", self.sites_per_round, least=1, most=n_sites
            )
        times = most_rounds_of_a_site(n_sites, per_round, n_rounds)
        mu = gaussian_mu(target.epsilon, target.delta) * math.sqrt(times)
        return replace(target, epsilon=gaussian_epsilon(mu, target.delta))

    def _declared(self, sites: Sites) -> State:
        settings = self.get_params(deep=False)
        if self.epsilon is None:
            settings["norm_bound"] = "auto"  # without noise nothing is clipped
        declared = declared_state(self.method_name, settings, self.n_features_in_)
        return {name: sites.public.asarray(values) for name, values in declared.items()}


class DPLloyd(FederatedKMeans):
    """DP-Lloyd: a few rounds of noisy sums and counts from a data-free start.

    After D. Su, J. Cao, N. Li, E. Bertino, H. Jin, "Differentially private k-means clustering"
    (2016), with Gaussian noise and this package's accounting. Private by default; few rounds,
    because every round spends.

    Parameters are those of FederatedKMeans.
    """

    method_name = "dp-lloyd"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        trust: str = "local",
        n_rounds: int = 5,
        sites_per_round: int | None = None,
        init: Any = None,
        norm_bound: float | str = "auto",
        min_survivors: int | None = None,
        colluding_sites: int = 0,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            epsilon=epsilon,
            delta=delta,
            trust=trust,
            n_rounds=n_rounds,
            sites_per_round=sites_per_round,
            init=init,
            norm_bound=norm_bound,
            min_survivors=min_survivors,
            colluding_sites=colluding_sites,
            random_state=random_state,
            diagnostics=diagnostics,
            on_round=on_round,
        )
