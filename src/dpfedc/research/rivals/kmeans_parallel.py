"""Scalable k-means++ over sites (DK++) as a scikit-learn estimator."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.estimators.base import OnRound
from dpfedc.privacy.schedule import most_rounds_of_a_site
from dpfedc.research.rivals.assumed_noise import (
    assumed_multiplier,
    checked_bound,
)
from dpfedc.research.rivals.kmeans_parallel_stages import Candidates, Reclustering, StatedNoiseLloyd
from dpfedc.research.rivals.rival import COMMON, RivalClusterer, RivalMethod
from dpfedc.settings import (
    number,
    whole,
)


class ParallelMethod(RivalMethod):
    """Rounds of candidates, a server-side clustering of them, and Lloyd rounds."""

    name = "k-means-parallel"
    settings = {  # noqa: RUF012
        **COMMON,
        "n_rounds": whole(20, 0),
        "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
        "seeding_rounds": whole(5, 1),
        "oversampling": number(2.0, above=0),
    }

    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the stages."""
        checked_bound(choices.norm_bound, choices.epsilon)
        k, n_rounds = choices.n_clusters, choices.n_rounds
        per_round = choices.sites_per_round or facts.n_sites
        # A site uploads the first candidate, then costs and candidates in turn, counts, and sums.
        n_seeding = 1 + 2 * choices.seeding_rounds
        n_uploads = n_seeding + 1 + most_rounds_of_a_site(facts.n_sites, per_round, n_rounds)
        each = choices.epsilon_per_round
        z = assumed_multiplier(n_uploads, choices.epsilon, choices.delta, each=each)
        stages: list[Stage] = [
            Candidates(k * choices.oversampling, n_seeding, z),
            Reclustering(k, z),
        ]
        if n_rounds:
            # As for DP-Lloyd: a count that noise alone may give does not move a centre.
            least = 1 + 2 * math.sqrt(2 * per_round) * z
            stages.append(StatedNoiseLloyd(k, n_rounds, least, per_round, noise_multiplier=z))
        return stages


class KMeansParallel(RivalClusterer):
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
    rival = ParallelMethod()

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
        self._keep(locals())
