"""What a plan is made from, and what it is: public facts, the user's choices, the stages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Stage
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import Penalty

NO_NOISE = "no noise was added: not private"


@dataclass(frozen=True)
class Federation:
    """The public facts a plan is made from."""

    n_features: int
    records_per_site: npt.NDArray[np.int64]

    @property
    def n_sites(self) -> int:
        """Return the number of sites."""
        return len(self.records_per_site)

    @property
    def n_records(self) -> int:
        """Return the number of records of all sites."""
        return int(self.records_per_site.sum())


@dataclass(frozen=True)
class Choices:
    """What the user chose; "auto" and None leave the choice to the plan."""

    n_clusters: int
    n_rounds: int | str = "auto"
    sites_per_round: int | None = None
    center: bool = True
    scale: bool = True
    declared_bound: bool = False
    constant_feature: float = 0.0
    refine_rounds: int | str = "auto"
    subspace: int | str | None = "auto"
    nonnegative: bool = False
    membership_steps: int = 10
    update: str = "gradient"
    extra_steps: int | None = None
    sampling_probability: float = 1.0
    batch_size: int = 50
    orthogonality: float | str = "auto"
    clip_norm: float | str = "auto"
    step: float | str = "auto"
    momentum: float | str = "auto"
    gradient_bound: float | None = None
    n_restarts: int = 1
    init: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class RunPlan:
    """A list of stages with what they may release, and the stamps of their results.

    `noise_ratio` is kappa (0: no noise). `penalty` and `refine` are what `predict` must know.
    """

    stages: tuple[Stage, ...]
    penalty: Penalty = field(default_factory=Penalty)
    refine: bool = False
    stamps: tuple[str, ...] = ()
    privacy: PrivacyPlan | None = None
    noise_ratio: float = 0.0

    @property
    def n_rounds(self) -> int:
        """Return the number of rounds of all stages."""
        return sum(stage.method.n_rounds for stage in self.stages)
