"""What all estimators share: a plan is made, its stages are run, records are assigned."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
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

from dpfedc.clustering.method import Method
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import SiteBatch, Stage, State
from dpfedc.engine.conclusion import concluded
from dpfedc.engine.rounds import run
from dpfedc.engine.run_record import RoundRecord
from dpfedc.engine.simulated import Diagnose, SimulatedSites, Sites
from dpfedc.errors import InvalidInput
from dpfedc.estimators.record_checks import check_records
from dpfedc.kernels.devices import torch_device
from dpfedc.kernels.metrics import clustering_accuracy
from dpfedc.kernels.threads import rows_over_threads
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.gate import Gate
from dpfedc.privacy.noise import SIMULATED, SimulatedNoise
from dpfedc.privacy.open_gate import OpenGate
from dpfedc.privacy.torch_noise import TorchNoise
from dpfedc.randomness import Randomness
from dpfedc.settings import RUN_SETTINGS, PrivacyTarget, plain

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

    def _keep(self, parameters: Mapping[str, Any]) -> None:
        """Set every parameter of `__init__` as the attribute that scikit-learn wants it to be."""
        self.__dict__ |= {n: v for n, v in parameters.items() if n not in ("self", "__class__")}

    def _method(self) -> Method:
        """Return the method that plans the run."""
        return method_named(self.method_name)

    def _plan(self, sites: Sites) -> RunPlan:
        """Return the checked plan for these sites, from public facts."""
        method, facts, own = self._method(), self._facts(sites), self.get_params(deep=False)
        for name, setting in RUN_SETTINGS.items():
            if name in own:
                setting.checked(name, own[name], None)
        choices = method.checked(own, facts)
        check_records(
            sites.X, choices.n_clusters, nonnegative=getattr(choices, "nonnegative", False)
        )
        return method.plan(self._given(sites), facts, self._target())

    def _given(self, sites: Sites) -> dict[str, Any]:
        """Return the settings, and what a method without a proof takes from the records."""
        given: dict[str, Any] = self.get_params(deep=False)
        return given

    def _facts(self, sites: Sites) -> Federation:
        return Federation(int(sites.X.shape[1]), np.diff(sites.offsets))

    def _declared(self, sites: Sites) -> State:
        """Return what the user declared of the records, as the run's first state."""
        declared = self._method().declared(self.get_params(deep=False), self.n_features_in_)
        return {name: sites.public.asarray(values) for name, values in declared.items()}

    def _model(self, plan: RunPlan, state: State, about: dict[str, Any]) -> ClusterModel:
        """Return the model of the state, which may be that of an unfinished run."""
        given, names = self.get_params(deep=False), self._feature_names()
        return self._method().model(given, plan, state, feature_names=names, about=about)

    def _more_results(self, facts: Federation) -> dict[str, Any]:
        """Return what the run record is to hold beside what every run has."""
        return {}

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> FederatedClusterer:
        """Cluster the records X; `sites` holds one site id per record (None: one site).

        `y` is used for the accuracy in `history_` when diagnostics are on, and for nothing else.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", ensure_min_samples=1)
        place = None if self.device is None else torch_device(self.device)
        federation = Sites.of(X, sites)
        plan = self.plan_ = self._plan(federation)
        if self.device is not None:
            federation = federation.moved(self.device)
        randomness = Randomness(int(check_random_state(self.random_state).randint(2**31 - 1)))
        noise = None
        if self.epsilon is not None:
            noise = SimulatedNoise(randomness)
            noise = noise if place is None else TorchNoise(randomness, device=place)
        gate: Gate | OpenGate = OpenGate(noise)
        if plan.privacy is not None and noise is not None:
            gate = Gate(plan.privacy, noise, randomness)

        def on_round(entry: RoundRecord) -> None:
            if self.on_round is not None:
                self.on_round(entry, plan.n_rounds)

        diagnosis = None
        if self.diagnostics:
            diagnosis = self._diagnoser(plan, self._truth(y, federation))
        with rows_over_threads():
            last = run(
                plan.stages,
                SimulatedSites(federation, gate, randomness, diagnosis),
                randomness=randomness,
                state=self._declared(federation),
                on_round=on_round,
            )
        facts = self._facts(federation)
        finished = concluded(
            self.method_name,
            {**self.get_params(deep=False), "noise": None if noise is None else "simulated"},
            plan,
            facts,
            last.rounds,
            stamp=None if noise is None else SIMULATED,
            model=lambda about: self._model(plan, last.state, about),
            results=self._more_results(facts),
        )
        self.privacy_ = finished.privacy
        self.model_ = finished.model
        self.history_ = finished.record.with_exact() if self.diagnostics else finished.record
        self.cluster_centers_ = self.model_.cluster_centers
        self.labels_ = self._labels(X, federation)
        self.n_iter_ = len(last.rounds)
        self._n_features_out = self.n_clusters
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
        names = [field.name for field in fields(PrivacyTarget) if hasattr(self, field.name)]
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
            exact = dict(stage.diagnose(batch, state))
            if truth is not None and ("W" in state or "centers" in state):
                labels = self._model(plan, state, {}).labels(batch.X)
                exact["accuracy"] = clustering_accuracy(truth, labels)
            return exact

        return diagnose
