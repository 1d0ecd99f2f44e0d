"""Federated fuzzy c-means as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from dpfedc.clustering.method import Float, Settings, checked_start
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.estimators.base import OnRound
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.research.rivals.assumed_noise import (
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.fuzzy_cmeans_stages import FuzzyCMeansRounds
from dpfedc.research.rivals.k_fed_stages import assumed_center_sensitivity
from dpfedc.research.rivals.rival import COMMON, RivalClusterer, RivalMethod
from dpfedc.settings import (
    anything,
    flag,
    number,
    whole,
)


def _noise(choices: SimpleNamespace, facts: Federation, norm_bound: float) -> dict[str, Any]:
    """Return the unit of uploaded sizes, and each site's noise_std.

    Assumed: one record moves all k fuzzy centres together no farther than it would the centre of
    its own cluster were memberships hard (`assumed_center_sensitivity`). Its memberships sum to
    one, so it changes the sizes by at most 1, uploaded as one unit; the unit is an average site's
    sensitivity, so that sizes cost as much as centres.
    """
    records, k = facts.records_per_site, choices.n_clusters
    sensitivity = assumed_center_sensitivity(records, k, norm_bound)
    unit = 1.0
    if choices.weighted:
        mean_site = np.atleast_1d(records.mean())
        unit = float(assumed_center_sensitivity(mean_site, k, norm_bound)[0])
        sensitivity = np.sqrt(sensitivity**2 + unit**2)
    per_round = choices.sites_per_round or facts.n_sites
    n_uploads = most_rounds_of_a_site(facts.n_sites, per_round, choices.n_rounds)
    each = choices.epsilon_per_round
    noise = sensitivity * assumed_multiplier(n_uploads, choices.epsilon, choices.delta, each=each)
    return {"size_unit": unit, "noise_std": noise}


class FuzzyMethod(RivalMethod):
    """Rounds in which sites upload the centres of their own fuzzy clusters."""

    name = "federated-fuzzy-c-means"
    settings = {  # noqa: RUF012
        **COMMON,
        "n_rounds": whole(10, 1),
        "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
        "fuzzifier": number(2.0, above=1),
        "local_steps": whole(10, 1),
        "weighted": flag(False),
        "n_init": whole(4, 1),
        "init": anything(None),
    }

    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the rounds."""
        bound = checked_bound(choices.norm_bound, choices.epsilon)
        noise: dict[str, Any] = {}
        if choices.epsilon is not None:
            noise = _noise(choices, facts, bound)
        stage = FuzzyCMeansRounds(
            choices.n_clusters,
            choices.n_rounds,
            local_steps=choices.local_steps,
            fuzzifier=choices.fuzzifier,
            weighted=choices.weighted,
            n_init=choices.n_init,
            norm_bound=bound,
            sites_per_round=choices.sites_per_round,
            **noise,
        )
        return (stage,)

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return the given start."""
        if given.get("init") is None:
            return {}
        return {"centers": checked_start(given["init"], given["n_clusters"], facts.n_features)}


class FederatedFuzzyCMeans(RivalClusterer):
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
    rival = FuzzyMethod()

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
        self._keep(locals())
