"""Federated k-means as the plain average of local means: a guess at what the paper compared with.

The paper says no more of its federated k-means (FKM) than that clients upload local centres, "which
are then uploaded to the PS to produce the global clusters". Here every site of a round assigns its
records to the broadcast centres, uploads the means of its own clusters, and the server averages the
uploads, however many records stand behind each. The start is shared and random, as for "the same
randomly generated initial feasible points for all the algorithms under test".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Public, SiteBatch, Stage, State
from dpfedc.estimators.base import OnRound
from dpfedc.kernels.cluster_sums import one_hot, squared_distances
from dpfedc.kernels.segments import segment_products, segment_sum
from dpfedc.privacy.gate import Released
from dpfedc.privacy.sampling import RoundSample
from dpfedc.privacy.sums import SiteValues
from dpfedc.randomness import Randomness
from dpfedc.research.rivals.assumed_noise import checked_bound
from dpfedc.research.rivals.k_fed_stages import bounded_records, mean_cost
from dpfedc.research.rivals.rival import COMMON, RivalClusterer, RivalMethod
from dpfedc.settings import whole

Float = npt.NDArray[Any]


def stated_noise(
    records_per_site: npt.NDArray[np.int64],
    norm_bound: float,
    *,
    n_clusters: int,
    epsilon: float,
    delta: float,
    participation: float,
    n_rounds: int,
) -> Float:
    """Return each site's noise_std, as the paper's lemmas would have it for the mean of a cluster.

    ASSUMED: a record moves the mean of a cluster of average size by max|x| k / n_i. A round gets
    epsilon / sqrt(p R), the paper's total loss without its sampling of records, and the noise is
    that of its Lemma 1, sensitivity times sqrt(2 ln(1.25 / delta)) / epsilon.
    """
    of_a_round = epsilon / math.sqrt(participation * n_rounds)
    sensitivity = norm_bound * n_clusters / np.asarray(records_per_site, np.float64)
    return np.asarray(sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / of_a_round)


@dataclass(frozen=True)
class AveragedMeans(Stage):
    """Rounds of local means and their plain average; the state's `centers` are the global ones.

    A cluster without records at a site stays where it was broadcast. `noise_std` holds each site's
    noise; it rests on an assumed sensitivity, so a gate with a plan refuses it.
    """

    n_clusters: int
    n_rounds: int = 100
    norm_bound: float = math.inf
    noise_std: Float | None = None
    sites_per_round: int | None = None
    name = "averaged-means"
    purpose = "means of every site's own clusters"
    proved = False
    sums_records = False

    def start(self, state: State, public: Public, randomness: Randomness) -> State:
        rng = randomness.generator("start")
        return {
            **state,
            "centers": public.asarray(rng.random((self.n_clusters, public.n_features))),
        }

    def local(
        self, batch: SiteBatch, state: State, t: int, sample: RoundSample, randomness: Randomness
    ) -> SiteValues:
        X, centers = bounded_records(batch.X, self.norm_bound), state["centers"]
        xp = array_namespace(X)
        distances = squared_distances(X @ centers.T, xp.sum(X**2, axis=1), centers)
        members = one_hot(xp.argmin(distances, axis=1), self.n_clusters, X)
        if batch.present is not None:
            members = xp.where(batch.present[:, None], members, xp.zeros_like(members))
        sums = segment_products(members, X, batch.offsets)
        counts = segment_sum(members, batch.offsets)[:, :, None]
        means = xp.where(counts > 0, sums / xp.clip(counts, min=1.0), centers[None, ...])
        noise = None if self.noise_std is None else self.noise_std[batch.sites]
        return SiteValues(means, noise_std=noise)

    def combine(self, state: State, released: Released, t: int) -> State:
        return {**state, "centers": released.value / released.n_sites}

    def diagnose(self, batch: SiteBatch, state: State) -> Mapping[str, float]:
        return {"objective": mean_cost(batch, state["centers"])}


class AveragedMethod(RivalMethod):
    """Rounds in which sites upload the means of their own clusters."""

    name = "averaged-k-means"
    settings = {  # noqa: RUF012
        **{name: setting for name, setting in COMMON.items() if name != "epsilon_per_round"},
        "n_rounds": whole(100, 1),
        "sites_per_round": whole(None, 1, free=(None,), most="n_sites"),
    }

    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the rounds."""
        bound = checked_bound(choices.norm_bound, choices.epsilon)
        per_round = choices.sites_per_round or facts.n_sites
        noise = None
        if choices.epsilon is not None:
            noise = stated_noise(
                facts.records_per_site,
                bound,
                n_clusters=choices.n_clusters,
                epsilon=choices.epsilon,
                delta=choices.delta,
                participation=per_round / facts.n_sites,
                n_rounds=choices.n_rounds,
            )
        return (AveragedMeans(choices.n_clusters, choices.n_rounds, bound, noise, per_round),)


class AveragedKMeans(RivalClusterer):
    """Federated k-means by plain averages of local means: our guess at the paper's FKM.

    Nothing is proved about its privacy. `FederatedKMeans` is the method of the paper's reference.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters.
    epsilon : float or None, default=None
        Adds the noise of the paper's Lemma 1 with epsilon / sqrt(p R) in a round, if one record
        moved a site's means no more than is assumed (the result is stamped so). None adds no noise.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail.
    n_rounds : int, default=100
        Rounds of local means and their average.
    sites_per_round : int or None, default=None
        Sites that take part in a round; None takes all.
    norm_bound : float or None, default=None
        Public. Longer records are clipped to this norm. Needed when epsilon is set.
    random_state : int, RandomState or None, default=None
        Makes a run reproducible.
    diagnostics : bool, default=False
        Track exact measures of progress in `history_` (simulation only; nothing is released).
    on_round : callable or None, default=None
        Called after every round with its RoundRecord and the number of rounds of the whole run.
    """

    method_name = "averaged-k-means"
    rival = AveragedMethod()

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        n_rounds: int = 100,
        sites_per_round: int | None = None,
        norm_bound: float | None = None,
        random_state: Any = None,
        diagnostics: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self._keep(locals())
