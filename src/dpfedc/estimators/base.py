"""What all estimators share: a plan is made, its stages are run, records are assigned."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.metrics import pairwise_distances_argmin_min
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from dpfedc import __version__
from dpfedc.clustering.registry import nearest_model, plain
from dpfedc.clustering.run_plan import RunPlan
from dpfedc.clustering.stage import SiteBatch, Stage, State
from dpfedc.engine.run_record import EXACT, RoundRecord, RunRecord
from dpfedc.engine.simulated import Diagnose, Sites, run
from dpfedc.errors import InvalidInput
from dpfedc.kernels.devices import torch_device
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SIMULATED, SimulatedNoise, TorchNoise
from dpfedc.randomness import Randomness
from dpfedc.settings import PrivacyTarget

OnRound = Callable[[RoundRecord, int], None]


class FederatedClusterer(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator, ABC
):
    """A clustering of records that lie at many sites.

    A subclass has at least the settings n_clusters, epsilon, delta, trust, random_state,
    diagnostics and on_round. It says how to plan a run; the rest is here.
    """

    method_name: str
    """The name in run records and model files."""
    n_clusters: int
    epsilon: float | None
    random_state: Any
    diagnostics: bool
    on_round: OnRound | None
    device: str | None = None
    """Torch's device for the records and all that is computed from them; None for NumPy."""

    @abstractmethod
    def _plan(self, sites: Sites) -> RunPlan:
        """Return the checked plan for these sites, from public facts."""

    def _declared(self, sites: Sites) -> State:
        """Return what the user declared of the records, as the run's first state."""
        return {}

    def _model(self, plan: RunPlan, state: State, about: dict[str, Any]) -> ClusterModel:
        """Return the model of the state: by default the nearest of its `centres`."""
        return nearest_model(state["centres"], feature_names=self._feature_names(), about=about)

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> FederatedClusterer:
        """Cluster the records X; `sites` holds one site id per record (None: one site).

        `y` is used for the accuracy in `history_` when diagnostics are on, and for nothing else.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", ensure_min_samples=1)
        place = None if self.device is None else torch_device(self.device)
        federation = Sites.of(X, sites)
        plan = self._plan(federation)
        if self.device is not None:
            federation = federation.moved(self.device)
        randomness = Randomness(int(check_random_state(self.random_state).randint(2**31 - 1)))
        noise = None
        if self.epsilon is not None:
            noise = SimulatedNoise(randomness)
            noise = noise if place is None else TorchNoise(randomness, device=place)
        rounds: list[RoundRecord] = []

        def record(entry: RoundRecord) -> None:
            rounds.append(entry)
            if self.on_round is not None:
                self.on_round(entry, plan.n_rounds)

        truth = self._truth(y, federation)
        state = run(
            plan.stages,
            federation,
            Gate(randomness, noise, plan.privacy),
            randomness=randomness,
            state=self._declared(federation),
            on_round=record,
            diagnose=self._diagnoser(plan, truth) if self.diagnostics else None,
        )
        stamps = plan.stamps if noise is None else (*plan.stamps, SIMULATED)
        self.privacy_ = None if plan.privacy is None else guarantee(plan.privacy, SIMULATED)
        promise = None if self.privacy_ is None else self.privacy_.as_plain()
        about = {"method": self.method_name, "version": __version__}
        self.model_ = self._model(
            plan, state, {**about, "stamps": list(stamps), "privacy": promise}
        )
        self.cluster_centers_ = self.model_.cluster_centers
        self.labels_ = self._labels(X, federation)
        self.n_iter_ = len(rounds)
        self._n_features_out = self.n_clusters
        self.history_ = RunRecord(
            self.method_name,
            __version__,
            self._settings(federation),
            tuple(rounds),
            (*stamps, EXACT) if self.diagnostics else stamps,
            {
                "privacy": promise,
                "privacy_plan": plan.privacy and json.loads(plan.privacy.to_json()),
            },
        )
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int32]:
        """Return the cluster of each record."""
        check_is_fitted(self)
        return self.model_.labels(self._checked(X), device=self.device)

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Return how much each record belongs to each cluster; the largest entry is `predict`'s."""
        check_is_fitted(self)
        return self.model_.memberships(self._checked(X), device=self.device)

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the k-means cost: the sum of squared distances to the nearest centre."""
        check_is_fitted(self)
        _, distances = pairwise_distances_argmin_min(self._checked(X), self.cluster_centers_)
        return -float((distances**2).sum())

    def _labels(self, X: npt.NDArray[Any], sites: Sites) -> npt.NDArray[np.int32]:
        """Return the clusters of the records of `fit`, from where they lie."""
        if self.device is None or sites.row_order is None:
            return self.model_.labels(X if self.device is None else sites.X)
        labels = np.empty(len(X), dtype=np.int32)
        labels[sites.row_order] = self.model_.labels(sites.X)
        return labels

    def _checked(self, X: Any) -> npt.NDArray[Any]:
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", reset=False)
        return np.asarray(X)

    def _target(self) -> PrivacyTarget | None:
        """Return what the run may spend, for a method with a proof (None: no noise)."""
        if self.epsilon is None:
            return None
        names = [field.name for field in fields(PrivacyTarget)]
        return PrivacyTarget(**{name: plain(getattr(self, name)) for name in names})

    def _feature_names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else tuple(map(str, names))

    def _truth(self, y: Any, sites: Sites) -> npt.NDArray[Any] | None:
        if y is None or not self.diagnostics:
            return None
        truth = np.asarray(y)
        if truth.shape != (sites.X.shape[0],):
            raise InvalidInput(
                f"y must hold one label per record: expected shape ({sites.X.shape[0]},), "
                f"got {truth.shape}"
            )
        return truth if sites.row_order is None else truth[sites.row_order]

    def _diagnoser(self, plan: RunPlan, truth: npt.NDArray[Any] | None) -> Diagnose:
        def diagnose(stage: Stage, batch: SiteBatch, state: State) -> dict[str, float]:
            exact = dict(stage.method.diagnose(batch, state))
            if truth is not None and ("W" in state or "centres" in state):
                labels = self._model(plan, state, {}).labels(batch.X)
                exact["accuracy"] = clustering_accuracy(truth, labels)
            return exact

        return diagnose

    def _settings(self, sites: Sites) -> dict[str, Any]:
        """Return what the run record says of how the run was made."""
        settings = {
            name: plain(value)
            for name, value in self.get_params().items()
            if isinstance(value, (int, float, str, bool, np.generic)) or value is None
        }
        return {
            **settings,
            "n_sites": sites.n_sites,
            "n_records": int(sites.X.shape[0]),
            "n_features": int(sites.X.shape[1]),
        }
