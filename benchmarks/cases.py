"""The benchmark's cases: real records dealt to sites, or random numbers of the same shape."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc import DPFedC
from dpfedc.errors import BudgetWarning, DataUnavailable, UtilityWarning
from dpfedc.research.datasets import mnist, tcga_mirna
from dpfedc.research.partition import iid, label_shards

Float = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Settings:
    """The work of one fit; the names are DPFedC's."""

    n_clusters: int
    n_rounds: int = 100
    sites_per_round: int = 30
    membership_steps: int = 10
    epsilon: float | None = 20.0
    clip_norm: float = 0.03
    step: float = 24.0
    momentum: float = 0.5
    refine_rounds: int = 0
    subspace: int | None = None
    random_state: int = 0

    def estimator(self) -> DPFedC:
        """Return an estimator that is not fitted."""
        return DPFedC(**asdict(self))


@dataclass(frozen=True, eq=False)
class Case:
    """Records, sorted by site, with the settings of the fit; `y` is None for random numbers."""

    name: str
    X: Float
    sites: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64] | None
    settings: Settings

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Site i holds rows offsets[i] to offsets[i + 1]."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.sites))])

    def fit(self) -> Any:
        """Return a fitted estimator."""
        with warnings.catch_warnings():
            # Timing does not depend on whether the clusters stand out from the noise.
            warnings.simplefilter("ignore", UtilityWarning)
            warnings.simplefilter("ignore", BudgetWarning)
            return self.settings.estimator().fit(self.X, sites=self.sites)


def _sorted_by_site(name: str, X: Any, sites: Any, y: Any, settings: Settings) -> Case:
    order = np.argsort(sites, kind="stable")
    X, sites = np.ascontiguousarray(X[order], dtype=np.float32), sites[order]
    return Case(name, X, sites, None if y is None else y[order], settings)


def _random(name: str, shape: tuple[int, int], n_sites: int, settings: Settings) -> Case:
    rng = np.random.default_rng(0)
    X = rng.random(shape, dtype=np.float32)
    return _sorted_by_site(name, X, iid(len(X), n_sites, rng=rng), None, settings)


def mnist_case() -> Case:
    """Return 10,000 MNIST images at 100 sites, two digits at most sites."""
    settings = Settings(10)
    try:
        data = mnist(10_000, seed=0)
    except DataUnavailable as error:
        print(f"random numbers in place of MNIST: {error}")
        return _random("random 10,000 x 784", (10_000, 784), 100, settings)
    digits: Any = data.y
    sites = label_shards(digits, 100, 2, rng=np.random.default_rng(0))
    return _sorted_by_site("MNIST 10,000 x 784", data.X, sites, data.y, settings)


def tcga_case() -> Case:
    """Return 7,373 tumours x 1,046 microRNAs, dealt at random to 100 sites."""
    settings = Settings(20)
    try:
        data = tcga_mirna()
    except DataUnavailable as error:
        print(f"random numbers in place of TCGA: {error}")
        return _random("random 7,373 x 1,046", (7_373, 1_046), 100, settings)
    sites = iid(len(data.X), 100, rng=np.random.default_rng(0))
    return _sorted_by_site("TCGA miRNA 7,373 x 1,046", data.X, sites, data.y, settings)


def tiny_case() -> Case:
    """Return a case of milliseconds, to see that everything runs."""
    settings = replace(Settings(3), n_rounds=4, sites_per_round=4)
    return _random("tiny 600 x 60", (600, 60), 10, settings)


CASES = {"mnist": mnist_case, "tcga": tcga_case, "tiny": tiny_case}
