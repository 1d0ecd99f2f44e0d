"""The seam between the loop and the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Public, Stage, State
from dpfedc.privacy.gate import Released


class Backend(Protocol):
    """Where the sites are: in this process, or elsewhere."""

    @property
    def public(self) -> Public:
        """Return what everyone may know of the data."""
        ...

    def begin(self, stage: Stage, state: State) -> None:
        """Let the sites prepare for a stage."""
        ...

    def round(self, stage: Stage, state: State, t: int, cohort: npt.NDArray[np.int64]) -> Released:
        """Return what the cohort's sites release in round t."""
        ...

    def diagnose(self, stage: Stage, state: State) -> Mapping[str, float]:
        """Return exact measures of progress, where the sites are simulated."""
        ...
