"""Distributed k-median by coresets (DKM) as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.estimators.base import OnRound
from dpfedc.research.rivals.assumed_noise import (
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.coreset_kmedian_stages import Coreset
from dpfedc.research.rivals.rival import COMMON, RivalClusterer, RivalMethod
from dpfedc.settings import (
    whole,
)


class CoresetMethod(RivalMethod):
    """Two rounds: medians of every site, then a weighted sample of its records."""

    name = "coreset-k-median"
    settings = {  # noqa: RUF012
        **COMMON,
        "coreset_size": whole(1000, 1),
        "local_steps": whole(10, 0),
    }

    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the two rounds."""
        checked_bound(choices.norm_bound, choices.epsilon)
        n_uploads, each = Coreset.n_rounds, choices.epsilon_per_round
        z = assumed_multiplier(n_uploads, choices.epsilon, choices.delta, each=each)
        stage = Coreset(choices.n_clusters, choices.coreset_size, choices.local_steps, z)
        return (stage,)


class CoresetKMedian(RivalClusterer):
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
    rival = CoresetMethod()

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
        self._keep(locals())
