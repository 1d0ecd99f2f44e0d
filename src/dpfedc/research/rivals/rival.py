"""What the rivals share: a method without a proof, and an estimator that says so."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np

from dpfedc.clustering.method import Float, Method, Plan, Settings, Target
from dpfedc.clustering.run_plan import NO_NOISE, Federation, RunPlan
from dpfedc.clustering.stage import Stage
from dpfedc.estimators.base import FederatedClusterer
from dpfedc.research.rivals.assumed_noise import ASSUMED_SENSITIVITY
from dpfedc.settings import RUN_SETTINGS, Setting, number, whole

COMMON: dict[str, Setting] = {
    "n_clusters": whole(8, 1),
    "epsilon": RUN_SETTINGS["epsilon"],
    "delta": RUN_SETTINGS["delta"],
    "epsilon_per_round": RUN_SETTINGS["epsilon_per_round"],
    "norm_bound": number(None, free=(None,), above=0),
}


class RivalMethod(Method):
    """A method of the literature. Its noise rests on an assumed sensitivity, and is stamped so."""

    proved = False

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return the norm that records are clipped to, if it is given."""
        bound = given.get("norm_bound")
        return {} if bound is None else {"bound": np.asarray(bound, dtype=np.float64)}

    def plan(
        self, given: Settings, facts: Federation, target: Target, privacy: Plan = None
    ) -> RunPlan:
        """Return the method's stages. It has no target: nothing is proved of its noise."""
        choices = self.checked(given, facts)
        stamp = NO_NOISE if choices.epsilon is None else ASSUMED_SENSITIVITY
        return RunPlan(tuple(self.stages(choices, facts)), stamps=(stamp,))

    @abstractmethod
    def stages(self, choices: SimpleNamespace, facts: Federation) -> Iterable[Stage]:
        """Return the stages, with the noise that is assumed to be enough."""


class RivalClusterer(FederatedClusterer):
    """An estimator of a rival. It has no target: nothing is charged, for nothing is proved."""

    rival: RivalMethod

    def _method(self) -> Method:
        return self.rival

    def _target(self) -> None:
        return None
