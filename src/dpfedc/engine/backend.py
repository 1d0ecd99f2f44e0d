"""The seam between the loop and the sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.stage import Public, Stage, State
from dpfedc.errors import DPFedCError
from dpfedc.privacy.gate import Released


class RoundLost(DPFedCError):
    """A round that will not have the answers it needs: sites have lost theirs, or left the run.

    What was charged for it is spent. The run goes on without it.
    """


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
        """Return what the cohort's sites release in round t, or raise `RoundLost`."""
        ...

    def diagnose(self, stage: Stage, state: State) -> Mapping[str, float]:
        """Return exact measures of progress, where the sites are simulated."""
        ...
