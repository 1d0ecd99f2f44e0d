"""What all estimators share: a plan is made, its stages are run, records are assigned."""

from __future__ import annotations

import os
import warnings
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

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

from dpfedc.clustering.method import Method, with_table
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import SiteBatch, Stage, State
from dpfedc.engine.conclusion import concluded
from dpfedc.engine.rounds import run
from dpfedc.engine.run_record import RoundRecord
from dpfedc.engine.simulated import Diagnose, SimulatedSites, Sites
from dpfedc.errors import InvalidInput, NotFound, UtilityWarning
from dpfedc.estimators.record_checks import (
    check_records,
    refuse_gaps,
    refuse_ids,
    warn_of_columns,
    warn_of_persons,
)
from dpfedc.estimators.spending import counted_fit
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
from dpfedc.summary.cluster_summary import ClusterSummary
from dpfedc.tables.trial_records import (
    TrialRecords,
    as_schema,
    frame_records,
    named_columns,
    of_rows,
    person_records,
)

if TYPE_CHECKING:
    from dpfedc.verdict.verdict import Verdict

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
    n_clusters: int | str
    epsilon: float | None
    random_state: Any
    diagnostics: bool
    on_round: OnRound | None
    _records = TrialRecords(np.empty((0, 0)), None)
    """What is being clustered, during `fit`."""
    _verdict: Verdict | None = None
    _doubts: tuple[str, ...] = ()
    device: str | None = None
    """Torch's device for the records and all that is computed from them; None for NumPy."""
    ledger: str | os.PathLike[str] | None = None
    """The file that fits with a privacy plan are charged to; None: they are only counted."""

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
        nonnegative = getattr(choices, "nonnegative", False)
        least, _ = method.cluster_range(own, facts)
        check_records(sites.X, least, nonnegative=nonnegative, present=sites.present)
        plan = method.plan(self._given(sites), facts, self._target())
        hopeless = plan.hopeless(facts)
        if hopeless:
            raise NotFound(hopeless)
        return plan

    def _given(self, sites: Sites) -> dict[str, Any]:
        """Return the settings, and what a method without a proof takes from the records."""
        given: dict[str, Any] = self.get_params(deep=False)
        return given

    def _facts(self, sites: Sites) -> Federation:
        schema = self._records.schema
        layout = None if schema is None else schema.layout
        return Federation(int(sites.X.shape[1]), np.diff(sites.offsets), layout)

    def _declared(self, sites: Sites) -> State:
        """Return what the user declared of the records, as the run's first state."""
        declared = self._method().declared(self.get_params(deep=False), self._facts(sites))
        return {name: sites.public.asarray(values) for name, values in declared.items()}

    def _model(self, plan: RunPlan, state: State, about: dict[str, Any]) -> ClusterModel:
        """Return the model of the state, which may be that of an unfinished run."""
        given, names = self.get_params(deep=False), self._feature_names()
        model = self._method().model(given, plan, state, feature_names=names, about=about)
        return with_table(model, state, self._records.schema)

    def _more_results(self, facts: Federation) -> dict[str, Any]:
        """Return what the run record is to hold beside what every run has."""
        return {}

    def fit(
        self, X: Any, y: Any = None, *, sites: Any = None, schema: Any = None, persons: Any = None
    ) -> FederatedClusterer:
        """Cluster the records X; `sites` holds one site id per record (None: one site).

        With a `schema` (a `Schema`, its path, or its content as a mapping) X is a DataFrame as it
        stands: columns are found by name and encoded, and gaps are allowed. `persons` holds one id
        per row: all rows of a person become one record, and the person is what epsilon protects.
        For a DataFrame, sites and persons may also name columns. `y` is used for the accuracy in
        `history_` when diagnostics are on, and for nothing else.
        """
        if schema is not None:
            records = frame_records(X, as_schema(schema), sites=sites, persons=persons, y=y)
            warn_of_columns(records)
            warn_of_persons(records)
            return self.fit_records(records)
        X, sites, persons = named_columns(X, sites, persons)
        refuse_ids(X)
        refuse_gaps(X)
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", ensure_min_samples=1)
        if persons is not None:
            records = person_records(X, sites, persons, y)
            warn_of_persons(records)
            return self.fit_records(records)
        return self.fit_records(TrialRecords(X, sites, y))

    def fit_records(self, records: TrialRecords) -> FederatedClusterer:
        """Cluster records that were made of files or frames before."""
        self._records = records
        X = records.X
        if records.schema is not None:
            self.n_features_in_ = X.shape[1]
            self.feature_names_in_ = np.array(records.schema.features, dtype=object)
        place = None if self.device is None else torch_device(self.device)
        federation = Sites.of(X, records.sites, records.present)
        plan = self.plan_ = self._plan(federation)
        if self.device is not None:
            federation = federation.moved(self.device)
        randomness = Randomness(int(check_random_state(self.random_state).randint(2**31 - 1)))
        noise = None
        if self.epsilon is not None:
            noise = SimulatedNoise(randomness)
            noise = noise if place is None else TorchNoise(randomness, device=place)

        def on_round(entry: RoundRecord) -> None:
            if self.on_round is not None:
                self.on_round(entry, plan.n_rounds)

        diagnosis = None
        if self.diagnostics:
            diagnosis = self._diagnoser(plan, self._truth(records.y, federation))
        with counted_fit(records, plan.privacy, self.ledger) as spending, rows_over_threads():
            gate: Gate | OpenGate = OpenGate(noise)
            if spending is not None:
                spending.warn()
            if plan.privacy is not None and noise is not None:
                on_charge = None if spending is None else spending.charge
                gate = Gate(plan.privacy, noise, randomness, on_charge=on_charge)
            try:
                last = run(
                    plan.stages,
                    SimulatedSites(federation, gate, randomness, diagnosis),
                    randomness=randomness,
                    state=self._declared(federation),
                    spare_rounds=plan.spare_rounds,
                    on_round=on_round,
                )
            except NotFound as lost:
                raise lost.naming(self._feature_names()) from None
        facts = self._facts(federation)
        settings = {n: v for n, v in self.get_params(deep=False).items() if n != "ledger"}
        finished = concluded(
            self.method_name,
            {**settings, "noise": None if noise is None else "simulated"},
            plan,
            facts,
            last,
            stamp=None if noise is None else SIMULATED,
            model=lambda about: self._model(plan, last.state, about),
            results=self._more_results(facts),
        )
        for doubt in finished.doubts:
            warnings.warn(doubt, UtilityWarning, stacklevel=3)
        self._facts_of_fit, self._doubts, self._verdict = facts, finished.doubts, None
        self.privacy_ = finished.privacy
        self.spent_ = None if spending is None else spending.spent
        self.model_ = finished.model
        self.history_ = finished.record.with_exact() if self.diagnostics else finished.record
        self.cluster_centers_ = self.model_.cluster_centers
        self.record_labels_ = self._labels(X, federation)
        self.labels_ = of_rows(self.record_labels_, records)
        self.n_iter_ = len(last.rounds)
        self._n_features_out = len(self.cluster_centers_)
        del self._records  # a fitted estimator may be kept or sent: it holds no records
        return self

    @property
    def verdict_(self) -> Verdict:
        """Return whether the result is usable, rough or useless, and why.

        It is found when it is first asked for, which takes seconds, by rehearsals on invented
        records; from public facts and released values alone. The centres' errors in `model_` are
        filled in where the run itself could not tell them.
        """
        check_is_fitted(self)
        method = self._method()
        if not method.proved:
            raise AttributeError(f"verdict_ is known of proved methods only, not of {method.name}")
        if self._verdict is None:
            from dpfedc.verdict.kept import kept_verdict
            from dpfedc.verdict.verdict import reached_verdict

            planned = (method, self.get_params(deep=False), self._facts_of_fit, self.plan_)
            self._verdict, self.model_ = reached_verdict(
                kept_verdict(*planned), *planned, self.model_, self._doubts
            )
        return self._verdict

    def predict(self, X: Any, *, persons: Any = None) -> npt.NDArray[np.int32]:
        """Return the cluster of each row of X; rows of one person go together.

        -1 stands for a row without any value.
        """
        records = self._checked(X, persons)
        return of_rows(self.model_.labels(records.X, device=self.device), records)

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Return how much each record belongs to each cluster; the largest entry is `predict`'s.

        NaN stands for a row without any value.
        """
        records = self._checked(X, None)
        memberships = self.model_.memberships(records.X, device=self.device)
        if records.present is not None:
            memberships[~records.present] = np.nan
        if records.rows is None:
            return memberships
        return np.where((records.rows >= 0)[:, None], memberships[records.rows], np.nan)

    def summary(self) -> ClusterSummary:
        """Return each cluster as people read it: in units, with error bars, what sets it apart.

        Where the run itself cannot tell the errors of its centres, the verdict is found first.
        """
        check_is_fitted(self)
        if self.model_.center_errors is None and self._method().proved:
            _ = self.verdict_
        return self.model_.summary()

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the k-means cost: the sum of squared distances to the nearest centre.

        For a table, distances are those of its columns brought to like spread.
        """
        records = self._checked(X, None)
        seen = self.model_.seen(records.X)
        if records.present is not None:
            seen = seen[records.present]
        _, distances = pairwise_distances_argmin_min(seen, self.model_.seen_centers)
        return -float((distances**2).sum())

    def _labels(self, X: npt.NDArray[Any], sites: Sites) -> npt.NDArray[np.int32]:
        """Return the clusters of the records of `fit`, from where they lie."""
        if self.device is None or sites.row_order is None:
            return self.model_.labels(X if self.device is None else sites.X)
        labels = np.empty(len(X), dtype=np.int32)
        labels[sites.row_order] = self.model_.labels(sites.X)
        return labels

    def _checked(self, X: Any, persons: Any) -> TrialRecords:
        check_is_fitted(self)
        schema = self.model_.schema
        if schema is not None:
            if not hasattr(X, "columns"):
                raise InvalidInput(f"X must be a DataFrame, as in fit, got {type(X).__name__}")
            schema = schema.for_site()
            if persons is None and schema.person not in (None, *X.columns):
                schema = schema.without_persons()
            return frame_records(X, schema, persons=persons, least=1)
        X, _, persons = named_columns(X, None, persons)
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", reset=False)
        if persons is not None:
            return person_records(np.asarray(X), None, persons)
        return TrialRecords(np.asarray(X), None)

    def _target(self) -> PrivacyTarget | None:
        """Return what the run may spend, for a method with a proof (None: no noise)."""
        if self.epsilon is None:
            return None
        names = [field.name for field in fields(PrivacyTarget) if hasattr(self, field.name)]
        own = {name: plain(getattr(self, name)) for name in names}
        return PrivacyTarget(**own, **self._protected())

    def _protected(self) -> dict[str, Any]:
        """Return whom epsilon protects, and at how many sites they may be."""
        records = self._records
        return {"unit": records.unit, "sites_per_person": records.sites_per_person}

    def _feature_names(self) -> tuple[str, ...] | None:
        names = getattr(self, "feature_names_in_", None)
        if names is None:  # those of a file are known during the fit
            names = getattr(getattr(self, "_records", None), "feature_names", None)
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
                model = replace(self._model(plan, state, {}), view={})  # X is seen so already
                labels = model.labels(batch.X)
                exact["accuracy"] = clustering_accuracy(truth, labels)
            return exact

        return diagnose
