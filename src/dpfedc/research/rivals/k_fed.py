"""k-FED as a scikit-learn estimator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.errors import InvalidInput
from dpfedc.estimators.base import OnRound
from dpfedc.research.rivals.assumed_noise import (
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.k_fed_stages import KFedRound, assumed_center_sensitivity
from dpfedc.research.rivals.rival import COMMON, RivalClusterer, RivalMethod
from dpfedc.settings import (
    require_integer,
    whole,
)


def fewest_local_clusters(records_per_site: npt.NDArray[np.int64], n_clusters: int) -> int:
    """Return the k' that is not below sqrt(k) and with which all sites together upload >= k.

    Site i uploads min(k', n_i) centres. For one site that is k.
    """
    fewest = math.isqrt(n_clusters - 1) + 1
    while np.minimum(records_per_site, fewest).sum() < n_clusters:
        fewest += 1
    return fewest


def _clusters_per_site(
    given: int | None, records_per_site: npt.NDArray[np.int64], n_clusters: int
) -> int:
    if given is None:
        return fewest_local_clusters(records_per_site, n_clusters)
    local = require_integer("clusters_per_site", given, least=1, most=n_clusters)
    total = int(np.minimum(records_per_site, local).sum())
    if total < n_clusters:
        raise InvalidInput(
            f"clusters_per_site must make all sites together upload at least "
            f"n_clusters={n_clusters} centres, got {total} from "
            f"clusters_per_site={local} at {len(records_per_site)} sites"
        )
    return local


class KFedMethod(RivalMethod):
    """One round: sites upload the centres of their own clusters."""

    name = "k-fed"
    settings = {  # noqa: RUF012
        **{name: setting for name, setting in COMMON.items() if name != "epsilon_per_round"},
        "clusters_per_site": whole(None, 1, free=(None,)),
        "local_steps": whole(100, 1),
        "n_init": whole(4, 1),
    }

    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the one round."""
        records = facts.records_per_site
        bound = checked_bound(choices.norm_bound, choices.epsilon)
        local = _clusters_per_site(choices.clusters_per_site, records, choices.n_clusters)
        noise = None
        if choices.epsilon is not None:
            sensitivity = assumed_center_sensitivity(records, local, bound)
            noise = sensitivity * assumed_multiplier(1, choices.epsilon, choices.delta, each=True)
        stage = KFedRound(
            choices.n_clusters, local, choices.local_steps, choices.n_init, bound, noise
        )
        return (stage,)


class KFed(RivalClusterer):
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
    rival = KFedMethod()

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
        self._keep(locals())
