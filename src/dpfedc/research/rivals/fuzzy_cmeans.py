"""Federated fuzzy c-means as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.registry import checked_start
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
from dpfedc.research.rivals.fuzzy_cmeans_stages import FuzzyCMeansRounds
from dpfedc.research.rivals.k_fed_stages import assumed_center_sensitivity
from dpfedc.settings import require_bool, require_delta, require_integer, require_number


class FederatedFuzzyCMeans(FederatedClusterer):
    """Federated fuzzy c-means (FZKM): local fuzzy c-means, k-means over the local centres.

    Nothing is proved about its privacy. For one site it is fuzzy c-means. Records go to the nearest
    centre, which is where their membership is largest.

    Reference: M. Stallmann, A. Wilbik, "Towards federated clustering: a federated fuzzy c-means
    algorithm (FFCM)" (2022), the variant with k-means at the server.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters.
    epsilon : float or None, default=None
        Adds the noise that would give this loss if one record moved a site's centres no more than
        is assumed (the result is stamped so). None adds no noise.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail.
    epsilon_per_round : bool, default=False
        Spend epsilon on every upload, not on all of them together. This is how the paper has the
        noise of its rivals; after many rounds little is promised.
    n_rounds : int, default=10
        Rounds of local fuzzy c-means and k-means at the server.
    sites_per_round : int or None, default=None
        Sites that take part in a round; None takes all.
    fuzzifier : float, default=2.0
        How soft memberships are, above 1. The reference's 2 suits few features; with tens or more
        of them memberships become equal and centres coincide: try 1.1.
    local_steps : int, default=10
        Steps of fuzzy c-means at a site in a round.
    weighted : bool, default=False
        Whether sites also upload their clusters' sizes, for the server to weight the centres by.
    n_init : int, default=4
        How often the server seeds its k-means in the first round, to keep the cheapest result.
        Later rounds start it from the last centres.
    init : array of shape (n_clusters, n_features) or None, default=None
        Public centres to start from. None: k-means++ at each site on its own records.
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
    >>> model = FederatedFuzzyCMeans(n_clusters=3, random_state=0)
    >>> model = model.fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    method_name = "federated-fuzzy-c-means"

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        epsilon_per_round: bool = False,
        n_rounds: int = 10,
        sites_per_round: int | None = None,
        fuzzifier: float = 2.0,
        local_steps: int = 10,
        weighted: bool = False,
        n_init: int = 4,
        init: Any = None,
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
        self.fuzzifier = fuzzifier
        self.local_steps = local_steps
        self.weighted = weighted
        self.n_init = n_init
        self.init = init
        self.norm_bound = norm_bound
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.on_round = on_round

    def _plan(self, sites: Sites) -> RunPlan:
        k = require_integer("n_clusters", self.n_clusters, least=1)
        per_round = sites.n_sites
        if self.sites_per_round is not None:
            per_round = require_integer(
                "sites_per_round", self.sites_per_round, least=1, most=sites.n_sites
            )
        settings: dict[str, Any] = {
            "n_rounds": require_integer("n_rounds", self.n_rounds, least=1),
            "local_steps": require_integer("local_steps", self.local_steps, least=1),
            "fuzzifier": require_number("fuzzifier", self.fuzzifier, above=1),
            "weighted": require_bool("weighted", self.weighted),
            "n_init": require_integer("n_init", self.n_init, least=1),
            "norm_bound": checked_bound(self.norm_bound, self.epsilon),
        }
        require_bool("diagnostics", self.diagnostics)
        require_bool("epsilon_per_round", self.epsilon_per_round)
        require_delta(self.delta)
        check_records(sites.X, k, nonnegative=False)
        if self.epsilon is not None:
            settings.update(self._noise(np.diff(sites.offsets), per_round, settings["norm_bound"]))
        stamp = NO_NOISE if self.epsilon is None else ASSUMED_SENSITIVITY
        return RunPlan((Stage(FuzzyCMeansRounds(k, **settings), per_round),), stamps=(stamp,))

    def _declared(self, sites: Sites) -> State:
        if self.init is None:
            return {}
        start = checked_start(self.init, self.n_clusters, self.n_features_in_)
        return {"centres": sites.public.asarray(start)}

    def _noise(
        self, records_per_site: npt.NDArray[np.int64], per_round: int, norm_bound: float
    ) -> dict[str, Any]:
        """Return the unit of uploaded sizes, and each site's noise_std.

        Assumed: one record moves all k fuzzy centres together no farther than it would the centre
        of its own cluster were memberships hard (`assumed_centre_sensitivity`). Its memberships
        sum to one, so it changes the sizes by at most 1, uploaded as one unit; the unit is an
        average site's sensitivity, so that sizes cost as much as centres.
        """
        sensitivity = assumed_center_sensitivity(records_per_site, self.n_clusters, norm_bound)
        unit = 1.0
        if self.weighted:
            mean_site = np.atleast_1d(records_per_site.mean())
            unit = float(assumed_center_sensitivity(mean_site, self.n_clusters, norm_bound)[0])
            sensitivity = np.sqrt(sensitivity**2 + unit**2)
        n_uploads = most_rounds_of_a_site(len(records_per_site), per_round, self.n_rounds)
        noise = sensitivity * assumed_multiplier(
            n_uploads, self.epsilon, self.delta, each=self.epsilon_per_round
        )
        return {"size_unit": unit, "noise_std": noise}
