"""DP-FedC as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
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
from dpfedc.errors import InvalidInput
from dpfedc.evaluation.metrics import clustering_accuracy
from dpfedc.federation.in_process import Diagnose, Sites, run
from dpfedc.methods.protocol import SiteBatch, Stage, State
from dpfedc.model_file import ClusterModel
from dpfedc.planning import (
    PUBLISHED_FINAL_STEPS,
    Choices,
    Federation,
    RunPlan,
    normalized_plan,
    published_plan,
)
from dpfedc.privacy.mechanism import Gate
from dpfedc.randomness import Randomness
from dpfedc.records import RoundRecord, RunRecord
from dpfedc.settings import TRUST_MODELS, require_choice, require_integer, require_number

EXACT = "diagnostics are exact, not released"


def stack_sites(arrays: Sequence[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return (X, sites) for `fit` from one array of records per site.

    >>> X, sites = stack_sites([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    >>> sites.tolist()
    [0, 1, 1]
    """
    blocks = [np.asarray(block) for block in arrays]
    if not blocks:
        raise InvalidInput("stack_sites needs at least one array, got none")
    for i, block in enumerate(blocks):
        if block.ndim != 2 or len(block) == 0:
            raise InvalidInput(
                f"every site must be a non-empty 2-D array, got shape {block.shape} for site {i}"
            )
        if block.shape[1] != blocks[0].shape[1]:
            raise InvalidInput(
                f"all sites must have the same features: expected {blocks[0].shape[1]}, "
                f"got {block.shape[1]} for site {i}"
            )
    sites = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return np.concatenate(blocks), sites


class DPFedC(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """Cluster records that lie at many sites, without pooling them.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters.
    epsilon : float or None, default=None
        How much may be learnt about any one record (smaller is more private). None adds no noise.
        The normalized variant cannot be fitted privately yet. The published one adds the noise
        that the paper states for this total loss, which is not a proof of it.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail.
    trust : {"local", "secure-aggregation", "trusted-server"}, default="local"
        Who adds the noise, and so who must be trusted.
    variant : {"normalized", "published"}, default="normalized"
        "published" is the paper's Algorithm 1 with its errors corrected.
    n_rounds : int or "auto", default="auto"
        Rounds of the factorisation.
    sites_per_round : int or None, default=None
        Sites that take part in a round; None takes all.
    init : array of shape (n_clusters, n_features) or None, default=None
        Public centres to start from. They must not have been made from the data.
    random_state : int, RandomState or None, default=None
        Makes a simulated run reproducible.
    diagnostics : bool, default=False
        Track exact measures of progress in `history_` (simulation only; nothing is released).
    center, scale : bool, default=True
        Subtract the records' mean, and divide by their typical distance from it. With scale=False
        records are taken to have norm at most 1, and longer ones are clipped.
    constant_feature : float, default=0.0
        A constant appended to every standardised record, so that distance counts beside direction.
    refine_rounds : int or "auto", default="auto"
        Rounds of sums and counts (Lloyd's algorithm) after the factorisation.
    nonnegative : bool, default=False
        Declares that no feature is negative; centres are then kept >= 0.
    membership_steps : int, default=10
        Gradient steps on the memberships in a round (Q1).
    extra_steps : int or None, default=None
        Round t takes floor(extra_steps / t) + 1 steps on the centres at each site (the paper's
        Qhat). None: 0 for the normalized variant, 10 for the published one.
    batch_size : int, default=50
        Records in a mini-batch (published variant).
    orthogonality : float or "auto", default="auto"
        Weight of the penalty that makes memberships hard (rho). The normalized variant starts low
        and ends at this value, by default 1.
    clip_norm : float, default=0.03
        The most that one record may add to a round's gradient.
    step : float, default=24.0
        How far the centres move in a round.
    momentum : float or "auto", default="auto"
        How much of earlier rounds' gradients is kept: the centres follow an average over about
        1 / (1 - momentum) rounds. By default 0.5 if only some sites take part in a round.
    gradient_bound : float or None, default=None
        The bound G on a mini-batch gradient (published variant); needed when epsilon is set.
    on_round : callable or None, default=None
        Called after every round with its RoundRecord and the number of rounds of the whole run.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
        The centres, in the units of the data.
    labels_ : array of shape (n_records,)
        The cluster of each record given to `fit`; equal to `predict(X)`. They stay with the sites.
    history_ : RunRecord
        What happened, round by round.
    n_iter_ : int
        The number of rounds of all stages.
    model_ : ClusterModel
        Everything `predict` needs; can be written to a file.

    Examples
    --------
    >>> import numpy as np
    >>> from dpfedc import DPFedC
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    >>> model = DPFedC(n_clusters=3, random_state=0).fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = None,
        delta: float = 1e-5,
        trust: str = "local",
        variant: str = "normalized",
        n_rounds: int | str = "auto",
        sites_per_round: int | None = None,
        init: Any = None,
        random_state: Any = None,
        diagnostics: bool = False,
        center: bool = True,
        scale: bool = True,
        constant_feature: float = 0.0,
        refine_rounds: int | str = "auto",
        nonnegative: bool = False,
        membership_steps: int = 10,
        extra_steps: int | None = None,
        batch_size: int = 50,
        orthogonality: float | str = "auto",
        clip_norm: float = 0.03,
        step: float = 24.0,
        momentum: float | str = "auto",
        gradient_bound: float | None = None,
        on_round: Callable[[RoundRecord, int], None] | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.trust = trust
        self.variant = variant
        self.n_rounds = n_rounds
        self.sites_per_round = sites_per_round
        self.init = init
        self.random_state = random_state
        self.diagnostics = diagnostics
        self.center = center
        self.scale = scale
        self.constant_feature = constant_feature
        self.refine_rounds = refine_rounds
        self.nonnegative = nonnegative
        self.membership_steps = membership_steps
        self.extra_steps = extra_steps
        self.batch_size = batch_size
        self.orthogonality = orthogonality
        self.clip_norm = clip_norm
        self.step = step
        self.momentum = momentum
        self.gradient_bound = gradient_bound
        self.on_round = on_round

    def fit(self, X: Any, y: Any = None, *, sites: Any = None) -> DPFedC:
        """Cluster the records X; `sites` holds one site id per record (None: one site).

        `y` is used for the accuracy in `history_` when diagnostics are on, and for nothing else.
        """
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", ensure_min_samples=1)
        federation = Sites.of(X, sites)
        choices = self._choices(X, federation.n_sites)
        plan = self._plan(choices, federation)
        randomness = Randomness(int(check_random_state(self.random_state).randint(2**31 - 1)))
        rounds: list[RoundRecord] = []

        def record(entry: RoundRecord) -> None:
            rounds.append(entry)
            if self.on_round is not None:
                self.on_round(entry, plan.n_rounds)

        truth = self._truth(y, federation)
        state = run(
            plan.stages,
            federation,
            Gate(randomness, plan.stamps[0]),
            randomness=randomness,
            on_round=record,
            diagnose=self._diagnoser(plan, truth) if self.diagnostics else None,
        )
        self.model_ = self._model(plan, state)
        self.cluster_centers_ = self.model_.cluster_centers
        self.labels_ = self.model_.labels(X)
        self.n_iter_ = len(rounds)
        self._n_features_out = self.n_clusters
        self.history_ = RunRecord(
            "dp-fedc",
            __version__,
            self._settings(choices, federation),
            tuple(rounds),
            (*plan.stamps, EXACT) if self.diagnostics else plan.stamps,
        )
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int32]:
        """Return the cluster of each record."""
        check_is_fitted(self)
        return self.model_.labels(self._checked(X))

    def transform(self, X: Any) -> npt.NDArray[Any]:
        """Return how much each record belongs to each cluster; the largest entry is `predict`'s."""
        check_is_fitted(self)
        return self.model_.memberships(self._checked(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the k-means cost: the sum of squared distances to the nearest centre."""
        check_is_fitted(self)
        _, distances = pairwise_distances_argmin_min(self._checked(X), self.cluster_centers_)
        return -float((distances**2).sum())

    def _checked(self, X: Any) -> npt.NDArray[Any]:
        X = validate_data(self, X, dtype=[np.float64, np.float32], order="C", reset=False)
        return np.asarray(X)

    def _choices(self, X: npt.NDArray[Any], n_sites: int) -> Choices:
        """Return the validated settings, checked against the data where they must agree."""
        require_integer("n_clusters", self.n_clusters, least=1)
        require_choice("variant", self.variant, ("normalized", "published"))
        require_choice("trust", self.trust, TRUST_MODELS)
        require_number("delta", self.delta, above=0, below=1)
        if self.epsilon is not None:
            require_number("epsilon", self.epsilon, above=0)
        if self.n_rounds != "auto":
            require_integer("n_rounds", self.n_rounds, least=1)
        if self.refine_rounds != "auto":
            require_integer("refine_rounds", self.refine_rounds, least=0)
        if self.sites_per_round is not None:
            require_integer("sites_per_round", self.sites_per_round, least=1, most=n_sites)
        if self.orthogonality != "auto":
            require_number("orthogonality", self.orthogonality, least=0)
        if self.gradient_bound is not None:
            require_number("gradient_bound", self.gradient_bound, above=0)
        if self.extra_steps is not None:
            require_integer("extra_steps", self.extra_steps, least=0)
        require_integer("membership_steps", self.membership_steps, least=1)
        require_integer("batch_size", self.batch_size, least=1)
        require_number("clip_norm", self.clip_norm, above=0)
        require_number("step", self.step, above=0)
        if self.momentum != "auto":
            require_number("momentum", self.momentum, least=0, below=1)
        require_number("constant_feature", self.constant_feature, least=0)
        check_records(X, self.n_clusters, nonnegative=self.nonnegative)
        names = [field.name for field in fields(Choices) if field.name != "init"]
        chosen = {name: plain(getattr(self, name)) for name in names}
        return Choices(**chosen, init=self._start(X))

    def _start(self, X: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
        if self.init is None:
            return None
        expected = (self.n_clusters, X.shape[1])
        try:
            init = np.asarray(self.init, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"init must be None or an array of shape {expected}, got {self.init!r}"
            ) from error
        if init.shape != expected:
            raise InvalidInput(f"init must have shape {expected}, got {init.shape}")
        if not np.isfinite(init).all():
            raise InvalidInput("init must be finite, got NaN or infinity")
        return init

    def _plan(self, choices: Choices, sites: Sites) -> RunPlan:
        facts = Federation(self.n_features_in_, np.diff(sites.offsets))
        if self.variant == "published":
            energy = float(np.einsum("ij,ij->", sites.X, sites.X, dtype=np.float64))
            return published_plan(
                choices,
                facts,
                mean_energy=energy / sites.n_sites,
                epsilon=plain(self.epsilon),
                delta=plain(self.delta),
            )
        if self.epsilon is not None:
            raise InvalidInput(
                f"epsilon must be None for variant='normalized', got {self.epsilon}: "
                "private fitting of this variant is not available yet"
            )
        return normalized_plan(choices, facts)

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
            if truth is not None and "W" in state:
                labels = self._model(plan, state).labels(batch.X)
                exact["accuracy"] = clustering_accuracy(truth, labels)
            return exact

        return diagnose

    def _model(self, plan: RunPlan, state: State) -> ClusterModel:
        """Return the model of the state, which may be that of an unfinished run."""
        scale = state.get("scale")
        done = "counts" in state
        W = np.asarray(state["W"])
        published = self.variant == "published"
        return ClusterModel(
            directions=W,
            center=np.asarray(state.get("center", np.zeros(self.n_features_in_))),
            scale=None if scale is None else float(scale),
            centres=np.asarray(state["best_centres"]) if done else None,
            by_membership=not (plan.refine and done),
            constant=0.0 if published else float(self.constant_feature),
            penalty=plan.penalty,
            steps=PUBLISHED_FINAL_STEPS if published else 50,
            nonnegative=self.nonnegative,
            feature_names=tuple(map(str, self.feature_names_in_))
            if hasattr(self, "feature_names_in_")
            else None,
            about={"method": "dp-fedc", "version": __version__, "stamps": list(plan.stamps)},
        )

    def _settings(self, choices: Choices, sites: Sites) -> dict[str, Any]:
        """Return what the run record says of how the run was made."""
        settings = asdict(choices)
        settings["init"] = "random" if choices.init is None else "given"
        seed = self.random_state if isinstance(self.random_state, (int, np.integer)) else None
        return {
            "variant": self.variant,
            "epsilon": plain(self.epsilon),
            "delta": plain(self.delta),
            "trust": self.trust,
            "random_state": plain(seed),
            "n_sites": sites.n_sites,
            "n_records": int(sites.X.shape[0]),
            "n_features": int(sites.X.shape[1]),
            **settings,
        }


def plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python number it stands for; JSON knows no other."""
    return value.item() if isinstance(value, np.generic) else value


def check_records(X: npt.NDArray[Any], n_clusters: int, *, nonnegative: bool) -> None:
    """Say what makes records impossible to cluster."""
    n = len(X)
    if n < n_clusters:
        raise InvalidInput(f"n_samples={n} should be >= n_clusters={n_clusters}")
    least, most = float(X.min()), float(X.max())
    if nonnegative and least < 0:
        raise InvalidInput(f"nonnegative=True needs every value >= 0, got a least value of {least}")
    limits = np.finfo(X.dtype)
    largest, low = float(np.sqrt(limits.max / (8.0 * X.size))), 1e3 * float(np.sqrt(limits.tiny))
    if max(-least, most) > largest:
        raise InvalidInput(
            f"values of X must be at most {largest:.1e} in size, or their squares overflow "
            f"{X.dtype}, got {max(-least, most):.1e}"
        )
    if 0 < most - least < low:
        raise InvalidInput(
            f"values of X must differ by at least {low:.1e}, or their squares underflow "
            f"{X.dtype}, got {most - least:.1e}"
        )
    # A few rows settle it for almost all data; only if too few differ are all rows compared.
    some = X[np.linspace(0, n - 1, min(n, 64 + 4 * n_clusters)).astype(int)]
    if len(np.unique(some, axis=0)) >= max(n_clusters, 2):
        return
    distinct = len(np.unique(X, axis=0))
    if distinct == 1 and n > 1:
        raise InvalidInput(
            f"X is constant: all {n} records are equal, expected at least 2 distinct ones"
        )
    if distinct < n_clusters:
        raise InvalidInput(
            f"X has {distinct} distinct records, expected at least n_clusters={n_clusters}"
        )
