"""Lloyd's algorithm over sites: federated k-means (FKM) and DP-Lloyd."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

from dpfedc.clustering.run_plan import RunPlan
from dpfedc.clustering.stage import State
from dpfedc.engine.simulated import Sites
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.privacy.accountant import gaussian_epsilon, gaussian_mu
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.settings import PrivacyTarget


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
    ledger : path or None, default=None
        A ledger file that this fit is charged to, as for DPFedC. Needs epsilon.
    on_round : callable or None, default=None
    """

    method_name = "federated-k-means"
    n_rounds: int
    sites_per_round: int | None
    epsilon_per_round = False

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
        ledger: str | os.PathLike[str] | None = None,
        on_round: OnRound | None = None,
    ) -> None:
        self._keep(locals())

    def _plan(self, sites: Sites) -> RunPlan:
        self._n_sites = sites.n_sites
        return super()._plan(sites)

    def _target(self) -> PrivacyTarget | None:
        """Return what all rounds together may spend."""
        target = super()._target()
        if target is None or not self.epsilon_per_round:
            return target
        per_round = self.sites_per_round or self._n_sites
        times = most_rounds_of_a_site(self._n_sites, per_round, self.n_rounds)
        mu = gaussian_mu(target.epsilon, target.delta) * math.sqrt(times)
        return replace(target, epsilon=gaussian_epsilon(mu, target.delta))

    def _declared(self, sites: Sites) -> State:
        declared = super()._declared(sites)
        # Without noise nothing is clipped.
        return {n: v for n, v in declared.items() if n != "bound" or self.epsilon is not None}


class DPLloyd(FederatedKMeans):
    """DP-Lloyd: a few rounds of noisy sums and counts from a data-free start.

    After D. Su, J. Cao, N. Li, E. Bertino, H. Jin, "Differentially private k-means clustering"
    (2016), with Gaussian noise and this package's accounting. Private by default; few rounds,
    because every round spends.

    Parameters are those of FederatedKMeans. `spent_` says what the fits of this process on the same
    records would cost together, as for DPFedC.
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
        ledger: str | os.PathLike[str] | None = None,
        on_round: OnRound | None = None,
    ) -> None:
        self._keep(locals())
