"""DP-FedC as a scikit-learn estimator."""

from __future__ import annotations

import json
import warnings
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
from dpfedc.errors import InvalidInput, UtilityWarning
from dpfedc.evaluation.metrics import clustering_accuracy
from dpfedc.federation.in_process import Diagnose, Sites, run
from dpfedc.methods.protocol import SiteBatch, Stage, State
from dpfedc.model_file import ClusterModel
from dpfedc.planning.facts import Choices, Federation, RunPlan
from dpfedc.planning.normalized import SWAMPED, normalized_plan
from dpfedc.planning.published import PUBLISHED_FINAL_STEPS, published_plan
from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.mechanism import Gate
from dpfedc.privacy.noise import SIMULATED, SimulatedNoise
from dpfedc.randomness import Randomness
from dpfedc.records import RoundRecord, RunRecord
from dpfedc.settings import (
    TRUST_MODELS,
    PrivacyTarget,
    require_bool,
    require_choice,
    require_integer,
    require_number,
)

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
    epsilon : float or None, default=1.0
        How much may be learnt about any one record from everything that leaves the sites (smaller
        is more private). None adds no noise. The published variant adds the noise that the paper
        states for this total loss, which is not a proof of it.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail; well below 1 / n_records.
    trust : {"local", "secure-aggregation", "trusted-server"}, default="local"
        Who adds the noise, and so who must be trusted: each site on its own; the sites together,
        with the server seeing sums only; or the server.
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
    norm_bound : float or "auto", default="auto"
        No record is longer than this, or is clipped to it. "auto" buys a bound with 1 % of the
        budget: a noisy histogram of the records' norms. With epsilon None it sets no bound.
    feature_ranges : array of shape (n_features, 2) or None, default=None
        Public least and largest values of each feature. Replaces norm_bound: lengths are then
        measured from the middle of the ranges.
    constant_feature : float, default=0.0
        A constant appended to every standardised record, so that distance counts beside direction.
    refine_rounds : int or "auto", default="auto"
        Rounds of sums and counts (Lloyd's algorithm) after the factorisation.
    subspace : int, "auto" or None, default="auto"
        Number of dimensions of a private subspace that clustering is confined to; None for none.
    nonnegative : bool, default=False
        Declares that no feature is negative; centres are then kept >= 0.
    membership_steps : int, default=10
        Gradient steps on the memberships in a round (Q1).
    extra_steps : int or None, default=None
        Round t takes floor(extra_steps / t) + 1 steps on the centres at each site (the paper's
        Qhat). None: 0 for the normalized variant, 10 for the published one.
    sampling_probability : float, default=1.0
        The chance of a record to be in a round of the factorisation (normalized, with epsilon).
    min_survivors : int or None, default=None
        The fewest sites whose uploads arrive in a round under secure aggregation; None: all.
    colluding_sites : int, default=0
        How many sites may work with the server against the others under secure aggregation.
    batch_size : int, default=50
        Records in a mini-batch (published variant).
    orthogonality : float or "auto", default="auto"
        Weight of the penalty that makes memberships hard (rho). The normalized variant starts low
        and ends at this value, by default 1.
    clip_norm : float or "auto", default="auto"
        The most that one record may add to a round's gradient.
    step : float or "auto", default="auto"
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
    privacy_ : PrivacyGuarantee or None
        What the run promises for every record; None where nothing is proved.
    model_ : ClusterModel
        Everything `predict` needs; can be written to a file.

    Examples
    --------
    >>> import numpy as np
    >>> from dpfedc import DPFedC
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    >>> model = DPFedC(n_clusters=3, epsilon=None, random_state=0)
    >>> model = model.fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        epsilon: float | None = 1.0,
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
        norm_bound: float | str = "auto",
        feature_ranges: Any = None,
        constant_feature: float = 0.0,
        refine_rounds: int | str = "auto",
        subspace: int | str | None = "auto",
        nonnegative: bool = False,
        membership_steps: int = 10,
        extra_steps: int | None = None,
        sampling_probability: float = 1.0,
        min_survivors: int | None = None,
        colluding_sites: int = 0,
        batch_size: int = 50,
        orthogonality: float | str = "auto",
        clip_norm: float | str = "auto",
        step: float | str = "auto",
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
        self.norm_bound = norm_bound
        self.feature_ranges = feature_ranges
        self.constant_feature = constant_feature
        self.refine_rounds = refine_rounds
        self.subspace = subspace
        self.nonnegative = nonnegative
        self.membership_steps = membership_steps
        self.extra_steps = extra_steps
        self.sampling_probability = sampling_probability
        self.min_survivors = min_survivors
        self.colluding_sites = colluding_sites
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
        noise = None if self.epsilon is None else SimulatedNoise(randomness)
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
        self.model_ = self._model(plan, state, {"stamps": list(stamps), "privacy": promise})
        self.cluster_centers_ = self.model_.cluster_centers
        self.labels_ = self.model_.labels(X)
        self.n_iter_ = len(rounds)
        self._n_features_out = self.n_clusters
        self.history_ = RunRecord(
            "dp-fedc",
            __version__,
            self._settings(choices, federation),
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
        require_choice("variant", self.variant, ("normalized", "published"))
        require_choice("trust", self.trust, TRUST_MODELS)
        for name in ("center", "scale", "nonnegative", "diagnostics"):
            require_bool(name, getattr(self, name))
        for name, least, most, free in (
            ("n_clusters", 1, None, ()),
            ("n_rounds", 1, None, ("auto",)),
            ("refine_rounds", 0, None, ("auto",)),
            ("sites_per_round", 1, n_sites, (None,)),
            ("subspace", 1, X.shape[1], (None, "auto")),
            ("membership_steps", 1, None, ()),
            ("extra_steps", 0, None, (None,)),
            ("batch_size", 1, None, ()),
            ("min_survivors", 1, None, (None,)),
            ("colluding_sites", 0, None, ()),
        ):
            if not left_open(getattr(self, name), free):
                require_integer(name, getattr(self, name), least=least, most=most)
        for name, limits, free in (
            ("epsilon", {"above": 0}, (None,)),
            ("delta", {"above": 0, "below": 1}, ()),
            ("norm_bound", {"above": 0}, ("auto",)),
            ("constant_feature", {"least": 0}, ()),
            ("sampling_probability", {"above": 0, "most": 1}, ()),
            ("orthogonality", {"least": 0}, ("auto",)),
            ("clip_norm", {"above": 0}, ("auto",)),
            ("step", {"above": 0}, ("auto",)),
            ("momentum", {"least": 0, "below": 1}, ("auto",)),
            ("gradient_bound", {"above": 0}, (None,)),
        ):
            if not left_open(getattr(self, name), free):
                require_number(name, getattr(self, name), **limits)
        if self.constant_feature and not left_open(self.subspace, (None, "auto")):
            raise InvalidInput(
                "subspace must be None or 'auto' with a constant_feature, "
                f"got {self.subspace}: the constant is no part of a subspace"
            )
        if self.feature_ranges is not None:
            checked_ranges(self.feature_ranges, X.shape[1])
        check_records(X, self.n_clusters, nonnegative=self.nonnegative)
        names = [f.name for f in fields(Choices) if f.name not in ("init", "declared_bound")]
        chosen = {name: plain(getattr(self, name)) for name in names}
        declared = self.feature_ranges is not None or not left_open(self.norm_bound, ("auto",))
        return Choices(**chosen, declared_bound=declared, init=self._start(X))

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
        target = None
        if self.epsilon is not None:
            target = PrivacyTarget(
                plain(self.epsilon),
                plain(self.delta),
                self.trust,
                plain(self.min_survivors),
                plain(self.colluding_sites),
            )
        if self.variant == "published":
            energy = float(np.einsum("ij,ij->", sites.X, sites.X, dtype=np.float64))
            energy /= sites.n_sites
            return published_plan(choices, facts, mean_energy=energy, target=target)
        plan = normalized_plan(choices, facts, target)
        warn_of_poor_results(plan, facts)
        return plan

    def _declared(self, sites: Sites) -> State:
        """Return what the user declared of the records: where they lie and how long they are."""
        asarray = sites.public.asarray
        if self.variant == "published":
            return {}
        if self.feature_ranges is not None:
            ranges = checked_ranges(self.feature_ranges, self.n_features_in_)
            bound = np.linalg.norm(ranges[:, 1] - ranges[:, 0]) / 2
            return {"origin": asarray(ranges.mean(axis=1)), "bound": asarray(bound)}
        if self.norm_bound != "auto":
            return {"bound": asarray(np.asarray(self.norm_bound))}
        return {}

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
                labels = self._model(plan, state, {}).labels(batch.X)
                exact["accuracy"] = clustering_accuracy(truth, labels)
            return exact

        return diagnose

    def _model(self, plan: RunPlan, state: State, about: dict[str, Any]) -> ClusterModel:
        """Return the model of the state, which may be that of an unfinished run."""
        scale = state.get("scale")
        done = "counts" in state
        W = np.asarray(state["W"])
        if "basis" in state:
            W = W @ np.asarray(state["basis"])
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
            about={"method": "dp-fedc", "version": __version__, **about},
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


def left_open(value: Any, free: tuple[str | None, ...]) -> bool:
    """Return whether a setting has one of the values that leave it to the plan."""
    return (value is None or isinstance(value, str)) and value in free


def checked_ranges(ranges: Any, n_features: int) -> npt.NDArray[np.float64]:
    """Return the least and largest values of the features, or say what was expected of them."""
    expected = f"finite numbers of shape ({n_features}, 2) with least < largest in every row"
    try:
        values = np.asarray(ranges, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"feature_ranges must hold {expected}, got {ranges!r}") from error
    if values.shape != (n_features, 2):
        raise InvalidInput(f"feature_ranges must hold {expected}, got shape {values.shape}")
    wrong = ~(np.isfinite(values).all(axis=1) & (values[:, 0] < values[:, 1]))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidInput(f"feature_ranges must hold {expected}, got {values[i]} in row {i}")
    return values


def warn_of_poor_results(plan: RunPlan, facts: Federation) -> None:
    """Warn where the noise is likely to swamp the clusters, or delta is too large to mean much."""
    if plan.privacy is None:
        return
    if plan.noise_ratio > SWAMPED:
        warnings.warn(
            f"the noise is likely to swamp the clusters: its ratio to their signal is "
            f"{plan.noise_ratio:.2g}, expected below {SWAMPED}. More records, fewer clusters, a "
            "larger epsilon or trust='secure-aggregation' would lower it",
            UtilityWarning,
            stacklevel=4,
        )
    if plan.privacy.delta >= 1 / facts.n_records:
        warnings.warn(
            f"delta should be well below 1 / n_records = {1 / facts.n_records:.2g}, got "
            f"{plan.privacy.delta:.2g}; {0.1 / facts.n_records:.1g} would do",
            UtilityWarning,
            stacklevel=4,
        )


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
